/** A chart as SVG text: pure, so that it can be tested without a browser. */

import { said, type Theme, type Tongue } from "../language";
import { scaleOf, ticksOf, type Scale, type Tick } from "./axes";
import { reach, type Chart } from "./data";
import { SMALL_PX } from "./labels";
import { Drawing, overhang, type Frame, type Place } from "./marks";
import { Patterns, escape } from "./paint";

export interface Drawn {
  svg: string;
  places: Place[];
  x: Scale;
  y: Scale;
}

export interface Look {
  theme: Theme;
  tongue: Tongue;
  width: number;
  id: string; // of this drawing in its page
  size: (text: string) => number; // px of a small text
}

const HEAD = 18; // px of the label of the y axis, above the plot
const FOOT = 36; // px of ticks and label of the x axis
const EDGE = 4;
const NAMES_GAP = 2; // px between the names of rows, of which none may be missing

export function draw(chart: Chart, look: Look): Drawn {
  const { width, theme, tongue, size } = look;
  const all = (axis: "x" | "y") => chart.marks.flatMap((mark) => reach(mark, axis));
  const [xs, ys] = [all("x"), all("y")];
  const over = overhang(chart.marks);
  const free = ({ least, most }: Chart["x"]) => ((least ?? null) === null || (most ?? null) === null ? over : 0);
  const [overX, overY] = [free(chart.x), free(chart.y)];
  const frame = frameOf(chart, look, ys);
  squared(chart, frame, xs, ys);
  const [low, high] = [frame.bottom - overY, frame.top + overY];
  const x = scaleOf(chart.x, xs, frame.left + overX, frame.right - overX);
  const y = scaleOf(chart.y, ys, ...((chart.y.down ? [high, low] : [low, high]) as [number, number]));
  const patterns = new Patterns(theme, look.id);
  const drawing = new Drawing(x, y, frame, theme, patterns, size, tongue);
  const axes = chart.bare ? "" : axesOf(chart, look, frame, x, y);
  // over the marks, whose borders would cut it into pieces
  const edges = chart.bare ? "" : line(`M${frame.left},${frame.top}V${frame.bottom}H${frame.right}`, theme.axis);
  const marks = chart.marks.map((mark) => drawing.draw(mark)).join("");
  const texts = drawing.texts(chart.marks);
  const clip = `${look.id}-clip`;
  const { left, top, right, bottom } = frame;
  const room = `<clipPath id="${clip}"><rect x="${left - 1}" y="${top - 1}" width="${right - left + 2}" height="${bottom - top + 2}"/></clipPath>`;
  const scales = `data-x="${[...x.domain, ...x.range].join(" ")}" data-y="${[...y.domain, ...y.range].join(" ")}"`;
  const font = `font-family="system-ui, 'Noto Sans CJK SC', sans-serif" font-size="${SMALL_PX}"`;
  const head = `width="${width}" height="${chart.height}" viewBox="0 0 ${width} ${chart.height}"`;
  const label = `role="img" aria-label="${escape(said(chart.title[tongue], tongue))}"`;
  const svg = `<svg ${head} ${scales} ${font} ${label} style="display: block">${room}${patterns.defs}${axes}<g clip-path="url(#${clip})">${marks}</g>${edges}${texts}</svg>`;
  return { svg, places: drawing.places, x, y };
}

/** Where the plot is, so that the texts of the axes have room around it. */
function frameOf(chart: Chart, { width, size, tongue }: Look, ys: number[]): Frame {
  const bare = { left: EDGE, top: EDGE, right: width - EDGE, bottom: chart.height - EDGE };
  if (chart.bare) return bare;
  const frame = { ...bare, top: (chart.y.label[tongue] ? HEAD : 2) + 4, bottom: chart.height - FOOT, right: width - 14 };
  const ticks = yTicks(chart, scaleOf(chart.y, ys, frame.bottom, frame.top), tongue);
  frame.left = Math.max(24, ...ticks.map(({ text }) => size(text))) + 10;
  return frame;
}

function yTicks(chart: Chart, y: Scale, tongue: Tongue): Tick[] {
  return ticksOf(chart.y, y, () => SMALL_PX, { gap: chart.y.names ? NAMES_GAP : 4, pace: 26, tongue });
}

/** Makes a unit as long on both axes, by leaving room out on the right or below. */
function squared(chart: Chart, frame: Frame, xs: number[], ys: number[]): void {
  if (!chart.square) return;
  const span = (axis: Chart["x"], reached: number[]) => {
    const [least, most] = scaleOf(axis, reached, 0, 1).domain;
    return most - least;
  };
  const [wide, high] = [span(chart.x, xs), span(chart.y, ys)];
  const unit = Math.min((frame.right - frame.left) / wide, (frame.bottom - frame.top) / high);
  if (chart.bare) {
    const left = (frame.right - frame.left - unit * wide) / 2;
    frame.left += left;
    frame.right -= left;
  } else {
    frame.right = frame.left + unit * wide;
  }
  frame.bottom = frame.top + unit * high;
}

function axesOf(chart: Chart, look: Look, frame: Frame, x: Scale, y: Scale): string {
  const { theme, tongue, size } = look;
  const { left, top, right, bottom } = frame;
  const text = (part: string, place: string, words: string, fill = theme.muted) =>
    `<text data-part="${part}" ${place} fill="${fill}">${escape(words)}</text>`;
  const parts = [text("axis", `x="${left}" y="${top - 8}"`, cut(said(chart.y.label[tongue], tongue), size, look.width - left))];
  for (const { at, text: words } of yTicks(chart, y, tongue)) {
    if (!chart.y.names) parts.push(line(`M${left},${y(at)}H${right}`, theme.grid));
    parts.push(text("y-tick", `x="${left - 6}" y="${y(at)}" dy="0.35em" text-anchor="end"`, words, theme.ink));
  }
  const width = look.width;
  for (const { at, text: words } of ticksOf(chart.x, x, size, { gap: 10, tongue })) {
    parts.push(line(`M${x(at)},${bottom}v4`, theme.axis));
    const half = size(words) / 2;
    const middle = Math.max(half, Math.min(x(at), width - half - 1));
    parts.push(text("x-tick", `x="${middle}" y="${bottom + 16}" text-anchor="middle"`, words, theme.ink));
  }
  const label = cut(said(chart.x.label[tongue], tongue), size, width - 2);
  const end = Math.min(Math.max((left + right) / 2, size(label) / 2), width - size(label) / 2 - 1);
  parts.push(text("axis", `x="${end}" y="${bottom + 31}" text-anchor="middle"`, label));
  return parts.join("");
}

function line(path: string, colour: string): string {
  return `<path d="${path}" stroke="${colour}" fill="none"/>`;
}

/** `text`, which ends in … where it is wider than `room` px. */
function cut(text: string, size: (text: string) => number, room: number): string {
  let shown = text;
  while (shown.length > 1 && size(shown) > room) shown = `${shown.slice(0, shown.endsWith("…") ? -2 : -1)}…`;
  return shown;
}
