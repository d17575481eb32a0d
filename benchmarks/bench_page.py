"""The `page` row of `benchmarks.bench`: the site's first page in a headless Chromium, from a cold start
to its first picture and its first live simulation, and from a slider's move to the repainted timeline."""

import functools
import http.server
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from tests.support.browser import ROOT, chromium_page

MOVES, STARTS = 12, 3
EMPTY, FULL = (1, 1), (16, 62)  # stages and microbatches: 2 ops, and 1,984
LIVE = "() => document.querySelector('#timeline').dataset.live === 'true'"
PATIENCE_MS = 120_000
# one state of the page, as its address says it
GO = """hash => new Promise((resolve) => {
    const canvas = document.querySelector('canvas'), before = canvas.dataset.painted;
    const watch = new MutationObserver(() => {
        if (canvas.dataset.painted === before) return;
        watch.disconnect();
        setTimeout(resolve, 200);
    });
    watch.observe(canvas, { attributeFilter: ['data-painted'] });
    location.hash = hash;
})"""
# The clock stops when the frame after the one that painted has begun, and what was painted can be
# read back.
MOVE = """key => new Promise((resolve) => {
    const canvas = document.querySelector('canvas'), before = canvas.dataset.painted;
    const slider = document.getElementById('link_ms'), start = performance.now();
    const watch = new MutationObserver(() => {
        if (canvas.dataset.painted === before) return;
        watch.disconnect();
        canvas.getContext('2d').getImageData(0, 0, 1, 1);
        resolve(performance.now() - start);
    });
    watch.observe(canvas, { attributeFilter: ['data-painted'] });
    slider.value = Number(slider.value) + (key === 'up' ? 0.5 : -0.5);
    slider.oninput();
})"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextmanager
def served():
    """The address of the site, built anew and served by a plain file server."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        command = [sys.executable, ROOT / "web" / "site" / "build.py", site]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        handler = functools.partial(_Quiet, directory=site)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/"
            finally:
                server.shutdown()


def cold_start(address):
    """(s to the recorded picture, s to the first live simulation) in a browser that has just started
    and has loaded nothing before."""
    with chromium_page() as page:
        start_s = time.perf_counter()
        page.goto(address, wait_until="commit")
        page.wait_for_selector("canvas[data-step-s]", timeout=PATIENCE_MS)
        picture_s = time.perf_counter() - start_s
        page.wait_for_function(LIVE, timeout=PATIENCE_MS)
        return picture_s, time.perf_counter() - start_s


def moved_ms(page, stages, microbatches):
    """[ms from a move of the latency's slider to the repainted timeline] of `MOVES` moves up and
    down, of 1F1B alone."""
    page.evaluate(GO, f"a=1f1b&b2=&p={stages}&m={microbatches}&v=2&f=20&b=40&l=5&lang=en")
    found = []
    for number in range(MOVES + 1):
        found.append(page.evaluate(MOVE, "up" if number % 6 < 3 else "down"))
        page.wait_for_timeout(100)
    return found[1:]  # the first one warms up


def page_row():
    """The medians of `STARTS` cold starts, and of the moves, beside those of a picture of two ops in
    the same visit."""
    with served() as address:
        starts = [cold_start(address) for _ in range(STARTS)]
        with chromium_page() as page:
            page.goto(address)
            page.wait_for_function(LIVE, timeout=PATIENCE_MS)
            empty_ms = median(moved_ms(page, *EMPTY))
            moves = moved_ms(page, *FULL)
    return {
        "ops": 2 * FULL[0] * FULL[1],
        "picture_s": median(picture_s for picture_s, _ in starts),
        "live_s": median(live_s for _, live_s in starts),
        "median_ms": median(moves),
        "worst_ms": max(moves),
        "empty_ms": empty_ms,
        "ratio": median(moves) / empty_ms,
    }
