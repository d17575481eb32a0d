"""The lessons as a learner meets them: in JupyterLab, in a browser, all cells run, a slider
moved."""

import simlab as sl
from tests.support.browser import PAINT_S, ROOT, SHUT_DOWN, lab, needs_chromium, page_at, run_all

LESSON = ROOT / "notebooks" / "01_pipeline_bubbles.ipynb"
CANVAS = "canvas[data-step-s]"
BACKGROUND = (
    "c => Array.from(c.getContext('2d').getImageData(1, c.height - 2, 1, 1).data.slice(0, 3))"
)
CHANGE_THEME = "theme => jupyterapp.commands.execute('apputils:change-theme', { theme })"
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


CURVES_CELL = """
import simlab as sl
from simlab.apps import tongue
tongue()
ranks = [1, 2, 4, 8, 16]
sl.zero_picture(ranks, sl.zero_curves(7e9, ranks), capacity_bytes=80e9, name="7B")
"""


@needs_chromium
def test_curves_can_be_pointed_at_in_jupyterlab(tmp_path):
    with lab(tmp_path, CURVES_CELL) as url, page_at(url) as (page, asked):
        assert not errors(run_all(page))
        lines = ".js-plotly-plot .scatterlayer .trace"  # one has no height
        page.wait_for_selector(lines, state="attached", timeout=PAINT_S * 1e3)
        assert page.locator(lines).count() == 4
        assert page.locator(".jp-OutputArea img:visible").count() == 0  # the still is for elsewhere
        page.evaluate(SHUT_DOWN)
    assert not from_elsewhere(asked, url)


@needs_chromium
def test_lesson_runs_in_jupyterlab_and_a_slider_repaints_the_picture(tmp_path):
    with lab(tmp_path, LESSON) as url, page_at(url) as (page, asked):
        cells = run_all(page)
        assert not errors(cells)
        assert all(cell["execution_count"] for cell in cells)

        picture = page.wait_for_selector(CANVAS, timeout=PAINT_S * 1e3)
        picture.scroll_into_view_if_needed()
        painted = picture.screenshot()
        assert float(picture.get_attribute("data-step-s")) == step_s(stages=4)
        page.locator("[data-control=stages] input").press("ArrowRight")
        page.wait_for_function(
            f"at => document.querySelector('{CANVAS}').dataset.stepS === at",
            arg=str(step_s(stages=5)),
            timeout=PAINT_S * 1e3,
        )
        assert picture.is_visible(), "the picture was replaced, not updated"
        assert len(page.query_selector_all(CANVAS)) == 1
        assert picture.screenshot() != painted
        # (8 + 5 - 1) (20 + 40) ms
        assert "720.0 ms" in page.locator(".simlab-main > table").inner_text()
        assert "Error displaying widget" not in page.content()
        page.evaluate(SHUT_DOWN)
    assert not from_elsewhere(asked, url)


@needs_chromium
def test_a_slider_repaints_the_canvas_in_jupyterlab_and_nothing_comes_from_elsewhere(tmp_path):
    with lab(tmp_path, CANVAS_CELL) as url, page_at(url) as (page, asked):
        assert not errors(run_all(page))
        canvas = page.wait_for_selector("canvas[data-painted='1']", timeout=PAINT_S * 1e3)
        painted, label = canvas.screenshot(), canvas.get_attribute("aria-label")
        assert "makespan 660.0 ms" in label  # (8 + 4 - 1) (20 + 40) ms
        handle(page, "microbatches m").press("ArrowRight")
        page.wait_for_selector("canvas[data-painted='2']", timeout=PAINT_S * 1e3)
        assert (
            "makespan 720.0 ms" in canvas.get_attribute("aria-label")
            and canvas.screenshot() != painted
        )
        assert canvas.evaluate(BACKGROUND) == [255, 255, 255]
        page.evaluate(CHANGE_THEME, "JupyterLab Dark")
        page.wait_for_function(f"() => ({BACKGROUND})(document.querySelector('canvas'))[0] < 64")
        page.evaluate(SHUT_DOWN)
    assert not from_elsewhere(asked, url)


def handle(page, description):
    """The handle of the slider with that description."""
    found = page.locator(".widget-slider", has_text=description).locator(".noUi-handle")
    found.focus()
    return found


def errors(cells):
    return [
        output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"
    ]


def from_elsewhere(asked, url):
    """The addresses that are not the server's own."""
    return [
        address
        for address in asked
        if not address.startswith((url.split("/lab")[0], "data:", "blob:", "ws://127.0.0.1"))
    ]


def step_s(stages):
    """The step of the explorer's first schedule, s."""
    times = sl.OpTimes(forward_s=0.02, backward_s=0.04)
    return sl.simulate(sl.generate("gpipe", stages, 8), times).step_s
