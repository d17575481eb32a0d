"""A training that goes on: what it has from its checkpoint, and the command that goes on after a break."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from realrun.cli.options import DEFAULTS, EXPERTS, SIZES
from realrun.run.job import Job
from simlab.cli.options import flag, program_name, value_text
from simlab.cli.plan_options import FIELDS, plan_part
from simlab.spec.plan import Plan

DEGREES = ("dp", "tp", "pp", "cp", "ep")


def completed(given: Mapping[str, Any], say: Callable[[str], Any]) -> dict[str, Any]:
    """`given`, where it resumes with what its newest checkpoint knows and `given` does not say: the
    sizes of the model and the precision; the plan, or where a degree is given, which makes it another
    plan, the microbatches that its batch has. What contradicts the checkpoint is refused later, with
    all that a checkpoint may be refused for."""
    if "resume" not in given:
        return dict(given)
    from realrun.checkpoint.whole import newest_readable  # here: it imports torch

    place = given.get("checkpoints") or Path(given.get("out", DEFAULTS["out"])) / "checkpoints"
    path, extra = newest_readable(place)
    training, plan = (extra.get(name) for name in ("training", "plan"))
    if path is None or not (isinstance(training, dict) and isinstance(training.get("sizes"), dict)):
        return dict(given)
    names = (*SIZES, *EXPERTS, *(() if "model" in given else ("layer",)))
    known = {name: training["sizes"][name] for name in names if training["sizes"].get(name)}
    if "cluster" not in given and training.get("precision") != "fp32":
        known["precision"] = training.get("precision")
    if not any(name in given for name in DEGREES) and isinstance(plan, dict):
        known = {name: value for name, value in plan.items() if name in FIELDS} | known
    else:
        known |= _microbatches(given, training.get("sequences in a step"))
    added = {name: value for name, value in known.items() if name not in given}
    if said := [name for name in added if name != "layer"]:
        options = " ".join(f"{flag(name)} {value_text(added[name])}" for name in said)
        say(f"as in {path}: {options}")
    return dict(given) | added


def _microbatches(given: Mapping[str, Any], batch: Any) -> dict[str, int]:
    """{"microbatches"} with which a step of the plan of `given` has the `batch` of the checkpoint; {}
    where none have, which is refused later."""
    plan = Plan(**plan_part(given))
    sequences = plan.dp * plan.microbatch_size
    fits = type(batch) is int and batch >= sequences and batch % sequences == 0
    return {"microbatches": batch // sequences} if fits else {}


def left_by(job: Job) -> Path | None:
    """The newest complete checkpoint of a run that broke off; None: it has none."""
    if not (job.checkpoint_every or job.resume):
        return None
    from realrun.checkpoint.whole import latest

    return latest(job.checkpoint_folder)


def going_on(argv: Sequence[str]) -> str:
    """The command that goes on with a training that `argv` began, without its fault."""
    if "--inject" in argv:
        at = [*argv].index("--inject")
        argv = [*argv[:at], *argv[at + 2 :]]
    more = [] if "--resume" in argv else ["--resume"]
    if "RANK" in os.environ:
        return f"the same torchrun command{' and --resume' * bool(more)}"
    return shlex.join([*program_name("realrun").split(), *argv, *more])
