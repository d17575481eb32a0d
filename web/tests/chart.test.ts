import { describe, expect, test } from "vitest";
import table from "../../simlab/views/language.json";
import { numberText, scaleOf, ticksOf } from "../src/chart/axes";
import { legendOf, nearest } from "../src/chart/chart";
import type { Axis, Boxes, Chart, Mark } from "../src/chart/data";
import { draw } from "../src/chart/draw";
import { labelPx, labelText, layersNamed } from "../src/chart/labels";
import { readable, shown } from "../src/chart/paint";

const words = (text: string) => ({ en: text, zh: `中${text}` });
const theme = { ...table.themes.light, dark: false };
const size = (text: string) => 6 * text.length;
const look = { theme, tongue: "en", width: 400, id: "t", size } as const;

function axis(change: Partial<Axis> = {}): Axis {
  return { label: words("axis"), scale: "linear", down: false, ...change };
}

function boxes(change: Partial<Boxes> = {}): Boxes {
  return {
    mark: "boxes", x0: [0, 2], x1: [2, 3], y0: [0, 0], y1: [1, 1], colour: "#0072B2", pattern: "plain",
    name: words("box"), labels: ["0", "a long label that does not fit"], tips: [words("one"), words("two")],
    ...change,
  }; // prettier-ignore
}

function chart(marks: Mark[], change: Partial<Chart> = {}): Chart {
  const rest = { x: axis(), y: axis(), height: 240, square: false, bare: false };
  return { picture: "chart", key: "k", title: words("title"), marks, ...rest, ...change };
}

/** The numbers of one attribute of all elements of a kind. */
const numbers = (svg: string, tag: string, name: string) =>
  [...svg.matchAll(new RegExp(`<${tag} [^>]*?\\b${name}="([^"]+)"`, "g"))].map((found) => Number(found[1]));

describe("boxes", () => {
  test("without an outline have sharp edges, so that no seam is between neighbours", () => {
    expect(draw(chart([boxes()]), look).svg).toContain('shape-rendering="crispEdges"');
    expect(draw(chart([boxes({ outline: "grid" })]), look).svg).not.toContain("crispEdges");
  });

  test("with a pattern have a plate of their colour behind the label", () => {
    const plates = (mark: Boxes) => draw(chart([mark]), look).svg.match(/data-part="plate"[^>]*fill="#0072B2"/g);
    expect(plates(boxes({ pattern: "dotted" }))).toHaveLength(1);
    expect(plates(boxes())).toBeNull();
  });

  test("in 16 rows of 14 px have every row's name", () => {
    const names = Array.from({ length: 16 }, (_, at) => `rank ${at} cp`);
    const y = axis({ ticks: [...names.keys()], names, least: -0.5, most: 15.5, down: true });
    const { svg } = draw(chart([boxes()], { y, height: 64 + 14 * 16 }), look);
    expect(svg.match(/data-part="y-tick"/g)).toHaveLength(16);
  });
});

describe("the label of a box", () => {
  const written = (text: string, wide: number) => {
    const px = labelPx(text, wide, 20, size);
    return [px, labelText(text, px, wide, size)];
  };

  test("gets smaller before it gets shorter, and is left out where no form has room", () => {
    expect(written("QKV, MLP", 60)).toEqual([11, "QKV, MLP"]);
    expect(written("QKV, MLP", 45)).toEqual([9, "QKV, MLP"]);
    expect(written("QKV, MLP", 30)).toEqual([11, "QKV…"]);
    expect(written("QKV, MLP", 10)).toEqual([0, ""]);
  });
  test("of a layer is short where one of its row has no room for the name", () => {
    expect(layersNamed(["head", "layer 10", "layer 9"], [9, 52, 52], size)).toEqual(["head", "layer 10", "layer 9"]);
    expect(layersNamed(["head", "layer 10", "layer 9"], [99, 51, 51], size)).toEqual(["head", "L10", "L9"]);
    expect(layersNamed(["层 9"], [17], size)).toEqual(["L9"]);
  });
  test("is no larger than the box is high", () => {
    expect([13, 12, 10, 9].map((high) => labelPx("0", 40, high, size))).toEqual([11, 9, 9, 0]);
  });
});

describe("axes", () => {
  test("lie over the marks, whose borders would cut them", () => {
    const { svg } = draw(chart([boxes({ outline: "background" })]), look);
    expect(svg.lastIndexOf(`stroke="${theme.axis}"`)).toBeGreaterThan(svg.lastIndexOf("<rect x"));
  });

  test("a log2 axis has powers of two, fewer of them where there is less room", () => {
    const log2 = axis({ scale: "log2" });
    const texts = (px: number) =>
      ticksOf(log2, scaleOf(log2, [1, 1024], 0, px), size, { gap: 10 }).map(({ text }) => text);
    expect(texts(600)).toEqual(["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1,024"]);
    expect(texts(150)).toEqual(["1", "8", "64", "512"]);
  });

  test("a linear axis has three ticks or more where they have room", () => {
    for (let px = 80; px < 300; px += 7) {
      for (let most = 1; most < 1000; most *= 1.07) {
        const y = axis({ least: 0, most });
        const found = ticksOf(y, scaleOf(y, [], px, 0), () => 11, { gap: 4, pace: 26 });
        expect(found.length, `${px} px up to ${most}`).toBeGreaterThanOrEqual(3);
      }
    }
  });

  test("texts of ticks never touch", () => {
    for (let px = 40; px < 700; px += 13) {
      const names = Array.from({ length: 40 }, (_, at) => `forward block ${at}`);
      const named = axis({ ticks: names.map((_, at) => at + 0.5), names, least: 0, most: 40 });
      for (const each of [named, axis({ most: 12345.6 }), axis({ scale: "log10" })]) {
        const scale = scaleOf(each, [1, 9e4], 0, px);
        const ticks = ticksOf(each, scale, size, { gap: 10 });
        ticks.slice(1).forEach((tick, at) => {
          const between = scale(tick.at) - scale(ticks[at].at);
          expect(between).toBeGreaterThanOrEqual((size(tick.text) + size(ticks[at].text)) / 2);
        });
      }
    }
  });

  test("an interval without length and no marks at all still have a scale", () => {
    expect(scaleOf(axis(), [3], 0, 10)(3)).toBe(5);
    expect(Number.isFinite(scaleOf(axis({ scale: "log2" }), [], 0, 10)(1))).toBe(true);
  });

  test("numbers are short", () => {
    expect([0, 0.125, 12.5, 1024, 3e9].map(numberText)).toEqual(["0", "0.125", "12.5", "1,024", "3e9"]);
  });
});

describe("a drawing", () => {
  test("has a rectangle for each box, where its scales say", () => {
    const { svg, x, y } = draw(chart([boxes()]), look);
    const drawn = svg.slice(svg.indexOf("data-mark"));
    expect(numbers(drawn, "rect", "x").map((px) => Math.round(px))).toEqual([0, 2].map((at) => Math.round(x(at))));
    expect(numbers(drawn, "rect", "width")[0]).toBeCloseTo(x(2) - x(0), 1);
    expect(numbers(drawn, "rect", "height")[0]).toBeCloseTo(y(0) - y(1), 1);
  });

  test("writes labels only into boxes that are wide enough", () => {
    const { svg } = draw(chart([boxes()]), look);
    expect(svg.match(/data-part="label"/g)).toHaveLength(1);
  });

  test("labels all boxes of one size or none of them, in all marks of a chart", () => {
    const row = (labels: string[], y: number) =>
      boxes({ x0: [0, 1], x1: [1, 2], y0: [y, y], y1: [y + 1, y + 1], labels });
    const ten = "a long label that does not fit";
    const count = (last: string) =>
      draw(chart([row(["8", "9"], 0), row(["10", last], 1)]), { ...look, width: 120 }).svg.match(/data-part="label"/g);
    expect(count("11")).toHaveLength(4);
    expect(count(ten)).toBeNull();
  });

  test("writes the label of a box that is cut off into the part that is seen", () => {
    const { svg, x } = draw(chart([boxes({ labels: ["0", ""] })], { x: axis({ least: 1, most: 3 }) }), look);
    const [label] = svg.match(/<text data-part="label"[^>]*>/)!;
    expect(Number(label.match(/ x="([^"]+)"/)![1])).toBeCloseTo(x(1.5), 1);
  });

  test("draws each pattern that it uses, and square cells as squares", () => {
    const { svg, x, y } = draw(chart([boxes({ pattern: "striped" })], { square: true }), look);
    expect(svg).toContain('<pattern id="t-striped-0072B2"');
    expect(x(1) - x(0)).toBeCloseTo(y(0) - y(1), 6);
  });

  test("rows grow downward where the axis says so", () => {
    const { y } = draw(chart([boxes()], { y: axis({ down: true }) }), look);
    expect(y(1)).toBeGreaterThan(y(0));
  });

  test("a text with signs of HTML is a text", () => {
    const { svg } = draw(chart([], { x: axis({ label: words("a<b & c") }) }), look);
    expect(svg).toContain("a&#60;b &#38; c");
  });
});

test("the legend lists each name once, and nothing without a name", () => {
  const again = boxes({ colour: "#E69F00" });
  const html = legendOf(chart([boxes(), again, boxes({ name: null })]), theme, "zh", "t");
  expect(html.match(/<span>/g)).toHaveLength(1);
  expect(html.match(/<rect/g)).toHaveLength(2);
  expect(html).toContain("中box");
});

test("the pointer finds the topmost box, and before it a point that is near", () => {
  const tip = words("tip");
  const places = [
    { x: 5, y: 5, tip, near: 0, box: [0, 0, 10, 10] as [number, number, number, number] },
    { x: 6, y: 6, tip, near: 0, box: [2, 2, 8, 8] as [number, number, number, number] },
    { x: 9, y: 9, tip, near: 2 },
  ];
  expect([[1, 1], [5, 5], [9, 8], [30, 30]].map(([x, y]) => nearest(places, x, y))).toEqual([0, 1, 2, -1]);
});

test("black and words of the theme can be seen in each theme", () => {
  const dark = { ...table.themes.dark, dark: true };
  expect([shown("#000000", theme), shown("#000000", dark)]).toEqual(["#000000", table.themes.dark.black]);
  expect(shown("cap", dark)).toBe(table.themes.dark.cap);
  expect([readable("#F0E442"), readable("#0072B2")]).toEqual(["#000000", "#FFFFFF"]);
  expect([readable("#D55E00"), readable("#009E73"), readable("#666666")]).toEqual(["#000000", "#000000", "#FFFFFF"]);
});
