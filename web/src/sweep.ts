/** Plays pictures whose x is time: what a moment has not reached yet is covered, and the moment moves on
 * by itself, or with a slider. */

import type { Theme, Tongue } from "./language";
import { ms } from "./timeline/numbers";
import { unique } from "./unique";

export type Interval = [start: number, end: number]; // s

/** Pictures with time. */
export interface Timed {
  /** What they show; undefined where none has time, or none is drawn yet. */
  readonly time: Interval | undefined;
  /** Covers all that comes after `moment`, s; without one nothing. */
  until(moment?: number): void;
}

export const PLAY = {
  en: { play: "▶ Play", pause: "❚❚ Pause", moment: "moment" },
  zh: { play: "▶ 播放", pause: "❚❚ 暂停", moment: "时刻" },
};
const WHOLE_MS = 8000; // that a sweep takes
const STEPS = 400; // of the slider
const DIGITS = 4; // of a moment in a link

/** `hash`, the state in a link, with the moment that is shown: a part of the time, from 0 to 1. */
export function withMoment(hash: string, share?: number): string {
  return share === undefined || share >= 1 ? hash : `${hash}&moment=${Number(share.toFixed(DIGITS))}`;
}

/** The moment in a link; undefined where it has none, or one that cannot be. */
export function momentOf(hash: string): number | undefined {
  const share = Number(new URLSearchParams(hash.replace(/^#/, "")).get("moment") || NaN);
  return share >= 0 && share <= 1 ? share : undefined;
}

export class Sweep {
  readonly element = document.createElement("div");
  private readonly label = document.createElement("label");
  private readonly output = document.createElement("output");
  private readonly slider = document.createElement("input");
  private share?: number; // of the time that is uncovered; undefined: all, and no slider
  private frame?: number;

  /** changed: told when it starts and when it stops, and where the slider was let go. */
  constructor(
    private readonly timed: Timed,
    private readonly changed: () => void,
  ) {
    this.element.className = "simlab-sweep";
    Object.assign(this.slider, { type: "range", min: "0", max: String(STEPS), id: unique("moment") });
    this.label.htmlFor = this.slider.id;
    this.slider.addEventListener("input", () => {
      this.halt();
      this.share = Number(this.slider.value) / STEPS;
      this.show();
    });
    this.slider.addEventListener("change", () => this.changed());
    this.slider.addEventListener("keydown", (event) => event.stopPropagation()); // JupyterLab's keys
    const head = document.createElement("span");
    head.append(this.label, " ", this.output);
    this.element.append(head, this.slider);
    this.element.hidden = true;
  }

  get running(): boolean {
    return this.frame !== undefined;
  }

  /** The part of the time that is uncovered; undefined: all. */
  get moment(): number | undefined {
    return this.share;
  }

  /** Stops, and shows another moment. */
  go(moment?: number): void {
    this.share = moment;
    this.halt();
    this.show();
  }

  toggle(): void {
    if (this.running) return this.halt();
    if (this.share === undefined || this.share >= 1) this.share = 0;
    this.next(performance.now());
    this.show();
    this.changed();
  }

  /** Uncovers everything and puts the slider away. */
  end(): void {
    this.share = undefined;
    this.show();
    this.halt();
  }

  /** Shows the moment again, of other pictures or in another language. */
  show(tongue?: Tongue): void {
    if (tongue) this.label.textContent = PLAY[tongue].moment;
    const { share } = this;
    const { time } = this.timed;
    this.element.hidden = share === undefined;
    if (share === undefined || !time) return this.timed.until();
    const moment = time[0] + share * (time[1] - time[0]);
    this.timed.until(moment);
    this.slider.value = String(Math.round(share * STEPS));
    this.output.textContent = `${ms(Number(moment.toPrecision(3)), time[1])} ms`;
    this.slider.setAttribute("aria-valuetext", this.output.textContent);
  }

  private halt(): void {
    if (this.frame === undefined) return;
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
    this.changed();
  }

  private next(before: number): void {
    this.frame = requestAnimationFrame((now) => {
      this.share = Math.min((this.share ?? 0) + Math.max(now - before, 0) / WHOLE_MS, 1);
      if (this.share === 1) return this.end();
      this.show();
      this.next(now);
    });
  }
}

/** What covers parts of a picture. */
export class Veil {
  private readonly covers: HTMLElement[] = [];

  constructor(private readonly parent: HTMLElement) {}

  /** Covers each of `boxes`, px in the parent, with a line at its left, and nothing else. */
  cover(boxes: { left: number; top: number; width: number; height: number }[], theme: Theme): void {
    while (this.covers.length > boxes.length) this.covers.pop()!.remove();
    boxes.forEach((box, at) => {
      const cover = (this.covers[at] ??= this.parent.appendChild(document.createElement("div")));
      cover.className = "simlab-veil";
      const px = Object.entries(box).map(([name, value]) => [name, `${value}px`]);
      Object.assign(cover.style, Object.fromEntries(px), {
        position: "absolute", boxSizing: "border-box", pointerEvents: "none",
        borderLeft: `2px solid ${theme.ink}`, background: `${theme.background}D9`, // the work behind it can be guessed
      }); // prettier-ignore
    });
  }
}
