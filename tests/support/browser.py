"""A real browser for tests: Debian's Chromium, a JupyterLab to open in it, and a page that shows
one canvas timeline without one."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import sync_playwright

from simlab.explorers import NAMES
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
WEB, BUNDLE = ROOT / "web", ROOT / "simlab" / "views" / "bundle"
HAS_NODE = shutil.which("node") and (WEB / "node_modules" / "esbuild").is_dir()
needs_node = pytest.mark.skipif(
    not HAS_NODE,
    reason="no node, or no packages for it. On Debian: apt-get install npm; then npm ci --prefix web",
)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no chromium, chromium-browser or google-chrome. On Debian: apt-get install chromium",
)
# of the site, but for the lessons themselves
PAGES = [
    *(
        "index",
        "questions/index",
        "questions/b09",
        "questions/drill",
        "explorers/index",
        "lessons/index",
        "notebooks/index",
        "offline",
    ),
    *(f"explorers/{name}" for name in NAMES),
]
# every text that a page shows, those of its timelines too
VISIBLE = """() => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
    while (walk.nextNode()) {
        const [text, element] = [walk.currentNode.textContent.trim(), walk.currentNode.parentElement];
        const seen = element.getClientRects().length || element.tagName === 'OPTION';
        if (text && seen && !['STYLE', 'SCRIPT'].includes(element.tagName)) found.push(text);
    }
    for (const canvas of document.querySelectorAll('canvas')) found.push(...canvas.texts().map(({ text }) => text));
    return found;
}"""
START_S = RUN_S = PAINT_S = PATIENCE_S
CHROMIUM_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]  # fmt: skip
LAB_ARGS = [
    "--no-browser",
    "--expose-app-in-browser",
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    "--ServerApp.allow_root=True",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
]
# every cell is in the page, in view or not, so that the test can look at it
SETTINGS = {"@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"}}
PAGE_CONFIG = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
RUN_ALL = """async () => {
    const panel = jupyterapp.shell.currentWidget;
    await panel.context.ready;
    await panel.sessionContext.ready;
    window.ran = false;
    jupyterapp.commands.execute('notebook:run-all-cells').then(() => { window.ran = true; });
}"""
NOTEBOOK_JSON = "() => jupyterapp.shell.currentWidget.content.model.toJSON()"
SHUT_DOWN = "() => jupyterapp.shell.currentWidget.sessionContext.shutdown()"
# what a notebook does for a widget: a model with its state, of which bytes come as DataViews, and
# an element to render into
SHOW_WIDGET = """async ([source, state]) => {
    const revive = (value) => {
        if (value?.base64 !== undefined) return new DataView(Uint8Array.from(atob(value.base64), (c) => c.charCodeAt(0)).buffer);
        if (Array.isArray(value)) return value.map(revive);
        return value && typeof value === 'object' ? Object.fromEntries(Object.entries(value).map(([k, v]) => [k, revive(v)])) : value;
    };
    if (window.model) return window.model.receive(revive(state));
    const listeners = {};
    window.model = {
        state: revive(state),
        get(name) { return this.state[name]; },
        on(event, listener) { listeners[event] = listener; },
        off() {},
        receive(state) { Object.assign(this.state, state); listeners['change:serial'](); },
    };
    const module = await import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })));
    module.default.render({ model: window.model, el: document.body });
}"""

# the same for an explorer: what it asks goes to the function `ask` of the page
SHOW_EXPLORER = """async ([source, about, state]) => {
    const revive = (value) => {
        if (value?.base64 !== undefined) return new DataView(Uint8Array.from(atob(value.base64), (c) => c.charCodeAt(0)).buffer);
        if (Array.isArray(value)) return value.map(revive);
        return value && typeof value === 'object' ? Object.fromEntries(Object.entries(value).map(([k, v]) => [k, revive(v)])) : value;
    };
    const listeners = {};
    const model = {
        state: { about, state, answer: { count: 0 }, call: 'Explorer', tongue: 'en' },
        get(name) { return this.state[name]; },
        set(name, value) { this.state[name] = value; },
        on(event, listener) { listeners[event] = listener; },
        off() {},
        async save_changes() {
            this.state.answer = { count: this.state.answer.count + 1, ...revive(await window.ask(this.state.state)) };
            listeners['change:answer']();
        },
    };
    const module = await import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })));
    window.put = (name, value) => {
        model.set(name, value);
        listeners[`change:${name}`]();
    };
    window.stop = module.default.render({ model, el: document.body });
}"""


@contextmanager
def chromium_page(*, scale=1, service_workers=False):
    """A page of a browser of its own, with `scale` device pixels to a CSS pixel. service_workers: whether
    pages may have them; what a service worker answers, no route of a test sees."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=CHROMIUM_ARGS, timeout=PATIENCE_S * 1e3
        )
        if not service_workers:
            browser.new_page, browser.new_context = map(
                without_service_workers, (browser.new_page, browser.new_context)
            )
        browser.new_page = patient(browser.new_page)
        try:
            yield browser.new_page(
                viewport={"width": 1400, "height": 1000}, device_scale_factor=scale
            )
        finally:
            browser.close()


def without_service_workers(new):
    """`new`, of pages or of contexts, in which the browser has no service workers."""

    def made(**options):
        page_or_context = new(**options)
        page_or_context.add_init_script("delete Navigator.prototype.serviceWorker")
        return page_or_context

    return made


def patient(new_page):
    """`new_page`, of pages that wait as long as all tests do; Playwright's own limit is half a minute."""

    def made(**options):
        page = new_page(**options)
        page.set_default_timeout(PATIENCE_S * 1e3)
        return page

    return made


SLOW = "[anywidget] Failed to initialize model."
"""What anywidget says of a model that needed over two seconds, as on a busy machine; it is made all the
same."""


def errors_of(page):
    """The errors that nothing on the page has caught, from now on."""
    found = []
    page.on("pageerror", lambda error: str(error) != SLOW and found.append(str(error)))
    return found


def watched(page):
    """([addresses it asks for], [its errors, and what its console calls errors and warnings]), from now on."""
    asked, complaints, kinds = [], errors_of(page), ("error", "warning")
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda line: line.type in kinds and complaints.append(line.text))
    return asked, complaints


@contextmanager
def page_at(url):
    """(a browser page at `url`, the list of addresses it asks for)."""
    asked = []
    with chromium_page() as page:
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        yield page, asked


def run_all(page):
    """Run all cells of the notebook that `page` shows; its code cells, once they have run."""
    page.wait_for_function(
        "() => window.jupyterapp?.shell?.currentWidget?.sessionContext", timeout=START_S * 1e3
    )
    page.evaluate(RUN_ALL)
    page.wait_for_function("() => window.ran", timeout=RUN_S * 1e3)
    return [cell for cell in page.evaluate(NOTEBOOK_JSON)["cells"] if cell["cell_type"] == "code"]


def show_canvas(page, timeline):
    """Show `timeline` (a `CanvasTimeline`) in an empty page, or its new state in the one that shows
    it; return when it is painted."""
    state = {
        name: _as_json(getattr(timeline, name)) for name in ("panels", "room", "height", "serial")
    }
    page.evaluate(SHOW_WIDGET, [timeline._esm, state])
    page.wait_for_function(
        f"() => document.querySelector('canvas')?.dataset.painted === '{timeline.serial}'",
        timeout=PAINT_S * 1e3,
    )
    return page.locator("canvas")


def show_explorer(page, explorer, **values):
    """Show `explorer` (a `simlab.explorers.Explorer`) in an empty page, answered by this process;
    return its element when it is painted. A page can do this once."""
    page.expose_function("ask", lambda state: _as_json(explorer.reply(state)))
    source = (BUNDLE / "explorer.js").read_text(encoding="utf-8")
    page.evaluate(SHOW_EXPLORER, [source, explorer.to_dict(), explorer.start(**values)])
    page.wait_for_selector("[data-answers='1']", timeout=PAINT_S * 1e3)
    return page.locator(".simlab-explorer")


def _as_json(value):
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


@contextmanager
def lab(folder, notebook):
    """A JupyterLab of its own on a notebook without outputs: a copy of the file `notebook`, or of
    one cell, its text."""
    (folder / "notebooks").mkdir()
    if isinstance(notebook, Path):
        name, copy = notebook.name, nbformat.read(notebook, as_version=4)
    else:
        name, copy = (
            "cell.ipynb",
            nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(notebook)]),
        )
        copy.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }  # else JupyterLab asks
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(copy, folder / "notebooks" / name)
    for setting, value in SETTINGS.items():
        write_json(folder / "settings" / setting, value)
    write_json(folder / "config" / "labconfig" / "page_config.json", PAGE_CONFIG)
    port, token = free_port(), secrets.token_hex(16)
    own = {"HOME": "home", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
           "IPYTHONDIR": "ipython", "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}  # fmt: skip
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = (
        os.environ | {key: str(folder / value) for key, value in own.items()} | {"PYTHONPATH": path}
    )
    command = [Path(sys.executable).with_name("jupyter"), "lab", *LAB_ARGS, f"--ServerApp.port={port}", f"--IdentityProvider.token={token}",
               f"--ServerApp.root_dir={folder}"]  # fmt: skip
    log = folder / "lab.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/api?token={token}", server, log)
        yield f"http://127.0.0.1:{port}/lab/tree/notebooks/{name}?token={token}"
    finally:
        server.terminate()  # it ends its kernels, and then itself
        try:
            server.wait(PATIENCE_S / 10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_for(url, server, log):
    """Return when `url` answers."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and server.poll() is None:
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                url, timeout=5
            ).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def corner(canvas):
    """[red, green, blue] of the background."""
    read = (
        "c => Array.from(c.getContext('2d').getImageData(1, c.height - 2, 1, 1).data.slice(0, 3))"
    )
    return canvas.evaluate(read)


def assert_texts_stand_apart(canvas):
    """No text is over another or outside the picture; returns the texts of each part."""
    width, height, texts = canvas.evaluate("c => [c.clientWidth, c.clientHeight, c.texts()]")
    for text in texts:
        inside = text["left"] >= 0 and text["right"] <= width
        assert inside and text["top"] >= 0 and text["bottom"] <= height, text
    for one, other in combinations(texts, 2):
        apart = one["right"] <= other["left"] or other["right"] <= one["left"]
        above = one["bottom"] <= other["top"] or other["bottom"] <= one["top"]
        assert apart or above, (one, other)
    parts = {}
    for text in texts:
        parts.setdefault(text["part"], []).append(text["text"])
    return parts
