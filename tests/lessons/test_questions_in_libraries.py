"""web/site/pages/questions/libraries.toml: the names that a question's page shows are those of options that
the planner knows, and of PyTorch as it is installed."""

import importlib
import inspect
import re
import tomllib
from functools import reduce
from pathlib import Path

import pytest

from simlab.errors import InputError
from simlab.lessons import book
from simlab.planner.formats import imported
from simlab.planner.formats.known import known_of

FILE = Path(__file__).parents[2] / "web/site/pages/questions/libraries.toml"
READ, NAMED = tomllib.loads(FILE.read_text(encoding="utf-8")).values()
ENTRIES = [(name, *entry) for name, its in NAMED.items() for entry in its]
OF_TORCH = {(place, name) for _, place, names, *_ in ENTRIES if "/" not in place for name in names}
FLAGS = {name.split()[0] for _, _, names, *_ in ENTRIES for name in names if name[:2] == "--"}
DEFINED = re.compile(r"[A-Za-z_]\w*(\.\w+)*(\(\w+(, \w+)*\))?")
"""A class, a function or a key, perhaps of a class or a section, and perhaps with its arguments."""
CHINESE = re.compile("[\u4e00-\u9fff]")


def test_every_question_has_names_except_that_of_the_brain():
    assert {*book.questions()} - {*NAMED} == {"d22"}
    assert {*NAMED} <= {*book.questions()}


@pytest.mark.parametrize("library", READ)
def test_a_library_is_read_at_one_commit_or_release(library):
    project, repository, commit = READ[library]
    assert project and repository.count("/") == 1
    assert re.fullmatch(r"[0-9a-f]{40}|v\d+\.\d+\.\d+", commit)


@pytest.mark.parametrize(("question", "place", "names", "said"), [
    (question, place, names, said) for question, place, names, *said in ENTRIES
])  # fmt: skip
def test_an_entry_names_something_in_a_file_or_a_module(question, place, names, said):
    library = re.split("[/.]", place)[0]
    assert re.fullmatch(rf"{library}(\.\w+)*|{library}(/\w+)+\.py", place) and library in READ
    assert ("/" in place) == (library != "torch")
    for name in names:
        is_flag = library == "megatron" and re.fullmatch("--[a-z][a-z0-9-]+( [a-z0-9_]+)?", name)
        assert is_flag or DEFINED.fullmatch(name), name
    if said:
        english, chinese = said
        assert english and not CHINESE.search(english)
        assert CHINESE.search(chinese) or english == chinese  # as 1F1B and formulas


def test_libraries_of_a_question_stand_together():
    for its in NAMED.values():
        order = [[*READ].index(re.split("[/.]", place)[0]) for place, *_ in its]
        assert order == sorted(order)


@pytest.mark.parametrize("flag", sorted(FLAGS))
def test_a_flag_of_megatron_is_one_that_the_planner_knows(flag):
    assert is_known(flag)


def test_a_flag_that_megatron_does_not_have_is_not_known():
    assert not is_known("--num-layers-per-real-pipeline-stage")


def is_known(flag):
    """Whether a flag is none of a plan, or changes what no plan says, or is read by the reader of
    Megatron-LM's arguments, so that it is not among those that nothing knows."""
    known = known_of("megatron")
    given = {"--micro-batch-size": 1, "--recompute-granularity": "selective"}
    if known.is_none(flag) or known.changes(flag):
        return True
    try:
        unknown = imported("megatron", given | {flag: True}, gpus=1).unknown
    except InputError:
        return True  # it is read, and True is no value of it
    return not any(line.startswith(flag) for line in unknown)


@pytest.mark.parametrize(("module", "name"), sorted(OF_TORCH))
def test_a_name_of_pytorch_is_there_with_its_arguments(module, name):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    path, _, arguments = name.rstrip(")").partition("(")
    found = reduce(getattr, path.split("."), importlib.import_module(module))
    if arguments:
        assert {*arguments.split(", ")} <= {*inspect.signature(found).parameters}
