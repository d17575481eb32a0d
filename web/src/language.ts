/** The visual language: the table that the Python renderers read, too. */

import table from "../../simlab/views/language.json";

export type Tongue = "en" | "zh";
export type Theme = typeof table.themes.light & { dark: boolean };
type Named = Record<Tongue, string>;

const WORK: Record<string, Named & { colour: string; pattern: string }> = table.work;
const WORDS: Record<string, Named> = table.words;
/** The kinds of ops in the order of legends. */
export const OPS = ["F", "B", "I", "W"];
export const RANK_COLOURS: string[] = table.ranks;
/** The opacity of an op that is not on the critical path, where that is shown. */
export const FADED = table.marks.faded;
/** What a text on a light colour, and on a dark one, is written in, the same in both themes. */
export const { on_light: ON_LIGHT, on_dark: ON_DARK } = table.marks;
const DIM = 95; // of 255
const LIGHTER = 0.8; // so much of the colour remains

export const colourOf = (kind: string): string => WORK[kind].colour;
export const nameOf = (kind: string, tongue: Tongue): string => WORK[kind][tongue];
export const word = (name: string, tongue: Tongue): string => WORDS[name][tongue];

/** The word of the table whose English is `english`. */
export function worded(english: string, tongue: Tongue): string {
  return Object.values(WORDS).find(({ en }) => en === english)?.[tongue] ?? english;
}

/** {English term in lower case: the Chinese one}: the names of all tables, and the other terms. */
const TERMS = new Map<string, string>([
  ...[table.work, table.streams, table.memory, table.words].flatMap((names) =>
    Object.values<Named>(names).map(({ en, zh }): [string, string] => [en.toLowerCase(), zh]),
  ),
  ...Object.entries(table.terms).map(([en, zh]): [string, string] => [en.toLowerCase(), zh]),
]);
const LONGEST = [...TERMS.keys()].sort((a, b) => b.length - a.length);
const TERM = new RegExp(`(?<![\\w-])(?:${LONGEST.map(escaped).join("|")})(?![\\w-])`, "gi");
const NUMBERED: Record<string, string> = table.numbered;
const NUMBERED_TERM = new RegExp(
  `(?<![\\w-])(${Object.keys(NUMBERED).sort((a, b) => b.length - a.length).join("|")}) (\\d+)(?![\\w-])`,
  "gi",
);
const BETWEEN = /(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])/g;

/** `text` as it is shown in `tongue`: as `said` of simlab/views/language.py has it. */
export function said(text: string, tongue: Tongue): string {
  if (tongue !== "zh") return text;
  const numbered = text.replace(NUMBERED_TERM, (_, term: string, at: string) => NUMBERED[term.toLowerCase()].replace("{}", at));
  return punctuated(numbered.replace(TERM, chinese)).replace(BETWEEN, "");
}

function chinese(term: string): string {
  const found = TERMS.get(term.toLowerCase())!;
  return found === term.toLowerCase() ? term : found; // PP is not pp
}

/** `text` in which no line ends between a number and its unit. */
export function unbroken(text: string): string {
  return text.replace(/(\d) (?=(?:[µm]?s|[KMGT]i?B)(?![A-Za-z]))/g, "$1\u00a0");
}

/** `text` with Chinese commas, colons and semicolons, as `_punctuated` of simlab/views/language.py has it. */
function punctuated(text: string): string {
  const comma = /[\d:;]/.test(text) ? "，" : "、";
  const signs: Record<string, string> = { ",": comma, ":": "：", ";": "；" };
  return text.replace(/(?<=\d), (?=\d)/g, "、").replace(/([,:;]) /g, (_, sign: string) => signs[sign]);
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
}

/** [red, green, blue] of "#RRGGBB". */
export function rgb(hex: string): number[] {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

export function mixed(colour: number[], other: number[], share: number): number[] {
  return colour.map((value, at) => share * value + (1 - share) * other[at]);
}

export function hex(colour: number[]): string {
  const digits = colour.map((part) => Math.floor(part + 0.5).toString(16).padStart(2, "0"));
  return `#${digits.join("").toUpperCase()}`;
}

/** The shade of `colour` for number `chunk` of a rank's `chunks`: the last is the lightest. */
export function shade(colour: string, chunk: number, chunks: number): string {
  if (chunks <= 1) return colour;
  const share = 1 - ((1 - table.chunks.last_share) * chunk) / (chunks - 1);
  return hex(mixed(rgb(colour), [255, 255, 255], share));
}

/** What `element` looks like now: its theme's colours on the background that it has. */
export function themeOf(element: Element): Theme {
  const style = getComputedStyle(element);
  const names = ["--simlab-background", "--jp-layout-color0", "--vscode-editor-background"];
  const given = names.map((name) => style.getPropertyValue(name).trim()).find(Boolean);
  const background = given && asHex(given);
  const wish = matchMedia("(prefers-color-scheme: dark)").matches && given === undefined;
  const dark = background ? brightness(background) < 128 : wish && inDarkPage(element);
  const theme = dark ? table.themes.dark : table.themes.light;
  return { ...theme, background: background ?? theme.background, dark };
}

/** Whether the page itself says that it may be dark; one that does not is white. */
function inDarkPage(element: Element): boolean {
  return getComputedStyle(element).colorScheme.includes("dark");
}

/** Any CSS colour as "#RRGGBB". */
function asHex(colour: string): string {
  const pen = document.createElement("canvas").getContext("2d")!;
  pen.fillStyle = table.themes.light.background;
  pen.fillRect(0, 0, 1, 1);
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  return hex([...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
}

/** The colour of a line in `theme`: lighter where it could hardly be seen on a dark background. */
export function lineColour(colour: string, theme: Theme): string {
  if (!theme.dark || brightness(colour) >= DIM) return colour;
  return hex(mixed(rgb(colour), [255, 255, 255], LIGHTER));
}

/** The relative luminance of WCAG 2, from 0 of black to 1 of white. */
export function luminance(colour: string): number {
  const [red, green, blue] = rgb(colour).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

export function brightness(colour: string): number {
  const [red, green, blue] = rgb(colour);
  return 0.299 * red + 0.587 * green + 0.114 * blue;
}
