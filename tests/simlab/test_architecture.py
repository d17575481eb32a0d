"""The import rules of the design, held against the code."""

import ast
import sys
from pathlib import Path

import pytest

import simlab

PACKAGE = Path(simlab.__file__).parent

# a module may import simlab's modules of the rows above its own, and of its own package
ORDER = [
    {"errors", "garbage", "units"},
    {"exit_status", "hardware", "hugging_face", "model_states", "partition", "trace"},
    {"model"},
    {"memory", "program", "cluster"},
    {"validation", "schedules", "collectives", "catalog"},
    {"plan"},
    {"cost"},
    {"refinement", "instructions"},
    {"engine"},
    {"analysis"},
    {"training", "ring_attention"},
    {"what_if", "traffic", "offload", "playback"},
    {"views"},
    {"calibration", "comparison", "survey", "runs"},
    {"puzzle"},
    {"apps"},
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
FREE = {"__init__", "__main__", "commands"}  # the public face, and the command line in two files: they may import all of it
ALLOWED_OUTSIDE = {
    "engine": {"simpy"},
    "views": {"matplotlib", "plotly", "anywidget", "traitlets"},
    "apps": {"matplotlib", "plotly", "ipywidgets", "IPython"},
}


def part_of(path):
    """The module or subpackage of simlab that the file at `path` belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


FILES = sorted(PACKAGE.rglob("*.py"))
IDS = [str(path.relative_to(PACKAGE)) for path in FILES]


def imports(path):
    """The full names of all modules that a file imports, wherever in it; `from a import b` gives both a and a.b."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def test_every_part_of_simlab_has_its_place_in_the_order_and_every_place_its_part():
    assert {part_of(path) for path in FILES} - FREE == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_imports_run_one_way(path):
    here = part_of(path)
    if here in FREE:
        return
    used = {name.split(".")[1] if "." in name else "simlab" for name in imports(path) if name.split(".")[0] == "simlab"}
    if here == "apps":
        used.discard("simlab")  # an app uses the public API
    allowed = {name for name, level in LEVEL.items() if level < LEVEL[here]} | {here}
    assert {name for name in used if name in LEVEL or name == "simlab"} <= allowed


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_only_the_engine_needs_simpy_and_only_pictures_need_more(path):
    outside = {name.split(".")[0] for name in imports(path)} - {"simlab"} - sys.stdlib_module_names
    assert outside <= ALLOWED_OUTSIDE.get(part_of(path), set())
