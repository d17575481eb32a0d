"""The order of the folders, held against the code: imports run downward, in both packages."""

import ast
import subprocess
import sys
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

import realrun
import simlab
from simlab.libraries import LIBRARIES

ORDER = {
    "simlab": (
        "errors units garbage interrupts schema first_format phrasebook", "input_files",
        "display", "trace", "program", "schedules optimizers", "spec layer libraries", "collectives", "lowering memory", "cost", "engine",
        "analysis", "diagnosis", "training", "planner", "operations", "studies", "lessons", "views", "explorers",
        "apps", "own", "cli",
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
    "views": {"matplotlib", "PIL", "anywidget", "traitlets", "plotly"},
    "apps": {"ipywidgets", "IPython", "anywidget", "traitlets", "markdown_it"},
    "cli": {"yaml", "rich", "shtab"},
}
"""{part of simlab: what it may import besides Python and simlab}."""
UPWARD = {}
"""{file: parts above its own that it still imports}: to be emptied."""
OURS = {"simlab", "realrun", "benchmarks", "tests", "docs"}
TOGETHER = {
    **dict.fromkeys(
        (f"simlab/spec/plan_{its}.py" for its in ("checks", "effects", "libraries", "models")),
        "simlab/spec/plan.py",
    ),
    "simlab/spec/model/size_checks.py": "simlab/spec/model/sizes.py",
    "simlab/views/chart.py": "simlab/views/interactive/figure.py",
}
"""{file: file that it knows by its types only, and that imports it}: the checks of a `Plan`, and of a
model's sizes, are a part of it that has a file of its own. A chart imports what draws it with plotly
only when it is asked to draw."""
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
    "simlab/lessons/teaching/handed_in.py": "names of files that a folder hides",
    "realrun/checkpoint/save.py": "names of folders and of torch's parameters",
    "realrun/measure/machine/comparison.py": "kinds of samples, as files of measurements have them",
    "realrun/measure/machine/gpu.py": "kinds of samples, as files of measurements have them",
    "realrun/record/fsdp_trace.py": "names of events of torch's profiler",
    "simlab/diagnosis/profiler.py": "names of events of torch's profiler",
    "simlab/diagnosis/events.py": "names of events of torch's profiler",
    "simlab/diagnosis/kernels.py": "names of kernels of other libraries",
    "simlab/diagnosis/launched.py": "names of events of torch's profiler",
    "simlab/diagnosis/files.py": "names of files",
    "simlab/diagnosis/hangs/": "names of collectives in dumps and logs of torch",
}
"""{file, or folder, that takes such a text apart: what the text is}. Nothing else reads a label."""
ROOTS = {"simlab": Path(simlab.__file__).parent, "realrun": Path(realrun.__file__).parent}
FREE = {"__init__", "__main__"}
FILES = [(package, path) for package, root in ROOTS.items() for path in sorted(root.rglob("*.py"))]
IDS = [f"{package}/{path.relative_to(ROOTS[package])}" for package, path in FILES]


def part_of(package, path):
    """The module or folder of `package` that the file at `path` belongs to."""
    return path.relative_to(ROOTS[package]).parts[0].removesuffix(".py")


def module_of(package, path):
    """The full name of the module in a file."""
    parts = path.relative_to(ROOTS[package].parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def imported_together(path):
    """[[full name]] of what each import of a file names, wherever in it: `from a import b, c` gives
    a, a.b and a.c."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [[alias.name] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            names.append([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return names


def imports(path):
    """The full names of all modules that a file imports, and of what it imports from them."""
    return [name for names in imported_together(path) for name in names]


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


def circles(needs):
    """{file: files that it imports} of those that are in a circle, or between two circles."""
    left = {where: others - {where} for where, others in needs.items()}
    while left:
        used = set().union(*left.values())
        free = [where for where, others in left.items() if where not in used or not others]
        if not free:
            break
        left = {
            where: others.difference(free) for where, others in left.items() if where not in free
        }
    return left


def test_no_two_files_import_each_other_also_not_by_way_of_others():
    """Imports within functions and for type checking count, too. A package stands for its
    `__init__.py` where names of its own are imported from it."""
    modules = {module_of(package, path): where for (package, path), where in zip(FILES, IDS)}
    needs = {where: set() for where in IDS}
    for where, (_, path) in zip(IDS, FILES):
        for whole, *parts in imported_together(path):
            its = [part for part in parts if part in modules]
            if whole in modules and (not parts or len(its) < len(parts)):
                its.append(whole)
            needs[where].update(modules[name] for name in its)
    for where, other in TOGETHER.items():
        needs[where].remove(other)
    assert not circles(needs)


@pytest.mark.parametrize(
    ("needs", "found"),
    [("ab bc", ""), ("ab ba", "ab"), ("ab bc cb", "bc"), ("ab bc ca ad", "abc"), ("aa", "")],
)
def test_the_rule_sees_circles(needs, found):
    graph = {name: set() for name in "abcd"}
    for here, there in needs.split():
        graph[here].add(there)
    assert set(circles(graph)) == set(found)


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


SIZES = {"head_size", "kv_heads", "ffn", "kv_rank"}
"""Sizes of a model that say what a layer consists of, as does `experts`."""
READS_SIZES = {
    "simlab/cli/commands/catalogue.py": "prints them",
    "simlab/cli/commands/compare.py": "names what cuts experts where there are some",
    "simlab/cli/commands/plan.py": "asks whether there are experts",
    "simlab/cost/attention.py": "of a kernel of attention",
    "simlab/lowering/kernels/kernel.py": "of a kernel of attention",
    "simlab/explorers/context.py": "prints them",
    "simlab/memory/data_parallel.py": "refuses all but a GPT",
    "simlab/planner/": "which degrees divide them",
    "simlab/training/uncertainty.py": "asks whether there are experts",
    "simlab/spec/": "the sizes themselves, and which degrees divide them",
}
"""{file, or folder, outside of `simlab/layer` that reads such a size: why}: to be emptied."""


def sizes_read(path):
    """The sizes of a model that a file reads."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        of_model = isinstance(node, ast.Attribute) and word(node.value) == "model"
        if (of_model and node.attr in SIZES | {"experts"}) or (getattr(node, "attr", "") in SIZES):
            yield node.attr


def test_only_operations_and_who_is_named_here_read_the_sizes_of_a_layer():
    reads = {
        where
        for where, (package, path) in zip(IDS, FILES)
        if package == "simlab" and part_of(package, path) != "layer" and any(sizes_read(path))
    }
    known = {where: [name for name in READS_SIZES if where.startswith(name)] for where in reads}
    assert all(known.values()), "read these from a layer's operations"
    assert {name for names in known.values() for name in names} == set(READS_SIZES)


NAMES_LIBRARIES = {
    "simlab/libraries/": "the records",
    "simlab/studies/published/": "reads published runs",
}
"""{file, or folder, that compares a library's name: why}"""


def compares_a_library(node):
    """Whether an expression asks which library it is by its name, and not what it does."""
    if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
        parts = [node.slice, *filter(None, node.value.keys)]
    elif isinstance(node, ast.Match):
        parts = [node.subject, *(its.pattern for its in node.cases)]
    else:
        return False
    named = any(
        getattr(its, "value", "") in LIBRARIES
        for part in parts
        for its in ast.walk(part)
        if isinstance(its, ast.Constant)
    )
    return named and any(word(part) == "library" for part in parts)


@pytest.mark.parametrize("text", [
    "plan.library == 'torch'", "library in ('megatron', 'nanotron')", "{'torch': 1}[plan.library]",
    "match of.plan.library:\n    case 'fsdp1': pass",
])  # fmt: skip
def test_the_rule_sees_what_compares_a_library(text):
    assert any(map(compares_a_library, ast.walk(ast.parse(text))))


def test_only_records_and_readers_of_files_compare_a_librarys_name():
    found = {
        next((name for name in NAMES_LIBRARIES if where.startswith(name)), where)
        for where, (_, path) in zip(IDS, FILES)
        if any(map(compares_a_library, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == set(NAMES_LIBRARIES) - {"simlab/libraries/"}


def test_every_module_can_be_imported():
    """In a process of its own: what all of them import together is no start for other tests."""
    names = [module_of(package, path) for package, path in FILES if path.name != "__main__.py"]
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def test_what_tools_and_tests_import_within_a_function_is_there():
    """It would be missed only when that function runs, which a benchmark's does on no machine of ours."""
    missing = {}
    for path in chain.from_iterable(
        (Path(__file__).parents[1] / folder).rglob("*.py")
        for folder in ("benchmarks", "tests", "docs", "assets")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in OURS:
                for its in node.names:
                    try:
                        exec(f"from {node.module} import {its.name}", {})
                    except ImportError as error:
                        missing[str(path)] = str(error)
    assert not missing


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
