/** The elements of a timeline, and what pointer, wheel and keys do to it. */

import { word, type Theme, type Tongue } from "../language";
import type { Place } from "./keys";
import type { View } from "./view";
import { watch } from "../watch";

const ZOOM_STEP = 1.25;
const PAN_STEP = 0.1;
const CLICK = 4; // px; a pointer that moves less does not drag
const HINTS = {
  en: "Arrow keys: from op to op · Shift+arrow: pan · + and −: zoom · 0: whole step · click: keep the description",
  zh: "方向键：逐个 op · Shift+方向键：平移 · + 和 −：缩放 · 0：整步 · 点击：固定说明",
};

/** What the controls ask of the picture that they are on, and do to it. */
export interface Controlled {
  readonly view: View;
  readonly tongue: Tongue;
  readonly locked: boolean;
  describe(x: number, y: number): string;
  opAt(x: number, y: number): Place | undefined;
  lock(place: Place | undefined): void;
  look(from: number, to: number): void;
  move(key: string): void;
  whole(): void;
  request(): void;
}

export class Controls {
  readonly canvas: HTMLCanvasElement;
  readonly frame: HTMLElement;
  private readonly reset: HTMLButtonElement;
  private readonly selection: HTMLElement;
  private readonly tip: HTMLElement;
  stop = () => {};
  private pressed?: { x: number; y: number; pan: boolean; range: [number, number] };

  constructor(
    el: HTMLElement,
    private readonly timeline: Controlled,
  ) {
    const frame = (this.frame = make("div", el, "position: relative; min-width: 0"));
    this.canvas = make("canvas", frame, "display: block; position: relative; width: 100%; cursor: crosshair; touch-action: pan-y");
    Object.assign(this.canvas, { tabIndex: 0 });
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "timeline");
    this.reset = make("button", frame, "position: absolute; top: 0; left: 0; font-size: 11px; display: none");
    this.reset.type = "button";
    const over = "position: absolute; display: none; pointer-events: none; z-index: 9; ";
    this.selection = make("div", frame, `${over}background: rgb(128 128 128 / 25%); top: 0; bottom: 0`);
    const look = "padding: 4px 8px; border-radius: 4px; white-space: pre; font: 12px/1.4 system-ui, sans-serif";
    this.tip = make("div", frame, over + look);
    this.tip.className = "simlab-tip";
    this.tip.setAttribute("role", "status"); // screen readers say what appears here
    this.name(timeline.tongue);
    this.listen();
  }

  /** Names the controls in a language. */
  name(tongue: Tongue): void {
    this.reset.textContent = word("reset", tongue);
    this.canvas.title = "";
    this.canvas.setAttribute("aria-description", HINTS[tongue]);
    this.reset.title = HINTS[tongue];
  }

  width(): number {
    return this.frame.clientWidth;
  }

  resize(width: number, height: number, scale: number, theme: Theme): void {
    const device = [width, height].map((px) => Math.round(px * scale));
    const { left, top } = this.frame.getBoundingClientRect();
    // between device pixels it would be drawn blurred
    const [right, down] = [left, top].map((px) => Math.round(px * scale) / scale - px);
    Object.assign(this.canvas.style, { height: `${height}px`, left: `${right}px`, top: `${down}px` });
    if (this.canvas.width !== device[0] || this.canvas.height !== device[1]) {
      [this.canvas.width, this.canvas.height] = device;
    }
    Object.assign(this.tip.style, { background: theme.ink, color: theme.background });
    this.reset.style.display = this.timeline.view.zoomed ? "block" : "none";
  }

  /** Shows `text` near a point, or nothing. */
  say(text: string, x = 0, y = 0): void {
    this.tip.style.display = text ? "block" : "none";
    this.tip.textContent = text;
    if (!text) return;
    const left = Math.max(Math.min(x + 14, this.width() - this.tip.offsetWidth - 4), 0);
    const below = y + 16 + this.tip.offsetHeight <= this.frame.clientHeight;
    const top = below ? y + 16 : Math.max(y - 12 - this.tip.offsetHeight, 0);
    Object.assign(this.tip.style, { left: `${left}px`, top: `${top}px` });
  }

  private listen(): void {
    const { canvas, timeline } = this;
    const on = <K extends keyof HTMLElementEventMap>(
      name: K,
      run: (event: HTMLElementEventMap[K]) => void,
    ) => canvas.addEventListener(name, run, { passive: false });
    on("keydown", (event) => this.key(event));
    on("dblclick", () => timeline.whole());
    on("wheel", (event) => this.wheel(event));
    on("pointerdown", (event) => this.press(event));
    on("pointermove", (event) => (this.pressed ? this.drag(event) : this.hover(event)));
    on("pointerup", (event) => this.release(event));
    on("pointercancel", () => this.release());
    on("pointerleave", () => timeline.locked || this.say(""));
    this.reset.addEventListener("click", () => timeline.whole());
    this.stop = watch(this.frame, () => timeline.request());
  }

  private zoom(factor: number, around?: number): void {
    const [from, to] = this.timeline.view.range;
    const at = around ?? (from + to) / 2;
    this.timeline.look(at - (at - from) / factor, at + (to - at) / factor);
  }

  private pan(share: number): void {
    const [from, to] = this.timeline.view.range;
    const by = share * (to - from);
    this.timeline.look(from + by, to + by);
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { timeline } = this;
    const arrow = event.key.startsWith("Arrow");
    const keys: Record<string, () => void> = {
      "+": () => this.zoom(ZOOM_STEP),
      "=": () => this.zoom(ZOOM_STEP),
      "-": () => this.zoom(1 / ZOOM_STEP),
      "0": () => timeline.whole(),
      Home: () => timeline.whole(),
      Escape: () => (timeline.locked ? timeline.lock(undefined) : timeline.whole()),
    };
    const pans: Record<string, number> = { ArrowLeft: -PAN_STEP, ArrowRight: PAN_STEP };
    let run = keys[event.key];
    if (arrow) run = event.shiftKey ? () => this.pan(pans[event.key] ?? 0) : () => timeline.move(event.key);
    if (!run) return;
    event.preventDefault();
    event.stopPropagation(); // else JupyterLab takes it for a command
    run();
  }

  /** Without the focus the wheel scrolls the page, as it would anywhere else. */
  private wheel(event: WheelEvent): void {
    const { view } = this.timeline;
    const out = event.deltaY > 0 && !view.zoomed;
    if (out || !(event.ctrlKey || document.activeElement === this.canvas)) return;
    event.preventDefault();
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways) this.pan(((event.deltaX || event.deltaY) / view.width) * 1.5);
    else this.zoom(ZOOM_STEP ** (-event.deltaY / 100), view.time(event.offsetX));
  }

  private press(event: PointerEvent): void {
    if (event.button !== 0) return;
    const { offsetX: x, offsetY: y, shiftKey: pan } = event;
    this.canvas.setPointerCapture(event.pointerId);
    this.pressed = { x, y, pan, range: this.timeline.view.range };
  }

  private drag(event: PointerEvent): void {
    const { x, pan, range } = this.pressed!;
    const [from, to] = range;
    if (pan) {
      const by = ((x - event.offsetX) / this.timeline.view.width) * (to - from);
      this.timeline.look(from + by, to + by);
      return;
    }
    const [left, width] = [Math.min(x, event.offsetX), Math.abs(x - event.offsetX)];
    Object.assign(this.selection.style, { display: "block", left: `${left}px`, width: `${width}px` });
  }

  /** The end of a drag zooms in; a click locks the description of the op there, or unlocks. */
  private release(event?: PointerEvent): void {
    const { x, y, pan } = this.pressed ?? {};
    this.pressed = undefined;
    this.selection.style.display = "none";
    if (!event || x === undefined || y === undefined || pan) return;
    const { timeline } = this;
    if (Math.abs(event.offsetX - x) < CLICK) return timeline.lock(timeline.opAt(x, y));
    const times = [x, event.offsetX].map((at) => timeline.view.time(at));
    timeline.look(Math.min(...times), Math.max(...times));
  }

  private hover(event: PointerEvent): void {
    if (this.timeline.locked) return;
    const { offsetX: x, offsetY: y } = event;
    this.say(this.timeline.describe(x, y), x, y);
  }
}

function make<K extends keyof HTMLElementTagNameMap>(tag: K, parent: HTMLElement, css: string) {
  const element = document.createElement(tag);
  element.style.cssText = css;
  return parent.appendChild(element);
}
