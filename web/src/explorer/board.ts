/** Ops in rows that one drags into another order within their row, with a pointer or with keys. */

import { colourOf, nameOf, said, unbroken, word, type Tongue } from "../language";
import type { BoardPicture } from "./data";

const TEXTS = {
  en: (op: string, microbatch: string, place: number, of: number) =>
    `${op}, microbatch ${microbatch}, place ${place} of ${of}; Shift and an arrow key move it`,
  zh: (op: string, microbatch: string, place: number, of: number) =>
    `${op}，micro-batch ${microbatch}，第 ${place} 个，共 ${of} 个；按 Shift 加方向键移动`,
};

export class BoardView {
  private readonly told = document.createElement("p");
  private readonly rows = document.createElement("div");
  private board?: BoardPicture;
  private shown = ""; // what the tiles are of
  private sent?: string[][]; // the order that was last said and is not answered yet

  constructor(
    cell: HTMLElement,
    private readonly changed: (control: string, value: string) => void,
  ) {
    this.told.className = "simlab-note";
    this.rows.className = "simlab-board";
    this.rows.addEventListener("keydown", (event) => event.stopPropagation()); // JupyterLab's keys
    cell.append(this.told, this.rows);
  }

  show(board: BoardPicture, tongue: Tongue): void {
    this.board = board;
    this.told.textContent = unbroken(said(board.told[tongue], tongue));
    if (this.sent && overtaken(board.rows, this.sent)) return; // tiles have been moved since
    this.sent = undefined;
    const shown = JSON.stringify([board.rows, tongue]);
    if (shown === this.shown) return; // the tile that was moved keeps the focus
    this.shown = shown;
    this.rows.replaceChildren(...board.rows.map((ops, rank) => this.row(ops, rank, tongue)));
  }

  private row(ops: string[], rank: number, tongue: Tongue): HTMLElement {
    const row = document.createElement("div");
    const name = `${word("rank", tongue)} ${rank}`;
    const label = Object.assign(document.createElement("span"), { textContent: name });
    const tiles = Object.assign(document.createElement("div"), { className: "simlab-tiles" });
    tiles.setAttribute("role", "group");
    tiles.setAttribute("aria-label", name);
    tiles.append(...ops.map((op) => this.made(op)));
    this.describe(tiles, tongue);
    const put = (): void => {
      this.describe(tiles, tongue);
      this.put(tongue);
    };
    this.drag(tiles, put);
    this.keys(tiles, put);
    row.append(label, tiles);
    return row;
  }

  /** Says the order of the tiles, if it is another one. */
  private put(tongue: Tongue): void {
    const { control, rows } = this.board!;
    const all = [...this.rows.querySelectorAll(".simlab-tiles")].map(opsOf);
    if (JSON.stringify(all) === JSON.stringify(rows)) return;
    this.shown = JSON.stringify([all, tongue]);
    this.sent = all;
    this.changed(control, all.map((ops, rank) => ops.map((op) => `${rank}${op}`).join(" ")).join("\n"));
  }

  private made(op: string): HTMLButtonElement {
    const tile = Object.assign(document.createElement("button"), { type: "button", textContent: op });
    tile.style.background = colourOf(op[0]);
    tile.dataset.op = op;
    return tile;
  }

  private describe(tiles: Element, tongue: Tongue): void {
    [...tiles.children].forEach((tile, at) => {
      const op = (tile as HTMLElement).dataset.op!;
      const text = TEXTS[tongue](nameOf(op[0], tongue), op.slice(1), at + 1, tiles.children.length);
      tile.setAttribute("aria-label", text);
    });
  }

  /** The tile follows the pointer within its row; the others make room at once. */
  private drag(tiles: HTMLElement, put: () => void): void {
    let held: HTMLElement | undefined;
    tiles.onpointerdown = (event) => {
      const tile = (event.target as Element).closest("button");
      if (!tile || event.button) return;
      held = tile;
      held.classList.add("simlab-held");
      tiles.setPointerCapture(event.pointerId); // the row stays where it is, the tile does not
      event.preventDefault(); // of a drag of the text
      held.focus();
    };
    tiles.onpointermove = (event) => {
      if (!held) return;
      const others = [...tiles.children].filter((each) => each !== held);
      const next = others.find((each) => {
        const { left, width } = each.getBoundingClientRect();
        return event.clientX < left + width / 2;
      });
      if (held.nextElementSibling !== (next ?? null)) {
        tiles.insertBefore(held, next ?? null);
        held.focus();
      }
    };
    tiles.onpointerup = tiles.onpointercancel = () => {
      held?.classList.remove("simlab-held");
      held = undefined;
      put();
    };
  }

  /** An arrow goes to the tile beside, and with Shift takes this one along. */
  private keys(tiles: HTMLElement, put: () => void): void {
    tiles.onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const tile = (event.target as Element).closest("button");
      if (!step || !tile) return;
      event.preventDefault();
      const beside = step < 0 ? tile.previousElementSibling : tile.nextElementSibling;
      if (!(beside instanceof HTMLElement)) return;
      if (!event.shiftKey) return beside.focus();
      if (step < 0) beside.before(tile);
      else beside.after(tile);
      tile.focus();
      put();
    };
  }
}

function opsOf(tiles: Element): string[] {
  return [...tiles.children].map((tile) => (tile as HTMLElement).dataset.op!);
}

/** Whether `rows`, which an answer brings, are an earlier order of the same ops than `sent`. */
export function overtaken(rows: string[][], sent: string[][]): boolean {
  const ops = (order: string[][]): string => JSON.stringify(order.map((row) => [...row].sort()));
  return ops(rows) === ops(sent) && JSON.stringify(rows) !== JSON.stringify(sent);
}
