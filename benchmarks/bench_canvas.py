"""The `canvas` row of `benchmarks.bench`: from a slider's move to the repainted timeline, in
JupyterLab in a headless Chromium."""

import tempfile
from pathlib import Path
from statistics import median

from tests.support.browser import SHUT_DOWN, lab, page_at, run_all

EMPTY = (1, 1)  # ranks and microbatches of a picture that takes no time to paint
SIZES = {2_000: (8, 125), 50_000: (50, 500)}  # ops: (ranks, microbatches) of 1F1B, two ops each
MOVES = 12
# what follows the slider: panels packed ahead; traces simulated ahead, packed at the move;
# everything at the move
MODES = ("packed ahead", "simulated ahead", "simulated at the move")
CELL = """
import ipywidgets
import simlab as sl
from simlab.views.canvas import CanvasTimeline
from simlab.views.packing import panels

def trace(program, value):
    times = sl.OpTimes(forward_s=0.02, backward_s=0.02 + 0.002 * value)
    return sl.simulate(program, times, link=sl.Link(latency_s=0.001))

def shown(ranks, microbatches, mode):
    program, values = sl.generate("1f1b", ranks, microbatches), range(4)
    ahead = {{value: trace(program, value) for value in values if mode != "simulated at the move"}}
    if mode == "packed ahead":
        ahead = {{value: panels([ahead[value]]) for value in values}}
    slider = ipywidgets.IntSlider(0, 0, values[-1])
    picture = CanvasTimeline(ahead[0] if ahead else trace(program, 0))
    def move(change):
        picture.update(ahead[change.new] if ahead else trace(program, change.new))
    slider.observe(move, names="value")
    return [slider, picture]

ipywidgets.VBox([*shown({ranks}, {microbatches}, "{mode}"), *shown({empty[0]}, {empty[1]}, "packed ahead")])
"""
# The clock stops when the frame after the one that painted has begun, and what was painted can be
# read back.
MOVE = """async ([number, key]) => {
    const canvas = document.querySelectorAll('canvas[data-painted]')[number];
    const handle = document.querySelectorAll('.widget-slider .noUi-handle')[number];
    const before = Number(canvas.dataset.painted), start = performance.now();
    const painted = new Promise((resolve) => {
        const watch = new MutationObserver(() => {
            if (Number(canvas.dataset.painted) === before) return;
            watch.disconnect();
            canvas.getContext('2d').getImageData(0, 0, 1, 1);
            resolve(performance.now() - start);
        });
        watch.observe(canvas, { attributeFilter: ['data-painted'] });
    });
    handle.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
    return { ms: await painted, serials: Number(canvas.dataset.painted) - before };
}"""


def move_row(ops, mode):
    """One row: median and worst ms of `MOVES` moves of the slider, back and forth, and the median of
    as many moves, in between, of a slider below it whose picture has two ops."""
    ranks, microbatches = SIZES[ops]
    cell = CELL.format(ranks=ranks, microbatches=microbatches, mode=mode, empty=EMPTY)
    moves, empty = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        lab(Path(folder), cell) as url,
        page_at(url) as (page, _),
    ):
        cells = run_all(page)
        assert not [
            output
            for cell in cells
            for output in cell["outputs"]
            if output["output_type"] == "error"
        ], cells
        both = "() => document.querySelectorAll('canvas[data-painted]').length === 2"
        page.wait_for_function(both)
        page.wait_for_timeout(1000)  # what JupyterLab still does after the cell
        for number in range(MOVES + 1):
            key = "ArrowRight" if number % 6 < 3 else "ArrowLeft"
            for place, found in enumerate((moves, empty)):
                found.append(page.evaluate(MOVE, [place, key]))
                page.wait_for_timeout(200)
        page.evaluate(SHUT_DOWN)
    assert all(move["serials"] == 1 for move in moves + empty)
    # the first one is the widget's warm-up
    taken_ms, empty_ms = ([move["ms"] for move in found[1:]] for found in (moves, empty))
    return {
        "ops": ops,
        "mode": mode,
        "median_ms": median(taken_ms),
        "worst_ms": max(taken_ms),
        "empty_ms": median(empty_ms),
        "ratio": median(taken_ms) / median(empty_ms),
    }
