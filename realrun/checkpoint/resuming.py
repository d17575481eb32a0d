"""What a run would go on from is looked at before any process is started. Without checkpoints this
needs no torch."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from realrun.checkpoint.policy import CheckpointedJob


def look(job: "CheckpointedJob", say: Callable[[str], None]) -> None:
    """Refuse what `realrun.checkpoint.policy.Checkpoints.resume` would refuse, as far as a manifest
    says it, and put damaged checkpoints aside where that is asked for. `InputError`, `NothingLeft`,
    or `CheckpointError`."""
    if job.resume or job.checkpoint_every:
        from realrun.checkpoint.policy import look_closely  # here: it imports torch

        look_closely(job, say)
