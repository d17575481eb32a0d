/** What the page shows, as the part of its address after the #. */

import start from "../../site/start.json";
import type { Tongue } from "../language";

export interface State {
  schedules: [string, string]; // the second may be ""
  stages: number;
  microbatches: number;
  chunks: number;
  forward_ms: number;
  backward_ms: number;
  link_ms: number;
  tongue: Tongue;
}

export type NumberName = (typeof SLIDERS)[number]["name"];

/** The sliders: the name in a request, in the address and in the texts, and the range. */
export const SLIDERS = [
  { name: "stages", key: "p", text: "stages", least: 1, most: 16, step: 1 },
  { name: "microbatches", key: "m", text: "microbatches", least: 1, most: 64, step: 1 },
  { name: "chunks", key: "v", text: "chunks", least: 1, most: 4, step: 1 },
  { name: "forward_ms", key: "f", text: "forward", least: 1, most: 50, step: 1 },
  { name: "backward_ms", key: "b", text: "backward", least: 1, most: 100, step: 1 },
  { name: "link_ms", key: "l", text: "link", least: 0, most: 20, step: 0.5 },
] as const;

/** What the recorded picture shows, too. */
export const START: State = {
  ...start,
  schedules: [start.schedules[0], start.schedules[1]],
  tongue: "en",
};

export function toHash(state: State): string {
  const numbers = SLIDERS.map(({ name, key }) => [key, String(state[name])]);
  const [first, second] = state.schedules;
  const all = [["a", first], ["b2", second], ...numbers, ["lang", state.tongue]];
  return new URLSearchParams(all).toString();
}

/** The state of an address. What it does not say, or says wrongly, is as in `before`. */
export function fromHash(hash: string, names: string[], before: State): State {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const state: State = { ...before, schedules: [...before.schedules] };
  const [first, second] = [said.get("a"), said.get("b2")];
  if (first !== null && names.includes(first)) state.schedules[0] = first;
  if (second !== null && (second === "" || names.includes(second))) state.schedules[1] = second;
  for (const { name, key, least, most, step } of SLIDERS) {
    const value = Number(said.get(key) ?? NaN);
    const round = Math.round(value / step) * step;
    if (round >= least && round <= most) state[name] = round;
  }
  const tongue = said.get("lang");
  if (tongue === "en" || tongue === "zh") state.tongue = tongue;
  return state;
}
