/** A panel is one trace: packed into bytes by Python, unpacked into arrays here. */

import { countUpTo } from "./numbers";

/** Memory points that are closer than this part of the step are at one time: Float32 rounds. */
const SAME = 5e-7;

/** What Python sends: see `simlab.views.packing.Panel`. */
export interface Packed {
  title: string;
  ranks: number;
  end_s: number;
  stages: number[][];
  boxes: ArrayBufferView;
  rows: ArrayBufferView;
  kinds: ArrayBufferView;
  used: string;
  ops: ArrayBufferView;
  memory: ArrayBufferView;
  holders: ArrayBufferView;
  memory_label: string;
  peak: number;
  cap?: number | null; // Pyodide makes None undefined
  breaches: [number, number][];
  path?: ArrayBufferView | null;
  waits: Record<string, Wait>;
  sends?: Record<string, [number, string]>; // of an op: the rank that its result goes to, and the size
  row?: string; // what a row is: a rank, or a place in the pipeline
}

/** What a rank waited for before an op: text of the op, the rank that ran it, and the reason. */
export type Wait = [string | null | undefined, number | null | undefined, string];

export interface Curve {
  times: Float32Array;
  amounts: Float32Array;
}

type Column = Float32ArrayConstructor | Uint16ArrayConstructor | Uint32ArrayConstructor;

export class Panel {
  readonly start: Float32Array;
  readonly end: Float32Array;
  readonly rank: Uint16Array;
  readonly kinds: Uint8Array;
  readonly rows: Uint32Array[];
  readonly path: number[] | null;
  readonly strong: Set<number> | null;
  readonly curves: Curve[];
  readonly chunks: number;
  private readonly text: Uint8Array;
  private texts?: string[];
  private shades?: Uint8Array;
  private longest?: number;

  constructor(readonly packed: Packed) {
    [this.start, this.end] = columns(packed.boxes, Float32Array, 2);
    [this.rank] = columns(packed.rows, Uint16Array);
    [this.kinds, this.text] = [bytes(packed.kinds), bytes(packed.ops)];
    this.rows = byRank(this.rank, packed.ranks);
    this.path = packed.path ? [...columns(packed.path, Uint32Array)[0]] : null;
    this.strong = this.path && new Set(this.path);
    this.chunks = Math.max(1, ...packed.stages.map((stages) => stages.length));
    const [times, amounts] = columns(packed.memory, Float32Array, 2);
    const [holders] = columns(packed.holders, Uint16Array);
    const least = SAME * packed.end_s;
    this.curves = byRank(holders, packed.ranks).map((at) => curve(at, times, amounts, least));
  }

  /** The text of the op in `box`. Texts are not decoded before one is asked for. */
  name(box: number): string {
    this.texts ??= new TextDecoder().decode(this.text).split(" ");
    return this.texts[box];
  }

  kind(box: number): string {
    return String.fromCharCode(this.kinds[box]);
  }

  stage(box: number): number {
    return Number(this.name(box).split(this.kind(box))[0]);
  }

  microbatch(box: number): string {
    return this.name(box).split(this.kind(box))[1];
  }

  /** The most digits that the number of a microbatch has. */
  digits(): number {
    this.longest ??= this.start.reduce((most, _, box) => Math.max(most, this.microbatch(box).length), 1);
    return this.longest;
  }

  /** The chunk of each box; undefined where every rank has one stage. */
  chunkOfBoxes(): Uint8Array | undefined {
    if (this.chunks === 1) return undefined;
    const { stages } = this.packed;
    const chunk = (_: number, box: number) => stages[this.rank[box]].indexOf(this.stage(box));
    this.shades ??= Uint8Array.from(this.kinds, chunk);
    return this.shades;
  }

  /** The boxes of each rank that lie in the interval from..to, s. */
  seen([from, to]: Range): Uint32Array[] {
    return this.rows.map((row) => {
      const first = countUpTo(from, row.length, (at) => this.end[row[at]]);
      return row.subarray(first, countUpTo(to, row.length, (at) => this.start[row[at]]));
    });
  }
}

export type Range = [number, number];

function bytes(view: ArrayBufferView): Uint8Array {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
}

/** `count` columns of numbers of one `type`, which lie one after the other. */
function columns<T extends Column>(view: ArrayBufferView, type: T, count = 1): InstanceType<T>[] {
  const size = type.BYTES_PER_ELEMENT;
  const length = view.byteLength / size / count;
  const whole = view.byteOffset % size === 0 ? bytes(view) : bytes(view).slice();
  const column = (_: unknown, at: number) =>
    new type(whole.buffer as ArrayBuffer, whole.byteOffset + size * at * length, length);
  return Array.from({ length: count }, column) as InstanceType<T>[];
}

/** For each rank the numbers of its items, in their order. */
function byRank(rank: Uint16Array, ranks: number): Uint32Array[] {
  const ends = new Uint32Array(ranks + 1);
  const order = new Uint32Array(rank.length);
  for (let i = 0; i < rank.length; i++) ends[rank[i] + 1]++;
  for (let i = 0; i < ranks; i++) ends[i + 1] += ends[i];
  const starts = ends.slice();
  for (let i = 0; i < rank.length; i++) order[starts[rank[i]]++] = i;
  return Array.from({ length: ranks }, (_, i) => order.subarray(ends[i], ends[i + 1]));
}

/** One rank's step line. Of points that are closer than `least` s the last one counts. */
function curve(at: Uint32Array, time: Float32Array, amount: Float32Array, least: number): Curve {
  const times = new Float32Array(at.length + 1);
  const amounts = new Float32Array(at.length + 1);
  let last = 0;
  for (const point of at) {
    if (last === 0 || time[point] - times[last] > least) times[++last] = time[point];
    amounts[last] = amount[point];
  }
  return { times: times.subarray(0, last + 1), amounts: amounts.subarray(0, last + 1) };
}

/** What a curve holds at `time`, s. */
export function amountAt({ times, amounts }: Curve, time: number): number {
  return amounts[Math.max(countUpTo(time, times.length, (at) => times[at]) - 1, 0)];
}
