"""Stands in for matplotlib, which this browser's Python does not have: whatever a lesson's cell draws
with it, the picture that is shown is the one that was recorded of this cell.

Timelines are no pictures of matplotlib here: the canvas draws them.
"""

import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from IPython import get_ipython
from IPython.display import Image, Markdown, display
from js import location  # of the worker, whose script lies in JupyterLite's folder

from simlab.lessons.words import language

RECORDED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
SITE = location.href.partition("/jupyterlite/")[0].removeprefix("blob:")
ROOMS = ("matplotlib", "simlab.views.still")
shown = {"cell": -1, "pictures": 0}  # of the cell that runs


def recorded() -> Image | Markdown:
    """The next picture that was recorded of the cell that runs."""
    shell = get_ipython()
    if shown["cell"] != shell.execution_count:
        shown.update(cell=shell.execution_count, pictures=0)
    source = shell.history_manager.input_hist_raw[-1].strip()
    pictures = RECORDED.get(sha256(source.encode()).hexdigest(), [])
    shown["pictures"] += 1
    if shown["pictures"] > len(pictures):
        return Markdown(
            "*matplotlib is not in this browser's Python, and no picture was recorded.*"
        )
    return Image(url=f"{SITE}/{pictures[shown['pictures'] - 1][language()]}", width=760)


class Drawing:
    """A figure, its axes, or what these return: it draws nothing, and shows the recorded picture."""

    def __call__(self, *arguments: Any, **options: Any) -> "Drawing":
        return self

    def __getattr__(self, name: str) -> "Drawing":
        if name.startswith("_"):
            raise AttributeError(name)
        return Drawing()

    def __getitem__(self, key: Any) -> "Drawing":
        return Drawing()

    def __iter__(self) -> Iterator["Drawing"]:
        return iter((Drawing(), Drawing()))  # as in figure, axes = ...

    def _ipython_display_(self) -> None:
        display(recorded())

    def _repr_png_(self) -> bytes:
        return b""  # for an explorer that wants a still picture, too


class Stand(ModuleType):
    """A module of which every name is a `Drawing`."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Drawing()


def timeline(traces: Any, *, critical_path: bool = False, **options: Any) -> Any:
    """The canvas of `traces`; the options of a still picture have no effect."""
    from simlab.views.canvas import CanvasTimeline

    canvas = CanvasTimeline(traces, critical_path=critical_path)
    # what explorers ask of a still picture
    canvas.savefig, canvas._repr_png_ = lambda file, **options: None, lambda: b""
    return canvas


class Finder(MetaPathFinder, Loader):
    """Finds a `Stand` for every module of `ROOMS`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if any(name == room or name.startswith(f"{room}.") for room in ROOMS):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = Stand(spec.name)
        if spec.name == "simlab.views.still.timeline":
            module.figure = timeline
        if spec.name == "matplotlib.pyplot":
            module.show = lambda: display(recorded())
            module.close = lambda *figures: None
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, Finder())
