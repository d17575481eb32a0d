/** The pictures of an answer in a grid; a picture keeps its place while its data change. */

import { ChartView } from "../chart/chart";
import type { Tongue } from "../language";
import { Timeline } from "../timeline/timeline";
import type { Picture } from "./data";

interface Shown {
  cell: HTMLElement;
  kind: string;
  show(picture: Picture, tongue: Tongue): void;
  stop(): void;
}

const LEAST_WIDTH = 640; // px below which pictures stand in one column

export class Pictures {
  readonly element = document.createElement("div");
  private shown = new Map<string, Shown>();

  constructor() {
    this.element.className = "simlab-pictures";
  }

  show(pictures: Picture[], tongue: Tongue): void {
    const kept = new Map<string, Shown>();
    for (const picture of pictures) {
      const old = this.shown.get(picture.key);
      const same = old?.kind === picture.picture ? old : undefined;
      kept.set(picture.key, same ?? view(picture));
    }
    for (const [key, each] of this.shown) if (kept.get(key) !== each) this.drop(each);
    this.shown = kept;
    const cells = [...kept.values()].map(({ cell }) => cell);
    if (cells.some((cell, at) => this.element.children[at] !== cell)) this.element.replaceChildren(...cells);
    this.arrange(pictures);
    for (const picture of pictures) kept.get(picture.key)!.show(picture, tongue);
  }

  /** Two columns for more than two pictures, or for square ones; wide ones and timelines span them. */
  private arrange(pictures: Picture[]): void {
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

function view(picture: Picture): Shown {
  const cell = document.createElement("div");
  cell.className = "simlab-picture";
  cell.dataset.picture = picture.key;
  if (picture.picture === "chart") {
    const chart = new ChartView(cell);
    const show = (each: Picture, tongue: Tongue) => each.picture === "chart" && chart.show(each, tongue);
    return { cell, kind: "chart", show, stop: chart.stop };
  }
  const timeline = new Timeline(cell);
  const show = (each: Picture, tongue: Tongue) => {
    if (each.picture !== "timeline") return;
    timeline.set({ tongue, fit: each.height ?? undefined });
    timeline.show(each.panels);
  };
  return { cell, kind: "timeline", show, stop: () => timeline.stop() };
}
