"""The names that a lesson's cells share: a learner who leaves out a cell is told so, and does not see the
answer of another question."""

import ast
import json
from pathlib import Path

import pytest

from tests.support.notebook_code import python_of

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
FORMS = {"guess", "again", "task"}
"""They say themselves when they belong to another question."""


class Names(ast.NodeVisitor):
    """The names that code reads before it has bound them, and those that it binds."""

    def __init__(self, bound=()):
        self.read, self.bound = set(), {*bound}

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Store):
            self.bound.add(node.id)
        elif node.id not in self.bound:
            self.read.add(node.id)

    def visit_Assign(self, node):
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node):
        self.visit(node.value)
        if isinstance(node.target, ast.Name) and node.target.id not in self.bound:
            self.read.add(node.target.id)
        self.visit(node.target)

    def visit_For(self, node):
        for part in (node.iter, node.target, *node.body, *node.orelse):
            self.visit(part)

    def visit_ListComp(self, node):
        inner = Names(self.bound)
        for each in node.generators:
            for part in (each.iter, each.target, *each.ifs):
                inner.visit(part)
        for part in ("elt", "key", "value"):
            if hasattr(node, part):
                inner.visit(getattr(node, part))
        self.read |= inner.read

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_Import(self, node):
        self.bound |= {(each.asname or each.name).partition(".")[0] for each in node.names}

    visit_ImportFrom = visit_Import

    def visit_ExceptHandler(self, node):
        if node.type:
            self.visit(node.type)
        self.bound |= {node.name} - {None}
        for part in node.body:
            self.visit(part)

    def visit_FunctionDef(self, node):
        self.bound.add(node.name)
        self.visit_Lambda(node)

    def visit_Lambda(self, node):
        given = node.args
        for default in (*given.defaults, *filter(None, given.kw_defaults)):
            self.visit(default)
        starred = filter(None, (given.vararg, given.kwarg))
        inner = Names(
            each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *starred)
        )
        for part in node.body if isinstance(node.body, list) else [node.body]:
            inner.visit(part)
        self.read |= inner.read - self.bound

    def visit_ClassDef(self, node):
        self.bound.add(node.name)
        self.generic_visit(node)


def names(cell):
    found = Names()
    found.visit(ast.parse(python_of(cell)))
    return found


def shared(cells):
    """[(cell, name)] of names that a cell takes from its own section while an earlier section has
    them, too: where the cell in between was left out, they are those of the other question."""
    section, made = 0, {}  # {name: the sections whose cells have bound it}
    found = []
    for at, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            new = any(line.startswith("## ") for line in cell["source"])
            section = at if new else section
            continue
        its = names(cell)
        for name in sorted(its.read - FORMS):
            sections = made.get(name, [])
            if sections and sections[-1] == section and {*sections} != {section}:
                found.append((at, name))
        for name in its.bound:
            made.setdefault(name, []).append(section)
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_questions_have_names_of_their_own(path):
    assert shared(json.loads(path.read_text(encoding="utf-8"))["cells"]) == []


def test_a_name_that_two_questions_share_is_found():
    def code(source):
        return {"cell_type": "code", "source": [source]}

    def head(text):
        return {"cell_type": "markdown", "source": [text]}

    first, second = [head("## b07"), code("trace = 1")], [head("## d05"), code("trace = 2")]
    assert shared([*first, *second, code("print(trace)")]) == [(4, "trace")]
    assert shared([*first, code("print(trace)"), *second]) == []
    assert shared([*first, head("## d05"), code("print(trace)")]) == [], "it is of the first alone"
