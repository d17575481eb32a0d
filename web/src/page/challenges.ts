/** What the page of challenges has besides its explorer: which are solved, and a link that shares a solution. */

import { toHash, type About, type Answer, type State } from "../explorer/data";
import type { Tongue } from "../language";
import { load, save } from "./progress";

const SAID = {
  en: { solved: "{count} of {all} challenges solved", share: "I solved the challenge “{name}”:", copied: "Copied", mark: "solved" },
  zh: { solved: "已完成 {count} / {all} 个挑战", share: "我完成了挑战“{name}”：", copied: "已复制", mark: "已完成" },
};
const at = (id: string) => document.getElementById(id)!;
const COPIED_MS = 1500;
/** What of a state solves a challenge: an open hint does not. */
const deed = (state: State) => JSON.stringify({ ...state, hint: 0 });

export class Challenges {
  private readonly items = [...document.querySelectorAll<HTMLElement>("#challenges li")];
  private brought = ""; // the state that came with the address
  private state: State = {};
  private answer?: Answer;
  private tongue: Tongue = "en";

  constructor(private readonly about: About) {
    at("share").onclick = () => this.share();
    at("challenges").onclick = ({ target }) => target instanceof HTMLAnchorElement && at("explorer").scrollIntoView();
  }

  /** A state came with the address: what it solves is not the learner's own. */
  came(state: State): void {
    this.brought = deed(state);
  }

  /** Takes in the answer for `state`, and keeps a challenge that it solves in the learner's progress. */
  hear(state: State, answer: Answer): void {
    [this.state, this.answer] = [state, answer];
    const progress = load();
    if (answer.solved && deed(state) !== this.brought && !progress.challenges[answer.solved]) {
      progress.challenges[answer.solved] = { at_s: Date.now() / 1000 };
      save(progress);
    }
    this.show();
  }

  speak(tongue: Tongue): void {
    this.tongue = tongue;
    this.show();
  }

  private show(): void {
    const { challenges } = load();
    const done = this.items.filter(({ dataset }) => dataset.id! in challenges);
    const text = SAID[this.tongue];
    at("solved").textContent = text.solved.replace("{count}", String(done.length)).replace("{all}", String(this.items.length));
    for (const item of this.items) {
      item.querySelector(".mark")!.textContent = done.includes(item) ? "✓" : "";
      item.querySelector("a")!.title = done.includes(item) ? text.mark : "";
    }
    const solved = this.answer?.solved ?? "";
    at("share").hidden = !solved;
    at("shared").hidden = !solved || solved in challenges;
    at("anew").setAttribute("href", `#task=${this.state.task}`);
  }

  /** Gives the link of the solution, without a hint that was open, to what the device shares with, or copies it. */
  private async share(): Promise<void> {
    const text = SAID[this.tongue];
    const name = this.items.find(({ dataset }) => dataset.id === this.answer?.solved)!.querySelector("a")!.dataset[this.tongue]!;
    const { origin, pathname } = location;
    const url = `${origin}${pathname}#${toHash(this.about, { ...this.state, hint: 0 })}`;
    const said = text.share.replace("{name}", name);
    if (navigator.share) return navigator.share({ text: said, url }).catch(() => {}); // it was called off
    await navigator.clipboard.writeText(`${said} ${url}`);
    at("share").textContent = text.copied;
    setTimeout(() => (at("share").textContent = at("share").dataset[this.tongue]!), COPIED_MS);
  }
}
