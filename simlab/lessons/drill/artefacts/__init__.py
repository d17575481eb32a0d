"""What is read in an interview: made by our own code, with a fault that is hidden in it, which our own
diagnosis finds."""

from collections.abc import Callable
from random import Random

from simlab.lessons.drill.artefacts.artefact import Artefact
from simlab.lessons.drill.artefacts.launch_scripts import launch_script
from simlab.lessons.drill.artefacts.loss_curves import loss_curve
from simlab.lessons.drill.artefacts.nccl_tables import nccl_table
from simlab.lessons.drill.artefacts.profiles import profile
from simlab.lessons.drill.artefacts.recorders import recorder

ARTEFACTS: dict[str, Callable[[Random], Artefact]] = {
    "profile": profile,
    "recorder": recorder,
    "nccl": nccl_table,
    "loss": loss_curve,
    "launch": launch_script,
}
"""{name: random numbers → something to read}."""

__all__ = ["ARTEFACTS", "Artefact"]
