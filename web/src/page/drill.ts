/** The drill and the interview, asked and judged by Python in a worker (`simlab.lessons.drill.page`). */

import type { Tongue } from "../language";
import type { DrillRequest, FromWorker } from "./messages";
import { asFile, load, takeIn } from "./progress";
import { connect, firstTongue, speak } from "./site";
import { Status } from "./status";
import { TEXTS } from "./texts";

interface Field {
  name: string;
  label: string;
  unit: string;
  options: [string, string][];
}
interface Reply {
  progress: string;
  head?: string;
  text: string;
  rows: string[][];
  fields: Field[];
  shown: string;
  show: string;
  hints: string[];
  right?: boolean;
  said?: string;
  ended?: string;
  advice?: string;
  wrong?: string;
  none?: boolean;
}

const at = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const make = (tag: string, its: object = {}): HTMLElement => Object.assign(document.createElement(tag), its);
const worker = new Worker(new URL("../worker.js", import.meta.url), { type: "module", name: "drill" });
const status = new Status();
const form = at<HTMLFormElement>("answer");
const buttons = [...document.querySelectorAll<HTMLButtonElement>("#choice button")];
let tongue = firstTongue();
let hints: string[] = [];
let hinted = 0;
let judged = false;

function ask(request: Omit<DrillRequest, "tongue">): void {
  worker.postMessage({ ...request, tongue });
}

function say(): void {
  status.live = status.started;
  status.say({ ...TEXTS[tongue], recorded: "" });
}

worker.onmessage = ({ data }: MessageEvent<FromWorker<Reply>>) => {
  status.hear(data);
  say();
  if (data.kind === "ready") for (const button of buttons) button.disabled = false;
  if (data.kind === "answer") hear(data.answer);
};
worker.onerror = (event) => {
  status.hear({ kind: "failed", why: event.message });
  say();
};

function hear(reply: Reply): void {
  takeIn(reply.progress);
  at("wrong-entry").textContent = reply.wrong ?? "";
  if (reply.wrong !== undefined) {
    at("asked").hidden = false;
    return;
  }
  if (reply.said !== undefined) {
    judged = true;
    at("verdict").innerHTML = reply.said;
    for (const element of form.elements) (element as HTMLInputElement).disabled = true;
    at("next").hidden = reply.ended !== undefined;
    at("verdict").scrollIntoView({ block: "nearest" });
  } else if (reply.head !== undefined) {
    show(reply);
  }
  at("ended").hidden = reply.ended === undefined;
  if (reply.ended !== undefined) {
    at("ended").innerHTML = reply.advice ?? "";
    at("ended").prepend(make("h2", { textContent: reply.ended }));
    at("choice").hidden = false;
  }
}

/** Shows a question, which nobody has answered yet. */
function show(reply: Reply): void {
  [hints, hinted, judged] = [reply.hints, 0, false];
  at("choice").hidden = true;
  at("asked").hidden = false;
  at("head").textContent = reply.head!;
  at("text").innerHTML = reply.text;
  at("table").replaceChildren(
    ...reply.rows.map((cells) => {
      const row = make("tr");
      row.append(...cells.map((text) => make("td", { textContent: text })));
      return row;
    }),
  );
  at("show").textContent = reply.show;
  at("shown").innerHTML = reply.shown;
  const asksAloud = reply.shown !== "";
  at("show").hidden = !asksAloud;
  at("shown").hidden = true;
  form.hidden = asksAloud;
  at("fields").replaceChildren(...reply.fields.map(line));
  at("hints").replaceChildren();
  at("hint").hidden = hints.length === 0;
  at("verdict").replaceChildren();
  at("next").hidden = true;
  for (const element of form.elements) (element as HTMLInputElement).disabled = false;
  at("asked").scrollIntoView({ block: "start" });
}

function line({ name, label, unit, options }: Field): HTMLElement {
  const row = make("label");
  row.append(make("span", { textContent: label }));
  if (options.length) {
    const menu = make("select", { name });
    menu.append(make("option", { value: "", textContent: "–" }));
    menu.append(...options.map(([value, textContent]) => make("option", { value, textContent })));
    row.append(menu);
  } else {
    const number = make("span", { className: "number" });
    number.append(make("input", { name, inputMode: "decimal", autocomplete: "off" }), ` ${unit}`);
    row.append(number);
  }
  return row;
}

for (const button of buttons) {
  button.onclick = () => {
    const kind = button.dataset.kind;
    ask({ ...(kind === undefined ? { do: "go_on" } : { do: "begin", kind }), progress: asFile() });
  };
}
at("show").onclick = () => {
  at("show").hidden = true;
  at("shown").hidden = form.hidden = false;
};
at("hint").onclick = () => {
  const text = make("div", { innerHTML: hints[hinted] });
  at("hints").append(text);
  hinted += 1;
  at("hint").hidden = hinted === hints.length;
};
form.onsubmit = (event) => {
  event.preventDefault();
  if (judged) return;
  const texts = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value)]));
  ask({ do: "answer", texts, hints: hinted });
};
at("next").onclick = () => ask({ do: "ask" });

function change(chosen: Tongue): void {
  tongue = chosen;
  speak(tongue);
  say();
  if (!at("asked").hidden && !judged && status.started) ask({ do: "ask" });
}

at("go-on").hidden = !("session" in load().drill);
connect(change);
change(tongue);
