"""The lessons as a learner meets them: in JupyterLab, in a browser, all cells run, a slider moved."""

import pytest

import simlab as sl
from tests.browser import PAINT_S, ROOT, SHUT_DOWN, lab, needs_chromium, page_at, run_all

pytestmark = pytest.mark.alone

LESSON = ROOT / "notebooks" / "01_pipeline_bubbles.ipynb"
PLOT = ".js-plotly-plot"
BARS = "plot => Array.from(plot.querySelectorAll('.barlayer .point path')).map(bar => bar.getAttribute('d'))"
CANVAS_CELL = """
import ipywidgets
import simlab as sl

def trace(microbatches):
    return sl.simulate(sl.generate("1f1b", 4, microbatches), sl.OpTimes(forward_s=0.02, backward_s=0.04))

slider = ipywidgets.IntSlider(8, 1, 32, description="microbatches m")
picture = sl.timeline(trace(8), renderer="canvas")
slider.observe(lambda change: picture.update(trace(change.new)), names="value")
ipywidgets.VBox([slider, picture])
"""


@needs_chromium
def test_lesson_runs_in_jupyterlab_and_a_slider_repaints_the_figure(tmp_path):
    with lab(tmp_path, LESSON) as url, page_at(url) as (page, asked):
        cells = run_all(page)
        assert not errors(cells)
        assert all(cell["execution_count"] for cell in cells)

        plot = page.wait_for_selector(PLOT, timeout=PAINT_S * 1e3)
        page.wait_for_function(f"() => document.querySelectorAll('{PLOT} .barlayer .point').length > 0", timeout=PAINT_S * 1e3)
        plot.scroll_into_view_if_needed()
        before, painted = plot.evaluate(BARS), plot.screenshot()
        assert len(before) == boxes(stages=4)
        handle(page, "stages p").press("ArrowRight")
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
    assert not from_elsewhere(asked, url)


@needs_chromium
def test_a_slider_repaints_the_canvas_in_jupyterlab_and_nothing_comes_from_elsewhere(tmp_path):
    with lab(tmp_path, CANVAS_CELL) as url, page_at(url) as (page, asked):
        assert not errors(run_all(page))
        canvas = page.wait_for_selector("canvas[data-painted='1']", timeout=PAINT_S * 1e3)
        painted, label = canvas.screenshot(), canvas.get_attribute("aria-label")
        assert "step 660.0 ms" in label  # (8 + 4 - 1) (20 + 40) ms
        handle(page, "microbatches m").press("ArrowRight")
        page.wait_for_selector("canvas[data-painted='2']", timeout=PAINT_S * 1e3)
        assert "step 720.0 ms" in canvas.get_attribute("aria-label") and canvas.screenshot() != painted
        page.evaluate(SHUT_DOWN)
    assert not from_elsewhere(asked, url)


def handle(page, description):
    """The handle of the slider with that description."""
    found = page.locator(".widget-slider", has_text=description).locator(".noUi-handle")
    found.focus()
    return found


def errors(cells):
    return [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]


def from_elsewhere(asked, url):
    """The addresses that are not the server's own."""
    return [address for address in asked if not address.startswith((url.split("/lab")[0], "data:", "blob:", "ws://127.0.0.1"))]


def boxes(stages):
    """What the explorer draws of its two schedules: a box for each op and for each idle interval."""
    times = sl.OpTimes(forward_s=0.02, backward_s=0.04)
    traces = [sl.simulate(sl.generate(name, stages, 8), times) for name in ("gpipe", "1f1b")]
    return sum(len(trace.compute()) + len(sl.gaps(trace)) for trace in traces)
