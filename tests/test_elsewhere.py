"""The demo and a few tests on machines as people have them; `make test-elsewhere` runs more of them,
with each Python that is there, as a user who can install nothing, and beside other programs."""

import subprocess
import sys

import pytest

from tests.support.elsewhere import DEMO, FEW, PLACES, machine


@pytest.mark.parametrize(
    "name", [name for name, its in PLACES.items() if not (its.guest or its.load)]
)
def test_the_demo_and_tests_are_green_on_it(name, tmp_path):
    with machine(PLACES[name], tmp_path) as (checkout, run):
        run["env"]["PYTHONPATH"] = str(checkout)
        demo = [sys.executable, "-m", "realrun", *DEMO, "--out", "out/demo"]
        done = subprocess.run(demo, **run, capture_output=True)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
        assert "预测" not in done.stdout.decode(), "the command line speaks English"
        for picture in ("gpipe/timeline.png", "1f1b/timeline.png"):
            assert (checkout / "out" / "demo" / picture).read_bytes().startswith(b"\x89PNG")
        tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *FEW]
        done = subprocess.run(tests, **run, capture_output=True)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-3000:]
