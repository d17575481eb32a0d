"""simlab's own tests in the browser's Python: under node, with the wheel's simlab."""

import re
import subprocess
import sys

from tests.support.browser import ROOT, WEB, needs_node
from tests.support.patience import PATIENCE_S

pytestmark = needs_node
# a minute of the processor; the other rooms draw, or take much longer in WebAssembly
FOLDERS = ["program", "engine"]
NEEDS_PROCESSES = "garbage_collector"


def test_simlabs_tests_pass_in_pyodide(site):
    names = ROOT / "tests" / "browser" / "packages.txt"
    command = [sys.executable, WEB / "site" / "wheels.py", names]
    wheels = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    tests = [f"tests/simlab/{folder}" for folder in FOLDERS]
    command = ["node", WEB / "test_python.mjs", site, ROOT, wheels, *tests]
    command += ["-k", f"not {NEEDS_PROCESSES}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 200, done.stdout[-300:]
