"""The site without a network: what was kept answers, of one build alone, and a new build is seen at once."""

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import pytest

from tests.support.browser import PAINT_S, WEB, chromium_page, needs_chromium, needs_node
from tests.support.patience import PATIENCE_S, eventually

pytestmark = [needs_node, needs_chromium]
LIVE = "() => document.querySelector('#status').dataset.live === 'true'"
LESSON = "lessons/04_collectives_and_dp"
# of all that is kept: [paths below the site], builds
KEPT = """async () => {
    const names = await caches.keys();
    const found = await Promise.all(names.map(async (name) => (await caches.open(name)).keys()));
    return [found.flat().map(({ url }) => new URL(url).pathname.slice(1)), names.length];
}"""
HAS = """async (path) => {
    const found = await caches.match(new URL(path, location.origin));
    return Boolean(found) && Boolean(navigator.serviceWorker.controller);
}"""
# what becomes of the site's service worker
INSTALLED = """async () => {
    const found = await navigator.serviceWorker.register('/offline.js');
    const worker = found.installing;
    if (!worker) return found.active ? 'activated' : 'none';
    return new Promise((done) => {
        worker.onstatechange = () => ['redundant', 'activated'].includes(worker.state) && done(worker.state);
    });
}"""
# those in view
LOADED = """() => [...document.images].every((each) => (each.complete && each.naturalWidth)
    || !each.getClientRects().length || each.getBoundingClientRect().top > innerHeight)"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def folder(site, tmp_path):
    """A copy of the site, without JupyterLite, that a test may change."""
    shutil.copytree(site, tmp_path / "site", ignore=shutil.ignore_patterns("jupyterlite"))
    return tmp_path / "site"


@contextmanager
def visitor(folder):
    """(a page, the address of the site in `folder`, what ends its server)."""
    handler = functools.partial(Quiet, directory=folder)
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        chromium_page(service_workers=True) as first,
        closing(first.context.browser.new_context(locale="en")) as context,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = context.new_page()
        page.set_default_timeout(PATIENCE_S * 1e3)

        def go():
            server.shutdown()
            server.server_close()

        try:
            yield page, f"http://127.0.0.1:{server.server_port}/", go
        finally:
            go()


def wait_until_kept(page, path):
    assert eventually(lambda: page.evaluate(HAS, path)), path


def built_anew(folder):
    """Let the service worker in `folder` know of what has changed there."""
    subprocess.run([sys.executable, WEB / "site" / "offline.py", folder], check=True)


def test_after_one_visit_the_site_simulates_without_a_network(folder):
    with visitor(folder) as (page, address, go):
        page.goto(address)
        page.wait_for_function(LIVE)
        wait_until_kept(page, "python/pyodide.asm.wasm.gz")
        wait_until_kept(page, "explorers/memory.json")
        page.goto(f"{address}{LESSON}.html")
        page.wait_for_function(LOADED)
        wait_until_kept(page, f"{LESSON}.html")
        go()
        page.goto(address)
        page.wait_for_function(LIVE)
        before = page.locator("canvas").get_attribute("data-step-s")
        page.locator("#stages").press("ArrowRight")
        changed = "before => document.querySelector('canvas').dataset.stepS !== before"
        page.wait_for_function(changed, arg=before)
        page.goto(f"{address}explorers/memory.html")
        page.wait_for_selector("[data-answers]", timeout=PAINT_S * 1e3)
        page.wait_for_function(LIVE)
        page.goto(f"{address}questions/")
        assert page.inner_text("#count").startswith("65 of 65")
        page.click("#list li:first-child a")
        page.wait_for_selector("#predict")
        page.goto(f"{address}{LESSON}.html")
        assert page.locator("article h2").count() > 5
        page.goto(f"{address}lessons/05_tensor_and_context.html")  # never opened
        assert page.url == f"{address}offline.html" and page.inner_text("h1") == "No network"


def test_a_question_that_was_read_is_there_again_with_its_picture_and_no_python_is_loaded_for_it(
    folder,
):
    with visitor(folder) as (page, address, go):
        page.goto(f"{address}questions/b09.html")
        page.click("#skip-prediction")
        page.wait_for_function(LOADED)
        wait_until_kept(page, "questions/w05.html")
        picture = page.locator("#found img:visible").evaluate(
            "image => new URL(image.src).pathname"
        )
        page.reload()
        page.click("#skip-prediction")
        wait_until_kept(page, picture)
        paths, _ = page.evaluate(KEPT)
        assert not [path for path in paths if path.startswith("python/")]
        go()
        page.reload()
        page.click("#skip-prediction")
        page.wait_for_function(LOADED)
        assert page.locator("#found img:visible").evaluate("image => image.naturalWidth") >= 700


def test_a_new_build_is_shown_at_once_and_takes_the_place_of_the_old_one(folder):
    with visitor(folder) as (page, address, go):
        page.goto(f"{address}questions/b09.html")
        wait_until_kept(page, "questions/w05.html")
        for name in ("b09", "w05"):
            path = folder / f"questions/{name}.html"
            path.write_text(path.read_text(encoding="utf-8").replace("<h1>", "<h1>New: "), "utf-8")
        built_anew(folder)
        page.goto(f"{address}questions/b09.html")
        assert page.inner_text("h1").startswith("New: ")
        new = """async () => {
            const found = await caches.match(new URL('questions/w05.html', location.origin));
            return (await found.text()).includes('New: ') && (await caches.keys()).length === 1;
        }"""
        assert eventually(lambda: page.evaluate(new))
        go()
        for name in ("b09", "w05"):
            page.goto(f"{address}questions/{name}.html")
            assert page.inner_text("h1").startswith("New: ")


def test_a_file_of_another_build_is_shown_and_not_kept(folder):
    """The new lesson is there already, the new service worker is not yet."""
    with visitor(folder) as (page, address, go):
        page.goto(f"{address}questions/b09.html")
        wait_until_kept(page, "questions/w05.html")
        path = folder / f"{LESSON}.html"
        path.write_text(
            path.read_text(encoding="utf-8").replace("<h1", "<h1>New</h1><h1", 1), "utf-8"
        )
        page.goto(f"{address}{LESSON}.html")
        page.wait_for_function(LOADED)
        assert page.locator("h1").first.inner_text() == "New"
        wait_until_kept(page, "lessons/style.css")
        paths, builds = page.evaluate(KEPT)
        assert f"{LESSON}.html" not in paths and builds == 1
        go()
        page.goto(f"{address}{LESSON}.html")
        assert page.url == f"{address}offline.html"


def test_what_differs_from_its_hash_is_no_build_and_the_site_works_without_one(folder):
    (folder / "site.js").write_text((folder / "site.js").read_text("utf-8") + "\n", "utf-8")
    with visitor(folder) as (page, address, _):
        page.goto(f"{address}questions/b09.html")
        assert page.evaluate(INSTALLED) in ("redundant", "none")
        page.goto(f"{address}lessons/")
        assert page.locator("h1").inner_text() == "Thirteen lessons, and where to start"
