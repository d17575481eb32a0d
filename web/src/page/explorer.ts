/** A page of one explorer, answered by Python in a worker; until that has started, by a recording. */

import { fromHash, startOf, toHash, type About, type Answer, type State } from "../explorer/data";
import { Explorer } from "../explorer/explorer";
import { momentOf, withMoment } from "../sweep";
import { Challenges } from "./challenges";
import type { FromWorker } from "./messages";
import { revive } from "./recorded";
import { connect, firstTongue, speak } from "./site";
import { Status, loaded, sayMissing } from "./status";
import { TEXTS } from "./texts";

const at = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const main = at("explorer");
const name = main.dataset.explorer!;
const worker = new Worker(new URL("../worker.js", import.meta.url), { type: "module" });
const status = new Status();
const FOOT = 30; // px below the pictures
let tongue = firstTongue();
let heard: { resolve(answer: Answer): void; reject(error: Error): void } | undefined;

function sayStatus(): void {
  status.say(TEXTS[tongue]);
  main.dataset.live = String(status.live);
}

function hear(message: FromWorker<Answer>): void {
  status.hear(message);
  status.live = status.started;
  if (message.kind === "failed") heard?.reject(new Error(message.why));
  if (message.kind === "answer") heard?.resolve(message.answer);
  sayStatus();
}

function ask(state: State): Promise<Answer> {
  return new Promise((resolve, reject) => {
    if (status.failed && !status.started) return reject(new Error(status.failed)); // no worker answers
    heard = { resolve, reject };
    worker.postMessage({ explorer: name, state });
  });
}

function show({ about, answer }: { about: About; answer: unknown }): void {
  const start = startOf(about);
  const recorded = revive(answer) as Answer;
  const isStart = (state: State) => JSON.stringify(state) === JSON.stringify(start);
  const challenges = document.getElementById("challenges") ? new Challenges(about) : undefined;
  const first = fromHash(about, location.hash, start);
  challenges?.came(first);
  const explorer = new Explorer(main, about, first, {
    ask: async (state) => {
      const answer = isStart(state) ? recorded : await ask(state);
      challenges?.hear(state, answer);
      return answer;
    },
    changed: (state, moment) => history.replaceState(null, "", `#${withMoment(toHash(about, state), moment)}`),
    moment: momentOf(location.hash),
    tongue,
    room: () => innerHeight - (main.getBoundingClientRect().top + scrollY) - FOOT,
  });
  addEventListener("hashchange", () => {
    const [state, moment] = [fromHash(about, location.hash, start), momentOf(location.hash)];
    challenges?.came(state);
    explorer.go(moment);
    explorer.change(state);
  });
  const change = (chosen: typeof tongue) => {
    tongue = chosen;
    speak(tongue);
    explorer.speak(tongue);
    challenges?.speak(tongue);
    sayStatus();
  };
  connect(change);
  change(tongue);
}

worker.onmessage = ({ data }: MessageEvent<FromWorker<Answer>>) => hear(data);
worker.onerror = (event) => hear({ kind: "failed", why: event.message });
loaded<Parameters<typeof show>[0]>(new URL(`./${name}.json`, import.meta.url)).then(show, (error) => sayMissing(error, TEXTS[tongue]));
