/** An explorer: controls, figures and note in a column, pictures beside them. It asks for an answer
 * whenever a control changes: one at a time, and of those that came meanwhile only the last. */

import { said, themeOf, unbroken, type Tongue } from "../language";
import type { Words } from "../chart/data";
import { PLAY, Sweep } from "../sweep";
import { watch } from "../watch";
import { ControlView } from "./controls";
import { offered, startOf, toPython, within, type About, type Answer, type State, type Value } from "./data";
import { Pictures } from "./pictures";
import css from "./style.css";

export interface Host {
  /** The answer for a state; what it throws is shown as the reason why there is none. */
  ask(state: State): Promise<Answer>;
  /** Told of each new state, and of the moment that Play has reached, see `Sweep`. */
  changed?(state: State, moment?: number): void;
  moment?: number; // to begin with
  call?: string; // the class of the explorer in Python
  tongue?: Tongue;
  /** The height that it should have, px, where there is a window to fill. */
  room?(): number;
}

const TEXTS = {
  en: { copy: "Copy link", python: "Copy as Python", copied: "Copied", other: "中文" },
  zh: { copy: "复制链接", python: "复制为 Python", copied: "已复制", other: "English" },
};
const PLAY_MS = 900; // from step to step
const AROUND = 130; // px that JupyterLab has above and below a notebook

export class Explorer {
  readonly element: HTMLElement;
  private readonly controls: ControlView[];
  private readonly play = button();
  private readonly copy = button();
  private readonly other = button();
  private readonly table = document.createElement("table");
  private readonly wide = document.createElement("table"); // where several things are compared
  private readonly note = document.createElement("p");
  private readonly refused = document.createElement("p");
  private readonly pictures = new Pictures((control, value) => this.change({ ...this.state, [control]: value }));
  private answer?: Answer;
  private why?: Words | null; // the present state has no answer
  private asked?: string; // the state whose answer is on the way, or was the last
  private waiting = false;
  private timer?: ReturnType<typeof setInterval>;
  private tongue: Tongue;
  private readonly main = div("simlab-main");
  private readonly sweep = new Sweep(this.pictures, () => {
    this.put();
    this.tell();
  });
  private readonly sizes = new ResizeObserver(() => this.fit());
  private readonly resized = () => this.fit();
  private readonly unwatch: () => void;

  constructor(
    el: HTMLElement,
    private readonly about: About,
    private state: State,
    private readonly host: Host,
  ) {
    this.tongue = host.tongue ?? "en";
    this.controls = about.controls.filter(({ name, shown }) => shown !== false && !about.hidden?.includes(name)).map(
      (control) =>
        new ControlView(control, (value) =>
          this.change({ ...(control.resets ? startOf(about) : this.state), [control.name]: value }),
        ),
    );
    this.element = div("simlab-explorer");
    const style = Object.assign(document.createElement("style"), { textContent: css });
    const buttons = div("simlab-buttons");
    buttons.append(this.play, this.copy);
    if (host.call) buttons.append(this.other);
    this.refused.setAttribute("role", "alert");
    this.refused.className = "simlab-refused";
    this.note.className = "simlab-note";
    const said = div("simlab-said");
    said.setAttribute("aria-live", "polite");
    said.append(this.refused, this.table, this.note);
    const side = div("simlab-side");
    side.append(...this.controls.map(({ element }) => element), buttons, this.sweep.element, said);
    this.main.append(this.wide, this.pictures.element);
    this.element.append(style, side, this.main);
    el.append(this.element);
    this.play.onclick = () => (this.played ? this.playing(this.timer === undefined) : this.sweep.toggle());
    this.copy.onclick = () => this.copied();
    this.other.onclick = () => this.speak(this.tongue === "en" ? "zh" : "en");
    this.unwatch = watch(this.element, () => this.theme());
    this.sizes.observe(this.main);
    addEventListener("resize", this.resized);
    this.theme();
    this.sweep.go(host.moment);
    this.put();
    this.ask();
  }

  /** The control that Play moves on, if it has values to go through. */
  private get played(): ControlView | undefined {
    const found = this.controls.find(({ control }) => control.name === this.about.play);
    return found && offered(found.control, this.answer).length > 1 ? found : undefined;
  }

  /** Lets the pictures fill the window. */
  private fit(): void {
    const room = this.host.room?.() ?? innerHeight - AROUND;
    this.pictures.fit(room - this.main.offsetHeight);
  }

  /** Moves to another state, whoever changed it. */
  change(state: State): void {
    this.state = state;
    this.put();
    this.tell();
    this.ask();
  }

  /** Shows the moment `moment`, a part of the time. */
  go(moment?: number): void {
    this.sweep.go(moment);
  }

  private tell(): void {
    this.host.changed?.(this.state, this.sweep.moment);
  }

  speak(tongue: Tongue): void {
    this.tongue = tongue;
    this.put();
    this.refuse(this.why);
    this.show();
  }

  stop(): void {
    this.playing(false);
    this.sweep.end();
    this.sizes.disconnect();
    removeEventListener("resize", this.resized);
    this.unwatch();
    this.pictures.stop();
  }

  private async ask(): Promise<void> {
    const state = JSON.stringify(this.state);
    if (this.waiting || state === this.asked) return;
    this.waiting = true;
    this.asked = state;
    try {
      this.take(await this.host.ask(this.state));
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      this.refuse({ en: message, zh: message });
    }
    this.waiting = false;
    this.ask(); // if the state has changed meanwhile
  }

  private take(answer: Answer): void {
    this.refuse(answer.refused);
    this.element.dataset.refused = String(Boolean(answer.refused));
    if (answer.refused) return this.done();
    this.answer = answer;
    const state = { ...this.state };
    for (const control of this.about.controls) {
      if (this.about.hidden?.includes(control.name)) continue;
      state[control.name] = within(offered(control, answer), state[control.name]);
    }
    const [before, after] = [JSON.stringify(this.state), JSON.stringify(state)];
    this.state = state;
    // the answer keeps within its ranges, too; where a control has moved meanwhile it is of another state
    if (before === this.asked) this.asked = after;
    if (before !== after) this.tell();
    this.put();
    this.show();
  }

  /** Says why the present state has no answer, if it has none. */
  private refuse(why?: Words | null): void {
    this.why = why;
    this.refused.textContent = why?.[this.tongue] ?? "";
  }

  /** Writes what the controls show. */
  private put(): void {
    const text = TEXTS[this.tongue];
    for (const each of this.controls) each.put(this.state, this.answer, this.tongue);
    const on = this.timer !== undefined || this.sweep.running;
    this.play.hidden = !this.played && !this.pictures.timed;
    this.play.textContent = PLAY[this.tongue][on ? "pause" : "play"];
    this.play.setAttribute("aria-pressed", String(on));
    this.copy.textContent = this.host.call ? text.python : text.copy;
    this.other.textContent = text.other;
    this.element.lang = this.tongue;
    this.element.setAttribute("aria-label", this.about.title[this.tongue]);
  }

  private show(): void {
    if (!this.answer) return;
    const { figures, heads, note, pictures } = this.answer;
    const { tongue } = this;
    const text = (words?: Words | null) => said(words?.[tongue] ?? "", tongue);
    const rows = figures.map(({ label, tip, values }) => [
      head(text(label), text(tip)),
      ...values.map((value) => said(value, tongue)),
    ]);
    const compared = heads.length > 0;
    this.table.replaceChildren(...(compared ? [] : rows.map(row)));
    const columns = heads.map((name, at) => [head(said(name, tongue)), ...rows.map((cells) => cells[at + 1])]);
    const top = ["", ...rows.map(([first]) => first)];
    this.wide.replaceChildren(...(compared ? [top, ...columns].map(row) : []));
    this.note.textContent = unbroken(text(note));
    this.pictures.show(pictures, this.tongue);
    if (this.played || !this.pictures.timed) this.sweep.end();
    this.sweep.show(tongue);
    this.put();
    this.done();
  }

  /** Counts the answers that can be seen. */
  private done(): void {
    const count = String(Number(this.element.dataset.answers ?? 0) + 1);
    requestAnimationFrame(() =>
      requestAnimationFrame(() => {
        this.sweep.show(); // of pictures that are drawn now
        this.element.dataset.answers = count;
      }),
    );
  }

  private playing(on: boolean): void {
    if (this.timer !== undefined) clearInterval(this.timer);
    this.timer = on ? setInterval(() => this.step(), PLAY_MS) : undefined;
    if (on) this.step(true);
    this.put();
  }

  private step(begin = false): void {
    if (this.waiting) return;
    const { played } = this;
    const next: Value | undefined = played?.next(this.state);
    if (!played || (next === undefined && !begin)) return this.playing(false);
    this.change({ ...this.state, [played.control.name]: next ?? played.first });
  }

  private async copied(): Promise<void> {
    const { call } = this.host;
    this.tell(); // Play may be on its way
    await navigator.clipboard.writeText(call ? toPython(call, this.about, this.state) : location.href);
    this.copy.textContent = TEXTS[this.tongue].copied;
    setTimeout(() => this.put(), 1500);
  }

  private theme(): void {
    const { style } = this.element;
    const theme = themeOf(this.element);
    style.colorScheme = theme.dark ? "dark" : "light";
    for (const name of ["background", "ink", "muted", "grid", "cap"] as const) {
      style.setProperty(`--simlab-${name === "background" ? "paper" : name}`, theme[name]);
    }
  }
}

type Cell = HTMLElement | string;

function head(text: string, title = ""): HTMLElement {
  return Object.assign(document.createElement("th"), { textContent: text, title });
}

function row(cells: Cell[]): HTMLElement {
  const element = document.createElement("tr");
  const data = (text: string) => Object.assign(document.createElement("td"), { textContent: text });
  element.append(...cells.map((cell) => (typeof cell === "string" ? data(cell) : cell)));
  return element;
}

function button(): HTMLButtonElement {
  return Object.assign(document.createElement("button"), { type: "button" });
}

function div(name: string): HTMLElement {
  return Object.assign(document.createElement("div"), { className: name });
}
