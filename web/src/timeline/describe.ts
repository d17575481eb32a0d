/** What lies under the pointer, as text. */

import { nameOf, word, type Tongue } from "../language";
import { countUpTo, ms } from "./numbers";
import { amountAt, type Panel, type Wait } from "./panel";

const MOST_RANKS = 8; // in one description of the memory strip

/** The boxes of `rank` that run at `time`: of a pair of ops both. */
export function boxesAt(panel: Panel, rank: number, time: number): number[] {
  const row = panel.rows[rank];
  const next = countUpTo(time, row.length, (at) => panel.start[row[at]]);
  const last = [...row.subarray(Math.max(next - 2, 0), next)];
  return last.filter((box) => panel.end[box] > time);
}

/** An op: what it is, when, what it sends, and what it waited for, where that is known. */
export function describeBox(panel: Panel, box: number, tongue: Tongue): string {
  const [stage, rank] = [panel.stage(box), panel.rank[box]];
  const parts = {
    en: [
      `${panel.name(box)}: ${nameOf(panel.kind(box), "en")} of microbatch ${panel.microbatch(box)}`,
      `stage ${stage}, ${panel.packed.row ?? "rank"} ${rank}`,
    ],
    zh: [
      `${panel.name(box)}：${nameOf(panel.kind(box), "zh")}，微批次 ${panel.microbatch(box)}`,
      `阶段 ${stage}，${panel.packed.row ?? "rank"} ${rank}`,
    ],
  };
  const lines = [parts[tongue].join(tongue === "en" ? ", " : "，")];
  const path = panel.strong?.has(box) ? `, ${word("critical path", tongue)}` : "";
  lines.push(span(panel, panel.start[box], panel.end[box]) + path);
  const sent = panel.packed.sends?.[panel.name(box)];
  if (sent) lines.push(sends(sent, panel.packed.row ?? "rank", tongue));
  const wait = panel.packed.waits[panel.name(box)];
  if (wait) lines.push(waited(wait, panel.packed.row ?? "rank", tongue));
  return lines.join("\n");
}

/** An idle interval: how long, what comes after it, and what that waits for, where that is known. */
export function describeIdle(panel: Panel, rank: number, time: number, tongue: Tongue): string {
  const row = panel.rows[rank];
  const next = countUpTo(time, row.length, (at) => panel.start[row[at]]);
  const from = next ? panel.end[row[next - 1]] : 0;
  const after = next < row.length ? row[next] : undefined;
  const to = after === undefined ? panel.packed.end_s : panel.start[after];
  const idle = `${panel.packed.row ?? "rank"} ${rank} ${nameOf("waiting", tongue)}`;
  if (after === undefined) return `${idle}\n${span(panel, from, to)}`;
  const name = panel.name(after);
  const before = { en: `${idle}, before ${name}`, zh: `${idle}，之后是 ${name}` }[tongue];
  const wait = panel.packed.waits[name];
  const lines = [before, span(panel, from, to), ...(wait ? [waited(wait, panel.packed.row ?? "rank", tongue)] : [])];
  return lines.join("\n");
}

/** What the ranks hold at `time`; of many, the one that holds most and the one that holds least. */
export function describeMemory(panel: Panel, time: number, tongue: Tongue): string {
  if (!panel.packed.peak) return "";
  const held = panel.curves.map((curve, rank) => ({ rank, amount: amountAt(curve, time) }));
  const sorted = [...held].sort((a, b) => b.amount - a.amount);
  const shown = held.length <= MOST_RANKS ? held : [sorted[0], sorted.at(-1)!];
  const label =
    tongue === "en" ? panel.packed.memory_label.replace("\n", " ") : word("memory", tongue);
  const head = `${ms(time, panel.packed.end_s)} ms: ${label}`;
  const rows = shown.map(({ rank, amount }) => `${panel.packed.row ?? "rank"} ${rank}: ${Number(amount.toPrecision(4))}`);
  return [head, ...rows].join("\n");
}

function span({ packed }: Panel, from: number, to: number): string {
  const text = (time: number) => ms(time, packed.end_s);
  return `${text(from)} – ${text(to)} ms (${text(to - from)} ms)`;
}

function sends([peer, size]: [number, string], row: string, tongue: Tongue): string {
  return { en: `sends ${size} to ${row} ${peer}`, zh: `向 ${row} ${peer} 发送 ${size}` }[tongue];
}

function waited([op, holder, reason]: Wait, row: string, tongue: Tongue): string {
  if (!op) {
    return { en: "nothing that it needs was missing", zh: "所需的结果都已就绪" }[tongue];
  }
  const message = reason === "message";
  return {
    en: `waited for ${op} of ${row} ${holder}${message ? ", whose message was on the way" : ""}`,
    zh: `等待 ${row} ${holder} 的 ${op}${message ? "（消息在途中）" : ""}`,
  }[tongue];
}
