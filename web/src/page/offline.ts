/** Has the site kept for visits without a network, by `service_worker.ts`: all pages with their scripts, and what
 * the pages that were opened have loaded besides. */

/** Called when a page has loaded all that it needs. also: what its worker has loaded. */
export async function keepForOffline(also: string[] = []): Promise<void> {
  const browser = globalThis.navigator as (Navigator & { connection?: { saveData: boolean } }) | undefined; // none under node
  const serviceWorker = browser?.serviceWorker;
  if (!serviceWorker || browser?.connection?.saveData) return; // it has none, or the page is not from https
  const root = new URL(document.documentElement.dataset.root!, location.href);
  try {
    await serviceWorker.register(new URL("offline.js", root));
    const { active } = await serviceWorker.ready;
    const loaded = performance.getEntriesByType("resource").map(({ name }) => name);
    active!.postMessage([location.href, ...loaded, ...also]);
  } catch {
    // the browser keeps nothing, as in a private window
  }
}
