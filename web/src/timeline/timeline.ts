/** A timeline of one trace, or of several under each other on one time axis, on a canvas. */

import { said, themeOf, word, type Theme, type Tongue } from "../language";
import { Controls } from "./controls";
import { boxesAt, describeBox, describeIdle, describeMemory } from "./describe";
import { nearest, step, type Place } from "./keys";
import { drawLegend, entries, lines } from "./legend";
import { Panel, type Packed } from "./panel";
import { HEAD, Pen, SMALL, type TextBox } from "./pen";
import { drawFocus, drawRows, rowName } from "./rows";
import { Veil, type Interval } from "../sweep";
import { drawAxis, drawStrip } from "./strip";
import { RIGHT, View } from "./view";

export interface Options {
  tongue?: Tongue;
  room?: number; // rows that a panel may come to have
  fit?: number; // height that the picture should not exceed, px
  end?: number; // s; the time axis ends here at least
}

export interface TimelineCanvas extends HTMLCanvasElement {
  /** Where texts stand in what was painted last, CSS pixels from the canvas's corner. */
  texts(): TextBox[];
  /** [left, top] of `time` on `rank` of panel `number`, in the browser's window. */
  place(number: number, rank: number, time: number): [number, number];
}

export class Timeline {
  readonly view = new View();
  readonly canvas: TimelineCanvas;
  panels: Panel[] = [];
  onRange?: (range: [number, number]) => void;
  private readonly controls: Controls;
  private pen?: Pen;
  private serial = 0;
  private focus?: Place;
  private asked?: number;
  private moment?: number; // s; what comes after it is covered
  private readonly veil: Veil;

  constructor(
    el: HTMLElement,
    private options: Options = {},
  ) {
    this.controls = new Controls(el, this);
    this.veil = new Veil(this.controls.frame);
    this.canvas = this.controls.canvas as unknown as TimelineCanvas;
    this.canvas.texts = () => this.pen?.texts ?? [];
    this.canvas.place = (number, rank, time) => this.place(number, rank, time);
  }

  get tongue(): Tongue {
    return this.options.tongue ?? "en";
  }

  /** Shows other panels; what was zoomed in stays so. `serial` tells which update was painted. */
  show(packed: Packed[], serial = this.serial + 1): void {
    const whole = this.panels.length === 0 || !this.view.zoomed;
    this.panels = packed.map((each) => new Panel(each));
    this.serial = serial;
    this.focus = undefined;
    this.controls.say("");
    const end = Math.max(...packed.map((panel) => panel.end_s), this.options.end ?? 0) * 1.002;
    this.view.end = end;
    this.canvas.setAttribute("aria-label", packed.map((panel) => said(panel.title, this.tongue)).join("; "));
    const [from, to] = whole ? [0, end] : this.view.range;
    this.view.look(from, to);
    this.request();
  }

  /** Changes options and repaints. */
  set(options: Options): void {
    Object.assign(this.options, options);
    this.controls.name(this.tongue);
    this.request();
  }

  look(from: number, to: number): void {
    this.view.look(from, to);
    this.onRange?.(this.view.range);
    this.request();
  }

  whole(): void {
    this.look(0, this.view.end);
  }

  /** The whole interval that it shows. */
  get time(): Interval | undefined {
    return this.panels.length ? [0, this.view.end] : undefined;
  }

  /** Covers what comes after `moment`, s; without one nothing. */
  until(moment?: number): void {
    this.moment = moment;
    if (this.pen) this.cover(this.pen.theme);
  }

  private cover(theme: Theme): void {
    const { view, moment } = this;
    const right = view.left + view.width;
    const left = Math.max(view.x(moment ?? Infinity), view.left);
    const covered = moment !== undefined && left < right ? view.plots : [];
    const place = { left, width: right - left };
    this.veil.cover(covered.map(({ top, strip, tall }) => ({ ...place, top, height: strip + tall - top })), theme);
  }

  /** Paints with the next frame; when the one after it begins, what was painted can be seen. */
  request(): void {
    this.asked ??= requestAnimationFrame(() => {
      this.asked = undefined;
      if (!this.panels.length || !this.draw()) return;
      const done = { range: this.view.range.join(" "), painted: String(this.serial) };
      const steps = this.panels.map((panel) => panel.packed.end_s);
      const [stepS] = steps;
      requestAnimationFrame(() => Object.assign(this.canvas.dataset, done, { stepS: String(stepS) }));
    });
  }

  stop(): void {
    this.controls.stop();
    if (this.asked !== undefined) cancelAnimationFrame(this.asked);
  }

  private place(number: number, rank: number, time: number): [number, number] {
    const { left, top } = this.canvas.getBoundingClientRect();
    const plot = this.view.plots[number];
    return [left + this.view.x(time), top + plot.top + (rank + 0.5) * plot.row];
  }

  /** Paints everything; false where there is no room, as in a hidden tab. */
  private draw(): boolean {
    const width = this.controls.width();
    if (width === 0) return false;
    const scale = window.devicePixelRatio || 1;
    const theme = themeOf(this.canvas);
    const pen = new Pen(this.canvas.getContext("2d")!, theme, scale);
    const left = 14 + Math.max(24, ...this.panels.map((panel) => this.nameWidth(pen, panel)));
    const legend = lines(pen, entries(this.panels, this.tongue), width - left - RIGHT);
    const { room = 1, fit } = this.options;
    this.view.arrange(this.panels, { width, left, legend: legend.length, room, fit });
    this.controls.resize(width, this.view.height, scale, theme);
    this.pen = new Pen(this.canvas.getContext("2d")!, theme, scale);
    this.paint(this.pen, legend, width);
    this.cover(theme);
    return true;
  }

  private nameWidth(pen: Pen, panel: Panel): number {
    const ranks = Math.min(panel.packed.ranks, 64);
    const names = Array.from({ length: ranks }, (_, rank) => rowName(panel, rank, this.tongue));
    const longest = names.reduce((a, b) => (a.length < b.length ? b : a), "");
    return pen.measure(longest + (panel.packed.ranks > ranks ? "00" : ""), SMALL);
  }

  private paint(pen: Pen, legend: ReturnType<typeof lines>, width: number): void {
    const { view, tongue } = this;
    pen.fill(pen.theme.background, 0, 0, width, view.height);
    drawLegend(pen, legend, view.left);
    const most = Math.max(...this.panels.map(({ packed }) => Math.max(packed.peak, packed.cap ?? 0)));
    for (const plot of view.plots) {
      const look = { part: "title", font: HEAD, most: view.width };
      pen.write(said(plot.panel.packed.title, tongue), view.left, plot.top - 7, look);
      drawRows(pen, view, plot, tongue);
      drawAxis(pen, view, plot.top + plot.row * plot.panel.packed.ranks + 1, false);
      drawStrip(pen, view, plot, most, tongue);
      drawAxis(pen, view, plot.strip + plot.tall, true);
      if (this.focus?.panel === plot.number) drawFocus(pen, view, plot, this.focus.box);
    }
    const look = { part: "axis", font: SMALL, colour: pen.theme.muted };
    pen.write(word("time", tongue), view.left, view.height - 4, look);
  }

  // what the pointer and the keys do

  /** The op at a point of the picture, if there is one. */
  opAt(x: number, y: number): Place | undefined {
    const found = this.view.at(y);
    const time = this.view.time(x);
    if (!found || found.rank < 0 || x < this.view.left) return undefined;
    const box = boxesAt(found.plot.panel, found.rank, time).at(-1);
    return box === undefined ? undefined : { panel: found.plot.number, box };
  }

  /** What lies at a point of the picture, as text. */
  describe(x: number, y: number): string {
    const found = this.view.at(y);
    const time = this.view.time(x);
    if (!found || x < this.view.left || time < 0 || time > found.plot.panel.packed.end_s) return "";
    const { panel } = found.plot;
    if (found.rank < 0) return describeMemory(panel, time, this.tongue);
    const boxes = boxesAt(panel, found.rank, time);
    if (boxes.length === 0) return describeIdle(panel, found.rank, time, this.tongue);
    return boxes.map((box) => describeBox(panel, box, this.tongue)).join("\n");
  }

  /** Locks the description on `place`, or unlocks it. */
  lock(place: Place | undefined): void {
    this.focus = place;
    this.request();
    if (!place) return this.controls.say("");
    const panel = this.panels[place.panel];
    const middle = (panel.start[place.box] + panel.end[place.box]) / 2;
    const half = (this.view.range[1] - this.view.range[0]) / 2;
    if (middle < this.view.range[0] || middle > this.view.range[1]) {
      this.look(middle - half, middle + half);
    }
    const plot = this.view.plots[place.panel];
    const y = plot.top + (panel.rank[place.box] + 1) * plot.row;
    this.controls.say(describeBox(panel, place.box, this.tongue), this.view.x(middle), y);
  }

  get locked(): boolean {
    return this.focus !== undefined;
  }

  move(key: string): void {
    if (this.focus) return this.lock(step(this.panels, this.focus, key));
    const box = nearest(this.panels[0], 0, Math.max(this.view.range[0], 0));
    if (box !== undefined) this.lock({ panel: 0, box });
  }
}
