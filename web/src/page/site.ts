/** What every page of the site has: its language and theme, which go with one from page to page. */

import type { Tongue } from "../language";

const root = document.documentElement;
/** What the keys can reach of a page's content. */
const FIRST = "main :is(input, select, button, a[href]):not([disabled], [tabindex='-1'])";

/** What was chosen on another page; null where nothing was, or the browser keeps nothing. */
function chosen(name: string): string | null {
  try {
    return localStorage.getItem(`simlab-${name}`);
  } catch {
    return null;
  }
}

function choose(name: string, value: string): void {
  try {
    localStorage.setItem(`simlab-${name}`, value);
  } catch {
    // the choice holds for this page
  }
}

/** The language that was chosen, else the browser's. */
export function firstTongue(): Tongue {
  const said = chosen("tongue") ?? navigator.language;
  return said.startsWith("zh") ? "zh" : "en";
}

/** Shows every text that the page holds in both languages in `tongue`. */
export function speak(tongue: Tongue): void {
  root.lang = tongue;
  for (const element of document.querySelectorAll<HTMLElement>("[data-en]")) {
    element.textContent = element.dataset[tongue] ?? "";
  }
  choose("tongue", tongue);
}

function paint(theme: string): void {
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
}

/** Connects the switches; `change` is called with the language that one wants. */
export function connect(change: (tongue: Tongue) => void): void {
  const skip = document.getElementById("skip") as HTMLButtonElement;
  skip.onclick = () => document.querySelector<HTMLElement>(FIRST)?.focus();
  const theme = document.getElementById("theme") as HTMLSelectElement;
  theme.value = root.dataset.theme ?? ""; // set before the page was painted
  theme.onchange = () => {
    paint(theme.value);
    choose("theme", theme.value);
  };
  const tongue = document.getElementById("tongue") as HTMLButtonElement;
  tongue.onclick = () => change(root.lang === "zh" ? "en" : "zh");
}
