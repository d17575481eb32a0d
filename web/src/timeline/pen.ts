/** A canvas context that remembers where it wrote, so that a test can ask whether texts overlap. */

import type { Theme } from "../language";

export const FONT = "12px system-ui, 'Noto Sans CJK SC', sans-serif";
export const SMALL = "11px system-ui, 'Noto Sans CJK SC', sans-serif";
export const TINY = "9px system-ui, 'Noto Sans CJK SC', sans-serif";
export const HEAD = "600 13px system-ui, 'Noto Sans CJK SC', sans-serif";

export interface TextBox {
  text: string;
  part: string; // legend, title, rows, axis or strip
  left: number;
  top: number;
  right: number;
  bottom: number;
}

interface Look {
  part: string;
  align?: CanvasTextAlign;
  font?: string;
  colour?: string;
  most?: number; // px; longer texts end in …
}

export class Pen {
  readonly texts: TextBox[] = [];
  readonly thin: number; // one device pixel

  constructor(
    readonly context: CanvasRenderingContext2D,
    readonly theme: Theme,
    readonly scale: number,
  ) {
    this.thin = 1 / scale;
    context.setTransform(scale, 0, 0, scale, 0, 0);
  }

  measure(text: string, font = FONT): number {
    this.context.font = font;
    return this.context.measureText(text).width;
  }

  write(text: string, x: number, y: number, look: Look): void {
    const { part, align = "left", font = FONT, colour = this.theme.ink, most = Infinity } = look;
    const { context } = this;
    Object.assign(context, { textAlign: align, textBaseline: "alphabetic", font });
    context.fillStyle = colour;
    let shown = text;
    while (shown.length > 1 && context.measureText(shown).width > most) {
      shown = `${shown.slice(0, shown.endsWith("…") ? -2 : -1)}…`;
    }
    context.fillText(shown, x, y);
    const size = context.measureText(shown);
    this.texts.push({
      text: shown,
      part,
      left: x - size.actualBoundingBoxLeft,
      right: x + size.actualBoundingBoxRight,
      top: y - size.actualBoundingBoxAscent,
      bottom: y + size.actualBoundingBoxDescent,
    });
  }

  fill(colour: string | CanvasPattern, x: number, y: number, width: number, height: number): void {
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, width, height);
  }

  /** Draws only what lies inside the given rectangle. */
  within(x: number, y: number, width: number, height: number, paint: () => void): void {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    paint();
    this.context.restore();
  }

  stroke(colour: string, lineWidth: number, draw: (context: CanvasRenderingContext2D) => void) {
    Object.assign(this.context, { strokeStyle: colour, lineWidth, lineJoin: "miter" });
    this.context.beginPath();
    draw(this.context);
    this.context.stroke();
  }

  /** The pattern of idle time: thin oblique lines. */
  hatch(): CanvasPattern {
    const side = Math.round(8 * this.scale);
    const tile = document.createElement("canvas");
    tile.width = tile.height = side;
    const context = tile.getContext("2d")!;
    context.fillStyle = this.theme.waiting;
    context.fillRect(0, 0, side, side);
    Object.assign(context, { strokeStyle: this.theme.hatch, lineWidth: this.scale });
    context.beginPath();
    for (const shift of [-side, 0, side]) {
      context.moveTo(shift - 1, side + 1);
      context.lineTo(shift + side + 1, -1);
    }
    context.stroke();
    const pattern = this.context.createPattern(tile, "repeat")!;
    pattern.setTransform(new DOMMatrix().scale(1 / this.scale)); // of the tile's device pixels
    return pattern;
  }
}
