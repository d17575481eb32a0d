/** The legend: exactly what is drawn, nothing else. */

import { OPS, colourOf, nameOf, shade, word, type Tongue } from "../language";
import type { Panel } from "./panel";
import type { Pen } from "./pen";
import { LINE } from "./view";

const SWATCH = 13;
const SPACE = 18;

export interface Entry {
  text: string;
  fills: string[]; // side by side in one swatch
  mark?: "idle" | "path" | "cap";
}

export function entries(panels: Panel[], tongue: Tongue): Entry[] {
  const chunks = Math.max(...panels.map((panel) => panel.chunks));
  const used = OPS.filter((kind) => panels.some(({ packed }) => packed.used.includes(kind)));
  const found: Entry[] = used.map((kind) => ({
    text: `${kind} ${nameOf(kind, tongue)}`,
    fills: fillsOf(kind, panels),
  }));
  if (chunks > 1) found.push({ text: shadesText(chunks, tongue), fills: [] });
  if (panels.some((panel) => idles(panel))) {
    found.push({ text: nameOf("waiting", tongue), fills: [], mark: "idle" });
  }
  const marks = { path: "critical path", cap: "cap" } as const;
  if (panels.some((panel) => panel.path)) {
    found.push({ text: word(marks.path, tongue), fills: [], mark: "path" });
  }
  if (panels.some(({ packed }) => (packed.cap ?? null) !== null)) {
    found.push({ text: word(marks.cap, tongue), fills: [], mark: "cap" });
  }
  return found;
}

/** The shades of a kind that are drawn: those of the panel with the most chunks that has it. */
export function fillsOf(kind: string, panels: Panel[]): string[] {
  const having = panels.filter(({ packed }) => packed.used.includes(kind));
  const chunks = Math.max(...having.map((panel) => panel.chunks));
  return Array.from({ length: chunks }, (_, chunk) => shade(colourOf(kind), chunk, chunks));
}

/** "shades: chunks 0, 1" */
function shadesText(chunks: number, tongue: Tongue): string {
  const numbers = chunks <= 3 ? [...Array(chunks).keys()].join(tongue === "en" ? ", " : "、") : `0–${chunks - 1}`;
  return `${word("chunks", tongue)} ${numbers}`;
}

/** Whether any rank is idle at any time. */
function idles({ start, end, packed }: Panel): boolean {
  let busy = 0;
  for (let box = 0; box < start.length; box++) busy += end[box] - start[box];
  return busy < packed.ranks * packed.end_s * (1 - 1e-6);
}

/** [the entries of each line] that fit into `width` px. */
export function lines(pen: Pen, found: Entry[], width: number): Entry[][] {
  const wrapped: Entry[][] = [[]];
  let x = 0;
  for (const entry of found) {
    const wide = size(pen, entry);
    if (x > 0 && x + wide - SPACE > width) {
      wrapped.push([]);
      x = 0;
    }
    wrapped.at(-1)!.push(entry);
    x += wide;
  }
  return wrapped;
}

function size(pen: Pen, entry: Entry): number {
  const swatch = entry.fills.length > 0 || entry.mark ? swatchWidth(entry) + 5 : 0;
  return swatch + pen.measure(entry.text) + SPACE;
}

function swatchWidth({ fills }: Entry): number {
  return Math.max(SWATCH, 9 * Math.min(fills.length, 4));
}

export function drawLegend(pen: Pen, wrapped: Entry[][], left: number): void {
  wrapped.forEach((line, number) => {
    let x = left;
    const y = 4 + LINE * number;
    for (const entry of line) {
      const wide = swatchWidth(entry);
      const drawn = entry.fills.length > 0 || entry.mark !== undefined;
      if (drawn) drawSwatch(pen, entry, x, y, wide);
      pen.write(entry.text, x + (drawn ? wide + 5 : 0), y + 11, { part: "legend" });
      x += size(pen, entry);
    }
  });
}

function drawSwatch(pen: Pen, { fills, mark }: Entry, x: number, y: number, wide: number): void {
  const { theme } = pen;
  const each = wide / Math.max(fills.length, 1);
  fills.forEach((fill, at) => pen.fill(fill, x + at * each, y, each, SWATCH));
  if (mark === "idle") pen.fill(pen.hatch(), x, y, wide, SWATCH);
  const line = { idle: theme.axis, path: theme.path, cap: theme.cap };
  if (mark === "cap") {
    pen.context.setLineDash([4, 3]);
    pen.stroke(theme.cap, 1.6, (context) => {
      context.moveTo(x, y + SWATCH / 2);
      context.lineTo(x + wide, y + SWATCH / 2);
    });
    pen.context.setLineDash([]);
    return;
  }
  pen.stroke(mark ? line[mark] : theme.outline, mark === "path" ? 2 : pen.thin, (context) =>
    context.rect(x, y, wide, SWATCH),
  );
}
