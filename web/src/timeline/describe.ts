/** What lies under the pointer, as text. */

import { nameOf, word, worded, type Tongue } from "../language";
import { countUpTo, ms } from "./numbers";
import { amountAt, type Panel, type Wait } from "./panel";

const MOST_RANKS = 8; // in one description of the memory strip
const SEPARATORS = { en: { comma: ", ", colon: ": " }, zh: { comma: "，", colon: "：" } };

/** The boxes of `rank` that run at `time`: of a pair of ops both. */
export function boxesAt(panel: Panel, rank: number, time: number): number[] {
  const row = panel.rows[rank];
  const next = countUpTo(time, row.length, (at) => panel.start[row[at]]);
  const last = [...row.subarray(Math.max(next - 2, 0), next)];
  return last.filter((box) => panel.end[box] > time);
}

/** An op: what it is, when, what it sends, and what it waited for, where that is known. */
export function describeBox(panel: Panel, box: number, tongue: Tongue): string {
  const [stage, row] = [panel.stage(box), rowOf(panel, panel.rank[box], tongue)];
  const place = `${word("stage", tongue)} ${stage}`;
  const separators = SEPARATORS[tongue];
  const where = place === row ? place : place + separators.comma + row;
  const parts = {
    en: [
      `${panel.name(box)}: ${nameOf(panel.kind(box), "en")} of microbatch ${panel.microbatch(box)}`,
      where,
    ],
    zh: [
      `${panel.name(box)}：${nameOf(panel.kind(box), "zh")}，micro-batch ${panel.microbatch(box)}`,
      where,
    ],
  };
  const lines = [parts[tongue].join(separators.comma)];
  const path = panel.strong?.has(box) ? separators.comma + word("critical path", tongue) : "";
  lines.push(span(panel, panel.start[box], panel.end[box]) + path);
  const sent = panel.packed.sends?.[panel.name(box)];
  if (sent) lines.push(sends(panel, sent, tongue));
  const wait = panel.packed.waits[panel.name(box)];
  if (wait) lines.push(waited(panel, wait, tongue));
  return lines.join("\n");
}

/** An idle interval: how long, what comes after it, and what that waits for, where that is known. */
export function describeIdle(panel: Panel, rank: number, time: number, tongue: Tongue): string {
  const row = panel.rows[rank];
  const next = countUpTo(time, row.length, (at) => panel.start[row[at]]);
  const from = next ? panel.end[row[next - 1]] : 0;
  const after = next < row.length ? row[next] : undefined;
  const to = after === undefined ? panel.packed.end_s : panel.start[after];
  const idle = `${rowOf(panel, rank, tongue)} ${nameOf("waiting", tongue)}`;
  if (after === undefined) return `${idle}\n${span(panel, from, to)}`;
  const name = panel.name(after);
  const before = { en: `${idle}, before ${name}`, zh: `${idle}，之后是 ${name}` }[tongue];
  const wait = panel.packed.waits[name];
  const lines = [before, span(panel, from, to), ...(wait ? [waited(panel, wait, tongue)] : [])];
  return lines.join("\n");
}

/** What the ranks hold at `time`; of many, the one that holds most and the one that holds least. */
export function describeMemory(panel: Panel, time: number, tongue: Tongue): string {
  if (!panel.packed.peak) return "";
  const held = panel.curves.map((curve, rank) => ({ rank, amount: amountAt(curve, time) }));
  const sorted = [...held].sort((a, b) => b.amount - a.amount);
  const shown = held.length <= MOST_RANKS ? held : [sorted[0], sorted.at(-1)!];
  const label = worded(panel.packed.memory_label.replace("\n", " "), tongue);
  const { colon } = SEPARATORS[tongue];
  const head = `${ms(time, panel.packed.end_s)} ms${colon}${label}`;
  const rows = shown.map(({ rank, amount }) => `${rowOf(panel, rank, tongue)}${colon}${Number(amount.toPrecision(4))}`);
  return [head, ...rows].join("\n");
}

function span({ packed }: Panel, from: number, to: number): string {
  const text = (time: number) => ms(time, packed.end_s);
  return `${text(from)} – ${text(to)} ms (${text(to - from)} ms)`;
}

/** "rank 3": what a row is, and its number. */
function rowOf({ packed }: Panel, rank: number, tongue: Tongue): string {
  return `${word(packed.row ?? "rank", tongue)} ${rank}`;
}

function sends(panel: Panel, [peer, size]: [number, string], tongue: Tongue): string {
  const to = rowOf(panel, peer, tongue);
  return { en: `sends ${size} to ${to}`, zh: `向 ${to} 发送 ${size}` }[tongue];
}

function waited(panel: Panel, [op, holder, reason]: Wait, tongue: Tongue): string {
  if (!op) {
    return { en: "nothing that it needs was missing", zh: "所需的结果都已就绪" }[tongue];
  }
  const message = reason === "message";
  const of = rowOf(panel, holder!, tongue);
  return {
    en: `waited for ${op} of ${of}${message ? ", whose message was on the way" : ""}`,
    zh: `等待 ${of} 的 ${op}${message ? "（消息在途中）" : ""}`,
  }[tongue];
}
