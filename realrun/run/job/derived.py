"""It says what follows from what is asked of a job: the plan or the programs that run, and where."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from realrun.model.sizes import model_of
from realrun.run.job.asked import KEPT_STEPS, Asked
from realrun.run.job.clusters import cut_model, filled_cluster, filled_machine
from simlab.engine.play import ClusterTimes, play
from simlab.errors import InputError
from simlab.lowering.build import program_of
from simlab.lowering.instructions import Instruction, rank_instructions
from simlab.program import Program
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.spec.plan import Plan
from simlab.trace import Trace

CLIP_NORM = 1.0


def plan_fields(plan: Plan) -> dict[str, Any]:
    """{field: value} of a `simlab.Plan`, plain JSON: what `Job.plan` is. Without seq, which is of
    the model that runs."""
    return {field.name: getattr(plan, field.name) for field in fields(plan) if field.name != "seq"}


class Run(NamedTuple):
    """One of the things that a job runs: a program that is checked and trained under a plan."""

    name: str
    plan: Plan
    program: Program
    """Of one pipeline; its ranks are places in a pipeline-parallel group."""
    folder: Path
    """Where its files are written."""


@dataclass(kw_only=True)
class Derived(Asked):
    """What follows from the fields of `realrun.run.job.asked.Asked`, once they are complete."""

    # what runs
    # -------------------------------------------------------------------------------------------

    @cached_property
    def given(self) -> Plan:
        """The `Plan` as it was asked for."""
        return Plan(**self.plan)

    @cached_property
    def executed(self) -> Plan:
        """The `Plan` that runs; of programs that of the first."""
        if self.programs is not None:
            return self.runs[0].plan
        precision = self.precision or ("fp16" if self.given.precision == "fp16" else "fp32")
        runs: dict[str, Any] = {"precision": precision, "seq": self.sizes["seq"], "dropout": False}
        if precision != self.given.precision:
            runs["gradient_bytes"] = None  # the precision's own
        if self.given.library == self.backend:  # the lists that ranks are held to are of no library
            runs["library"] = Plan().library
        return replace(self.given, **runs)

    @cached_property
    def runs(self) -> list[Run]:
        """[`Run`]: of the plan, or of each program."""
        if self.programs is None:
            return [Run(self.name, self.executed, self.program, self.folder)]
        return [self.pipeline(name, self.program_of(name)) for name in self.programs]

    def pipeline(self, name: str, program: Program) -> Run:
        """The `Run` of a program: a plan with dp = tp = cp = 1, whose stages are cut as
        `realrun.model.gpt.layer_range` does it."""
        divides = self.sizes["layers"] % program.stages == 0
        plan = Plan(
            pp=len(program.ranks),
            stage_layers="auto" if divides else "uneven",
            microbatches=program.microbatches,
            microbatch_size=self.sizes["microbatch_size"],
            seq=self.sizes["seq"],
            precision="fp32",
            dropout=False,
        )
        return Run(name, plan, program, Path(self.out) / name)

    @cached_property
    def model(self) -> Model:
        """The `simlab.Model` that runs."""
        return model_of(self.sizes)

    @cached_property
    def stage_layers(self) -> list[int] | None:
        """[layers of each stage] of the plan; None for programs, which say nothing of them."""
        if self.programs is not None:
            return None
        return self.executed.layers_of_stages(self.sizes["layers"])

    @cached_property
    def program(self) -> Program:
        """Of one of the plan's pipelines."""
        return replace(program_of(self.executed), name=self.name)

    @cached_property
    def name(self) -> str:
        """The plan in a few letters; its folder is called so."""
        degrees = [
            f"{field}{getattr(self.given, field)}"
            for field in ("dp", "ep", "cp", "tp", "pp")
            if getattr(self.given, field) > 1
        ]
        parts = [
            *(degrees or ["one"]),
            *([f"zero{self.given.zero}"] if self.given.zero else []),
            *([self.given.schedule] if self.given.pp > 1 else []),
            *(["ep-overlap"] if self.given.ep_overlap else []),
            *([] if self.executed.precision == "fp32" else [self.executed.precision]),
            *([] if self.backend == "native" else [self.backend]),
        ]
        return "-".join(parts)

    def instructions(self, rank: int, program: Program | None = None) -> list[Instruction]:
        """[`Instruction`] of global rank `rank` under the plan, or of `program`, one of the job's."""
        place = self.executed.layout.coordinates(rank)
        return rank_instructions(
            self.model, self.executed, program or self.program, place.pp, context_rank=place.cp
        )

    @property
    def clip_norm(self) -> float | None:
        """The global norm at which gradients are clipped; None: they are not, and a program's are
        not."""
        return CLIP_NORM if self.programs is None else None

    # programs
    # -------------------------------------------------------------------------------------------

    @cached_property
    def _parsed(self) -> dict[str, Program]:
        return {
            name: Program.from_text(text, name=name).unpaired()
            for name, text in (self.programs or {}).items()
        }

    def program_of(self, name: str) -> Program:
        """The `Program` called `name`."""
        return self._parsed[name]

    @property
    def paced(self) -> bool:
        """Whether links are slowed by arrival stamps."""
        return self.link_s > 0 or self.link_bytes_per_s is not None

    @property
    def stage_counts(self) -> list[int]:
        """The numbers of stages into which the programs cut the model, ascending."""
        return sorted({program.stages for program in self._parsed.values()})

    def calibration_path(self, stages: int) -> Path:
        """Where the calibration of the model cut into `stages` is written."""
        counted = f"-{stages}-stages" if len(self.stage_counts) > 1 else ""
        return Path(self.out) / f"calibration{counted}.json"

    @property
    def message_bytes(self) -> int:
        """Bytes of an activation at a program's stage boundary in fp32, and of its gradient."""
        return 4 * self.sizes["microbatch_size"] * self.sizes["seq"] * self.sizes["hidden"]

    def padding(self, stages: int) -> dict[str, float]:
        """{op kind: seconds of one op} in padded compute, of one of `stages`: those of a rank share
        its time equally."""
        part = self.ranks / stages
        forward_s, backward_s, input_grad_s = self.op_times_s
        seconds = {
            "F": forward_s,
            "B": backward_s,
            "I": input_grad_s,
            "W": backward_s - input_grad_s,
        }
        return {kind: value * part for kind, value in seconds.items()}

    def orders(self, stages: int) -> list[str]:
        """["FB"], ["FIW"] or both: the op kinds of one microbatch's visit to a stage, in the
        programs that have `stages`."""
        programs = [program for program in self._parsed.values() if program.stages == stages]
        split = {
            op.kind == "I" for program in programs for op in program.rank_of if op.kind in "BI"
        }
        # no backward at all: an unchecked program
        return ["FIW" if one else "FB" for one in sorted(split)] or ["FB"]

    # predictions
    # -------------------------------------------------------------------------------------------

    @property
    def is_predicted(self) -> bool:
        """Whether 'predicted.json' is written before it runs."""
        if self.programs is not None:
            return self.checked
        return self.box is not None or self.predict_on is not None

    @cached_property
    def machine(self) -> Cluster:
        """The cluster of `predict_on`, with as many nodes as the ranks fill."""
        if self.predict_on is None:
            raise InputError("this job names no machine to predict its step on: give predict_on")
        return filled_machine(self.predict_on, self.ranks)

    def prediction(self) -> Trace:
        """The trace of a step of what runs, on `machine`; of torch's back-end with what torch's
        sharding copies."""
        plan = replace(self.executed, library="torch") if self.backend == "torch" else self.executed
        times = ClusterTimes(self.model, plan, self.machine, self.program, sends_block=False)
        trace = play(self.model, plan, self.program, times)
        trace.metadata["cluster"] = self.machine.name
        return trace

    @property
    def boxed(self) -> dict[str, Any]:
        """What `box` says; `InputError` for a job outside of a box."""
        if self.box is None:
            raise InputError("this job is not in a box: give box")
        return self.box

    @cached_property
    def box_cluster(self) -> Cluster:
        """The cluster in the box, with as many GPUs a node as the ranks fill."""
        return filled_cluster(self.boxed["cluster"], self.boxed.get("nodes"), self.ranks)

    @cached_property
    def box_model(self) -> Model:
        """The catalogue's model, cut to the layers that run."""
        model = cut_model(self.boxed.get("model"), self.sizes["layers"])
        self.box_plan.check(model)
        return model

    @property
    def box_plan(self) -> Plan:
        """The plan whose times it takes."""
        return replace(self.given, seq=self.boxed.get("seq"))

    # steps
    # -------------------------------------------------------------------------------------------

    @property
    def kept_steps(self) -> range:
        """The numbers of the measured steps of which traces are made: the last ones."""
        return range(max(0, self.steps - KEPT_STEPS), self.steps)

    @property
    def recorded_steps(self) -> int:
        """How many steps' records a rank keeps, check of gradients and warm-up among them where
        there is room for all."""
        return min(1 + self.warmup + self.steps, 1 + KEPT_STEPS)

    # ranks and files
    # -------------------------------------------------------------------------------------------

    @property
    def ranks(self) -> int:
        """Number of processes."""
        if self.programs is None:
            return self.given.gpus
        return len(next(iter(self._parsed.values())).ranks)

    @property
    def folder(self) -> Path:
        """Where the plan's files are written."""
        return Path(self.out) / self.name

    @property
    def checkpoint_folder(self) -> Path:
        """Where checkpoints are."""
        return Path(self.checkpoints or Path(self.out) / "checkpoints")

    @property
    def batch(self) -> int:
        """Sequences of a step: what another plan must have, too, to go on with this training."""
        return self.given.global_batch

    @property
    def folders(self) -> list[Path]:
        """[folders that are written to]"""
        return [run.folder for run in self.runs]

    @property
    def shared_files(self) -> list[str]:
        """[names of the files in `out` itself], which all runs share."""
        counts = [] if self.programs is None else self.stage_counts
        return [*(self.calibration_path(stages).name for stages in counts), "report.html"]
