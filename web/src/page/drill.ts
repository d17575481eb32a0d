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
  about: string;
  about_rows: string[][];
  fields: Field[];
  shown: string;
  show: string;
  hints: string[];
  right?: boolean;
  said?: string;
  ended?: string;
  advice?: string;
  missed?: string[];
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
let retelling = false;
let waiting = false; // for Python's answer: a second tap asks for nothing

function ask(request: Omit<DrillRequest, "tongue">): void {
  if (waiting) return;
  waiting = true;
  worker.postMessage({ ...request, tongue });
}

function say(): void {
  status.live = status.started;
  status.say({ ...TEXTS[tongue], recorded: "" });
}

worker.onmessage = ({ data }: MessageEvent<FromWorker<Reply>>) => {
  status.hear(data);
  say();
  if (data.kind === "answer" || data.kind === "failed") waiting = false;
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
  if (reply.none) {
    at("go-on").hidden = true;
    at("nothing").hidden = false;
  }
  if (reply.wrong !== undefined) {
    at("asked").hidden = false;
    retelling = false;
    at("wrong-entry").scrollIntoView({ block: "nearest" });
    return;
  }
  if (reply.said !== undefined) {
    judged = true;
    at("verdict").innerHTML = reply.said;
    for (const element of form.elements) (element as HTMLInputElement).disabled = true;
    form.querySelector<HTMLElement>(".buttons")!.hidden = true;
    at("next").hidden = reply.ended !== undefined;
    at("verdict").scrollIntoView({ block: "nearest" });
  } else if (reply.head !== undefined) {
    if (retelling) retell(reply);
    else show(reply);
  }
  retelling = false;
  at("ended").hidden = reply.ended === undefined;
  if (reply.ended !== undefined) {
    at("ended").innerHTML = reply.advice ?? "";
    at("ended").prepend(make("h2", { textContent: reply.ended }));
    const again = (reply.missed ?? []).map((id) => make("a", { href: `${id}.html`, textContent: id }));
    for (const link of again) at("ended").append(link, " ");
    at("choice").hidden = false;
    at("stop").hidden = true;
    at("asked").hidden = !judged;
    at("go-on").hidden = reply.said !== undefined; // it was stopped before its end
    at("ended").scrollIntoView({ block: "start" });
  }
}

/** Shows a question, which nobody has answered yet. */
function show(reply: Reply): void {
  [hints, hinted, judged] = [reply.hints, 0, false];
  at("choice").hidden = at("nothing").hidden = true;
  at("asked").hidden = at("stop").hidden = false;
  at("head").textContent = reply.head!;
  at("about").innerHTML = reply.about;
  at("about").append(table(reply.about_rows));
  at("about").hidden = reply.about === "";
  at("text").innerHTML = reply.text;
  at("table").replaceChildren(table(reply.rows));
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
  form.querySelector<HTMLElement>(".buttons")!.hidden = false;
  at("asked").scrollIntoView({ block: "start" });
}

function table(rows: string[][]): HTMLElement {
  const all = make("table");
  for (const cells of rows) {
    const row = make("tr");
    row.append(...cells.map((text) => make("td", { textContent: text })));
    all.append(row);
  }
  return all;
}

/** The question that is shown in another language, with what stands in its fields and the hints that were given. */
function retell(reply: Reply): void {
  const entered = [...new FormData(form)];
  const [given, open] = [hinted, !form.hidden];
  show(reply);
  for (const [name, value] of entered) (form.elements.namedItem(name) as HTMLInputElement).value = String(value);
  for (let count = 0; count < given; count++) hint();
  if (open && reply.shown !== "") at("show").click();
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
function hint(): void {
  at("hints").append(make("div", { innerHTML: hints[hinted] }));
  hinted += 1;
  at("hint").hidden = hinted === hints.length;
}
at("hint").onclick = hint;
at("stop").onclick = () => ask({ do: "stop" });
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
  at("wrong-entry").textContent = "";
  if (!at("asked").hidden && !judged && status.started) {
    retelling = true;
    ask({ do: "ask" });
  }
}

const left = load().drill.session as { items?: unknown[]; results?: unknown[] } | undefined;
at("go-on").hidden = !(left?.items && left.results && left.results.length < left.items.length);
connect(change);
change(tongue);
