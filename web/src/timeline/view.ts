/** Where things are: lengths in CSS pixels, times in s. */

import type { Panel, Range } from "./panel";

export const RIGHT = 26;
export const TITLE = 22;
export const LABEL = 15; // the line that says what a memory strip shows
export const TICKS = 20; // the line of an axis's numbers
export const FOOT = 16;
export const LINE = 19; // a line of the legend
const ROWS_END = 8;
const GAP = 12;
const STRIP = { most: 84, least: 40, tallest: 140 }; // the tallest: where there is a window to fill
const ROOM_FOR_ROWS = 560;
const ROW = { most: 26, least: 6, wanted: 9, highest: 44 };
const MOST_ZOOM = 1e4;

export interface Plot {
  panel: Panel;
  number: number;
  top: number; // of the rows
  row: number; // height of one
  strip: number; // top of the memory strip
  tall: number; // height of the memory strip
}

export interface Sizes {
  width: number; // of the whole picture
  left: number; // room for the rows' names
  legend: number; // lines
  room: number; // rows that a panel may come to have
  fit?: number; // height that the picture should not exceed
}

export class View {
  range: Range = [0, 1];
  plots: Plot[] = [];
  end = 1;
  left = 0;
  width = 1;
  height = 1;

  /** Make from..to the visible interval, as far as there is something. */
  look(from: number, to: number): void {
    const width = Math.min(Math.max(to - from, this.end / MOST_ZOOM), this.end);
    const left = Math.min(Math.max((from + to - width) / 2, 0), this.end - width);
    this.range = width === this.end ? [0, this.end] : [left, left + width];
  }

  get zoomed(): boolean {
    return this.range[0] > 0 || this.range[1] < this.end;
  }

  arrange(panels: Panel[], { width, left, legend, room, fit }: Sizes): void {
    this.left = left;
    this.width = Math.max(width - left - RIGHT, 50);
    const ranks = panels.map((panel) => panel.packed.ranks);
    const rows = Math.max(fit === undefined ? room : 1, ...ranks);
    const fixed = LINE * legend + 4 + FOOT - GAP;
    const rest = TITLE + ROWS_END + LABEL + TICKS + GAP; // of each panel, besides rows and strip
    let row = Math.min(Math.max(ROOM_FOR_ROWS / rows, ROW.wanted), ROW.most);
    let tall = STRIP.most;
    if (fit !== undefined) {
      const each = (fit - fixed) / panels.length - rest;
      tall = Math.round(Math.min(Math.max(each * 0.25, STRIP.least), STRIP.tallest));
      row = Math.min(Math.max((each - tall) / rows, ROW.least), ROW.highest);
    }
    let top = LINE * legend + 4 + TITLE;
    this.plots = panels.map((panel, number) => {
      const strip = Math.round(top + row * panel.packed.ranks) + ROWS_END + LABEL;
      const plot = { panel, number, top, row, strip, tall };
      top = strip + tall + TICKS + GAP + TITLE;
      return plot;
    });
    this.height = top - TITLE - GAP + FOOT;
  }

  x(time: number): number {
    const [from, to] = this.range;
    return this.left + ((time - from) / (to - from)) * this.width;
  }

  time(x: number): number {
    const [from, to] = this.range;
    return from + ((x - this.left) / this.width) * (to - from);
  }

  get perSecond(): number {
    return this.width / (this.range[1] - this.range[0]);
  }

  /** The plot at height `y`, its rank (-1: in the strip), or undefined where there is none. */
  at(y: number): { plot: Plot; rank: number } | undefined {
    for (const plot of this.plots) {
      const rank = Math.floor((y - plot.top) / plot.row);
      if (rank >= 0 && rank < plot.panel.packed.ranks) return { plot, rank };
      if (y >= plot.strip && y < plot.strip + plot.tall) return { plot, rank: -1 };
    }
    return undefined;
  }
}
