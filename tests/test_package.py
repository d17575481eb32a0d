"""The wheel and the source archive that people install: what is in them, and what works without a
checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import simpy
from IPython.core.inputtransformer2 import TransformerManager
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import simlab

ROOT = Path(__file__).parents[1]
BUILD = "from setuptools.build_meta import *; print(build_wheel('dist'), build_sdist('dist'))"


def tracked():
    """[path of each file of this checkout that belongs to it]; every file where there is no git."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip("no git checkout: what belongs to it is not known")
    return [name for name in done.stdout.splitlines() if (ROOT / name).exists()]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(path of the wheel, path of the source archive), built from a copy of the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(copy / "dist" / name for name in done.stdout.split()[-2:])


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A folder with what the wheel holds, unpacked as pip would."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(folder)
    return folder


def test_the_wheel_holds_every_module_and_what_commands_read(installed):
    for package in ("simlab", "realrun"):
        for path in (ROOT / package).rglob("*.py"):
            assert (installed / path.relative_to(ROOT)).is_file()
        assert (installed / package / "py.typed").is_file()
    for pattern in ("simlab/**/*.json", "simlab/**/*.csv", "simlab/**/*.js"):
        for path in ROOT.glob(pattern):
            assert (installed / path.relative_to(ROOT)).is_file(), path


def test_the_wheel_brings_the_lessons_without_outputs_and_the_recorded_runs(installed):
    brought = installed / "simlab" / "lessons"
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        lesson = json.loads(path.read_text(encoding="utf-8"))
        for cell in lesson["cells"]:
            if cell["cell_type"] == "code":
                cell |= {"outputs": [], "execution_count": None}
        text = (brought / "notebooks" / path.name).read_text(encoding="utf-8")
        assert json.loads(text) == lesson
    runs = [*(ROOT / "assets" / "recorded").rglob("*.json")]
    assert len(runs) > 150
    for path in runs:
        copy = brought / "recorded" / path.relative_to(ROOT / "assets" / "recorded")
        assert copy.read_bytes() == path.read_bytes()


# a bare environment, as on Colab
# -------------------------------------------------------------------------------------------------

PLACES = ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE", "BINDER_SERVICE_HOST")
KERNEL = """
import shlex, subprocess, sys
from types import SimpleNamespace

def magic(name, line):
    subprocess.run([{python!r}, "-m", name, "--python", sys.executable, *shlex.split(line)], check=True)

get_ipython = lambda: SimpleNamespace(run_line_magic=magic)
"""
"""What the kernel of a notebook has for its first cell: `%pip`, which is the tests' own pip."""
REPLAY = """
import json
from importlib.util import find_spec
import simlab as sl
from realrun.lessons.lesson import LessonPool
from simlab.lessons import RECORDED

assert find_spec("torch") is None
pool = LessonPool(4, "lesson-11")
for path in (RECORDED / "lesson-11").glob("plan-*.json"):
    asked = json.loads(path.read_text())["asked"]
    print(pool.execute_plan(sl.Plan(**asked.pop("plan")), **asked).measured.step_s)
"""


def first_cell():
    """The Python of the first cell of code, which all lessons have in common."""
    paths = (ROOT / "notebooks").glob("*.ipynb")
    cells = [json.loads(path.read_text(encoding="utf-8"))["cells"][1] for path in paths]
    (text,) = {"".join(cell["source"]) for cell in cells}
    return TransformerManager().transform_cell(text)


@pytest.mark.parametrize("place", ["", *PLACES])
def test_the_first_cell_of_a_lesson_asks_pip_where_it_is_opened_alone(monkeypatch, place):
    asked = []
    for name in [name for name in os.environ if name.startswith(("COLAB", "KAGGLE", "BINDER"))]:
        monkeypatch.delenv(name)
    if place:
        monkeypatch.setenv(place, "1")
    kernel = SimpleNamespace(run_line_magic=lambda *line: asked.append(line))
    exec(first_cell(), {"get_ipython": lambda: kernel})
    assert asked == ([("pip", 'install --quiet "simlab-realrun[lessons]"')] if place else [])


def test_a_bare_environment_has_the_lessons_after_that_cell(built, tmp_path):
    """What simlab needs, pip would fetch: simpy is put there, and the rest is not asked for."""
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "simpy").symlink_to(Path(simpy.__file__).parent)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(built[0].parent), "PIP_NO_DEPS": "1"}

    def said(program, *arguments):
        done = subprocess.run(
            [tmp_path / "venv" / "bin" / program, *arguments],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", PLACES[0]: "1", "PIP_NO_COMPILE": "1"} | offline,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    said("python", "-c", KERNEL.format(python=sys.executable) + first_cell())
    first, *steps_s = said("python", "-c", REPLAY)
    assert first.startswith("torch is not installed here: these results were recorded")
    assert len(steps_s) > 1 and all(float(step_s) > 0 for step_s in steps_s)
    said("simlab", "lessons", "copy", "learn", "--lang", "zh")
    lesson = json.loads((tmp_path / "learn" / "00_start_here.ipynb").read_text(encoding="utf-8"))
    assert lesson["cells"][0]["source"][0] == "# 第 0 课：从这里开始\n"


def test_the_name_is_free_on_pypi_and_the_version_is_the_packages_own(installed):
    (about,) = installed.glob("*.dist-info")
    facts = HeaderParser().parsestr((about / "METADATA").read_text(encoding="utf-8"))
    assert (facts["Name"], facts["Version"]) == ("simlab-realrun", simlab.__version__)
    scripts = (about / "entry_points.txt").read_text().split()
    assert {"simlab", "realrun"} <= set(scripts)


def test_the_installed_package_simulates_and_validates_without_a_checkout(installed, tmp_path):

    absent = tmp_path / "absent"  # modules that a bare installation does not have
    absent.mkdir()
    for name in ("matplotlib", "numpy", "pandas", "torch", "yaml", "rich", "shtab"):
        (absent / f"{name}.py").write_text(f"raise ModuleNotFoundError({name!r}, name={name!r})")

    def answer(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "simlab", *arguments, "--json"],
            cwd=tmp_path,
            env={"PYTHONPATH": f"{absent}:{installed}", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert answer("simulate", "--model", "gpt2", "--cluster", "dgx-h100")["step_s"] > 0
    suites = answer("validate")["suites"]
    assert sum(its["rows"] + its["skipped"] for its in suites.values()) > 300


def test_the_source_archive_is_complete(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in tracked() if not name.startswith(".")} <= names


@pytest.mark.parametrize("name", ["runs.csv", "runs_2026.csv", "sweeps.csv", "plans.csv"])
def test_the_published_runs_have_one_home(name):
    assert (ROOT / "tests" / "published" / name).resolve() == (
        ROOT / "simlab" / "studies" / "published" / name
    )


@pytest.mark.parametrize("user", [0, 1000])
def test_make_lab_lets_root_in_as_jupyter_asks_for_it_in_a_container(tmp_path, user):
    identity = tmp_path / "id"
    identity.write_text(f"#!/bin/sh\necho {user}\n")
    identity.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(
        ["make", "-n", "lab"], cwd=ROOT, env={"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "jupyter lab" in done.stdout
    assert ("--allow-root" in done.stdout) == (user == 0)


@pytest.mark.parametrize("offered", [True, False])
def test_make_lab_goes_on_where_torch_cannot_be_installed_and_copies_in_a_language(
    tmp_path, offered
):
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.lock", "pyproject.toml", "bin/python", "bin/jupyter"):
        (tmp_path / name).write_text(
            f"""#!/bin/sh\necho {name} "$@" >> said; case "$*" in *real*) {str(offered).lower()};; esac\n"""
        )
        (tmp_path / name).chmod(0o755)
    command = ["make", "lab", "LANG=zh", "BIN=bin", "PYTHON=bin/python"]
    # the environment is there already
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("cells that execute will show recorded runs" in done.stdout) == (not offered)
    said = (tmp_path / "said").read_text().splitlines()
    assert [line.split()[-1] for line in said[:2]] == [".[notebooks]", ".[real]"]
    assert said[2] == "bin/python -m simlab lessons copy learn-zh --lang zh"
    assert "jupyter lab" in said[3] and "--notebook-dir=learn-zh" in said[3]


OLDEST = "3.11.0"
"""The oldest Python that the README promises to work with."""


def locked():
    """[each requirement of requirements.lock that is meant for this machine]"""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    all_of_it = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return [its for its in all_of_it if its.marker is None or its.marker.evaluate()]


def test_what_texts_advise_to_install_is_what_pip_finds():
    """They are names of packages on PyPI that this project asks for, or pandas; it is not there itself."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"].values()
    known = {Requirement(each).name for extra in extras for each in extra} - {"simlab-realrun"}
    paths = [each for name in ("simlab", "realrun") for each in (ROOT / name).rglob("*.*")]
    texts = [path.read_text(encoding="utf-8") for path in paths if path.suffix in (".py", ".toml")]
    advised = {name for text in texts for name in re.findall(r"pip install ([\w'\[\]-]+)", text)}
    assert {"torch", "shtab"} <= advised <= known | {"pandas"}


def test_every_locked_version_accepts_the_oldest_python():
    """Debian 12 has Python 3.11.2, and a version that asks for 3.11.5 made the whole set-up fail."""
    installed = {canonicalize_name(its.name): its.metadata for its in metadata.distributions()}
    pairs = [(its, installed.get(canonicalize_name(its.name))) for its in locked()]
    as_locked = [(its, of) for its, of in pairs if of and its.specifier.contains(of["Version"])]
    assert (
        len(as_locked) > 100
    )  # else this environment has other versions, and nothing was looked at
    for its, of in as_locked:
        needed = of.get("Requires-Python") or ""
        assert OLDEST in SpecifierSet(needed), f"{its} needs Python {needed}"
