/** The pictures of an answer in a grid; a picture keeps its place while its data change. */

import { ChartView } from "../chart/chart";
import type { Tongue } from "../language";
import type { Interval, Timed } from "../sweep";
import { Timeline } from "../timeline/timeline";
import { BoardView } from "./board";
import type { Picture, TimelinePicture } from "./data";

interface Shown {
  picture: Picture; // as it was shown last
  cell: HTMLElement;
  kind: string;
  show(picture: Picture, tongue: Tongue, growth: number): void;
  stop(): void;
  timed?: Timed;
}

const MOST_GROWTH = 2.2;
const FLAT = 100; // px; lower charts, such as a single bar, stay as they are
const LEAST_WIDTH = 640; // px below which pictures stand in one column

export class Pictures implements Timed {
  readonly element = document.createElement("div");
  private shown = new Map<string, Shown>();
  private tongue: Tongue = "en";
  private growth = 1; // of the pictures' own heights

  /** changed: told of the value that a picture gives a control. */
  constructor(private readonly changed: (control: string, value: string) => void) {
    this.element.className = "simlab-pictures";
  }

  show(pictures: Picture[], tongue: Tongue): void {
    const kept = new Map<string, Shown>();
    for (const picture of pictures) {
      const old = this.shown.get(picture.key);
      const same = old?.kind === picture.picture ? old : undefined;
      kept.set(picture.key, same ?? view(picture, this.changed));
    }
    for (const [key, each] of this.shown) if (kept.get(key) !== each) this.drop(each);
    this.shown = kept;
    const cells = [...kept.values()].map(({ cell }) => cell);
    if (cells.some((cell, at) => this.element.children[at] !== cell)) this.element.replaceChildren(...cells);
    this.tongue = tongue;
    for (const picture of pictures) kept.get(picture.key)!.picture = picture;
    this.arrange();
    this.paint();
  }

  /** Whether any of them has time. */
  get timed(): boolean {
    return [...this.shown.values()].some(({ picture }) => "timed" in picture ? picture.timed : picture.picture === "timeline");
  }

  get time(): Interval | undefined {
    const all = [...this.shown.values()].flatMap(({ timed }) => (timed?.time ? [timed.time] : []));
    if (!all.length) return undefined;
    return [Math.min(...all.map(([start]) => start)), Math.max(...all.map(([, end]) => end))];
  }

  until(moment?: number): void {
    for (const { timed } of this.shown.values()) timed?.until(moment);
  }

  private paint(): void {
    for (const each of this.shown.values()) each.show(each.picture, this.tongue, this.growth);
  }

  /** Lets the pictures grow by `spare` px, or makes them so much lower, but not below their own heights. */
  fit(spare: number): void {
    this.arrange();
    const rows = new Map<number, { own: number; drawn: number }>();
    for (const { cell, picture } of this.shown.values()) {
      const drawn = cell.querySelector(".simlab-plot svg, canvas")?.clientHeight;
      const own = picture.height ?? 0;
      if (!drawn || own <= FLAT) continue;
      const row = rows.get(cell.offsetTop) ?? { own: 0, drawn: 0 };
      rows.set(cell.offsetTop, { own: Math.max(row.own, own), drawn: Math.max(row.drawn, drawn) });
    }
    const all = [...rows.values()];
    const [own, drawn] = [all.reduce((sum, row) => sum + row.own, 0), all.reduce((sum, row) => sum + row.drawn, 0)];
    if (own === 0) return;
    const growth = Math.min(Math.max((drawn + spare) / own, 1), MOST_GROWTH);
    if (Math.abs(growth - this.growth) < 0.02) return;
    this.growth = growth;
    this.paint();
  }

  /** Two columns for more than two pictures, or for square ones; wide ones and timelines span them. */
  private arrange(): void {
    const pictures = [...this.shown.values()].map(({ picture }) => picture);
    const halves = pictures.filter((picture) => picture.picture === "chart" && !picture.wide);
    const square = halves.every((picture) => picture.picture === "chart" && picture.square);
    const room = this.element.clientWidth >= LEAST_WIDTH;
    const columns = room && halves.length > 1 && (pictures.length > 2 || square) ? 2 : 1;
    this.element.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    for (const picture of pictures) {
      const at = halves.indexOf(picture);
      const alone = at === halves.length - 1 && at % 2 === 0;
      this.shown.get(picture.key)!.cell.style.gridColumn = at < 0 || alone ? "1 / -1" : "";
    }
  }

  private drop(each: Shown): void {
    each.stop();
    each.cell.remove();
  }

  stop(): void {
    this.shown.forEach((each) => this.drop(each));
  }
}

function view(picture: Picture, changed: (control: string, value: string) => void): Shown {
  const cell = document.createElement("div");
  cell.className = "simlab-picture";
  cell.dataset.picture = picture.key;
  if (picture.picture === "chart") {
    const chart = new ChartView(cell, "en", changed);
    const show = (each: Picture, tongue: Tongue, growth: number) => {
      if (each.picture !== "chart") return;
      const height = Math.round(each.height * (each.height > FLAT ? growth : 1));
      chart.show({ ...each, height }, tongue);
    };
    return { picture, cell, kind: "chart", show, stop: chart.stop, timed: chart };
  }
  if (picture.picture === "board") {
    const board = new BoardView(cell, changed);
    const show = (each: Picture, tongue: Tongue) => each.picture === "board" && board.show(each, tongue);
    return { picture, cell, kind: "board", show, stop: () => {} };
  }
  const timeline = new Timeline(cell);
  let packed: TimelinePicture["panels"] | undefined;
  const show = (each: Picture, tongue: Tongue, growth: number) => {
    if (each.picture !== "timeline") return;
    timeline.set({ tongue, fit: each.height ? each.height * growth : undefined });
    if (each.panels !== packed) timeline.show(each.panels);
    packed = each.panels;
  };
  return { picture, cell, kind: "timeline", show, stop: () => timeline.stop(), timed: timeline };
}
