import { describe, expect, test } from "vitest";
import { OPS, colourOf, hex, mixed, rgb, shade } from "../src/language";
import { entries } from "../src/timeline/legend";
import { step } from "../src/timeline/keys";
import { countUpTo, ms, ticks } from "../src/timeline/numbers";
import { Panel, amountAt, type Packed } from "../src/timeline/panel";
import { lay } from "../src/timeline/raster";
import { amounts } from "../src/timeline/strip";

const encode = (text: string) => new TextEncoder().encode(text);

/** Two ranks: 0 has stages 0 and 3, 1 has 1 and 2. */
function packed(change: Partial<Packed> = {}): Packed {
  return {
    title: "two ranks", ranks: 2, end_s: 4, stages: [[0, 3], [1, 2]], used: "BF",
    boxes: new Float32Array([0, 3, 1, 2, 1, 4, 2, 3]), rows: new Uint16Array([0, 0, 1, 1]),
    kinds: encode("FBFF"), ops: encode("0F0 3B0 1F0 2F0"),
    memory: new Float32Array([0, 3, 0.5, 1, 0, 2]), holders: new Uint16Array([0, 0, 1]),
    memory_label: "activations", peak: 2, cap: null, breaches: [], path: null, waits: {},
    ...change,
  }; // prettier-ignore
}

describe("the numbers beside a memory strip", () => {
  test("have 0 and the peak, and what divides it evenly where that has room", () => {
    expect(amounts(8, 8, 36)).toEqual([0, 4, 8]);
    expect(amounts(6, 6, 80)).toEqual([0, 2, 4, 6]);
    expect(amounts(7, 7, 36)).toEqual([0, 7]);
    expect(amounts(11.5, 11.5, 80)).toEqual([0, 11.5]);
  });
  test("have the end of a scale that another strip reaches", () => {
    expect(amounts(4, 8, 36)).toEqual([0, 4, 8]);
    expect(amounts(3.75, 8, 80)).toEqual([0, 3.75, 8]);
    expect(amounts(1, 3, 60)).toEqual([0, 1, 2, 3]);
    expect(amounts(3, 8, 80)).toEqual([0, 3, 8]); // 1 and 2 have no room, 6 would not end at 8
  });
  test("begin with 0, also where the peak lies too near to it", () => {
    expect(amounts(1, 16, 36)).toEqual([0, 16]);
  });
});

describe("a panel", () => {
  test("knows each op's rank, kind, stage, microbatch and chunk", () => {
    const panel = new Panel(packed());
    expect([...panel.rank.keys()].map((box) => panel.name(box))).toEqual(["0F0", "3B0", "1F0", "2F0"]);
    expect([panel.kind(1), panel.stage(1), panel.microbatch(1)]).toEqual(["B", 3, "0"]);
    expect([...panel.chunkOfBoxes()!]).toEqual([0, 1, 0, 1]);
    expect(panel.rows.map((row) => [...row])).toEqual([[0, 1], [2, 3]]);
  });

  test("knows how long the number of a microbatch is at most", () => {
    expect(new Panel(packed()).digits()).toBe(1);
    expect(new Panel(packed({ ops: encode("0F0 3B128 1F0 2F0") })).digits()).toBe(3);
  });

  test("reads bytes that do not begin where their numbers may", () => {
    const whole = new Uint8Array(33);
    whole.set(new Uint8Array((packed().boxes as Float32Array).buffer), 1);
    const panel = new Panel(packed({ boxes: new DataView(whole.buffer, 1, 32) }));
    expect([...panel.start]).toEqual([0, 3, 1, 2]);
  });

  test("shows the ops that lie in an interval", () => {
    const seen = new Panel(packed()).seen([1.5, 2.5]);
    expect(seen.map((boxes) => [...boxes])).toEqual([[], [2, 3]]);
  });

  test("holds the last of the amounts of one time", () => {
    const holders = new Uint16Array([0, 0, 0]);
    const memory = new Float32Array([1, 1, 3, 5, 2, 0]);
    const [curve] = new Panel(packed({ memory, holders })).curves;
    expect([0.5, 1, 2, 3.5].map((time) => amountAt(curve, time))).toEqual([0, 2, 2, 0]);
  });
});

test("the arrow keys lead along a rank, to its neighbours and to the next panel", () => {
  const panels = [new Panel(packed()), new Panel(packed())];
  const from = { panel: 0, box: 0 };
  expect(step(panels, from, "ArrowRight")).toEqual({ panel: 0, box: 1 });
  expect(step(panels, from, "ArrowLeft")).toEqual(from);
  expect(step(panels, from, "ArrowUp")).toEqual(from);
  expect(step(panels, { panel: 0, box: 1 }, "ArrowDown")).toEqual({ panel: 0, box: 3 });
  expect(step(panels, { panel: 0, box: 3 }, "ArrowDown")).toEqual({ panel: 1, box: 0 });
  expect(step(panels, { panel: 1, box: 0 }, "ArrowUp")).toEqual({ panel: 0, box: 2 });
});

test("the legend shows only the shades and kinds that are drawn, and what is marked", () => {
  const whole = packed({ stages: [[0], [1]], used: "W", kinds: encode("WWWW"), cap: 2 });
  const found = entries([new Panel(packed()), new Panel(whole)], "en");
  expect(found.map(({ text, fills, mark }) => [text, fills.length, mark])).toEqual([
    ["F forward", 2, undefined],
    ["B backward", 2, undefined],
    ["W weight gradient", 1, undefined],
    ["shades: chunks 0, 1", 0, undefined],
    ["idle", 0, "idle"],
    ["cap", 0, "cap"],
  ]);
  const undefinedAsInPyodide = entries([new Panel(packed({ cap: undefined, path: undefined }))], "zh");
  expect(undefinedAsInPyodide.map(({ mark }) => mark).filter(Boolean)).toEqual(["idle"]);
});

test("a pixel has the mixture of what covers it, and the last of two that cover it whole", () => {
  const line = new Float32Array(4 * 4);
  lay(line, 0.5, 2.25, [100, 0, 0]);
  lay(line, 2.25, 2.75, [0, 200, 0]);
  expect([...line]).toEqual([50, 0, 0, 0.5, 100, 0, 0, 1, 25, 100, 0, 0.75, 0, 0, 0, 0]);
  lay(line, 1, 2, [0, 0, 7]);
  expect([...line.slice(4, 8)]).toEqual([0, 0, 7, 1]);
  lay(line, -5, -1, [1, 1, 1]);
  lay(line, 9, 12, [1, 1, 1]);
  expect(line[3]).toBe(0.5);
});

test("ticks are round and lie inside", () => {
  expect(ticks(0, 100, 5)).toEqual({ values: [0, 20, 40, 60, 80, 100], decimals: 0 });
  expect(ticks(0.31, 0.52, 4)).toEqual({ values: [0.4, 0.5], decimals: 1 });
  for (const [from, to] of [[0, 7], [3.2, 3.3], [0, 1e-5], [12, 9000]]) {
    const { values } = ticks(from, to, 6);
    expect(values.length).toBeGreaterThan(1);
    expect(values.every((value) => value >= from - 1e-12 && value <= to * (1 + 1e-9))).toBe(true);
  }
});

test("numbers are shown as far as Float32 knows them", () => {
  expect(ms(Math.fround(0.1), 1)).toBe("100");
  expect(ms(Math.fround(1.0005), 2)).toBe("1000.5");
  expect(countUpTo(2, 4, (at) => [1, 2, 2, 3][at])).toBe(3);
});

test("shades are those of Python", () => {
  expect([0, 1, 2].map((chunk) => shade("#000000", chunk, 3))).toEqual(["#000000", "#404040", "#808080"]);
  expect(hex(mixed(rgb("#0072B2"), rgb("#FFFFFF"), 1))).toBe("#0072B2");
  expect(new Set(OPS.map(colourOf)).size).toBe(4);
});
