/** Marks as SVG, and the places at which each says what it is. */

import { area, curveLinear, curveStepAfter, line } from "d3-shape";
import { reach, type Area, type Arrows, type Boxes, type Dots, type Mark, type Words } from "./data";
import type { Scale } from "./axes";
import { SMALL_PX, labelPx, labelText, layersNamed, type Measure } from "./labels";
import { escape, readable, shown, symbolLook, symbolPath, type Patterns } from "./paint";
import { lineColour, said, type Theme, type Tongue } from "../language";

export interface Place {
  x: number;
  y: number;
  tip: Words;
  box?: [number, number, number, number]; // left, top, width, height
  near: number; // px; how far from x, y the pointer may be where there is no box
  opens?: string; // what a click gives the chart's control
}

export interface Frame {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

type Rect = [left: number, top: number, right: number, bottom: number];

/** Draws marks into the frame of one chart. */
export class Drawing {
  readonly places: Place[] = [];
  private readonly written: Rect[] = [];
  private areas: Area[] = [];
  private labelSizes = new Map<string, number>();

  constructor(
    private readonly x: Scale,
    private readonly y: Scale,
    private readonly frame: Frame,
    private readonly theme: Theme,
    private readonly patterns: Patterns,
    private readonly size: Measure,
    private readonly tongue: Tongue = "en",
  ) {}

  private labels({ labels }: Boxes | Dots | Arrows): string[] {
    return (labels ?? []).map((text) => said(text, this.tongue));
  }

  private labelsInside(mark: Boxes): string[] {
    const texts = this.labels(mark);
    return layersNamed(texts, texts.map((_, at) => this.seen(mark, at)[2]), this.size);
  }

  draw(mark: Mark): string {
    const inner = this.shape(mark);
    const name = mark.name ? ` data-name="${escape(mark.name.en)}"` : "";
    return `<g data-mark="${mark.mark}"${name}>${inner}</g>`;
  }

  /** The texts of marks, which lie over all of them. */
  texts(marks: Mark[]): string {
    this.labelSizes = this.sizesOfLabels(marks);
    this.areas = marks.filter((mark) => mark.mark === "area");
    const all = marks.map((mark) => {
      if (mark.mark === "boxes") return this.inside(mark);
      if (mark.mark === "dots" || mark.mark === "arrows") return this.beside(mark);
      return "";
    });
    return all.join("");
  }

  private shape(mark: Mark): string {
    const colour = shown(mark.colour, this.theme);
    const stroke = lineColour(colour, this.theme);
    switch (mark.mark) {
      case "boxes":
        return this.boxes(mark);
      case "dots":
        return this.dots(mark, colour);
      case "arrows":
        return this.arrows(mark, stroke);
      case "rule":
        return this.rule(mark, stroke);
      case "area": {
        const make = area<number>(
          (at) => this.x(mark.x[at]),
          (at) => this.y(mark.low[at]),
          (at) => this.y(mark.high[at]),
        ).curve(mark.stepped ? curveStepAfter : curveLinear);
        mark.tips?.forEach((tip, at) => this.column(tip, mark, at));
        const fill = this.patterns.fill(mark.colour, mark.pattern);
        return `<path d="${make([...mark.x.keys()])}" fill="${fill}"/>`;
      }
      case "line": {
        const make = line<number>(
          (at) => this.x(mark.x[at]),
          (at) => this.y(mark.y[at]),
        ).curve(mark.stepped ? curveStepAfter : curveLinear);
        const there = [...mark.x.keys()].filter((at) => Number.isFinite(this.y(mark.y[at])));
        for (const at of there) {
          this.place(this.x(mark.x[at]), this.y(mark.y[at]), mark.tips?.[at], 24);
        }
        return `<path d="${make(there)}" fill="none" stroke="${stroke}" stroke-width="2"${dashed(mark.dash)}/>`;
      }
    }
  }

  private place(x: number, y: number, tip: Words | undefined, near: number, box?: Place["box"], opens?: string): void {
    if (tip) this.places.push({ x, y, tip, near, box, opens });
  }

  /** The part of a stacked area from one point to the next. */
  private column(tip: Words, mark: { x: number[]; low: number[]; high: number[] }, at: number): void {
    const left = this.x(mark.x[at]);
    const wide = this.x(mark.x[at + 1] ?? mark.x[at]) - left;
    const [top, foot] = [this.y(mark.high[at]), this.y(mark.low[at])];
    if (foot > top) this.place(left + wide / 2, (top + foot) / 2, tip, 0, [left, top, wide, foot - top]);
  }

  private rect({ x0, x1, y0, y1 }: Boxes, at: number): [number, number, number, number] {
    const [a, b] = [this.x(x0[at]), this.x(x1[at])];
    const [c, d] = [this.y(y0[at]), this.y(y1[at])];
    return [Math.min(a, b), Math.min(c, d), Math.abs(b - a), Math.abs(d - c)];
  }

  /** The part of a box that lies in the frame. */
  private seen(mark: Boxes, at: number): [number, number, number, number] {
    const [left, top, wide, high] = this.rect(mark, at);
    const { frame } = this;
    const [x0, x1] = [Math.max(left, frame.left), Math.min(left + wide, frame.right)];
    const [y0, y1] = [Math.max(top, frame.top), Math.min(top + high, frame.bottom)];
    return [x0, y0, Math.max(x1 - x0, 0), Math.max(y1 - y0, 0)];
  }

  private boxes(mark: Boxes): string {
    const fill = this.patterns.fill(mark.colour, mark.pattern);
    const edge = mark.outline ? ` stroke="${shown(mark.outline, this.theme)}"` : "";
    const parts = mark.x0.map((_, at) => {
      const [left, top, wide, high] = this.rect(mark, at);
      const seen = this.seen(mark, at);
      this.place(seen[0] + seen[2] / 2, seen[1] + seen[3] / 2, mark.tips?.[at], 0, seen, mark.opens?.[at]);
      const hand = mark.opens?.[at] ? ' cursor="pointer"' : "";
      return `<rect x="${fixed(left)}" y="${fixed(top)}" width="${fixed(wide)}" height="${fixed(high)}"${hand}/>`;
    });
    // where boxes without an outline meet within a pixel, what is behind them would shine through
    const crisp = edge ? "" : ' shape-rendering="crispEdges"';
    return `<g fill="${fill}"${edge}${crisp}>${parts.join("")}</g>`;
  }

  private dots(mark: Dots, colour: string): string {
    const look = symbolLook(mark.symbol, colour, this.theme);
    return mark.x
      .map((_, at) => {
        const [x, y] = [this.x(mark.x[at]), this.y(mark.y[at])];
        this.place(x, y, mark.tips?.[at], mark.radius + 4);
        return `<path d="${symbolPath(mark.symbol, fixed(x), fixed(y), mark.radius)}" ${look}/>`;
      })
      .join("");
  }

  /** [begin, bend, end, middle of the bent line] of an arrow, px. */
  private bend(mark: Arrows, at: number): [number, number][] {
    const [ax, ay] = [this.x(mark.x0[at]), this.y(mark.y0[at])];
    const [bx, by] = [this.x(mark.x1[at]), this.y(mark.y1[at])];
    const bend: [number, number] = [(ax + bx) / 2 - 0.12 * (by - ay), (ay + by) / 2 + 0.12 * (bx - ax)];
    const middle: [number, number] = [(ax + bx) / 4 + bend[0] / 2, (ay + by) / 4 + bend[1] / 2];
    return [[ax, ay], bend, [bx, by], middle];
  }

  private arrows(mark: Arrows, colour: string): string {
    return mark.x0
      .map((_, at) => {
        const [a, bend, b, middle] = this.bend(mark, at);
        this.place(...middle, mark.tips?.[at], 12);
        const angle = Math.atan2(b[1] - bend[1], b[0] - bend[0]);
        const wing = (turn: number) =>
          `${fixed(b[0] - 8 * Math.cos(angle + turn))},${fixed(b[1] - 8 * Math.sin(angle + turn))}`;
        const path = `M${a.map(fixed)}Q${bend.map(fixed)} ${b.map(fixed)}M${wing(0.45)}L${b.map(fixed)}L${wing(-0.45)}`;
        return `<path d="${path}" fill="none" stroke="${colour}" stroke-width="1.6"/>`;
      })
      .join("");
  }

  private rule(mark: Mark & { mark: "rule" }, colour: string): string {
    const { left, right, top, bottom } = this.frame;
    const across = (mark.y ?? null) !== null;
    const at = across ? this.y(mark.y!) : this.x(mark.x!);
    const path = across ? `M${left},${fixed(at)}H${right}` : `M${fixed(at)},${top}V${bottom}`;
    return `<path d="${path}" fill="none" stroke="${colour}" stroke-width="1.6"${dashed(mark.dash)}/>`;
  }

  // texts

  /** {size of a box: px of the labels in boxes of that size}: boxes of one size are all labelled or none
   * is, for a row of numbers that ends where they get two digits looks broken. */
  private sizesOfLabels(marks: Mark[]): Map<string, number> {
    const found = new Map<string, number>();
    for (const mark of marks) {
      if (mark.mark !== "boxes") continue;
      this.labelsInside(mark).forEach((text, at) => {
        const [, , wide, high] = this.seen(mark, at);
        const before = found.get(sizeOf(wide, high)) ?? Infinity;
        if (text) found.set(sizeOf(wide, high), Math.min(before, labelPx(text, wide, high, this.size)));
      });
    }
    return found;
  }

  private inside(mark: Boxes): string {
    const plain = mark.pattern === "plain";
    const base = shown(mark.colour, this.theme);
    return this.labelsInside(mark)
      .map((whole, at) => {
        const [left, top, wide, high] = this.seen(mark, at);
        const [x, y] = [left + wide / 2, top + high / 2];
        const px = this.labelSizes.get(sizeOf(wide, high)) ?? 0;
        const text = labelText(whole, px, wide, this.size);
        if (!text) return "";
        return (plain ? "" : this.plate(text, x, y, wide, base)) + this.write(text, x, y, readable(base), "", px);
      })
      .join("");
  }

  /** What a text stands on in a box `wide` px wide whose pattern would cross its letters. */
  private plate(text: string, x: number, y: number, wide: number, colour: string): string {
    const across = Math.min(this.size(text) + 6, wide - 2);
    const place = `x="${fixed(x - across / 2)}" y="${fixed(y - SMALL_PX * 0.65)}"`;
    const size = `width="${fixed(across)}" height="${fixed(SMALL_PX * 1.3)}" rx="2"`;
    return `<rect data-part="plate" ${place} ${size} fill="${colour}"/>`;
  }

  private beside(mark: Dots | Arrows): string {
    return this.labels(mark)
      .map((text, at) => {
        if (!text) return "";
        const arrow = mark.mark === "arrows";
        const [x, y] = arrow ? this.bend(mark, at)[3] : [this.x(mark.x[at]), this.y(mark.y[at])];
        const [radius, size] = [arrow ? 2 : mark.radius, this.size(text)];
        const hollow = !arrow && (mark.symbol === "ring" || mark.symbol === "cross");
        const base = shown(mark.colour, this.theme);
        if (!arrow && size <= 2 * radius - 4) {
          return this.write(text, x, y, hollow ? this.theme.ink : readable(base));
        }
        const away = radius + 5;
        const spots: [number, number][] = [
          [x + away + size / 2, y], [x - away - size / 2, y],
          [x, y - away - 5], [x + size / 2, y - away - 5], [x - size / 2, y - away - 5], [x, y + away + 5],
        ]; // prettier-ignore
        const free = spots.filter(([cx, cy]) => this.free(rectOf(cx, cy, size)));
        const spot = free.find(([cx, cy]) => this.clear(rectOf(cx, cy, size))) ?? free[0];
        if (!spot) return "";
        return this.write(text, ...spot, this.theme.ink, this.theme.background);
      })
      .join("");
  }

  private free(rect: Rect): boolean {
    const { left, right, top, bottom } = this.frame;
    const [l, t, r, b] = rect;
    if (l < left || r > right || t < top || b > bottom) return false;
    return this.written.every(([a, c, d, e]) => r <= a || l >= d || b <= c || t >= e);
  }

  /** Whether no filled area lies behind `rect`. */
  private clear([l, t, r, b]: Rect): boolean {
    return this.areas.every((area) =>
      area.x.every((x, at) => {
        const [from, to] = [this.x(x), this.x(area.x[at + 1] ?? x)];
        return from >= r || to <= l || this.y(area.high[at]) >= b || this.y(area.low[at]) <= t;
      }),
    );
  }

  private write(text: string, x: number, y: number, colour: string, halo = "", px = SMALL_PX): string {
    this.written.push(rectOf(x, y, this.size(text)));
    const around = halo ? ` paint-order="stroke" stroke="${halo}" stroke-width="3" stroke-linejoin="round"` : "";
    const tiny = px === SMALL_PX ? "" : ` font-size="${px}"`;
    const place = `x="${fixed(x)}" y="${fixed(y)}" dy="0.35em" text-anchor="middle"${tiny}`;
    return `<text data-part="label" ${place} fill="${colour}"${around}>${escape(text)}</text>`;
  }
}

/** The px that marks need beyond the outermost positions: half a dot. */
export function overhang(marks: Mark[]): number {
  const dots = marks.map((mark) => (mark.mark === "dots" && reach(mark, "x").length ? mark.radius + 1 : 0));
  return Math.max(0, ...dots);
}

function rectOf(x: number, y: number, size: number): Rect {
  return [x - size / 2 - 1, y - SMALL_PX * 0.75, x + size / 2 + 1, y + SMALL_PX * 0.75];
}

const sizeOf = (wide: number, high: number): string => `${wide.toFixed(1)} ${high.toFixed(1)}`;

function dashed(dash?: number[] | null): string {
  return dash ? ` stroke-dasharray="${dash.join(" ")}"` : "";
}

const fixed = (px: number): number => Math.round(px * 100) / 100;
