"""Types of the public names: what the type checker cannot be told to refuse."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = "simlab", "realrun"
FILES = sorted(
    path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")
)


def annotations(tree):
    """All annotations of a module: of arguments, results and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            yield node.returns


@pytest.mark.parametrize("path", FILES, ids=str)
def test_object_is_no_type(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = [node for each in annotations(tree) for node in ast.walk(each)]
    used = any(isinstance(node, ast.Name) and node.id == "object" for node in names)
    assert not used


def test_packages_say_that_they_are_typed():
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").is_file()
