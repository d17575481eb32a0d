"""What to run: programs, model sizes, compute mode, link pace. Plain JSON values, so that it can cross processes."""

import os
import re
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from realrun.recorder import RECORD
from realrun.watch import Watch
from simlab.errors import InputError
from simlab.program import LIVE_CHANGE, Program
from simlab.validation import validate

COMPUTE = ("padded", "real", "cuda")
SMALL = {"layers": 1, "hidden": 64, "heads": 4, "seq": 32, "microbatch_size": 1}  # per stage; for padded compute
_NAME = re.compile(r"(?!calibration[\w-]*\.json|report\.html)\w[\w .,:()+=-]*")  # a program's name is its folder's too
LONGEST_SEQ = 2**16  # the text that the model reads has about ten times as many bytes
LARGER = {"layers": 2, "hidden": 192, "heads": 6, "seq": 128, "microbatch_size": 4}  # per stage; the model is the load


@dataclass(kw_only=True)
class Job:
    """One session of the executor: calibrate, predict, run and check each program in turn."""

    programs: dict[str, str]
    """{name: text form}, see `Program.from_text`. All have the same number of ranks; the model is cut anew for each number
    of stages."""
    compute: str
    """'padded': real math on small tensors, then sleep to `forward_s` / `backward_s`. 'real': the model's own math
    on a CPU core. 'cuda': on a GPU."""
    why_compute: str = "asked for"
    """Why this compute mode was chosen; said in every report."""
    forward_s: float = 0.02
    """Padded compute: seconds of one microbatch's F on one rank; a rank of v stages spends 1/v of it in each."""
    backward_s: float | None = None
    """Padded compute: likewise of its B; None: twice `forward_s`."""
    input_grad_s: float | None = None
    """Padded compute: the part of B that is I, the rest being W; None: half of it."""
    steps: int = 5
    """Measured training steps, after `warmup` steps that are run and not counted."""
    warmup: int = 1
    link_s: float = 0.0
    """Extra latency of each message, kept by arrival stamps."""
    link_bytes_per_s: float | None = None
    """Bandwidth of each directed link, kept by arrival stamps; None: as fast as the machine."""
    model: dict = field(default_factory=dict)
    """layers, hidden, heads, seq, microbatch_size; what is left out has a default that suits `compute`."""
    checked: bool = True
    """False: run a program even though validation refuses it."""
    timeout_s: float = 60.0
    """Seconds without any rank making progress after which the run is given up. Under torchrun, where nobody watches
    all ranks: seconds that one rank waits for one message."""
    out: str = "out"
    """Folder for calibration, predictions, traces and reports."""

    def __post_init__(self):
        if self.backward_s is None:
            self.backward_s = 2 * self.forward_s
        if self.input_grad_s is None:
            self.input_grad_s = self.backward_s / 2
        for name, value, least in (("steps", self.steps, 1), ("warmup", self.warmup, 0)):
            if value < least:
                raise InputError(f"{value} {name}: give at least {least}")
        for name, value in (("forward time", self.forward_s), ("backward time", self.backward_s), ("timeout", self.timeout_s)):
            if not 0 < value < float("inf"):
                raise InputError(f"{name} {value} s: give a finite time above 0")
        if not 0 < self.input_grad_s < self.backward_s:
            raise InputError(f"input-gradient time {self.input_grad_s} s: give one above 0 and below the backward's {self.backward_s} s")
        if not 0 <= self.link_s < float("inf"):
            raise InputError(f"link latency {self.link_s} s: give a finite time, 0 or more")
        if self.link_bytes_per_s is not None and not self.link_bytes_per_s > 0:
            raise InputError(f"link bandwidth {self.link_bytes_per_s} bytes/s: give a number above 0")
        if self.compute == "cuda" and self.paced:
            raise InputError("paced links need the CPU's clock: on CUDA the real link is what is measured; leave out --link-*")
        for name in self.programs:
            if not _NAME.fullmatch(name):
                raise InputError(f"a program called {name!r}: it names a folder too; begin with a letter or digit, and no /")
        ranks = {name: len(self.program(name).ranks) for name in self.programs}
        if len(set(ranks.values())) != 1:
            of_each = ", ".join(f"{name} {count}" for name, count in ranks.items())
            raise InputError(f"programs of different numbers of ranks ({of_each}): those of one job must have the same")
        self.model = self._complete_model(dict(self.model))
        self._check_patience()

    def _complete_model(self, model):
        stages = max(self.stage_counts)
        default = SMALL if self.compute == "padded" else LARGER
        model = {key: value if model.get(key) is None else model[key] for key, value in default.items()} | (
            {"layers": default["layers"] * stages} if model.get("layers") is None else {}
        )
        for key, value in model.items():
            if value < 1:
                raise InputError(f"{key} = {value}: give at least 1")
        if model["hidden"] % model["heads"]:
            raise InputError(f"hidden = {model['hidden']} is not divisible by heads = {model['heads']}")
        if model["layers"] < stages:
            raise InputError(f"{model['layers']} layers cannot be cut into {stages} stages: give at least one layer a stage")
        if model["seq"] > LONGEST_SEQ:
            raise InputError(f"seq = {model['seq']}: give at most {LONGEST_SEQ}")
        return model

    def _check_patience(self):
        """A rank may stand at one op or message for less than the timeout: nothing asked for may take as long."""
        message_s = self.link_s + (self.message_bytes / self.link_bytes_per_s if self.link_bytes_per_s else 0.0)
        padded = self.compute == "padded"
        times = {"a forward": self.forward_s * padded, "a backward": self.backward_s * padded, "a message": message_s}
        for what, seconds in times.items():
            if seconds >= self.timeout_s:
                raise InputError(
                    f"{what} takes {seconds:g} s, but a run in which nothing moves for {self.timeout_s:g} s is given up: raise --timeout"
                )

    @property
    def paced(self):
        """Whether links are slowed by arrival stamps."""
        return self.link_s > 0 or self.link_bytes_per_s is not None

    @property
    def ranks(self):
        """Number of processes."""
        return len(self.program(next(iter(self.programs))).ranks)

    @cached_property
    def _parsed(self):
        return {name: Program.from_text(text, name=name).unpaired() for name, text in self.programs.items()}

    def program(self, name):
        """The `Program` called `name`."""
        return self._parsed[name]

    @property
    def stage_counts(self):
        """The numbers of stages into which the programs cut the model, ascending."""
        return sorted({self.program(name).stages for name in self.programs})

    def calibration_path(self, stages):
        """Where the calibration of the model cut into `stages` is written."""
        counted = f"-{stages}-stages" if len(self.stage_counts) > 1 else ""
        return Path(self.out) / f"calibration{counted}.json"

    @property
    def message_bytes(self):
        """Bytes of an activation at a stage boundary in fp32, and of its gradient."""
        return 4 * self.model["microbatch_size"] * self.model["seq"] * self.model["hidden"]

    def padding(self, stages):
        """{op kind: seconds of one op} in padded compute, of one of `stages`: those of a rank share its time equally."""
        part = self.ranks / stages
        weight_grad_s = self.backward_s - self.input_grad_s
        seconds = {"F": self.forward_s, "B": self.backward_s, "I": self.input_grad_s, "W": weight_grad_s}
        return {kind: value * part for kind, value in seconds.items()}

    def orders(self, stages):
        """["FB"], ["FIW"] or both: the op kinds of one microbatch's visit to a stage, in the programs that have `stages`."""
        programs = [program for program in self._parsed.values() if program.stages == stages]
        split = {op.kind == "I" for program in programs for op in program.rank_of if op.kind in "BI"}
        return ["FIW" if one else "FB" for one in sorted(split)] or ["FB"]  # no backward at all: an unchecked program

    @property
    def folders(self):
        """[folders that are written to]: one for each program."""
        return [Path(self.out) / name for name in self.programs]

    @property
    def record_bytes(self):
        """Of the records of the program that has most."""
        steps = 1 + self.warmup + self.steps
        return max(steps * RECORD.size * len(self.program(name).rank_of) for name in self.programs)

    def watch(self):
        """What looks after the ranks while they run."""
        return Watch(self)

    def pairs(self):
        """[(a, b)], a < b: the ranks that exchange messages in any of the programs."""
        lowered = [self.program(name).lowered for name in self.programs]
        talk = {(rank, step.destination) for ranks in lowered for rank, steps in enumerate(ranks) for step in steps}
        return sorted({tuple(sorted(pair)) for pair in talk if pair[1] is not None})

    def validate(self):
        """Refuse what cannot run: `ProgramError` names rank, op and reason."""
        for name in self.programs:
            if self.checked:
                validate(self.program(name))

    def model_bytes(self):
        """Bytes that all ranks together need for the model and its data, about.

        Per parameter 16 B for training in fp32 with Adam (weight, gradient, two moments). The gradient check adds
        16 B (weight and gradient in fp64) for the rank's own stage, and as much for the *whole* model on every rank,
        which computes the reference by itself. A block's activations are 16 x hidden values per token (inputs of two
        norms, four linears and the gelu; q, k, v); the check holds them in fp64, for all microbatches that the program
        keeps in flight and for one more in the reference. Leaves out what an op needs only while it runs.
        """
        hidden, layers, seq = (self.model[name] for name in ("hidden", "layers", "seq"))
        tokens = self.model["microbatch_size"] * seq
        parameters = layers * (12 * hidden**2 + 13 * hidden) + hidden * (2 * 256 + seq + 2)
        programs = self._parsed.values()
        held = max(sum(map(_peak_live, program.ranks)) for program in programs) / max(program.stages for program in programs) + self.ranks
        activations = 8 * held * tokens * (16 * layers * hidden + 2 * hidden + 256)
        batches = 8 * 3 * self.ranks * max(program.microbatches for program in programs) * tokens
        return parameters * (16 + 16 + 16 * self.ranks) + activations + batches

    def to_json(self):
        return asdict(self)


def choose_compute(ranks, *, asked=None, padded_time_given=False, device="cpu", cores=None):
    """(compute mode, why): the default is real math where every rank has a core of its own, padded elsewhere."""
    cores = cores or usable_cores()
    if device == "cuda":
        if asked == "padded":
            raise InputError("padded compute is for the CPU: on CUDA the kernels' own times are measured; use --device cpu")
        return "cuda", f"{ranks} CUDA devices for {ranks} ranks"
    if asked:
        return asked, "asked for"
    if padded_time_given:
        return "padded", "op times were given"
    if ranks <= cores:
        return "real", f"{ranks} ranks on {cores} cores"
    return "padded", f"{ranks} ranks on only {cores} cores"


def program_texts(programs):
    """{name: text form} of `programs`; `InputError` if two have one name, or a rank has no ops, which the text cannot say."""
    texts = {}
    for program in programs:
        if program.name in texts:
            raise InputError(f"two programs called {program.name!r}: each needs a name of its own")
        for rank, ops in enumerate(program.ranks):
            if not ops:
                raise InputError(f"{program.name}: rank {rank} has no ops; every rank must run at least one stage")
        texts[program.name] = str(program)
    return texts


def _peak_live(ops):
    """The most microbatches that a rank with `ops` holds, counted once per stage."""
    return max(accumulate((LIVE_CHANGE[op.kind] for op in ops), initial=0))


def usable_cores():
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
