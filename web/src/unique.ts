/** Ids that nothing else in the document has. A notebook loads the front end once for each widget, so a
 * count alone would begin anew with each. */

const load = Math.random().toString(36).slice(2, 10);
let count = 0;

export function unique(name: string): string {
  return `simlab-${name}-${load}-${++count}`;
}
