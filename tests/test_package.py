"""The wheel and the source archive that people install: what is in them, and what works without a
checkout."""

import json
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

import pytest
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


OLDEST = "3.11.0"
"""The oldest Python that the README promises to work with."""


def locked():
    """[each requirement of requirements.lock that is meant for this machine]"""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    all_of_it = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return [its for its in all_of_it if its.marker is None or its.marker.evaluate()]


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
