/** Calls `repaint` when the size of `element`, the theme or the screen's density changes; returns
 * what ends this. */
export function watch(element: Element, repaint: () => void): () => void {
  const sizes = new ResizeObserver(repaint);
  sizes.observe(element);
  const themes = new MutationObserver(repaint);
  const attributes = ["class", "style", "data-theme", "data-jp-theme-name", "data-jp-theme-light"];
  for (const root of [document.documentElement, document.body]) {
    themes.observe(root, { attributes: true, attributeFilter: attributes });
  }
  const media = ["(prefers-color-scheme: dark)", `(resolution: ${window.devicePixelRatio}dppx)`];
  const queries = media.map((text) => matchMedia(text));
  for (const query of queries) query.addEventListener("change", repaint);
  return () => {
    sizes.disconnect();
    themes.disconnect();
    for (const query of queries) query.removeEventListener("change", repaint);
  };
}
