/**
 * A row of ops as pixels: each pixel has the mixture of the colours that cover it, and is as opaque
 * as the part of it that ops cover. So thousands of ops are quick, and none is lost that is thinner
 * than a pixel.
 */

import { FADED, OPS, colourOf, mixed, rgb, shade } from "../language";
import type { Panel } from "./panel";

/**
 * Lays a colour on the pixels of `line` (red, green, blue, cover) from `left` to `right`: a pixel
 * that is covered in part gets that part, and one that is covered whole has this colour alone.
 */
export function lay(line: Float32Array, left: number, right: number, colour: number[]): void {
  const from = Math.max(left, 0);
  const to = Math.min(right, line.length / 4);
  if (!(to > from)) return;
  const first = Math.floor(from);
  const last = Math.floor(to);
  if (first === last) return add(line, first, to - from, colour);
  add(line, first, first + 1 - from, colour);
  const [red, green, blue] = colour;
  for (let at = 4 * (first + 1); at < 4 * last; at += 4) {
    line[at] = red;
    line[at + 1] = green;
    line[at + 2] = blue;
    line[at + 3] = 1;
  }
  if (to > last) add(line, last, to - last, colour);
}

function add(line: Float32Array, pixel: number, part: number, colour: number[]): void {
  const at = 4 * pixel;
  if (part === 1) line.fill(0, at, at + 4);
  line[at] += part * colour[0];
  line[at + 1] += part * colour[1];
  line[at + 2] += part * colour[2];
  line[at + 3] += part;
}

/** Colours by the code of a kind's letter, one for each chunk. */
function palette(chunks: number, idle: number[], share: number): number[][][] {
  const found: number[][][] = [];
  for (const kind of OPS) {
    found[kind.charCodeAt(0)] = Array.from({ length: chunks }, (_, chunk) =>
      mixed(rgb(shade(colourOf(kind), chunk, chunks)), idle, share),
    );
  }
  return found;
}

export interface Window {
  from: number; // s
  perSecond: number; // device pixels
  width: number; // device pixels
}

/** A canvas one pixel high per rank with the boxes of `seen`, transparent where a rank is idle. */
export function raster(panel: Panel, seen: Uint32Array[], window: Window, idle: string) {
  const { from, perSecond, width } = window;
  const { start, end, kinds, strong, packed } = panel;
  const chunkOf = panel.chunkOfBoxes();
  const palettes = packed.stages.map(({ length }) => palette(length, rgb(idle), 1));
  const faded = strong && packed.stages.map(({ length }) => palette(length, rgb(idle), FADED));
  const image = new ImageData(width, packed.ranks);
  const line = new Float32Array(4 * width);
  for (let rank = 0; rank < packed.ranks; rank++) {
    line.fill(0);
    for (const box of seen[rank]) {
      const colours = (!faded || strong!.has(box) ? palettes : faded)[rank];
      const colour = colours[kinds[box]][chunkOf ? chunkOf[box] : 0];
      lay(line, (start[box] - from) * perSecond, (end[box] - from) * perSecond, colour);
    }
    write(line, image.data, 4 * rank * width);
  }
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, packed.ranks];
  canvas.getContext("2d")!.putImageData(image, 0, 0);
  return canvas;
}

/** Sums and covers of `line` as colours and opacities of `data`, from the byte `at` on. */
function write(line: Float32Array, data: Uint8ClampedArray, at: number): void {
  for (let pixel = 0; pixel < line.length; pixel += 4, at += 4) {
    const cover = line[pixel + 3];
    if (cover === 0) continue;
    data[at] = line[pixel] / cover;
    data[at + 1] = line[pixel + 1] / cover;
    data[at + 2] = line[pixel + 2] / cover;
    data[at + 3] = cover > 0.998 ? 255 : 255 * cover;
  }
}
