/** An explorer as an anywidget: the state goes to Python, the answer comes back. */

import type { About, Answer, State } from "./explorer/data";
import { Explorer } from "./explorer/explorer";
import type { Tongue } from "./language";

interface Model {
  get(name: "about"): About;
  get(name: "answer"): Answer & { count: number };
  get(name: "state"): State;
  get(name: "call" | "tongue"): string;
  set(name: "state", value: State): void;
  save_changes(): void;
  on(event: string, run: () => void): void;
  off(event: string, run: () => void): void;
}

export default {
  render({ model, el }: { model: Model; el: HTMLElement }): () => void {
    let heard: ((answer: Answer) => void) | undefined;
    const same = (state: State) => JSON.stringify(state) === JSON.stringify(model.get("state"));
    const ask = (state: State): Promise<Answer> => {
      const answer = model.get("answer");
      if (same(state) && answer.count > 0) return Promise.resolve(answer);
      const answered = new Promise<Answer>((resolve) => (heard = resolve));
      model.set("state", state);
      model.save_changes();
      return answered;
    };
    const tongue = (): Tongue => (model.get("tongue") === "zh" ? "zh" : "en");
    const host = { ask, call: model.get("call"), tongue: tongue() };
    const explorer = new Explorer(el, model.get("about"), model.get("state"), host);
    const hear = () => {
      const resolve = heard;
      heard = undefined;
      if (resolve) resolve(model.get("answer"));
      else explorer.change(model.get("state")); // Python has changed it
    };
    const speak = () => explorer.speak(tongue()); // the learner has chosen another language
    model.on("change:answer", hear);
    model.on("change:tongue", speak);
    return () => {
      model.off("change:answer", hear);
      model.off("change:tongue", speak);
      explorer.stop();
    };
  },
};
