/** Scales of a chart, and ticks that have room for their texts. */

import { said, type Tongue } from "../language";
import { ticks } from "../timeline/numbers";
import type { Axis } from "./data";

export interface Scale {
  (value: number): number;
  domain: [number, number];
  range: [number, number]; // px
}

export interface Tick {
  at: number;
  text: string;
}

const FEWEST = 3; // ticks, where their texts have room

type Measure = (text: string) => number;

/** The scale of `axis` over the px from..to; `reached` are all positions of marks. */
export function scaleOf(axis: Axis, reached: number[], from: number, to: number): Scale {
  const finite = reached.filter(Number.isFinite);
  const log = axis.scale !== "linear";
  const usable = log ? finite.filter((value) => value > 0) : finite;
  let least = axis.least ?? usable.reduce((a, b) => Math.min(a, b), Infinity);
  let most = axis.most ?? usable.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!Number.isFinite(least)) least = log ? 1 : 0;
  if (!Number.isFinite(most)) most = log ? 2 : 1;
  if (most === least) [least, most] = log ? [least / 2, most * 2] : [least - 0.5, most + 0.5];
  const bent = log ? Math.log : (value: number) => value;
  const step = (to - from) / (bent(most) - bent(least));
  const scale = (value: number) => from + step * (bent(value) - bent(least));
  return Object.assign(scale, { domain: [least, most] as [number, number], range: [from, to] as [number, number] });
}

/** A number as people read it: at most four digits, powers of ten beyond. */
export function numberText(value: number): string {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential().replace("e+", "e");
  return value.toLocaleString("en", { maximumFractionDigits: 3, maximumSignificantDigits: 6 });
}

/** The positions that may be labelled, coarser from one list to the next. */
function* candidates(axis: Axis, scale: Scale, room: number): Generator<number[]> {
  const [least, most] = scale.domain;
  if (axis.ticks) {
    for (let every = 1; every <= axis.ticks.length; every++) {
      yield axis.ticks.filter((_, at) => at % every === 0);
    }
  } else if (axis.scale === "linear") {
    let finest = Math.max(room, 2); // multiples of 1, 2 and 5 may give half as many, then finer ones
    while (finest < 8 && ticks(least, most, finest).values.length < FEWEST) finest++;
    for (let count = finest; count >= 2; count--) {
      yield ticks(least, most, count).values;
    }
  } else {
    const base = axis.scale === "log2" ? 2 : 10;
    const power = (value: number) => Math.log(value) / Math.log(base);
    const [first, last] = [Math.ceil(power(least) - 1e-9), Math.floor(power(most) + 1e-9)];
    for (let every = 1; every <= Math.max(last - first, 1); every++) {
      const powers: number[] = [];
      for (let at = first; at <= last; at += every) powers.push(base ** at);
      yield powers;
    }
  }
}

interface Room {
  gap: number; // px between texts, at least
  pace?: number; // px from tick to tick, at least
  tongue?: Tongue;
}

/** The most ticks of `axis` whose texts have `room`. */
export function ticksOf(axis: Axis, scale: Scale, size: Measure, room: Room): Tick[] {
  const { gap, pace = 40, tongue = "en" } = room;
  const [from, to] = scale.range;
  const count = Math.floor(Math.abs(to - from) / pace);
  const [least, most] = scale.domain;
  const slack = 1e-9 * (most - least);
  let ticks: Tick[] = [];
  for (const values of candidates(axis, scale, count)) {
    ticks = values
      .filter((value) => value >= least - slack && value <= most + slack)
      .map((value) => ({ at: value, text: said(textOf(axis, value), tongue) }));
    if (apart(ticks, scale, size, gap)) return ticks;
  }
  return ticks.slice(0, 1);
}

function textOf(axis: Axis, value: number): string {
  const at = axis.ticks?.indexOf(value) ?? -1;
  return axis.names?.[at] ?? numberText(value);
}

function apart(ticks: Tick[], scale: Scale, size: Measure, gap: number): boolean {
  return ticks.every((tick, at) => {
    const before = ticks[at - 1];
    if (!before) return true;
    const between = Math.abs(scale(tick.at) - scale(before.at));
    return between >= (size(tick.text) + size(before.text)) / 2 + gap;
  });
}
