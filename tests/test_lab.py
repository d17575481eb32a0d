"""The lesson as a learner meets it: in JupyterLab, in a browser, all cells run, a slider moved."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import sync_playwright

import simlab as sl

ROOT = Path(__file__).parent.parent
LESSON = ROOT / "notebooks" / "01_pipeline_bubbles.ipynb"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
START_S, RUN_S, PAINT_S = 90, 240, 20
CHROMIUM_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--no-first-run"]  # fmt: skip
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
PLOT = ".js-plotly-plot"
BARS = "plot => Array.from(plot.querySelectorAll('.barlayer .point path')).map(bar => bar.getAttribute('d'))"
RUN_ALL = """async () => {
    const panel = jupyterapp.shell.currentWidget;
    await panel.context.ready;
    await panel.sessionContext.ready;
    window.ran = false;
    jupyterapp.commands.execute('notebook:run-all-cells').then(() => { window.ran = true; });
}"""
NOTEBOOK_JSON = "() => jupyterapp.shell.currentWidget.content.model.toJSON()"
SHUT_DOWN = "() => jupyterapp.shell.currentWidget.sessionContext.shutdown()"


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine")
def test_lesson_runs_in_jupyterlab_and_a_slider_repaints_the_figure(tmp_path):
    with lab(tmp_path) as url, page_at(url) as (page, asked):
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.sessionContext", timeout=START_S * 1e3)
        page.evaluate(RUN_ALL)
        page.wait_for_function("() => window.ran", timeout=RUN_S * 1e3)
        cells = [cell for cell in page.evaluate(NOTEBOOK_JSON)["cells"] if cell["cell_type"] == "code"]
        errors = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
        assert not errors
        assert all(cell["execution_count"] for cell in cells)

        plot = page.wait_for_selector(PLOT, timeout=PAINT_S * 1e3)
        page.wait_for_function(f"() => document.querySelectorAll('{PLOT} .barlayer .point').length > 0", timeout=PAINT_S * 1e3)
        plot.scroll_into_view_if_needed()
        before, painted = plot.evaluate(BARS), plot.screenshot()
        assert len(before) == boxes(stages=4)
        stages = page.locator(".widget-slider", has_text="stages p").locator(".noUi-handle")
        stages.focus()
        stages.press("ArrowRight")
        page.wait_for_function(
            f"() => document.querySelectorAll('{PLOT} .barlayer .point').length === {boxes(stages=5)}", timeout=PAINT_S * 1e3
        )
        assert plot.is_visible(), "the figure was replaced, not updated"
        assert len(page.query_selector_all(PLOT)) == 1
        assert plot.evaluate(BARS)[: len(before)] != before
        assert plot.screenshot() != painted
        assert "720" in page.locator(".widget-html", has_text="idle / ideal").inner_text()  # (8 + 5 - 1) (20 + 40) ms
        assert "Error displaying widget" not in page.content()
        page.evaluate(SHUT_DOWN)
    assert not [address for address in asked if not address.startswith((url.split("/lab")[0], "data:", "blob:", "ws://127.0.0.1"))]


def boxes(stages):
    """What the explorer draws of its two schedules: a box for each op and for each idle interval."""
    times = sl.OpTimes(forward_s=0.02, backward_s=0.04)
    traces = [sl.simulate(sl.generate(name, stages, 8), times) for name in ("gpipe", "1f1b")]
    return sum(len(trace.compute()) + len(sl.gaps(trace)) for trace in traces)


@contextmanager
def page_at(url):
    """(a browser page at `url`, the list of addresses it asks for)."""
    asked = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        try:
            yield page, asked
        finally:
            browser.close()


@contextmanager
def lab(folder):
    """A JupyterLab of its own on a copy of the lesson without outputs; yields the copy's address."""
    (folder / "notebooks").mkdir()
    (folder / "assets").symlink_to(ROOT / "assets")
    lesson = nbformat.read(LESSON, as_version=4)
    for cell in lesson.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(lesson, folder / "notebooks" / LESSON.name)
    for name, value in SETTINGS.items():
        write_json(folder / "settings" / name, value)
    write_json(folder / "config" / "labconfig" / "page_config.json", PAGE_CONFIG)
    port, token = free_port(), secrets.token_hex(16)
    own = {"HOME": "home", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
           "IPYTHONDIR": "ipython", "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}  # fmt: skip
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {name: str(folder / value) for name, value in own.items()} | {"PYTHONPATH": path}
    command = [Path(sys.executable).with_name("jupyter"), "lab", *LAB_ARGS, f"--ServerApp.port={port}", f"--IdentityProvider.token={token}",
               f"--ServerApp.root_dir={folder}"]  # fmt: skip
    log = folder / "lab.log"
    with log.open("w") as output:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(f"http://127.0.0.1:{port}/api?token={token}", server, log)
        yield f"http://127.0.0.1:{port}/lab/tree/notebooks/{LESSON.name}?token={token}"
    finally:
        server.terminate()  # it ends its kernels, and then itself
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_for(url, server, log):
    """Return when `url` answers."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and server.poll() is None:
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
