/** What a learner has done, kept in this browser: the parts of the file that JupyterLab and the terminal keep
 * (`simlab.lessons.progress`). */

export type Values = Record<string, number | string>;
export interface Progress {
  predictions: Record<string, { values: Values; at_s: number; found?: Values }>;
  points: Record<string, number[]>;
  challenges: Record<string, { at_s: number }>;
  [part: string]: Record<string, unknown>;
}

const KEY = "simlab-progress";
const PARTS = ["predictions", "exercises", "points", "drill", "puzzle", "challenges"];
let here: string | null = null; // where the browser keeps nothing, for this page

function kept(): string | null {
  try {
    return localStorage.getItem(KEY) ?? here;
  } catch {
    return here;
  }
}

/** The parts of `text`; `undefined` where it is no such file. */
function read(text: string | null): Progress | undefined {
  try {
    const found = JSON.parse(text ?? "{}");
    const table = (value: unknown) => typeof value === "object" && value !== null && !Array.isArray(value);
    if (!table(found) || (text && !PARTS.some((part) => part in found))) return undefined;
    return Object.fromEntries(PARTS.map((part) => [part, table(found[part]) ? found[part] : {}])) as Progress;
  } catch {
    return undefined;
  }
}

export function load(): Progress {
  return read(kept()) ?? read(null)!;
}

export function save(progress: Progress): void {
  here = JSON.stringify(progress);
  try {
    localStorage.setItem(KEY, here);
  } catch {
    // it holds for this page
  }
}

export function asFile(): string {
  return JSON.stringify(load(), null, 1);
}

/** Takes in a file: what it says of a question replaces what is kept of it here. Whether it could be read. */
export function takeIn(text: string): boolean {
  const found = read(text);
  if (!found) return false;
  const mine = load();
  for (const part of PARTS) Object.assign(mine[part], found[part]);
  save(mine);
  return true;
}
