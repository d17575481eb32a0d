/** An explorer and its answers as data, as `simlab/explorers/explorer.py` makes them. */

import type { Chart, Words } from "../chart/data";
import type { Packed } from "../timeline/panel";

export type Value = string | number | boolean;
export type State = Record<string, Value>;

export interface Control {
  name: string;
  label: Words;
  values: Value[];
  start: Value;
  names?: Words[] | null;
  menu: boolean;
  shown?: boolean; // false: a picture moves it
  resets?: boolean; // all others go back to where they start when it changes
}

export interface About {
  name: string;
  title: Words;
  controls: Control[];
  play?: string | null;
  hidden?: string[]; // controls that stay as they are
  given?: State; // other arguments of its call in Python
}

export interface TimelinePicture {
  picture: "timeline";
  key: string;
  panels: Packed[];
  height?: number | null;
}

export interface BoardPicture {
  picture: "board";
  key: string;
  control: string; // whose value the order is
  rows: string[][];
  told: Words;
  height?: null;
}

export type Picture = Chart | TimelinePicture | BoardPicture;

export interface Answer {
  figures: { label: Words; values: string[]; tip?: Words | null }[];
  pictures: Picture[];
  note?: Words | null;
  heads: string[];
  values: Record<string, Value[]>;
  idle?: Record<string, Words>; // controls that change nothing in this state, and why
  solved?: string; // the challenge that the state solves
  refused?: Words | null; // why there is no answer; the last one stays
}

/** What `control` offers in the state that `answer` is of. */
export function offered(control: Control, answer?: Answer): Value[] {
  return answer?.values?.[control.name] ?? control.values;
}

export function startOf({ controls }: About): State {
  return Object.fromEntries(controls.map(({ name, start }) => [name, start]));
}

/** `value` if it is offered, else the nearest of the numbers, else the first. */
export function within(values: Value[], value: Value): Value {
  if (values.includes(value)) return value;
  if (typeof value !== "number" || typeof values[0] !== "number") return values[0];
  const far = (each: Value) => Math.abs(Number(each) - value);
  return values.reduce((best, each) => (far(each) < far(best) ? each : best));
}

/** `state` as the part of an address after the #. */
export function toHash(about: About, state: State): string {
  return new URLSearchParams(about.controls.map(({ name }) => [name, String(state[name])])).toString();
}

/** The state of an address; what it does not say, or says wrongly, is as in `before`. */
export function fromHash(about: About, hash: string, before: State): State {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const state = { ...before };
  for (const { name, values, start } of about.controls) {
    const text = said.get(name);
    const found = text === null ? undefined : values.find((value) => String(value) === text);
    if (found !== undefined) state[name] = found;
    // a control whose range follows from others: the answer keeps its value within it
    else if (typeof start === "number" && text && /^-?\d+$/.test(text)) state[name] = Number(text);
    else if (typeof start === "string" && text && values.length === 1) state[name] = text;
  }
  return state;
}

/** The call of `name` in Python that opens in `state`: what differs from the start. */
export function toPython(name: string, about: About, state: State): string {
  const changed = about.controls.filter((control) => state[control.name] !== control.start);
  const said = [...Object.entries(about.given ?? {}), ...changed.map(({ name: each }) => [each, state[each]] as const)];
  return `${name}(${said.map(([each, value]) => `${each}=${literal(value)}`).join(", ")})`;
}

function literal(value: Value): string {
  return typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
}
