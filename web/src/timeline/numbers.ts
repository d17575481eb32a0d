/** Numbers as people read them, and the search in sorted ones. */

/** How many of the ascending values `at(0) ... at(length - 1)` are not above `limit`. */
export function countUpTo(limit: number, length: number, at: (index: number) => number): number {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at(middle) <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * `seconds` as ms, with as many digits as Float32 has on a time axis that ends at `end` s: six of
 * the whole.
 */
export function ms(seconds: number, end: number): string {
  const decimals = Math.max(6 - Math.ceil(Math.log10(end * 1e3)), 0);
  return String(Number((seconds * 1e3).toFixed(Math.min(decimals, 20))));
}

export interface Ticks {
  values: number[];
  decimals: number;
}

/** Multiples of 1, 2 or 5 times a power of ten from `from` to `to`, about `count` of them. */
export function ticks(from: number, to: number, count: number): Ticks {
  const rough = (to - from) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((each) => each * power >= rough * (1 - 1e-9)) ?? 10;
  const step = factor * power;
  const values: number[] = [];
  for (let at = Math.ceil(from / step - 1e-9) + 0; at * step <= to + 1e-9 * step; at++) {
    values.push(at * step);
  }
  return { values, decimals: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}
