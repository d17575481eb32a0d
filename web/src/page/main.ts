/** The page: controls on top, figures and the timeline of two schedules, simulated as they change. */

import { Timeline } from "../timeline/timeline";
import type { Answer, Figures, FromWorker } from "./messages";
import { revive } from "./recorded";
import { connect, firstTongue, speak } from "./site";
import { Status, loaded, sayMissing } from "./status";
import { PLAY, Sweep, momentOf, withMoment } from "../sweep";
import { SLIDERS, START, fromHash, toHash, type State } from "./state";
import { TEXTS, type Words } from "./texts";

interface Recorded {
  schedules: { name: string; chunks: boolean }[];
  answer: unknown;
}

const at = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const FOOT = 12; // px below the timeline

class Page {
  private readonly timeline = new Timeline(at("timeline"));
  private readonly sweep = new Sweep(this.timeline, () => {
    this.sayPlay();
    this.link();
  });
  private readonly worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  private readonly names: string[];
  private state: State;
  private answer: Answer;
  private readonly status = new Status();

  constructor(private readonly recorded: Recorded) {
    this.names = recorded.schedules.map(({ name }) => name);
    this.state = fromHash(location.hash, this.names, { ...START, tongue: firstTongue() });
    this.answer = revive(recorded.answer) as Answer;
    this.build();
    this.sweep.go(momentOf(location.hash));
    this.words();
    this.show();
    this.worker.onmessage = ({ data }: MessageEvent<FromWorker>) => this.hear(data);
    this.worker.onerror = (event) => this.hear({ kind: "failed", why: event.message });
    this.ask();
    addEventListener("hashchange", () => {
      const [state, moment] = [fromHash(location.hash, this.names, this.state), momentOf(location.hash)];
      this.sweep.go(moment);
      this.change(state);
    });
    addEventListener("resize", () => this.fit());
  }

  private get text(): Words {
    return TEXTS[this.state.tongue];
  }

  private build(): void {
    for (const [number, id] of ["first", "second"].entries()) {
      const menu = at<HTMLSelectElement>(id);
      if (number === 1) menu.add(new Option("", ""));
      for (const name of this.names) menu.add(new Option(name, name));
      menu.onchange = () => {
        const schedules: [string, string] = [...this.state.schedules];
        schedules[number] = menu.value;
        this.change({ ...this.state, schedules });
      };
    }
    for (const { name, least, most, step } of SLIDERS) {
      const slider = at<HTMLInputElement>(name);
      Object.assign(slider, { min: String(least), max: String(most), step: String(step) });
      slider.oninput = () => this.change({ ...this.state, [name]: Number(slider.value) });
    }
    connect((tongue) => this.change({ ...this.state, tongue }));
    at("copy").onclick = () => this.copy();
    at("play").onclick = () => this.sweep.toggle();
    at("play").before(this.sweep.element);
    this.put();
  }

  private sayPlay(): void {
    at("play").textContent = PLAY[this.state.tongue][this.sweep.running ? "pause" : "play"];
    at("play").setAttribute("aria-pressed", String(this.sweep.running));
    this.sweep.show(this.state.tongue);
  }

  /** Keeps what is shown in the page's address. */
  private link(): void {
    history.replaceState(null, "", `#${withMoment(toHash(this.state), this.sweep.moment)}`);
  }

  private async copy(): Promise<void> {
    this.link(); // Play may be on its way
    await navigator.clipboard.writeText(location.href);
    at("copy").textContent = this.text.copied;
    setTimeout(() => (at("copy").textContent = this.text.copy), 1500);
  }

  /** Puts the state's values into the controls. */
  private put(): void {
    at<HTMLSelectElement>("first").value = this.state.schedules[0];
    at<HTMLSelectElement>("second").value = this.state.schedules[1];
    for (const { name } of SLIDERS) {
      at<HTMLInputElement>(name).value = String(this.state[name]);
      at(`${name}-value`).textContent = String(this.state[name]);
    }
    const chosen = this.recorded.schedules.filter(({ name }) => this.state.schedules.includes(name));
    const chunked = chosen.some(({ chunks }) => chunks);
    at<HTMLInputElement>("chunks").disabled = !chunked;
    at("chunks").parentElement!.title = chunked ? "" : this.text.noChunks;
  }

  private change(state: State): void {
    const spoken = state.tongue !== this.state.tongue;
    const asked = JSON.stringify({ ...state, tongue: "" }) !== JSON.stringify({ ...this.state, tongue: "" });
    this.state = state;
    this.link();
    this.put();
    if (spoken) {
      this.words();
      this.show();
    }
    if (asked) this.ask();
  }

  private ask(): void {
    const { tongue: _, schedules, ...numbers } = this.state;
    this.worker.postMessage({ schedules: schedules.filter(Boolean), ...numbers });
  }

  private hear(message: FromWorker): void {
    this.status.hear(message);
    if (message.kind === "answer") {
      this.status.live = true;
      this.answer = message.answer;
      this.show();
    }
    this.status.say(this.text);
  }

  /** Writes every text in the page's language. */
  private words(): void {
    speak(this.state.tongue);
    for (const element of document.querySelectorAll<HTMLElement>("[data-text]")) {
      element.textContent = this.text[element.dataset.text as keyof Words] as string;
    }
    at<HTMLSelectElement>("second").options[0].text = this.text.none;
    const paragraphs = this.text.about.map((text) => {
      const paragraph = document.createElement("p");
      paragraph.textContent = text;
      return paragraph;
    });
    at("about").replaceChildren(...paragraphs);
    this.sayPlay();
    this.status.say(this.text);
  }

  /** Shows the answer: figures, what is refused, and the timeline. */
  private show(): void {
    const { figures, refused, panels } = this.answer;
    at("figures").replaceChildren(...figures.map((each) => this.row(each)));
    const { text } = this;
    const why = refused.map(([, words]) => `${text.refused}${text.colon}${words[this.state.tongue]}`);
    at("refused").textContent = why.join("\n");
    at("timeline").hidden = panels.length === 0;
    const titled = panels.map((panel, number) => ({ ...panel, title: this.title(figures[number]) }));
    if (titled.length) this.timeline.show(titled);
    this.sweep.show();
    at("timeline").dataset.live = String(this.status.live);
    this.fit();
  }

  /** Gives the timeline the rest of the window. */
  private fit(): void {
    const { top } = at("timeline").getBoundingClientRect();
    const fit = Math.max(innerHeight - (top + scrollY) - FOOT, 260);
    this.timeline.set({ tongue: this.state.tongue, fit });
  }

  private title({ name, step_s: stepS }: Figures): string {
    return `${this.text.simulated}: ${name}, ${(stepS * 1e3).toFixed(1)} ms`;
  }

  private row({ name, step_s: stepS, idle_over_makespan: idle, peak }: Figures): HTMLElement {
    const row = document.createElement("tr");
    const cells = [
      `${(stepS * 1e3).toFixed(1)} ms`,
      `${(idle * 100).toFixed(1)}%`,
      `${Number(peak.toPrecision(3))} ${peak === 1 ? this.text.heldOne : this.text.held}`,
    ];
    const head = document.createElement("th");
    Object.assign(head, { scope: "row", textContent: name });
    row.append(head, ...cells.map((cell) => Object.assign(document.createElement("td"), { textContent: cell })));
    return row;
  }
}

loaded<Recorded>(new URL("./recorded.json", import.meta.url)).then(
  (recorded) => new Page(recorded),
  (error) => sayMissing(error, TEXTS[firstTongue()]),
);
