/** How a label is written into a box: in which form, and how large. */

export const SMALL_PX = 11;
const TINY_PX = 9; // where a small text has no room
const SIDES: Record<number, number> = { [SMALL_PX]: 4, [TINY_PX]: 3 }; // px beside a text in its box, together
const LIST = /, |、/;
const LAYER = /^(?:layer|层) (\d+)$/;

export type Measure = (text: string) => number; // px of a small text

/** The largest size at which `text`, in its longest form that has room, fits into a box; 0: none. */
export function labelPx(text: string, wide: number, high: number, size: Measure): number {
  for (const form of forms(text)) {
    const found = sizes(high).find((px) => fits(form, px, wide, size));
    if (found) return found;
  }
  return 0;
}

/** The longest form of `text` that has room in a box `wide` px wide; "" where none has. */
export function labelText(text: string, px: number, wide: number, size: Measure): string {
  return (px && forms(text).find((form) => fits(form, px, wide, size))) || "";
}

/** The labels of boxes of these widths, px; layers are 'L9' where a name has no room in one of them. */
export function layersNamed(texts: string[], widths: number[], size: Measure): string[] {
  const whole = texts.every((text, at) => !LAYER.test(text) || fits(text, SMALL_PX, widths[at], size));
  return whole ? texts : texts.map((text) => text.replace(LAYER, "L$1"));
}

/** A text and what is shorter: of several operations the first, 'QKV…'. */
function forms(text: string): string[] {
  const [first, ...more] = text.split(LIST);
  return more.length ? [text, `${first}…`] : [text];
}

/** The sizes of a text that have room in a box `high` px high. */
function sizes(high: number): number[] {
  return [SMALL_PX, TINY_PX].filter((px) => high >= px + (px === SMALL_PX ? 2 : 1));
}

function fits(text: string, px: number, wide: number, size: Measure): boolean {
  return (size(text) * px) / SMALL_PX <= wide - SIDES[px];
}
