"""The lessons as notebooks in JupyterLite: every cell runs in the browser's own Python, without a
network, and where a cell needs matplotlib or torch it shows what was recorded."""

import json
import os

import pytest

from tests.support.browser import (
    NOTEBOOK_JSON,
    ROOT,
    RUN_ALL,
    chromium_page,
    errors_of,
    needs_chromium,
    needs_node,
)
from tests.support.patience import PATIENCE_S

pytestmark = [needs_node, needs_chromium]
NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
ONLY_TO_READ = {"05_tensor_and_context", "09_long_sequences"}  # they compute with numpy
# one in every run of the tests: it draws on the canvas and with matplotlib, and executes
LESSONS = sorted({*NAMES} - ONLY_TO_READ) if "ALL_LESSONS" in os.environ else ["02_schedule_zoo"]
STARTED = "() => window.jupyterapp?.shell?.currentWidget?.sessionContext"
PICTURES = """() => [...document.querySelectorAll('.jp-OutputArea img')]
    .filter((image) => image.src.includes('/lessons/'))
    .map((image) => [image.complete, image.naturalWidth])"""


def test_the_page_leads_to_every_notebook_that_runs_and_names_the_others(site, address):
    with chromium_page() as page:
        page.goto(f"{address}notebooks/index.html")
        all_links = page.locator(".notebooks a").evaluate_all("all => all.map((a) => a.href)")
        links = [link for link in all_links if "path=" in link]
        to_read = [link for link in all_links if link not in links]
        assert [link.split("/lessons/")[1] for link in to_read] == [
            f"{name}.html" for name in sorted(ONLY_TO_READ)
        ]
        assert [link.split("/")[-1].removesuffix(".ipynb") for link in links] == [
            name for name in NAMES if name not in ONLY_TO_READ
        ]
        for link in links:
            notebook = site / "jupyterlite" / "files" / link.split("path=")[1]
            assert json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert page.locator(".notebooks li").all_inner_texts()[5].endswith("only to read")
        page.click("#tongue")
        assert page.locator(".notebooks li").all_inner_texts()[5].endswith("只能阅读")


def test_pyodide_and_its_packages_are_in_the_folder(site):
    lab = site / "jupyterlite"
    config = json.loads((lab / "jupyter-lite.json").read_text())["jupyter-config-data"]
    kernel = config["litePluginSettings"]["@jupyterlite/pyodide-kernel-extension:kernel"]
    assert (lab / kernel["pyodideUrl"]).is_file() and kernel["disablePyPIFallback"]
    packages = json.loads((lab / "static/pyodide/pyodide-lock.json").read_text())["packages"]
    assert {"simlab-realrun", "simpy", "ipywidgets", "anywidget", "ipython"} <= {*packages}
    assert {*kernel["loadPyodideOptions"]["packages"]} == {*packages}
    assert all((lab / "static/pyodide" / each["file_name"]).is_file() for each in packages.values())


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_in_the_browser_and_shows_what_was_recorded(address, name):
    errors = []
    with chromium_page(service_workers=True) as page:
        page.set_viewport_size({"width": 1366, "height": 768})
        complaints = errors_of(page)
        page.on("console", lambda line: line.type == "error" and errors.append(line))
        page.goto(f"{address}jupyterlite/lab/index.html?path=notebooks/{name}.ipynb")
        page.wait_for_function(STARTED, timeout=PATIENCE_S * 1e3)
        page.evaluate(RUN_ALL)
        page.wait_for_function("() => window.ran", timeout=PATIENCE_S * 1e3)
        cells = page.evaluate(NOTEBOOK_JSON)["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        outputs = [output for cell in code for output in cell["outputs"]]
        assert [each for each in outputs if each["output_type"] == "error"] == []
        assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
        text = json.dumps(code)
        assert "torch is not installed here" in text or "find_spec" not in text
        for button in page.get_by_text("Show me without predicting", exact=True).all():
            button.evaluate("button => button.click()")
        if "plt." in text:
            page.wait_for_selector(
                "img[src*='/lessons/']", state="attached", timeout=PATIENCE_S * 1e3
            )
        assert all(complete and width >= 700 for complete, width in page.evaluate(PICTURES))
        # a browser asks a server's root for an icon; this file server has the site there
        assert complaints == []
        assert [each.text for each in errors if "favicon" not in str(each.location)] == []
