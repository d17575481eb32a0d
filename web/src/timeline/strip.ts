/** The memory strip of a panel and the axes. */

import { word, worded, type Tongue } from "../language";
import { countUpTo, ticks } from "./numbers";
import type { Curve } from "./panel";
import { SMALL, type Pen } from "./pen";
import { rankColour } from "./rows";
import type { Plot, View } from "./view";

const APART = 12; // px from number to number, at least
const PACE = 16; // px from one of many numbers to the next

/** A time axis at height `y`, with its numbers where `numbered`. */
export function drawAxis(pen: Pen, view: View, y: number, numbered: boolean): void {
  const [from, to] = view.range;
  const { values, decimals } = ticks(from * 1e3, to * 1e3, view.width / 90);
  pen.fill(pen.theme.axis, view.left, y, view.width, pen.thin);
  for (const value of values) {
    pen.fill(pen.theme.axis, view.x(value / 1e3), y, pen.thin, 4);
    const look = { part: "axis", align: "center", font: SMALL } as const;
    const digits = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
    if (numbered) pen.write(value.toLocaleString("en", digits), view.x(value / 1e3), y + 15, look);
  }
}

/** The strip of `plot`, which ends at `most` microbatches. */
export function drawStrip(pen: Pen, view: View, plot: Plot, most: number, tongue: Tongue): void {
  const { panel, strip, tall } = plot;
  const { peak, cap = null, ranks, memory_label: given } = panel.packed;
  const label = worded(given.replace("\n", " "), tongue);
  const small = { part: "strip", font: SMALL, colour: pen.theme.muted };
  if (!peak) {
    pen.write(word("unrecorded", tongue), view.left, strip + tall / 2, small);
    return;
  }
  const coloured = rankColour(panel, 0, pen) !== undefined;
  const range = tongue === "en" ? `, least to most of the ${ranks} ranks` : `，${ranks} 个 rank 中最少至最多`;
  pen.write(label + (coloured ? "" : range), view.left, strip - 4, { ...small, most: view.width });
  const y = (amount: number) => strip + tall * (1 - amount / (1.1 * most || 1));
  for (const value of amounts(peak, most, tall)) {
    pen.fill(pen.theme.grid, view.left, y(value), view.width, pen.thin);
    const look = { part: "strip", align: "right", font: SMALL } as const;
    pen.write(String(Number(value.toPrecision(3))), view.left - 6, y(value) + 4, look);
  }
  pen.within(view.left, strip - 2, view.width, tall + 4, () => {
    if (!coloured) drawBand(pen, view, plot, y);
    else panel.curves.forEach((curve, rank) => {
      drawCurve(pen, view, curve, panel.packed.end_s, y, rankColour(panel, rank, pen)!);
    });
    if (cap !== null) drawCap(pen, view, plot, y(cap), y);
  });
}

/**
 * The amounts that stand beside a strip of `tall` px which ends a little above `most`: 0, the peak and
 * `most`, as far as they have room, and between them whole numbers at equal distances.
 */
export function amounts(peak: number, most: number, tall: number): number[] {
  const px = tall / (1.1 * most);
  const found = [0];
  const add = (value: number) => {
    if (found.every((other) => Math.abs(other - value) * px >= APART)) found.push(value);
  };
  add(peak);
  add(most);
  let parts = Math.floor((peak * px) / PACE);
  while (parts > 1 && !Number.isInteger(peak / parts)) parts--;
  if (parts && Number.isInteger(peak)) {
    const step = peak / parts;
    for (let value = step; value < (most % step ? peak : most); value += step) add(value);
  }
  return found.sort((a, b) => a - b);
}

type Height = (amount: number) => number;

/**
 * A step line, thinned to what one can see: per half pixel at most its lowest, its highest and its
 * last amount.
 */
function drawCurve(pen: Pen, view: View, { times, amounts }: Curve, end: number, y: Height, colour: string) {
  const [from, to] = view.range;
  const first = Math.max(countUpTo(from, times.length, (at) => times[at]) - 1, 0);
  let [column, low, high, last] = [view.x(times[first]), ...Array(3).fill(amounts[first])];
  pen.stroke(colour, 1.4, (context) => {
    context.moveTo(column, y(last));
    const finish = (x: number) => {
      if (low < last) context.lineTo(column, y(low));
      if (high > last) context.lineTo(column, y(high));
      context.lineTo(column, y(last));
      context.lineTo(x, y(last));
    };
    for (let at = first + 1; at < times.length && times[at] <= to; at++) {
      const x = view.x(times[at]);
      if (x - column >= 0.5) {
        finish(x);
        [column, low, high] = [x, amounts[at], amounts[at]];
      }
      low = Math.min(low, amounts[at]);
      high = Math.max(high, amounts[at]);
      last = amounts[at];
    }
    finish(view.x(end));
  });
}

/** Of many ranks: the most and the least that any of them holds, pixel by pixel. */
function drawBand(pen: Pen, view: View, { panel }: Plot, y: Height): void {
  const most = new Float32Array(Math.ceil(view.width) + 1).fill(-Infinity);
  const least = most.map(() => Infinity);
  const pixel = (time: number) =>
    Math.min(Math.max(Math.floor(view.x(time) - view.left), 0), most.length - 1);
  const stop = pixel(panel.packed.end_s);
  const [from, to] = view.range;
  for (const { times, amounts } of panel.curves) {
    const first = Math.max(countUpTo(from, times.length, (at) => times[at]) - 1, 0);
    for (let at = first; at < times.length && times[at] <= to; at++) {
      const until = at + 1 < times.length ? pixel(times[at + 1]) : stop;
      for (let column = pixel(times[at]); column <= until; column++) {
        if (amounts[at] > most[column]) most[column] = amounts[at];
        if (amounts[at] < least[column]) least[column] = amounts[at];
      }
    }
  }
  for (let column = 0; column <= stop; column++) {
    const [top, bottom] = [y(most[column]), y(least[column])];
    pen.fill(pen.theme.grid, view.left + column, top, 1, bottom - top);
    for (const edge of [top, bottom]) {
      pen.fill(pen.theme.ink, view.left + column, edge - 0.7, 1, 1.4);
    }
  }
}

/** The cap as a dashed line, and a cross where a rank first holds more. */
function drawCap(pen: Pen, view: View, { panel }: Plot, height: number, y: Height): void {
  pen.context.setLineDash([6, 4]);
  pen.stroke(pen.theme.cap, 1.6, (context) => {
    context.moveTo(view.x(0), height);
    context.lineTo(view.x(panel.packed.end_s), height);
  });
  pen.context.setLineDash([]);
  pen.stroke(pen.theme.cap, 1.6, (context) => {
    for (const [time, amount] of panel.packed.breaches) {
      for (const slope of [-1, 1]) {
        context.moveTo(view.x(time) - 4, y(amount) - 4 * slope);
        context.lineTo(view.x(time) + 4, y(amount) + 4 * slope);
      }
    }
  });
}
