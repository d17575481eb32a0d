/** A picture as data, as `simlab/views/chart.py` makes it. */

import type { Tongue } from "../language";

export type Words = Record<Tongue, string>;
export type Pattern = "plain" | "striped" | "dotted" | "hatched";

export interface Axis {
  label: Words;
  scale: "linear" | "log2" | "log10";
  least?: number | null; // Pyodide makes None undefined
  most?: number | null;
  ticks?: number[] | null;
  names?: string[] | null;
  down: boolean;
}

interface Common {
  colour: string;
  name?: Words | null;
  tips?: Words[] | null;
}

export interface Line extends Common {
  mark: "line";
  x: number[];
  y: number[];
  dash?: number[] | null;
  stepped: boolean;
}

export interface Area extends Common {
  mark: "area";
  x: number[];
  low: number[];
  high: number[];
  pattern: Pattern;
  stepped: boolean;
}

export interface Boxes extends Common {
  mark: "boxes";
  x0: number[];
  x1: number[];
  y0: number[];
  y1: number[];
  pattern: Pattern;
  outline?: string | null;
  labels?: string[] | null;
  opens?: string[] | null; // what a click on each gives the chart's control
}

export interface Dots extends Common {
  mark: "dots";
  x: number[];
  y: number[];
  symbol: "circle" | "ring" | "diamond" | "triangle" | "cross";
  radius: number;
  labels?: string[] | null;
}

export interface Arrows extends Common {
  mark: "arrows";
  x0: number[];
  y0: number[];
  x1: number[];
  y1: number[];
  labels?: string[] | null;
}

export interface Rule extends Common {
  mark: "rule";
  x?: number | null;
  y?: number | null;
  dash?: number[] | null;
}

export type Mark = Line | Area | Boxes | Dots | Arrows | Rule;

export interface Chart {
  picture: "chart";
  key: string;
  title: Words;
  x: Axis;
  y: Axis;
  marks: Mark[];
  height: number;
  square: boolean;
  bare: boolean;
  wide?: boolean;
  timed?: boolean; // x is time, ms
  control?: string;
}

/** All positions of a mark on one axis. */
export function reach(mark: Mark, axis: "x" | "y"): number[] {
  if (mark.mark === "rule") return [mark[axis] ?? []].flat();
  if (mark.mark === "boxes" || mark.mark === "arrows") return [...mark[`${axis}0`], ...mark[`${axis}1`]];
  if (mark.mark === "area") return axis === "x" ? mark.x : [...mark.low, ...mark.high];
  return mark[axis];
}

/** [name, marks of that name] in the order in which names first occur. */
export function named(marks: Mark[]): [Words, Mark[]][] {
  const found = new Map<string, [Words, Mark[]]>();
  for (const mark of marks) {
    if (!mark.name) continue;
    const key = `${mark.name.en}\n${mark.name.zh}`;
    if (!found.has(key)) found.set(key, [mark.name, []]);
    found.get(key)![1].push(mark);
  }
  return [...found.values()];
}
