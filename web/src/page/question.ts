/** A question: it asks for a prediction, then shows what was found, and, when it was said aloud, the answer. */

import type { Tongue } from "../language";
import { load, save, type Values } from "./progress";
import { keepForOffline } from "./offline";
import { connect, firstTongue, speak } from "./site";

type Named = Record<Tongue, string>;
type Said = Record<"empty" | "no_number" | "no_percent" | "part_of_one" | "too_high" | "too_low" | "too_high_by" | "too_low_by", string>;
interface Field {
  name: string;
  label: Named;
  found: number | string;
  options?: Record<string, Named>;
  unit?: Named;
  percent?: number; // what 1% is in the field's unit; 0: it is not asked in percent
  shown?: string; // what was found, as the lesson rounds it
}
interface Asked {
  id: string;
  fields: Field[];
  said: Record<Tongue, Said>;
}

const NEAR = 0.02; // as in simlab.lessons.prediction
const at = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const asked: Asked = JSON.parse(at("asked").textContent!);
const form = at<HTMLFormElement>("predict");
const question = asked.id.split(".")[0];
let tongue = firstTongue();
let skipped = false;
let spoken = false;
let started = 0;

const filled = (text: string, values: Record<string, string>) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
const control = (field: Field) => form.elements.namedItem(field.name) as HTMLInputElement | HTMLSelectElement;

const THOUSANDS = /(?<!\b0)(?<!\d{4}),(?=\d{3}(?!\d))/g; // of `simlab.lessons.prediction`

/** The number that stands in `field`; throws what is wrong with it, in the page's language. */
function entered(field: Field): number | string {
  const said = asked.said[tongue];
  const text = control(field).value.trim();
  if (!text) throw filled(said.empty, { field: field.label[tongue] });
  if (field.options) return text;
  const quoted = `'${text}'`;
  const plain = text.normalize("NFKC").replace(THOUSANDS, "").replaceAll("−", "-");
  const percent = plain.endsWith("%");
  const digits = percent ? plain.slice(0, -1).trim() : plain;
  const value = /^[-+\d.]/.test(digits) && !/^[-+]?0[xob]/i.test(digits) ? Number(digits) : NaN;
  if (!Number.isFinite(value)) throw filled(said.no_number, { text: quoted });
  if (percent && !field.percent) throw filled(said.no_percent, { text: quoted });
  if (!percent && field.percent === 1 && value !== 0 && Math.abs(value) < 1) {
    throw filled(said.part_of_one, { text: quoted, percent: `${+(100 * value).toPrecision(6)}%`, as_written: `${value}%` });
  }
  return percent ? +(value * field.percent!).toPrecision(12) : value;
}

/** How far a guess is from what was found, as `simlab.lessons.prediction.off_by` says it. */
function offBy(guess: number | string | undefined, found: number | string): string {
  if (guess === undefined) return "–";
  if (typeof guess === "string" || typeof found === "string") return guess === found ? "✓" : "✗";
  if (guess * found <= 0) return guess === found ? "✓" : "✗";
  const ratio = guess / found;
  if (Math.abs(ratio - 1) <= NEAR) return "✓";
  const high = ratio > 1 ? "high" : "low";
  const times = ratio > 1 ? ratio : 1 / ratio;
  if (times < 2) {
    return filled(asked.said[tongue][`too_${high}_by`], { share: `${Math.round(Math.abs(ratio - 1) * 100)}%` });
  }
  return filled(asked.said[tongue][`too_${high}`], { times: times < 10 ? String(+times.toPrecision(2)) : Math.round(times).toLocaleString("en") });
}

function shown(field: Field, value: number | string | undefined): string {
  if (value === undefined) return "–";
  if (field.options) return field.options[value]?.[tongue] ?? String(value);
  const number = value === field.found ? field.shown! : (value as number).toLocaleString("en", { maximumSignificantDigits: 6, notation: Math.abs(value as number) < 1e9 ? "standard" : "scientific" });
  return `${number} ${field.unit![tongue]}`.trim();
}

function committed(): Values | undefined {
  const values = load().predictions[asked.id]?.values;
  const fits = (field: Field) => (field.options ? values[field.name] in field.options : typeof values[field.name] === "number");
  return values && asked.fields.every(fits) ? values : undefined;
}

function show(): void {
  const values = committed();
  const open = values !== undefined || skipped;
  for (const field of asked.fields) {
    const its = control(field);
    if (values) its.value = String(values[field.name]);
    its.disabled = open;
  }
  form.querySelector<HTMLElement>(".buttons")!.hidden = open;
  at("found").hidden = at("say").hidden = !open;
  at("told").hidden = !(open && spoken);
  at("rows").replaceChildren(
    ...asked.fields.map((field) => {
      const row = document.createElement("tr");
      const guess = values?.[field.name];
      const head = Object.assign(document.createElement("th"), { scope: "row", textContent: field.label[tongue] });
      const cells = [shown(field, guess), shown(field, field.found), offBy(guess, field.found)];
      row.append(head, ...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
      return row;
    }),
  );
}

/** Brings `part` into view, for the keys, too. */
function go(part: HTMLElement): void {
  part.tabIndex = -1;
  part.focus({ preventScroll: true });
  part.scrollIntoView({ block: "start" });
}

form.onsubmit = (event) => {
  event.preventDefault();
  at("wrong-entry").textContent = "";
  try {
    const values = Object.fromEntries(asked.fields.map((field) => [field.name, entered(field)]));
    const found = Object.fromEntries(asked.fields.map((field) => [field.name, field.found]));
    const kept = load();
    kept.predictions[asked.id] = { values, at_s: Math.round(Date.now() / 1000), found };
    save(kept);
  } catch (wrong) {
    at("wrong-entry").textContent = String(wrong);
    at("wrong-entry").scrollIntoView({ block: "nearest" });
    return;
  }
  show();
  go(at("found"));
};
at("skip-prediction").onclick = () => {
  skipped = true;
  show();
};
at("again").onclick = () => {
  const kept = load();
  delete kept.predictions[asked.id];
  save(kept);
  skipped = spoken = false;
  show();
  form.scrollIntoView({ block: "center" });
};
at("start").onclick = () => {
  started = Date.now();
  at("clock").textContent = "0:00";
};
setInterval(() => {
  if (!started || spoken) return;
  const seconds = Math.floor((Date.now() - started) / 1000);
  at("clock").textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}, 250);
at("said").onclick = () => {
  spoken = true;
  show();
  go(at("told"));
};
const boxes = [...document.querySelectorAll<HTMLInputElement>(".points input")];
const ticked = load().points[question];
spoken = Array.isArray(ticked) && ticked.length > 0; // it was told on an earlier visit
for (const box of boxes) {
  box.checked = Array.isArray(ticked) && ticked.includes(Number(box.value));
  box.onchange = () => {
    const kept = load();
    kept.points[question] = boxes.filter((each) => each.checked).map((each) => Number(each.value));
    save(kept);
  };
}

function change(chosen: Tongue): void {
  tongue = chosen;
  speak(tongue);
  at("wrong-entry").textContent = "";
  show();
}

connect(change);
change(tongue);
addEventListener("load", () => keepForOffline());
