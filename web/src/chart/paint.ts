/** Colours and patterns of a chart's marks in a theme, as SVG. */

import { ON_DARK, ON_LIGHT, brightness, lineColour, luminance, type Theme } from "../language";
import type { Mark, Pattern } from "./data";

export const escape = (text: string): string =>
  text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** A colour of the data as the theme shows it: words of the theme, and black that can be seen. */
export function shown(colour: string, theme: Theme): string {
  const words = theme as unknown as Record<string, string>;
  if (colour in words) return words[colour];
  return theme.dark && brightness(colour) < 40 ? theme.black : colour;
}

/** Black or white, whichever has more contrast with `fill`, as WCAG 2 counts it. */
export function readable(fill: string): string {
  return (luminance(fill) + 0.05) ** 2 > 0.05 * 1.05 ? ON_LIGHT : ON_DARK;
}

/** The patterns that one drawing needs; `id` keeps drawings of one page apart. */
export class Patterns {
  private readonly made = new Map<string, string>();

  constructor(
    private readonly theme: Theme,
    private readonly id: string,
  ) {}

  /** What to fill a mark of this colour and pattern with. */
  fill(colour: string, pattern: Pattern): string {
    const base = shown(colour, this.theme);
    if (pattern === "plain") return base;
    const name = `${this.id}-${pattern}-${base.slice(1)}`;
    if (!this.made.has(name)) this.made.set(name, this.tile(name, base, pattern));
    return `url(#${name})`;
  }

  get defs(): string {
    return `<defs>${[...this.made.values()].join("")}</defs>`;
  }

  private tile(name: string, base: string, pattern: Pattern): string {
    const { theme } = this;
    const over = base === theme.waiting ? theme.hatch : pattern === "hatched" ? readable(base) : theme.background;
    const tiles = {
      striped: `<path d="M-2,2l4,-4M0,8l8,-8M6,10l4,-4" stroke="${over}" stroke-width="2.4"/>`,
      hatched: `<path d="M-2,2l4,-4M0,8l8,-8M6,10l4,-4" stroke="${over}" stroke-width="1" stroke-opacity="0.7"/>`,
      dotted: `<circle cx="2" cy="2" r="1.3" fill="${over}"/><circle cx="6" cy="6" r="1.3" fill="${over}"/>`,
      plain: "",
    };
    const size = 'width="8" height="8" patternUnits="userSpaceOnUse"';
    return `<pattern id="${name}" ${size}><rect width="8" height="8" fill="${base}"/>${tiles[pattern]}</pattern>`;
  }
}

export function symbolPath(symbol: string, x: number, y: number, r: number): string {
  if (symbol === "diamond") return `M${x},${y - r}L${x + r},${y}L${x},${y + r}L${x - r},${y}Z`;
  if (symbol === "triangle") return `M${x},${y - r}L${x + r},${y + r}L${x - r},${y + r}Z`;
  if (symbol === "cross") return `M${x - r},${y - r}L${x + r},${y + r}M${x - r},${y + r}L${x + r},${y - r}`;
  return `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`;
}

/** How a symbol's path is painted: rings and crosses are lines, the others are filled. */
export function symbolLook(symbol: string, colour: string, theme: Theme): string {
  if (symbol === "ring" || symbol === "cross") {
    return `fill="none" stroke="${colour}" stroke-width="2"`;
  }
  return `fill="${colour}" stroke="${theme.background}" stroke-width="1"`;
}

/** The sample of a mark in the legend, `wide` x 12 px from `x` on. */
export function swatch(mark: Mark, patterns: Patterns, theme: Theme, x: number, wide: number): string {
  const [colour, line] = [shown(mark.colour, theme), lineColour(shown(mark.colour, theme), theme)];
  const middle = x + wide / 2;
  switch (mark.mark) {
    case "boxes":
    case "area": {
      const own = mark.mark === "boxes" && mark.outline !== "background" && mark.outline;
      const edge = own ? shown(own, theme) : theme.axis; // else a pattern, or a pale colour, had no end
      const look = `fill="${patterns.fill(mark.colour, mark.pattern)}" stroke="${edge}"`;
      return `<rect x="${x + 0.5}" y="0.5" width="${wide - 1}" height="11" ${look}/>`;
    }
    case "dots": {
      const path = symbolPath(mark.symbol, middle, 6, Math.min(mark.radius, 5));
      return `<path d="${path}" ${symbolLook(mark.symbol, colour, theme)}/>`;
    }
    case "arrows":
      return `<path d="M${x},6h${wide - 2}m-5,-4l5,4l-5,4" fill="none" stroke="${line}" stroke-width="1.6"/>`;
    default: {
      const dash = mark.dash ? ` stroke-dasharray="${mark.dash.join(" ")}"` : "";
      return `<path d="M${x},6h${wide}" stroke="${line}" stroke-width="2"${dash}/>`;
    }
  }
}
