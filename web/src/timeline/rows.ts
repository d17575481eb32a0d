/** The rows of a panel: ops as boxes, idle time hatched, the critical path. */

import { ON_LIGHT, RANK_COLOURS, lineColour, word, type Tongue } from "../language";
import type { Panel } from "./panel";
import { SMALL, TINY, type Pen } from "./pen";
import { raster } from "./raster";
import type { Plot, View } from "./view";

const BAR = 0.82; // bars take this part of a row
const OUTLINED = 7; // boxes get outlines if they are this wide on average, px

/** The colour of a rank's line in the memory strip; undefined where there are too many ranks. */
export function rankColour(panel: Panel, rank: number, pen: Pen): string | undefined {
  if (!panel.packed.peak || panel.packed.ranks > RANK_COLOURS.length) return undefined;
  return rank === 0 ? pen.theme.rank_0 : lineColour(RANK_COLOURS[rank], pen.theme);
}

/** The name of a row; with its stages where the rank's number does not tell them. */
export function rowName(panel: Panel, rank: number, tongue: Tongue): string {
  const stages = panel.packed.stages[rank];
  const name = `${word(panel.packed.row ?? "rank", tongue)} ${rank}`;
  if (stages.length < 2 || stages.length > 3) return name;
  return `${name} · ${word("stage", tongue)} ${stages.join(tongue === "en" ? ", " : "、")}`;
}

/** Top and height of the bar of `rank`, px, on device pixels. */
export function bar({ top, row }: Plot, rank: number, scale: number): [number, number] {
  const height = Math.max(Math.round(row * BAR * scale), 1) / scale;
  return [Math.round((top + rank * row + (row - height) / 2) * scale) / scale, height];
}

export function drawRows(pen: Pen, view: View, plot: Plot, tongue: Tongue): void {
  const { panel, top, row } = plot;
  const { ranks, end_s: end } = panel.packed;
  const seen = panel.seen(view.range);
  const width = Math.round(view.width * pen.scale);
  const window = { from: view.range[0], perSecond: view.perSecond * pen.scale, width };
  const picture = raster(panel, seen, window, pen.theme.waiting);
  const hatch = pen.hatch();
  const right = Math.min(view.x(end), view.left + view.width);
  const left = Math.max(view.x(0), view.left);
  pen.context.imageSmoothingEnabled = false;
  for (let rank = 0; rank < ranks; rank++) {
    const [y, height] = bar(plot, rank, pen.scale);
    if (right > left) pen.fill(hatch, left, y, right - left, height);
    pen.context.drawImage(picture, 0, rank, width, 1, view.left, y, width / pen.scale, height);
    const colour = rankColour(panel, rank, pen);
    if (colour) pen.fill(colour, view.left - 6, y, 3, height);
    if (rank % Math.ceil(13 / row) !== 0) continue;
    const name = rowName(panel, rank, tongue);
    const look = { part: "rows", align: "right", font: SMALL } as const;
    pen.write(name, view.left - 9, y + height / 2 + 4, look);
  }
  pen.within(view.left, top, view.width, row * ranks, () => {
    if (wideOnAverage(panel, seen, view)) {
      const look = numbers(pen, view, plot, seen);
      seen.forEach((boxes, rank) => outline(pen, view, plot, boxes, rank, look));
    }
    if (panel.path) drawPath(pen, view, plot);
  });
}

function wideOnAverage({ start, end }: Panel, seen: Uint32Array[], view: View): boolean {
  let count = 0;
  let together = 0;
  for (const boxes of seen) {
    count += boxes.length;
    for (const box of boxes) together += end[box] - start[box];
  }
  return together * view.perSecond >= OUTLINED * count;
}

/** What the numbers of a panel are written in, the same in all its boxes, and the room that the longest
 * number needs: small ones where some box has no room for others. */
function numbers(pen: Pen, view: View, { panel }: Plot, seen: Uint32Array[]): { font: string; room: number } {
  const [usual, tiny] = [[SMALL, 4], [TINY, 3]].map(([font, air]) => ({
    font: font as string,
    room: pen.measure("0", font as string) * panel.digits() + (air as number),
  }));
  let narrowest = Infinity;
  for (const boxes of seen) {
    for (const box of boxes) {
      const width = (panel.end[box] - panel.start[box]) * view.perSecond;
      if (width >= tiny.room && width < narrowest) narrowest = width;
    }
  }
  return narrowest < usual.room ? tiny : usual;
}

/** Outlines of `boxes`, and the microbatch in those where the longest number of the panel has room:
 * of boxes of one width all are labelled or none is, for a row of numbers that ends where they get two
 * digits looks broken. */
function outline(
  pen: Pen,
  view: View,
  plot: Plot,
  boxes: Uint32Array,
  rank: number,
  { font, room }: { font: string; room: number },
): void {
  const { panel } = plot;
  const { context, scale, thin } = pen;
  const [top, height] = bar(plot, rank, scale);
  const snap = (x: number) => (Math.round(x * scale) + 0.5) / scale;
  const labelled = height >= 10;
  Object.assign(context, { fillStyle: ON_LIGHT, textAlign: "center", textBaseline: "middle", font });
  pen.stroke(pen.theme.outline, thin, () => {
    for (const box of boxes) {
      const left = view.x(panel.start[box]);
      const right = view.x(panel.end[box]);
      context.rect(snap(left), snap(top), snap(right) - snap(left), height - thin);
      if (!labelled || right - left < room) continue;
      context.fillText(panel.microbatch(box), (left + right) / 2, top + height / 2 + 1);
    }
  });
}

/** A frame round `box`: it is locked, or the keys have gone there. */
export function drawFocus(pen: Pen, view: View, plot: Plot, box: number): void {
  const [y, height] = bar(plot, plot.panel.rank[box], pen.scale);
  const x = view.x(plot.panel.start[box]);
  const width = Math.max(view.x(plot.panel.end[box]) - x, 2);
  pen.within(view.left - 3, plot.top - 3, view.width + 6, plot.strip - plot.top, () => {
    pen.stroke(pen.theme.background, 5, (context) => context.rect(x, y, width, height));
    pen.stroke(pen.theme.ink, 2.5, (context) => context.rect(x, y, width, height));
  });
}

function drawPath(pen: Pen, view: View, plot: Plot): void {
  const { path, start, end, rank } = plot.panel;
  pen.stroke(pen.theme.path, 2.2, (context) => {
    path!.forEach((box, at) => {
      const [top, height] = bar(plot, rank[box], pen.scale);
      const right = view.x(end[box]);
      const next = path![at + 1];
      context.rect(view.x(start[box]), top, right - view.x(start[box]), height);
      if (next === undefined) return;
      const side = Math.sign(rank[next] - rank[box]); // where the next box lies: below 1, above -1
      const [nextTop] = bar(plot, rank[next], pen.scale);
      context.moveTo(right, top + (height * (1 + side)) / 2);
      context.lineTo(view.x(start[next]), nextTop + (height * (1 - side)) / 2);
    });
  });
}
