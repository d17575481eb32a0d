"""The demo and a few tests on machines as people have them; `make test-elsewhere` runs more of them,
with each Python that is there, as a user who can install nothing, and beside other programs."""

import os
import subprocess
import sys

import pytest

from tests.support.elsewhere import DEMO, FEW, PLACES, ROOT, machine

SKIPS = """import pytest
@pytest.mark.skipif(True, reason="no cheese. In a shop: buy some")
@pytest.mark.parametrize("_", range(2))
def test_cheese(_): ...
def test_wine(): pytest.skip("no wine")
def test_bread(): ...
"""


@pytest.mark.parametrize(
    "name", [name for name, its in PLACES.items() if not (its.guest or its.load)]
)
def test_the_demo_and_tests_are_green_on_it(name, tmp_path):
    with machine(PLACES[name], tmp_path) as (checkout, run):
        run["env"]["PYTHONPATH"] = str(checkout)
        demo = [sys.executable, "-m", "realrun", *DEMO, "--out", "out/demo"]
        done = subprocess.run(demo, **run, capture_output=True)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
        assert b"findfont" not in done.stderr, "pictures have fonts of their own"
        for picture in ("gpipe/timeline.png", "1f1b/timeline.png"):
            assert (checkout / "out" / "demo" / picture).read_bytes().startswith(b"\x89PNG")
        tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *FEW]
        done = subprocess.run(tests, **run, capture_output=True)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-3000:]


def test_what_is_skipped_is_said_at_the_end_in_a_line_for_each_reason(tmp_path):
    (tmp_path / "test_shop.py").write_text(SKIPS)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    *_, cheese, wine, _ = done.stdout.splitlines()
    assert cheese == "   2 tests: no cheese. In a shop: buy some" and wine == "   1 test: no wine"
