"""What a session asks of the code that trains: two small protocols.

A `Backend` runs a job's plan on one rank by some means, and a `Training` is one training of it.
`realrun.backends` has the members: native, and torch.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from realrun.parallel.precision import LossScaler
from realrun.record.recorder import Recorder, Recording
from realrun.run.job import Run
from simlab.spec.layout import Layout
from simlab.trace import Trace


class Checkpointed(Protocol):
    """A training's state by global names, see `realrun.checkpoint.state`."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies of this rank's tensors. Called by all ranks together."""

    def take(self, tensors: dict[str, torch.Tensor]) -> None:
        """Put `tensors` into the training."""


class Training(Protocol):
    """One rank's part of a training. All ranks call the same methods together."""

    scaler: LossScaler | None
    """The loss's scale of fp16."""

    @property
    def state(self) -> Checkpointed:
        """What a checkpoint holds."""

    def gradients(self, number: int, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        """Run a step up to where its gradients are complete. Returns this rank's part of the mean
        loss; ranks of one tensor-parallel group return the same part."""

    def gradient_error(self, expected: list[dict[str, torch.Tensor]]) -> float:
        """The largest relative error of this rank's gradients; expected: of each stage, {parameter
        of `realrun.model.gpt.Stage`: gradient}."""

    def step(self, number: int, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
        """Run a step and update. Returns this rank's part of the loss, and the norm of all
        gradients."""

    def unobserved(self) -> AbstractContextManager[None]:
        """Inside, what ranks send belongs to no step."""

    def vitals(self) -> dict[str, float] | None:
        """{"computed_s", "waited_s", "activations": peak bytes} of the last step; None where they
        are not known."""

    def sent_bytes(self, steps: int) -> dict[str, float]:
        """{dimension: bytes that this rank sent in a step}, after so many steps."""

    def memory_bytes(self) -> dict[str, int]:
        """{"parameters", "gradients", "optimizer", perhaps "activations": bytes on this rank}."""


class Backend(Protocol):
    """Runs a job's plan on one rank. All ranks call the same methods together."""

    layout: Layout
    """Where each rank of the plan stands."""
    time_scale: float | None
    """How many times as slow a step is made to be as it is on the cluster in the box; None outside
    of a box."""

    def open(self, clock_offset_s: float, uncertainty_s: float) -> None:
        """Make the process groups. clock_offset_s: what this rank's clock lacks to rank 0's, which
        may be off by uncertainty_s."""

    def predicted(self) -> dict[str, Trace]:
        """{name of a run: its step as predicted}, on rank 0, of those that only measurements of
        this back-end predict; empty on other ranks."""

    def records(self, run: Run) -> int:
        """How many records a step of this rank makes."""

    def training(self, run: Run, recorder: Recorder, *, checking: bool) -> Training:
        """A new training of the job's model. checking: in float64, to hold its gradients against
        one process."""

    def traces(self, run: Run, recordings: list[Recording], device: str) -> list[Trace]:
        """The measured steps that are kept, from the recordings of all ranks. device: its name."""

    def facts(self) -> dict[str, Any]:
        """What rank 0 adds to the facts of the run."""

    def close(self) -> None:
        """End what `open` made."""
