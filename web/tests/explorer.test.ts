import { said, unbroken } from "../src/language";
import { expect, test } from "vitest";
import { overtaken } from "../src/explorer/board";
import { fromHash, offered, startOf, toHash, toPython, within, type About, type Answer } from "../src/explorer/data";

const words = (text: string) => ({ en: text, zh: text });
const about: About = {
  name: "x", title: words("x"), play: "round",
  controls: [
    { name: "model", label: words("model"), values: ["a b", "c&d"], start: "a b", menu: false },
    { name: "dp", label: words("dp"), values: [1, 2, 4], start: 2, menu: false },
    { name: "round", label: words("round"), values: [0, 1], start: 1, menu: false },
    { name: "zoom", label: words("zoom"), values: [false, true], start: false, menu: false },
    { name: "op", label: words("op"), values: ["all"], start: "all", menu: true },
  ],
}; // prettier-ignore

test("an address restores the state that it was made of", () => {
  const state = { model: "c&d", dp: 4, round: 7, zoom: true, op: "0F1" };
  expect(fromHash(about, `#${toHash(about, state)}`, startOf(about))).toEqual(state);
});

test("what an address says wrongly stays as it was", () => {
  const before = startOf(about);
  expect(fromHash(about, "#model=zz&dp=x&zoom=maybe&other=1", before)).toEqual(before);
});

test("a call in Python says what differs from the start", () => {
  expect(toPython("X", about, startOf(about))).toBe("X()");
  const changed = { ...startOf(about), model: "c&d", zoom: true };
  expect(toPython("X", about, changed)).toBe('X(model="c&d", zoom=True)');
});

test("a value keeps within what an answer offers", () => {
  const answer = { values: { round: [0, 1, 2, 3] } } as unknown as Answer;
  expect(offered(about.controls[2], answer)).toEqual([0, 1, 2, 3]);
  expect(offered(about.controls[1], answer)).toEqual([1, 2, 4]);
  expect([within([0, 1, 2, 3], 9), within([1, 2, 4], 3), within(["a", "b"], "c")]).toEqual([3, 2, "a"]);
});

test("in Chinese the terms of a text are replaced, as Python does", () => {
  expect(said("stage 1 compute", "zh")).toBe("stage 1 计算");
  expect(said("backward head", "zh")).toBe("输出头的反向");
  expect(said("forward block 3", "zh")).toBe("第 3 层的前向");
  expect(said("scores 0←3, step 2", "zh")).toBe("注意力 0←3，第 2 步");
  expect(said("idle / makespan 27.3%", "zh")).toBe("空闲 / 总时长 27.3%");
  expect(said("playback headroom", "zh")).toBe("playback headroom");
  expect(said("all layers", "en")).toBe("all layers");
  expect(said("QKV, attention, output", "zh")).toBe("QKV、注意力、输出");
  expect(said("rank 0: stages 0, 7", "zh")).toBe("rank 0：stage 0、7");
  expect(said("Simulated: gpipe, makespan 1,920.0 ms", "zh")).toBe("仿真：gpipe，总时长 1,920.0 ms");
});

test("no line ends between a number and its unit", () => {
  expect(unbroken("took 6.0 ms, 36.1 s and 20 GiB of 3 stages")).toBe("took 6.0\u00a0ms, 36.1\u00a0s and 20\u00a0GiB of 3 stages");
});

test("an answer to an order that was changed since does not undo the change", () => {
  const sent = [["F1", "F0"], ["F0", "F1"]];
  expect(overtaken([["F0", "F1"], ["F0", "F1"]], sent)).toBe(true);
  expect(overtaken(sent, sent)).toBe(false);
  expect(overtaken([["F0", "F1", "F2"], ["F0", "F1", "F2"]], sent)).toBe(false); // another level
});
