/** One picture with its own title and legend: SVG that is drawn anew when data, size, theme or
 * language change. */

import { said, themeOf, type Theme, type Tongue } from "../language";
import { Veil, type Interval } from "../sweep";
import { unique } from "../unique";
import { watch } from "../watch";
import { named, type Chart } from "./data";
import { draw, type Drawn } from "./draw";
import { SMALL_PX } from "./labels";
import type { Place } from "./marks";
import { Patterns, escape, swatch } from "./paint";

const FONT = `${SMALL_PX}px system-ui, 'Noto Sans CJK SC', sans-serif`;
const HINTS = {
  en: "Arrow keys: from item to item · Enter or click: keep the description, or open what can be opened · Escape: leave",
  zh: "方向键：逐项移动 · Enter 或点击：固定说明，可展开的则展开 · Escape：离开",
};

export class ChartView {
  readonly element: HTMLElement;
  private readonly title: HTMLElement;
  private readonly legend: HTMLElement;
  private readonly plot: HTMLElement;
  private readonly tip: HTMLElement;
  private readonly ring: HTMLElement;
  private readonly id = unique("chart");
  private readonly pen = document.createElement("canvas").getContext("2d")!;
  private readonly sizes = new Map<string, number>();
  private chart?: Chart;
  private drawn?: Drawn;
  private at = -1; // the place that the keys have reached
  private locked = false;
  private asked?: number;
  private moment?: number; // s; what comes after it is covered
  private readonly veil: Veil;
  readonly stop: () => void;

  constructor(
    el: HTMLElement,
    private tongue: Tongue = "en",
    private readonly opened: (control: string, value: string) => void = () => {},
  ) {
    this.element = make("figure", el, "simlab-chart");
    this.veil = new Veil(this.element);
    this.title = make("figcaption", this.element, "simlab-title");
    this.legend = make("div", this.element, "simlab-legend");
    this.plot = make("div", this.element, "simlab-plot");
    this.ring = make("div", this.element, "simlab-ring");
    this.tip = make("div", this.element, "simlab-tip");
    this.tip.setAttribute("role", "status"); // screen readers say what appears here
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "application");
    this.listen();
    this.stop = watch(this.element, () => this.request());
  }

  show(chart: Chart, tongue: Tongue = this.tongue): void {
    this.chart = chart;
    this.tongue = tongue;
    this.element.dataset.key = chart.key;
    this.request();
  }

  /** Draws with the next frame. */
  request(): void {
    this.asked ??= requestAnimationFrame(() => {
      this.asked = undefined;
      this.draw();
    });
  }

  private draw(): void {
    const width = this.plot.clientWidth;
    if (!this.chart || width === 0) return;
    const { chart, tongue } = this;
    const theme = themeOf(this.element);
    this.pen.font = FONT;
    const title = said(chart.title[tongue], tongue);
    this.title.textContent = title;
    this.legend.innerHTML = legendOf(chart, theme, tongue, this.id);
    this.plot.setAttribute("aria-label", title);
    this.plot.setAttribute("aria-description", HINTS[tongue]);
    this.drawn = draw(chart, { theme, tongue, width, id: this.id, size: (text) => this.size(text) });
    this.plot.innerHTML = this.drawn.svg;
    const look = { color: theme.ink, background: theme.background };
    Object.assign(this.element.style, look);
    Object.assign(this.tip.style, { color: theme.background, background: theme.ink });
    this.ring.style.borderColor = theme.ink;
    if (this.at >= this.drawn.places.length) this.leave();
    else if (this.at >= 0) this.say(this.drawn.places[this.at]);
    this.cover(theme);
    const drawn = String(Number(this.element.dataset.drawn ?? 0) + 1);
    this.element.dataset.drawn = drawn;
  }

  /** The interval of its x, s; undefined where that is no time. */
  get time(): Interval | undefined {
    const domain = this.chart?.timed ? this.drawn?.x.domain : undefined;
    return domain && [domain[0] / 1e3, domain[1] / 1e3];
  }

  /** Covers what comes after `moment`, s; without one nothing. */
  until(moment?: number): void {
    this.moment = moment;
    if (this.drawn) this.cover(themeOf(this.element));
  }

  private cover(theme: Theme): void {
    const { x, y } = this.drawn!;
    const [left, right] = [x(Math.max((this.moment ?? Infinity) * 1e3, x.domain[0])), x.range[1]];
    if (this.moment === undefined || !this.time || left >= right) return this.veil.cover([], theme);
    const [top, bottom] = [...y.range].sort((a, b) => a - b);
    const { offsetLeft, offsetTop } = this.plot;
    const place = { left: offsetLeft + left, top: offsetTop + top };
    this.veil.cover([{ ...place, width: right - left + 2, height: bottom - top }], theme);
  }

  private size(text: string): number {
    let size = this.sizes.get(text);
    if (size === undefined) this.sizes.set(text, (size = this.pen.measureText(text).width));
    return size;
  }

  private listen(): void {
    const { plot } = this;
    plot.addEventListener("pointermove", (event) => {
      if (this.locked) return;
      this.point(event);
    });
    plot.addEventListener("pointerleave", () => this.locked || this.leave());
    plot.addEventListener("click", (event) => {
      this.point(event);
      this.choose();
    });
    plot.addEventListener("keydown", (event) => this.key(event));
    plot.addEventListener("blur", () => this.locked || this.leave());
  }

  private point(event: PointerEvent | MouseEvent): void {
    const { left, top } = this.plot.getBoundingClientRect();
    const found = nearest(this.drawn?.places ?? [], event.clientX - left, event.clientY - top);
    if (found === this.at) return;
    this.at = found;
    if (found < 0) this.leave();
    else this.say(this.drawn!.places[found]);
  }

  private key(event: KeyboardEvent): void {
    const places = this.drawn?.places ?? [];
    if (event.ctrlKey || event.metaKey || event.altKey || !places.length) return;
    const ways: Record<string, number> = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const last = places.length - 1;
    const targets: Record<string, number> = { Home: 0, End: last };
    if (event.key in ways) {
      const next = this.at < 0 ? 0 : this.at + ways[event.key];
      this.at = Math.min(Math.max(next, 0), last);
    } else if (event.key in targets) this.at = targets[event.key];
    else if (event.key === "Enter") this.choose();
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
    event.stopPropagation(); // else JupyterLab takes it for a command
    if (this.at >= 0) this.say(places[this.at]);
  }

  /** Keeps the description of the place that was reached, and opens what can be opened. */
  private choose(): void {
    this.locked = this.at >= 0;
    const opens = this.drawn?.places[this.at]?.opens;
    if (opens && this.chart?.control) this.opened(this.chart.control, opens);
  }

  private leave(): void {
    this.at = -1;
    this.locked = false;
    this.tip.style.display = this.ring.style.display = "none";
  }

  /** Shows the tip of a place beside it, and a ring around it. */
  private say({ x, y, tip, box }: Place): void {
    const [dx, dy] = [this.plot.offsetLeft, this.plot.offsetTop];
    const [left, top, wide, high] = box ?? [x - 7, y - 7, 14, 14];
    const ring = { left: left + dx - 1, top: top + dy - 1, width: wide + 2, height: high + 2 };
    for (const [name, px] of Object.entries(ring)) this.ring.style.setProperty(name, `${px}px`);
    this.ring.style.display = this.tip.style.display = "block";
    this.ring.style.borderRadius = box ? "0" : "50%";
    this.tip.textContent = said(tip[this.tongue], this.tongue);
    const room = this.element.clientWidth - this.tip.offsetWidth - 4;
    const below = y + 16 + this.tip.offsetHeight <= this.plot.clientHeight;
    const above = Math.max(y + dy - 14 - this.tip.offsetHeight, 0);
    this.tip.style.left = `${Math.max(Math.min(x + dx + 14, room), 0)}px`;
    this.tip.style.top = `${below ? y + dy + 16 : above}px`;
  }
}

/** The number of the place at a point: the topmost box that holds it, else the nearest point. */
export function nearest(places: Place[], x: number, y: number): number {
  let [best, least] = [-1, Infinity];
  let inside = -1;
  places.forEach(({ x: px, y: py, box, near }, at) => {
    if (box) {
      const [left, top, wide, high] = box;
      if (x >= left && x < left + wide && y >= top && y < top + high) inside = at;
      return;
    }
    const far = Math.hypot(px - x, py - y);
    if (far <= near && far < least) [best, least] = [at, far];
  });
  return best >= 0 ? best : inside;
}

/** Exactly the named marks, each with a sample of every look that it has. */
export function legendOf(chart: Chart, theme: Theme, tongue: Tongue, id: string): string {
  return named(chart.marks)
    .map(([name, marks]) => {
      const patterns = new Patterns(theme, `${id}-legend`);
      const samples = [...new Map(marks.map((mark) => [sampleKey(mark), mark])).values()].slice(0, 4);
      const wide = samples.length > 1 ? 11 : samples[0].mark === "line" || samples[0].mark === "rule" ? 24 : 14;
      const drawn = samples.map((mark, at) => swatch(mark, patterns, theme, at * wide, wide)).join("");
      const size = `width="${wide * samples.length}" height="12"`;
      return `<span><svg ${size} aria-hidden="true">${patterns.defs}${drawn}</svg>${escape(said(name[tongue], tongue))}</span>`;
    })
    .join("");
}

function sampleKey(mark: Chart["marks"][number]): string {
  const look = mark as unknown as Record<string, unknown>;
  return JSON.stringify(["mark", "colour", "pattern", "dash", "symbol", "outline"].map((name) => look[name]));
}

function make(tag: string, parent: HTMLElement, name: string): HTMLElement {
  const element = document.createElement(tag);
  element.className = name;
  return parent.appendChild(element);
}
