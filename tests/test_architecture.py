"""The order of the folders, held against the code: imports run downward, in both packages."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import realrun
import simlab

ORDER = {
    "simlab": (
        "errors units garbage first_format", "input_files",
        "display", "trace", "spec", "program", "schedules", "collectives", "lowering memory", "cost", "engine",
        "analysis", "diagnosis", "training", "planner", "operations", "studies", "lessons", "views", "explorers",
        "apps", "cli",
    ),
    "realrun": (
        "model comm", "parallel", "checkpoint", "record measure", "run", "backends", "report", "launch", "lessons", "cli",
    ),
}  # fmt: skip
"""{package: its parts; one may import those before it}. realrun may import simlab, and simlab never
realrun."""
ALLOWED_OUTSIDE = {
    "display": {"pandas"},
    "engine": {"simpy"},
    "operations": {"simpy"},
    "views": {"matplotlib", "PIL", "plotly", "anywidget", "traitlets"},
    "apps": {"ipywidgets", "IPython", "anywidget", "traitlets", "markdown_it"},
    "cli": {"yaml", "rich", "shtab"},
}
"""{part of simlab: what it may import besides Python and simlab}."""
UPWARD = {}
"""{file: parts above its own that it still imports}: to be emptied."""
FULL = {}
"""{package: {folder: files}} of those that hold more than a dozen: to be emptied."""
LABELS = {"op", "op_text", "unit", "name", "label", "kind"}
"""Names of texts for people: what they say stands in typed fields beside them."""
CUTTING = {"startswith", "endswith", "split", "partition", "removeprefix", "removesuffix"}
"""Methods that take a text apart."""
READS_TEXT = {
    "simlab/cli/": "names of options, and lines of tables",
    "realrun/cli/": "names of options",
    "simlab/views/stream_rows.py": "what of a label a box has no room to repeat",
    "realrun/backends/torch/state.py": "names of torch's parameters",
    "realrun/backends/torch/traffic.py": "names of torch's operators",
    "realrun/checkpoint/save.py": "names of folders and of torch's parameters",
    "realrun/measure/machine/comparison.py": "kinds of samples, as files of measurements have them",
    "realrun/measure/machine/gpu.py": "kinds of samples, as files of measurements have them",
    "realrun/record/fsdp_trace.py": "names of events of torch's profiler",
    "simlab/diagnosis/profiler.py": "names of events of torch's profiler",
    "simlab/diagnosis/files.py": "names of files",
    "simlab/diagnosis/flight.py": "names of collectives in dumps of torch",
}
"""{file, or folder, that takes such a text apart: what the text is}. Nothing else reads a label."""
ROOTS = {"simlab": Path(simlab.__file__).parent, "realrun": Path(realrun.__file__).parent}
FREE = {"__init__", "__main__"}
FILES = [(package, path) for package, root in ROOTS.items() for path in sorted(root.rglob("*.py"))]
IDS = [f"{package}/{path.relative_to(ROOTS[package])}" for package, path in FILES]


def part_of(package, path):
    """The module or folder of `package` that the file at `path` belongs to."""
    return path.relative_to(ROOTS[package]).parts[0].removesuffix(".py")


@cache
def imports(path):
    """The full names of all modules that a file imports, wherever in it; `from a import b` gives
    both a and a.b."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def levels(package):
    """{part: its place in the order}."""
    return {part: level for level, parts in enumerate(ORDER[package]) for part in parts.split()}


@pytest.mark.parametrize("package", ORDER)
def test_every_part_has_its_place_in_the_order_and_every_place_its_part(package):
    assert {part_of(package, path) for where, path in FILES if where == package} - FREE == set(
        levels(package)
    )


@pytest.mark.parametrize(("package", "path"), FILES, ids=IDS)
def test_imports_run_downward(package, path):
    here, level = part_of(package, path), levels(package)
    if here in FREE:
        return
    used = {
        name.split(".")[1] if "." in name else package
        for name in imports(path)
        if name.split(".")[0] == package
    }
    if here in ("apps", "cli"):
        used.discard(package)  # both use the public API
    upward = {part for part in used if part == package or level.get(part, -1) > level[here]}
    assert upward == UPWARD.get(f"{package}/{path.relative_to(ROOTS[package])}", set())


@pytest.mark.parametrize(("package", "path"), FILES, ids=IDS)
def test_simlab_never_imports_realrun(package, path):
    if package == "simlab":
        assert not any(name.split(".")[0] == "realrun" for name in imports(path))


@pytest.mark.parametrize(("package", "path"), FILES, ids=IDS)
def test_only_simulations_need_simpy_and_only_pictures_need_more(package, path):
    if package == "simlab":
        outside = (
            {name.split(".")[0] for name in imports(path)} - {"simlab"} - sys.stdlib_module_names
        )
        assert outside <= ALLOWED_OUTSIDE.get(part_of(package, path), set())


def word(node):
    """The last name of `name` or of `something.name`; None of anything else."""
    return getattr(node, "attr", getattr(node, "id", None))


def takes_a_label_apart(node):
    """Whether an expression searches a label, or cuts a part out of it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in CUTTING and word(node.func.value) in LABELS
    # an `Op` is a tuple, whose parts may be cut out
    cut = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    return cut and isinstance(node.value, ast.Attribute) and node.value.attr in LABELS - {"op"}


@pytest.mark.parametrize("text", ["a.unit[:5]", "kernel.name.split()", "kind.endswith('x')"])
def test_the_rule_sees_what_takes_a_label_apart(text):
    assert any(map(takes_a_label_apart, ast.walk(ast.parse(text))))


@pytest.mark.parametrize(("package", "path"), FILES, ids=IDS)
def test_no_meaning_is_read_out_of_a_label(package, path):
    """Kind, stage, unit, microbatch and operation are fields."""
    found = any(map(takes_a_label_apart, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    where = f"{package}/{path.relative_to(ROOTS[package]).as_posix()}"
    assert where.startswith(tuple(READS_TEXT)) or not found


@pytest.mark.parametrize("package", ORDER)
def test_no_folder_holds_more_than_a_dozen_files(package):
    folders = {}
    for where, path in FILES:
        if where == package and path.name != "__init__.py":
            folders.setdefault(path.parent, []).append(path.name)
    full = {
        str(folder.relative_to(ROOTS[package].parent)): len(files)
        for folder, files in folders.items()
        if len(files) > 12
    }
    assert full == FULL.get(package, {})


def test_every_module_can_be_imported():
    """In a process of its own: what all of them import together is no start for other tests."""
    names = []
    for package, path in FILES:
        if path.name != "__main__.py":
            parts = path.relative_to(ROOTS[package].parent).with_suffix("").parts
            names.append(".".join(part for part in parts if part != "__init__"))
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def empty_containers(path):
    """The names that a module binds to an empty list, dict or set: state that calls would share."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        value = getattr(node, "value", None)
        made = isinstance(value, ast.List | ast.Dict) and not ast.unparse(value).strip("[]{}")
        if made or (
            isinstance(value, ast.Call) and ast.unparse(value) in ("list()", "dict()", "set()")
        ):
            yield ast.unparse(node)


@pytest.mark.parametrize(("package", "path"), FILES, ids=IDS)
def test_no_module_keeps_state(package, path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [node.names for node in ast.walk(tree) if isinstance(node, ast.Global)]
    assert not list(empty_containers(path))


@pytest.mark.parametrize(("package", "path"), FILES, ids=IDS)
def test_no_form_that_runs_is_built_on_a_teaching_form(package, path):
    """Only the lessons, and the teaching forms themselves, import `realrun.parallel.naive`."""
    if package == "realrun" and "naive" not in path.parts and part_of(package, path) != "lessons":
        assert not [name for name in imports(path) if name.startswith("realrun.parallel.naive")]


@pytest.mark.parametrize(("package", "path"), FILES, ids=IDS)
def test_realrun_asks_no_object_which_attributes_it_has(package, path):
    """Back-ends, logs and timers keep to their protocols, so nobody needs to look."""
    if package == "realrun":
        assert "hasattr(" not in path.read_text(encoding="utf-8")
