/** What the simulator of a page does: it loads, starts, answers, or has failed; and the line that says so. */

import type { FromWorker } from "./messages";
import { keepForOffline } from "./offline";
import type { Words } from "./texts";

export class Status {
  share = 0;
  starting = false;
  started = false; // Python can be asked
  live = false; // what is shown was, or would be, simulated here
  failed = ""; // why there is no answer; a later answer ends it

  hear(message: FromWorker<unknown>): void {
    if (message.kind === "progress") [this.share, this.starting] = [message.share, message.starting];
    if (message.kind === "ready") keepForOffline(message.loaded);
    if (message.kind === "ready" || message.kind === "answer") this.started = true;
    if (message.kind === "answer") this.failed = "";
    if (message.kind === "failed") this.failed = message.why;
  }

  text(words: Words): string {
    if (this.failed) return `${this.started ? words.broken : words.failed}${words.colon}${this.failed}`;
    if (this.live) return words.live;
    const loading = this.starting ? words.starting : `${words.loading} ${Math.round(this.share * 100)}%`;
    return `${words.recorded}${loading} …`;
  }

  /** Writes the line, and how far the loading is. */
  say(words: Words): void {
    const line = document.getElementById("status")!;
    line.textContent = this.text(words);
    line.dataset.live = String(this.live);
    const bar = document.getElementById("progress") as HTMLProgressElement;
    bar.hidden = this.live || this.failed !== "";
    bar.value = this.share;
  }
}

/** The JSON at `url`; an error says which file is missing, and with which status. */
export async function loaded<T>(url: URL): Promise<T> {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url.pathname.split("/").at(-1)}: ${response.status}`);
  return response.json() as Promise<T>;
}

/** Says that the page cannot begin, because what it shows first is not there. */
export function sayMissing(error: unknown, words: Words): void {
  const why = error instanceof Error ? error.message : String(error);
  document.getElementById("status")!.textContent = `${words.missing}${words.colon}${why}`;
  document.getElementById("progress")!.hidden = true;
}
