/** A page of one explorer, answered by Python in a worker; until that has started, by a recording. */

import { fromHash, startOf, toHash, type About, type Answer, type State } from "../explorer/data";
import { Explorer } from "../explorer/explorer";
import type { FromWorker } from "./messages";
import { revive } from "./recorded";
import { connect, firstTongue, speak } from "./site";
import { TEXTS } from "./texts";

const at = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const main = at("explorer");
const name = main.dataset.explorer!;
const worker = new Worker(new URL("../worker.js", import.meta.url), { type: "module" });
const status = { share: 0, starting: false, failed: "", live: false };
const FOOT = 30; // px below the pictures
let tongue = firstTongue();
let heard: { resolve(answer: Answer): void; reject(error: Error): void } | undefined;

function sayStatus(): void {
  const text = TEXTS[tongue];
  const { share, starting, failed, live } = status;
  const loading = starting ? text.starting : `${text.loading} ${Math.round(share * 100)}%`;
  const said = failed ? `${text.failed}: ${failed}` : `${text.recorded}${loading} …`;
  at("status").textContent = live && !failed ? text.live : said;
  at("status").dataset.live = String(live);
  main.dataset.live = String(live);
  const bar = at<HTMLProgressElement>("progress");
  bar.hidden = live || failed !== "";
  bar.value = share;
}

function hear(message: FromWorker<Answer>): void {
  if (message.kind === "progress") Object.assign(status, message);
  if (message.kind === "ready") status.live = true;
  if (message.kind === "failed") {
    status.failed = message.why;
    heard?.reject(new Error(message.why));
  }
  if (message.kind === "answer") {
    status.failed = "";
    heard?.resolve(message.answer);
  }
  sayStatus();
}

function ask(state: State): Promise<Answer> {
  return new Promise((resolve, reject) => {
    if (status.failed && !status.live) return reject(new Error(status.failed)); // no worker answers
    heard = { resolve, reject };
    worker.postMessage({ explorer: name, state });
  });
}

function show({ about, answer }: { about: About; answer: unknown }): void {
  const start = startOf(about);
  const recorded = revive(answer) as Answer;
  const isStart = (state: State) => JSON.stringify(state) === JSON.stringify(start);
  const explorer = new Explorer(main, about, fromHash(about, location.hash, start), {
    ask: (state) => (isStart(state) ? Promise.resolve(recorded) : ask(state)),
    changed: (state) => history.replaceState(null, "", `#${toHash(about, state)}`),
    tongue,
    room: () => innerHeight - (main.getBoundingClientRect().top + scrollY) - FOOT,
  });
  addEventListener("hashchange", () => explorer.change(fromHash(about, location.hash, start)));
  const change = (chosen: typeof tongue) => {
    tongue = chosen;
    speak(tongue);
    explorer.speak(tongue);
    sayStatus();
  };
  connect(change);
  change(tongue);
}

worker.onmessage = ({ data }: MessageEvent<FromWorker<Answer>>) => hear(data);
worker.onerror = (event) => hear({ kind: "failed", why: event.message });
fetch(new URL(`./${name}.json`, import.meta.url))
  .then((response) => response.json())
  .then(show);
