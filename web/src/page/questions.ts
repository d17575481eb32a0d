/** The list of questions: search, filters, what was done, and progress as a file. */

import type { Tongue } from "../language";
import { keepForOffline } from "./offline";
import { asFile, load, takeIn } from "./progress";
import { connect, firstTongue, speak } from "./site";

const at = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const items = [...document.querySelectorAll<HTMLElement>("#list li")];
const texts = items.map((item) => {
  const titles = item.querySelector<HTMLElement>("[data-en]")!.dataset;
  return [item.dataset.id, titles.en, titles.zh, item.dataset.words].join(" ").toLowerCase();
});
const chosen = ["lesson", "verdict", "level", "mine"].map((name) => at<HTMLSelectElement>(name));
const search = at<HTMLInputElement>("search");
const SAID = {
  en: {
    count: "{shown} of {all} questions",
    done: "Questions predicted: {predicted} of {all}. Said aloud and ticked: {ticked}. Exercises solved: {exercises}. Challenges solved: {challenges} of {most}.",
    predicted: "predicted", read: "Read.", wrong: "This is no file of progress.",
  },
  zh: {
    count: "共 {all} 题，显示 {shown} 题",
    done: "已预测 {predicted} / {all} 题；口述并勾选要点 {ticked} 题；做对练习 {exercises} 道；完成挑战 {challenges} / {most} 个。",
    predicted: "已预测", read: "已读入。", wrong: "这不是进度文件。",
  },
};
let tongue = firstTongue();
const filled = (text: string, values: Record<string, unknown>) => text.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));

function show(): void {
  const { predictions, points, exercises, challenges } = load();
  const wanted = search.value.normalize("NFKC").toLowerCase().split(/\s+/).filter(Boolean);
  const filters = Object.fromEntries(chosen.map(({ id, value }) => [id, value]));
  for (const [number, item] of items.entries()) {
    const { id, lesson, verdict, level } = item.dataset as Record<string, string>;
    const done = id in predictions;
    const kept = { lesson, verdict, level, mine: done ? "done" : "open" };
    const fits = Object.entries(kept).every(([name, value]) => !filters[name] || filters[name] === value);
    item.hidden = !(fits && wanted.every((part) => texts[number].includes(part)));
    const told = Array.isArray(points[id]) && points[id].length ? ` ${points[id].length}/5` : "";
    item.querySelector(".mark")!.textContent = `${done ? "✓" : ""}${told}`;
    item.querySelector("a")!.title = done ? SAID[tongue].predicted : "";
  }
  const left = items.filter((item) => !item.hidden).length;
  const all = items.length;
  at("count").textContent = filled(SAID[tongue].count, { shown: left, all });
  const { most } = at("done").dataset;
  const predicted = items.filter(({ dataset }) => dataset.id! in predictions).length;
  const ticked = items.filter(({ dataset }) => points[dataset.id!]?.length).length;
  const right = Object.values(exercises).filter((its) => (its as { solved?: boolean } | null)?.solved).length;
  const values = { all, predicted, ticked, exercises: right, challenges: Object.keys(challenges).length, most };
  at("done").textContent = filled(SAID[tongue].done, values);
}

const folded = document.querySelector<HTMLDetailsElement>(".filter details")!;
for (const menu of chosen) menu.onchange = show;
search.oninput = show;
at("export").onclick = () => {
  const url = URL.createObjectURL(new Blob([asFile()], { type: "application/json" }));
  Object.assign(document.createElement("a"), { href: url, download: "progress.json" }).click();
  URL.revokeObjectURL(url);
};
at<HTMLInputElement>("import").onchange = async ({ target }) => {
  const [file] = (target as HTMLInputElement).files!;
  at("moved").textContent = SAID[tongue][takeIn(await file.text()) ? "read" : "wrong"];
  show();
};

function change(next: Tongue): void {
  tongue = next;
  at("moved").textContent = "";
  speak(tongue);
  show();
}

/** questions/#b09 is the address of a question, too. */
function follow(): void {
  const named = location.hash.slice(1);
  if (items.some((item) => item.dataset.id === named)) location.replace(`${named}.html`);
}

addEventListener("hashchange", follow);
follow();
connect(change);
change(tongue);
addEventListener("load", () => keepForOffline());
// a browser that comes back has put what was chosen into the menus after this script
addEventListener("pageshow", () => {
  folded.open ||= chosen.some(({ value }) => value);
  show();
});
