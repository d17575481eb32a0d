/** From op to op with the arrow keys. */

import { countUpTo } from "./numbers";
import type { Panel } from "./panel";

/** An op: the number of its panel and of its box there. */
export interface Place {
  panel: number;
  box: number;
}

/** The op that an arrow key leads to from `place`; the same where there is none. */
export function step(panels: Panel[], place: Place, key: string): Place {
  const panel = panels[place.panel];
  const rank = panel.rank[place.box];
  const at = panel.rows[rank].indexOf(place.box);
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const box = panel.rows[rank][at + (key === "ArrowLeft" ? -1 : 1)];
    return box === undefined ? place : { ...place, box };
  }
  const middle = (panel.start[place.box] + panel.end[place.box]) / 2;
  const down = key === "ArrowDown";
  let [number, next] = [place.panel, rank + (down ? 1 : -1)];
  if (next < 0 && number > 0) next = panels[--number].packed.ranks - 1;
  else if (next >= panel.packed.ranks && number < panels.length - 1) [number, next] = [number + 1, 0];
  if (next < 0 || next >= panels[number].packed.ranks) return place;
  const box = nearest(panels[number], next, middle);
  return box === undefined ? place : { panel: number, box };
}

/** The box of `rank` that runs at `time`, or the one that starts last before it, or the first. */
export function nearest({ rows, start }: Panel, rank: number, time: number): number | undefined {
  const row = rows[rank];
  return row[Math.max(countUpTo(time, row.length, (at) => start[row[at]]) - 1, 0)];
}
