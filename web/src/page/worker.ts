/** The simulator: Python under Pyodide, with the same simlab as everywhere. */

import { loadPyodide } from "pyodide";
import type { FromWorker, Request } from "./messages";

declare const FILES: Record<string, number>; // name: its compressed bytes; set when built

const FOLDER = new URL("./python/", self.location.href).href;
const PACKAGES = "packages.zip";
/** What only the drill needs: the lessons, and what sets their texts. */
const LESSONS = "../questions/lessons.zip";
const DRILL = self.name === "drill";
const NEEDED = Object.keys(FILES).filter((name) => DRILL || name !== LESSONS);
const EXPLORERS = `
from simlab.explorers import explorer
from simlab.views.page import pipeline

def reply(asked):
    return explorer(asked["explorer"]).reply(asked["state"]) if "explorer" in asked else pipeline(asked)
`;
const QUESTIONS = `
from markdown_it import MarkdownIt
from simlab.lessons.drill.page import Asker

reply = Asker(MarkdownIt("commonmark", {"html": False}).enable("table").render).reply
`;
const START = `
import sys
sys.path.insert(0, "/packages")
from pyodide.ffi import to_js
from js import Object
${DRILL ? QUESTIONS : EXPLORERS}
def answer(request):
    return to_js(reply(request.to_py()), dict_converter=Object.fromEntries)
`;

const say = (message: FromWorker, move: Transferable[] = []) => self.postMessage(message, { transfer: move });
const plainFetch = self.fetch.bind(self);
const loaded: Record<string, number> = {};

function progress(name: string, bytes: number): void {
  loaded[name] = bytes;
  const sum = (numbers: number[]) => numbers.reduce((a, b) => a + b, 0);
  const share = Math.min(sum(Object.values(loaded)) / sum(NEEDED.map((each) => FILES[each])), 1);
  say({ kind: "progress", share, starting: share >= 1 });
}

/** A compressed file of the folder as it was before; says how far it is. */
async function file(name: string): Promise<Response> {
  const response = await plainFetch(`${FOLDER}${name}.gz`);
  if (!response.ok || !response.body) throw new Error(`${name}: ${response.status}`);
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let count = 0;
  const reader = response.body.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    count += part.value.length;
    progress(name, Math.min(count, FILES[name]));
  }
  progress(name, FILES[name]);
  const blob = new Blob(parts);
  const [one, two] = new Uint8Array(await blob.slice(0, 2).arrayBuffer());
  const zipped = one === 0x1f && two === 0x8b; // some servers decompress on the way
  const body = zipped ? blob.stream().pipeThrough(new DecompressionStream("gzip")) : blob.stream();
  const type = name.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
  return new Response(body, { headers: { "content-type": type } });
}

/** Pyodide asks for its files by `fetch`; those that lie here compressed are taken from there. */
self.fetch = (input, options) => {
  const url = input instanceof globalThis.Request ? input.url : String(input);
  const name = url.startsWith(FOLDER) ? url.slice(FOLDER.length) : "";
  return name in FILES ? file(name) : plainFetch(input, options);
};

async function start(): Promise<(request: Request) => unknown> {
  const archives = (DRILL ? [PACKAGES, LESSONS] : [PACKAGES]).map(file);
  const python = await loadPyodide({ indexURL: FOLDER });
  for (const archive of archives) {
    python.unpackArchive(await (await archive).arrayBuffer(), "zip", { extractDir: "/packages" });
  }
  python.runPython(START);
  return python.globals.get("answer");
}

let latest: Request | undefined;
let answer: ((request: Request) => unknown) | undefined;

/** Answers the latest request only: those that a slider left behind are not worth it. */
function work(): void {
  if (!answer || !latest) return;
  const request = latest;
  latest = undefined;
  try {
    say({ kind: "answer", answer: answer(request) as never });
  } catch (error) {
    say({ kind: "failed", why: String(error) });
  }
}

self.onmessage = ({ data }: MessageEvent<Request>) => {
  if (!latest) setTimeout(work);
  latest = data;
};

start().then(
  (ready) => {
    answer = ready;
    const loaded = performance.getEntriesByType("resource").map(({ name }) => name);
    say({ kind: "ready", loaded: [self.location.href, ...loaded] });
    work();
  },
  (error) => say({ kind: "failed", why: String(error) }),
);
