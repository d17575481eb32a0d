"""An English text that has a translation is still written somewhere: who edits the one edits the other."""

import ast
import json
import re
from itertools import pairwise
from pathlib import Path

from simlab.lessons.phrases import phrases
from simlab.views.language import REFUSALS
from tests.support.notebook_code import python_of

ROOT = Path(__file__).parents[2]
SOURCES = [*ROOT.glob("simlab/**/*.py"), *ROOT.glob("realrun/**/*.py")]
NOTEBOOKS = [*ROOT.glob("notebooks/*.ipynb")]
PUT_TOGETHER = {
    *("are within", "stages do", "while running", "messages all", "messages alone"),
    *("Paced links", "Plain loopback", "tree nowhere", "order held"),
    *("bubble idle_over_ideal", "bubble idle_over_makespan", "bubble longest_stage", "microbatch held"),
    *("is tight", "run of", "not sent", "have called", "have not"),
    *("recompute full", "recompute none", "recompute selective", "microbatch a", "pp message"),
    *("all-gather of", "all_reduce of", "reduce-scatter of", "root gather", "root gradients"),
    *("forward block", "forward head", "backward block"),
}  # fmt: skip
"""Words that stand side by side only where the code has put a text together."""


def pairs(text):
    """The pairs of neighbouring words in `text`, but for those with a value or a sign between them."""
    for chunk in re.split(r"{\w+}|[^\w\s'’-]", text):
        words = [word.strip("-") for word in chunk.split()]
        yield from (
            f"{one} {two}"
            for one, two in pairwise(words)
            if one and two and not re.search(r"\d", one + two)
        )


def written(code):
    """Each text of `code` that is no docstring, and of an f-string each part between values."""
    tree = ast.parse(code)
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in told and isinstance(node.value, str):
            yield node.value


def test_the_words_of_every_text_with_a_translation_stand_side_by_side_in_the_code():
    codes = [path.read_text(encoding="utf-8") for path in SOURCES]
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        codes += [python_of(cell) for cell in cells if cell["cell_type"] == "code"]
    there = {pair for code in codes for text in written(code) for pair in pairs(text)}
    known = [english for english, _ in [*phrases("zh"), *REFUSALS]]
    lost = {text: left for text in known if (left := {*pairs(text)} - there - PUT_TOGETHER)}
    assert lost == {}
    assert {pair for text in known for pair in pairs(text)} - there >= PUT_TOGETHER
