"""Pipelines that a job brings as programs: how they are timed, and which model suits them."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from realrun.measure.cores import shared_gpus, usable_cores
from realrun.run.job.derived import Derived
from simlab.cost import OpTimes
from simlab.engine import simulate
from simlab.errors import InputError, require_whole, shortened
from simlab.program import LIVE_CHANGE, Op, Program
from simlab.units import seconds_text

COMPUTE = ("padded", "real", "cuda")
SMALL = {"layers": 2, "hidden": 64, "heads": 4, "seq": 32, "microbatch_size": 1}
"""Sizes that suit padded compute; layers are those of a stage."""
LARGER = {"layers": 2, "hidden": 192, "heads": 6, "seq": 512, "microbatch_size": 1}
"""Sizes that suit real compute, where the model is the load."""
LONGEST_SEQ = 2**16
"""The text that the model reads has about ten times as many bytes."""
OP_CPU_S = 3e-3
"""What a padded op takes of a core at least, its messages and its share of the optimizer included: 6 to
7 ms were measured with `SMALL` sizes on two cores of a virtual machine."""
MOST_RANKS_A_CORE, MOST_OVER = 4, 1.0
"""So many ranks a core keep to their times well enough, or are predicted from what they kept to. Beyond
them, how many times the time that there is the cores may need."""
NAME = re.compile(r"(?!calibration[\w-]*\.json|report\.html)\w[\w .,:()+=-]*")
"""A program's name is its folder's, too."""


def choose_compute(
    ranks: int,
    *,
    asked: str | None = None,
    padded_time_given: bool = False,
    device: str = "cpu",
    cores: int | None = None,
) -> tuple[str, str]:
    """(compute mode, why): the default is real math where every rank has a core of its own, padded
    elsewhere."""
    cores = cores or usable_cores()
    if device == "cuda":
        if asked == "padded":
            raise InputError(
                "padded compute is for the CPU: on CUDA the kernels' own times are measured; use --device cpu"
            )
        return "cuda", shared_gpus(ranks) or f"{ranks} CUDA devices for {ranks} ranks"
    if asked:
        return asked, "asked for"
    if padded_time_given:
        return "padded", "op times were given"
    if ranks <= cores:
        return "real", f"{ranks} ranks on {cores} cores"
    return "padded", f"{ranks} ranks on only {cores} cores"


def program_texts(programs: Iterable[Program]) -> dict[str, str]:
    """{name: text form} of `programs`; `InputError` if two have one name, or a rank has no ops,
    which the text cannot say."""
    texts: dict[str, str] = {}
    for program in programs:
        if program.name in texts:
            raise InputError(f"two programs called {program.name!r}: each needs a name of its own")
        for rank, ops in enumerate(program.ranks):
            if not ops:
                raise InputError(
                    f"{program.name}: rank {rank} has no ops; every rank must run at least one stage"
                )
        texts[program.name] = str(program)
    return texts


def suiting_sizes(
    given: Mapping[str, int | None], compute: str | None, stages: int
) -> dict[str, int]:
    """`given` sizes, completed by those that suit `compute`; `InputError` for what no model of so
    many stages has."""
    default = SMALL if compute == "padded" else LARGER
    asked = {key: value for key, value in given.items() if key in default and value is not None}
    sizes = default | {"layers": default["layers"] * stages} | asked
    for key, value in sizes.items():
        if not isinstance(value, int) or value >= 1:
            require_whole(key, value)
        else:
            raise InputError(f"{key} = {shortened(value)}: give at least 1")
    if sizes["hidden"] % sizes["heads"]:
        raise InputError(f"hidden = {sizes['hidden']} is not divisible by heads = {sizes['heads']}")
    if sizes["layers"] < stages:
        raise InputError(
            f"{sizes['layers']} layers cannot be cut into {stages} stages: give at least one layer a stage"
        )
    if sizes["seq"] > LONGEST_SEQ:
        raise InputError(f"seq = {sizes['seq']}: give at most {LONGEST_SEQ}")
    return sizes


def check_times(job: Derived) -> None:
    """`InputError` for times and links of `job`'s pipelines that cannot be kept."""
    forward_s, backward_s, input_grad_s = job.op_times_s
    for name, value in (("forward time", forward_s), ("backward time", backward_s)):
        if not 0 < value < float("inf"):
            raise InputError(f"{name} {value} s: give a finite time above 0")
    if not 0 < input_grad_s < backward_s:
        raise InputError(
            f"input-gradient time {input_grad_s} s: give one above 0 and below the backward's {backward_s} s"
        )
    if not 0 <= job.link_s < float("inf"):
        raise InputError(f"link latency {job.link_s} s: give a finite time, 0 or more")
    if job.link_bytes_per_s is not None and not job.link_bytes_per_s > 0:
        raise InputError(f"link bandwidth {job.link_bytes_per_s} bytes/s: give a number above 0")
    if job.compute == "cuda" and job.paced:
        raise InputError(
            "paced links need the CPU's clock: on CUDA the real link is what is measured; leave out --link-*"
        )


def check_programs(job: Derived) -> None:
    """`InputError` for programs that are not of one job."""
    for name in job.programs or ():
        if not NAME.fullmatch(name):
            raise InputError(
                f"a program called {name!r}: it names a folder too; begin with a letter or digit, and no /"
            )
    ranks = {name: len(job.program_of(name).ranks) for name in job.programs or ()}
    if len(set(ranks.values())) != 1:
        of_each = ", ".join(f"{name} {count}" for name, count in ranks.items())
        raise InputError(
            f"programs of different numbers of ranks ({of_each}): those of one job must have the same"
        )


def check_patience(job: Derived) -> None:
    """A rank may stand at one op or message for less than the timeout: nothing asked for may take
    as long."""
    wire_s = job.message_bytes / job.link_bytes_per_s if job.link_bytes_per_s else 0.0
    padded = job.compute == "padded"
    forward_s, backward_s, _ = job.op_times_s
    times = {
        "a forward": forward_s * padded,
        "a backward": backward_s * padded,
        "a message": job.link_s + wire_s,
    }
    for what, seconds in times.items():
        if seconds >= job.timeout_s:
            raise InputError(
                f"{what} takes {seconds:g} s, but a run in which nothing moves for {job.timeout_s:g} s is given up: raise --timeout"
            )


def too_fast(job: Derived, cores: int) -> str | None:
    """Why `cores` cannot pace the padded ops of `job`'s pipelines by far, in words, with what would
    hold; None: they may. It compares the time that a core needs for the ops of a step, `OP_CPU_S`
    each at least, with the time that the step shall take, as simulated."""
    if job.compute != "padded" or job.ranks <= MOST_RANKS_A_CORE * cores:
        return None
    forward_s, backward_s, input_grad_s = job.op_times_s
    parts = forward_s, input_grad_s, backward_s - input_grad_s
    for run in job.runs:
        share = job.ranks / run.program.stages
        forward, input_grad, weight_grad = (value * share for value in parts)
        times = OpTimes(forward_s=forward, input_grad_s=input_grad, weight_grad_s=weight_grad)
        step_s = simulate(run.program, times).whole_step_s
        over = len(run.program.rank_of) * OP_CPU_S / (cores * step_s)
        if over > MOST_OVER:
            return (
                f"{run.name}: {job.ranks} ranks on {cores} cores shall run {len(run.program.rank_of)} ops in "
                f"{seconds_text(step_s)}, for which the cores need {seconds_text(step_s * over)} at least: give "
                f"--forward-ms {math.ceil(forward_s * 1e3 * 2 * over)} or more, or {MOST_RANKS_A_CORE * cores} ranks or fewer"
            )
    return None


def model_bytes(sizes: Mapping[str, int], programs: Sequence[Program]) -> float:
    """Bytes that all ranks together need for the model and its data, about.

    Per parameter 16 B for training in fp32 with Adam (weight, gradient, two moments). The gradient
    check adds 16 B (weight and gradient in fp64) for the rank's own stage, and as much for the
    *whole* model on every rank, which computes the reference by itself. A block's activations are
    16 x hidden values per token (inputs of two norms, four linears and the gelu; q, k, v); the
    check holds them in fp64, for all microbatches that the program keeps in flight and for one more
    in the reference. Leaves out what an op needs only while it runs.
    """
    hidden, layers, seq = (sizes[name] for name in ("hidden", "layers", "seq"))
    tokens, ranks = sizes["microbatch_size"] * seq, len(programs[0].ranks)
    parameters = layers * (12 * hidden**2 + 13 * hidden) + hidden * (2 * 256 + seq + 2)
    most_live = max(sum(map(_peak_live, program.ranks)) for program in programs)
    held = most_live / max(program.stages for program in programs) + ranks
    activations = 8 * held * tokens * (16 * layers * hidden + 2 * hidden + 256)
    batches = 8 * 3 * ranks * max(program.microbatches for program in programs) * tokens
    return parameters * (16 + 16 + 16 * ranks) + activations + batches


def _peak_live(ops: Iterable[Op]) -> float:
    """The most microbatches that a rank with `ops` holds, counted once per stage."""
    return max(accumulate((LIVE_CHANGE[op.kind] for op in ops), initial=0))
