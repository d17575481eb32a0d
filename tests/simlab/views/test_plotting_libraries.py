"""Plotting libraries are loaded only for a picture, and a missing one is named."""

import subprocess
import sys

import pytest
from timelines import ROOT


@pytest.mark.parametrize(
    "module",
    [
        "simlab",
        "simlab.views",
        "simlab.__main__",
        "simlab.training.calibration",
        "simlab.analysis.comparison",
    ],
)
def test_importing_loads_neither_torch_nor_numpy_nor_a_plotting_library(module):
    heavy = """{'torch', 'numpy', 'matplotlib', 'plotly', 'ipywidgets', 'anywidget', 'traitlets', 'IPython'}"""
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "renderer, library",
    [("matplotlib", "matplotlib"), ("canvas", "anywidget")],
)
def test_without_the_plotting_library_the_error_says_what_to_install(renderer, library):
    code = f"""
import sys
class NotInstalled:
    def find_spec(name, path=None, target=None):
        if name == "{library}":
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, NotInstalled)
import simlab as sl
try:
    sl.timeline(sl.simulate(sl.generate("gpipe", 1, 1), sl.OpTimes(forward_s=1, backward_s=1)), renderer="{renderer}")
except sl.SimlabError as error:
    print(error)"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"a {renderer} picture needs {library}: pip install {library}\n"
