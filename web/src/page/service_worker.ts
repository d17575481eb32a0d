/** Keeps the site for visits without a network. With one, every file comes from it or is asked for anew, so that no
 * page is ever of an older build; without one, what was kept answers. A file is kept only if it is of this build: `BUILD`, which
 * `web/site/offline.py` writes before this code, has the hash of each. */

declare const BUILD: {
  version: string;
  hashes: Record<string, string>; // {path below the site: the first digits of its SHA-256, of what a .gz holds}
  first: string[]; // those that are kept at once; others when they have been shown
};
interface Lasting extends Event {
  waitUntil(work: Promise<unknown>): void;
}
interface Asked extends Lasting {
  request: Request;
  respondWith(response: Promise<Response>): void;
}
interface Scope {
  registration: { scope: string };
  clients: { claim(): Promise<void> };
  skipWaiting(): Promise<void>;
  oninstall: (event: Lasting) => void;
  onactivate: (event: Lasting) => void;
  onfetch: (event: Asked) => void;
  onmessage: (event: Lasting & { data: string[] }) => void;
}

const worker = self as unknown as Scope;
const { scope } = worker.registration;
const PREFIX = `simlab ${scope} `; // another site may lie on the same machine
const CACHE = PREFIX + BUILD.version;
const FRESH: RequestInit = { cache: "no-cache" }; // the browser's own cache may hold an older build
const urlOf = (path: string) => scope + path;

/** The file of this site that `url` names; undefined for what is not kept, such as JupyterLite. */
function pathOf(url: string): string | undefined {
  const { origin, pathname } = new URL(url);
  if (!(origin + pathname).startsWith(scope)) return undefined;
  const path = (origin + pathname).slice(scope.length).replace(/(^|\/)$/, "$1index.html");
  return Object.hasOwn(BUILD.hashes, path) ? path : undefined;
}

/** Whether `bytes` are what this build has at `path`. */
async function isOurs(path: string, bytes: Uint8Array<ArrayBuffer>): Promise<boolean> {
  const packed = path.endsWith(".gz") && bytes[0] === 0x1f && bytes[1] === 0x8b; // some servers unpack it
  const plain = packed ? await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer() : bytes;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", plain));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("").startsWith(BUILD.hashes[path]);
}

/** Keeps `response` as the file at `path`, if it is that of this build; whether it is. */
async function keep(path: string, response: Response): Promise<boolean> {
  const bytes = new Uint8Array(await response.arrayBuffer());
  if (!(await isOurs(path, bytes))) return false;
  const headers = { "content-type": response.headers.get("content-type") ?? "" };
  await (await caches.open(CACHE)).put(urlOf(path), new Response(bytes, { headers }));
  return true;
}

/** Has the file at `path` kept: from what is kept of an earlier build where it is the same, else from the network. */
async function fetched(path: string): Promise<void> {
  if (await (await caches.open(CACHE)).match(urlOf(path))) return;
  const before = await caches.match(urlOf(path));
  if (before && (await keep(path, before))) return;
  const response = await fetch(urlOf(path), FRESH);
  if (!response.ok || !(await keep(path, response))) throw new Error(`${path} is of another build`);
}

async function earlier(): Promise<string[]> {
  return (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== CACHE);
}

/** The files that are kept of earlier builds and that this one has, too. */
async function keptBefore(): Promise<string[]> {
  const all = (await earlier()).map(async (name) => (await caches.open(name)).keys());
  return (await Promise.all(all)).flat().flatMap(({ url }) => pathOf(url) ?? []);
}

async function answer(event: Asked, path: string): Promise<Response> {
  const cache = await caches.open(CACHE);
  const kept = await cache.match(urlOf(path));
  try {
    const response = await fetch(event.request.url, FRESH);
    if (response.ok && !kept) event.waitUntil(keep(path, response.clone()));
    return response;
  } catch (error) {
    if (kept) return kept;
    if (event.request.mode === "navigate") return Response.redirect(urlOf("offline.html"));
    throw error;
  }
}

worker.oninstall = (event) => {
  const all = async () => Promise.all([...new Set([...BUILD.first, ...(await keptBefore())])].map(fetched));
  event.waitUntil(all().then(() => worker.skipWaiting()));
};
worker.onactivate = (event) => {
  const drop = async () => Promise.all((await earlier()).map((name) => caches.delete(name)));
  event.waitUntil(drop().then(() => worker.clients.claim()));
};
worker.onfetch = (event) => {
  const path = event.request.method === "GET" ? pathOf(event.request.url) : undefined;
  if (path !== undefined) event.respondWith(answer(event, path));
};
/** A page says what it has loaded. */
worker.onmessage = (event) => {
  const paths = event.data.flatMap((url) => pathOf(url) ?? []);
  event.waitUntil(Promise.allSettled(paths.map(fetched)));
};
