"""A notebook in JupyterLab that is opened again when its kernel is gone: what each widget was is read
in its place, and how it comes back."""

from tests.support.browser import PAINT_S, SHUT_DOWN, lab, needs_chromium, page_at, run_all

pytestmark = needs_chromium
CELL = """
from simlab.apps import Drill, MatrixSplit, after, closing, exercise, predict, tongue
from IPython.display import display
tongue()
guess = predict("b07")
guess.commit(slot="7")
held = predict("w11")
display(MatrixSplit(tongue="en"))
task = exercise("b07")
closing("b07")
display(Drill(seed="1"))
after("w11")
print("idle")
"""
# what of the cell's outputs is seen
SEEN = """() => [...document.querySelectorAll('.jp-OutputArea-child')]
    .filter((e) => e.getClientRects().length).map((e) => e.innerText).join('\\n')"""
LIVES = "() => document.querySelector('.simlab-explorer[data-answers]')"
SAVE = "() => jupyterapp.commands.execute('docmanager:save')"
OPENED = "() => document.querySelectorAll('.jp-OutputArea-child').length > 8"
GONE = "() => document.querySelectorAll('.jp-OutputArea').length && document.body.textContent.includes('model not found')"
AGAIN = "Run this cell to bring it back."


def test_a_notebook_that_is_opened_again_says_what_its_widgets_were(tmp_path):
    with lab(tmp_path, CELL) as url, page_at(url) as (page, _):
        cells = run_all(page)
        assert all(each["output_type"] != "error" for cell in cells for each in cell["outputs"])
        page.wait_for_function(LIVES, timeout=PAINT_S * 1e3)
        alive = page.evaluate(SEEN)
        assert AGAIN not in alive and "Coming back?" not in alive
        assert "Commit" in alive and "Predict again" in alive
        page.evaluate(SAVE)
        page.evaluate(SHUT_DOWN)
        page.goto(url)
        page.wait_for_function(OPENED, timeout=PAINT_S * 1e3)
        page.wait_for_function(GONE, timeout=PAINT_S * 1e3)
        left = page.evaluate(SEEN)
        page.screenshot(path=tmp_path / "reopened.png")
        assert "model not found" not in left and "Loading widget" not in left
        assert left.count(AGAIN) == 6 and left.count("Coming back?") == 1
        for text in ("7", "MatrixSplit()", "Hint 1", "☐", "The drill: 0 of 20", "w11"):
            assert text in left
        page.evaluate(SHUT_DOWN)
