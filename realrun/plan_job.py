"""What to run of a whole plan: the plan, the model's sizes, and, for a cluster in a box, what it shall take as long as."""

from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

from realrun.faults import Fault
from realrun.recorder import RECORD
from simlab.cluster import load_cluster
from simlab.errors import InputError, did_you_mean
from simlab.instructions import rank_instructions
from simlab.model import Model, load_model
from simlab.plan import PRECISIONS, Plan
from simlab.playback import ClusterTimes, playback
from simlab.training import program_of

ENGINES = ("realrun", "torch")
MOST_LOSS_SCALE = 2.0**120
NOT_EXECUTED = {"hybrid": 0, "offload": "none", "reshard": True, "tp_overlap": "weight-grad", "library": "megatron"}
"""{field of a plan: the only value that is executed}"""


def plan_fields(plan):
    """{field: value} of a `simlab.Plan`, plain JSON: what `PlanJob.plan` is. Without seq, which is of the model that runs."""
    return {field.name: getattr(plan, field.name) for field in fields(plan) if field.name != "seq"}


@dataclass(kw_only=True)
class PlanJob:
    """One session: check the plan's gradients, predict its step, run it, compare. Plain JSON values, so that it can cross processes."""

    plan: dict
    """Fields of `simlab.Plan`. Its precision is that of the times in a box; for what runs see `precision`."""
    sizes: dict = field(default_factory=dict)
    """layers, hidden, heads, seq of the byte-level GPT that is trained; what is left out has a default that suits the plan."""
    box: dict | None = None
    """None: as fast as this machine. Else {"cluster", "nodes", "model", "seq", "slow_down"}: compute takes, scaled in time, what it takes
    `model`'s layers on the catalogue's `cluster` with sequences of `seq` tokens (None: the model's own), and links are paced likewise.
    slow_down None: as much as gives a step of `STEP_S`."""
    predict_on: str | None = None
    """A cluster of the catalogue, or the path of a file such as `realrun measure` writes: the machine that this runs on. The step of the
    byte-level GPT is predicted for it before it runs. None: only a box is predicted."""
    steps: int = 5
    """Measured training steps, after `warmup` steps that are run and not counted."""
    warmup: int = 1
    check: bool = True
    """Whether loss and gradients are held against one process first."""
    checkpoint_every: int | None = None
    """Steps between two checkpoints, warm-up steps counted; None: none is written."""
    checkpoints: str | None = None
    """Their folder; None: 'checkpoints' in `out`."""
    keep: int = 2
    """How many are kept."""
    resume: bool = False
    """Whether to go on from the newest complete checkpoint there, if there is one, of whatever plan it is."""
    fault: str | None = None
    """One to put in on purpose, 'hang@3:2' on rank 3 at step 2: see `realrun.faults`."""
    engine: str = "realrun"
    """'realrun', whose ranks are held against the simulator's lists, or 'torch', by torch's own means: see `realrun.torch_engine`."""
    reference: bool = False
    """Whether one process trains the same model on the same data afterwards, for its losses."""
    precision: str | None = None
    """What is executed: 'fp32', 'bf16' or 'fp16'. None: fp16 if the plan's is that, for its ranks then communicate more; else fp32."""
    loss_scale: float = 2.0**16
    """In fp16: what the loss is multiplied by at first."""
    timeout_s: float = 60.0
    """Seconds without any rank making progress after which the run is given up."""
    out: str = "out"
    """Folder for predictions, traces and reports."""

    def __post_init__(self):
        every = 1 if self.checkpoint_every is None else self.checkpoint_every
        for name, value, least in (
            ("steps", self.steps, 1), ("warmup", self.warmup, 0),
            ("steps between checkpoints", every, 1), ("checkpoints kept", self.keep, 1),
        ):  # fmt: skip
            if value < least:
                raise InputError(f"{value} {name}: give at least {least}")
        if not 0 < self.timeout_s < float("inf"):
            raise InputError(f"timeout {self.timeout_s} s: give a finite time above 0")
        for name, value in NOT_EXECUTED.items():
            if getattr(self.given, name) != value:
                raise InputError(f"{name} = {getattr(self.given, name)!r} is simulated, but not executed: leave it at {value!r}")
        if self.given.recompute == "per-op":
            raise InputError("recompute = 'per-op' is simulated, but not executed: give 'none', 'selective' or 'full'")
        default = {"layers": 2 * self.given.stages, "hidden": 64, "heads": 4, "seq": 32}
        self.sizes = default | {name: value for name, value in self.sizes.items() if value is not None}
        self._check_precision()
        self.executed.check(self.model)
        if self.sizes["layers"] % self.given.stages:
            raise InputError(f"{self.sizes['layers']} layers on {self.given.stages} stages: give a multiple of {self.given.stages}")
        if self.executed.sequence_parallel and self.sizes["seq"] % (self.given.tp * self.given.cp):
            raise InputError(f"seq = {self.sizes['seq']} is not cut evenly over tp x cp = {self.given.tp * self.given.cp} ranks")
        if self.engine not in ENGINES:
            raise InputError(f"engine {self.engine!r}{did_you_mean(self.engine, ENGINES) or ';'} there is {', '.join(ENGINES)}")
        if self.engine == "torch":
            self._check_torch()
        if self.fault is not None and Fault.of(self.fault, self.ranks).step >= self.steps:
            raise InputError(f"fault {self.fault!r}: there are measured steps 0 to {self.steps - 1}")
        if self.box is not None and self.predict_on is not None:
            raise InputError(f"predict_on = {self.predict_on!r} in a box, which is predicted on its own cluster: leave one of them out")
        if self.box is not None:
            self.box_cluster, self.box_model  # noqa: B018  what they are not given well is said here
        if self.predict_on is not None:
            self.machine  # noqa: B018

    def _check_precision(self):
        """`InputError` for what numbers cannot be trained with here."""
        plan = self.executed
        if plan.precision == "fp8":
            raise InputError("precision = 'fp8' is simulated, but not executed: give fp32, bf16 or fp16")
        times = self.given.precision
        if self.box is not None and plan.precision != times and "fp16" in (plan.precision, times):
            raise InputError(f"precision {plan.precision} in a box of {times} times: in fp16 ranks communicate more")
        if plan.gradient_bytes not in (PRECISIONS[plan.precision], 4):
            raise InputError(f"gradient_bytes = {plan.gradient_bytes} is simulated, but not executed: leave it out, or give 4")
        if not 0 < self.loss_scale < MOST_LOSS_SCALE:
            raise InputError(f"loss scale {self.loss_scale!r}: give a number above 0 and below {MOST_LOSS_SCALE:g}, such as 65536")
        if self.loss_scale != PlanJob.loss_scale and plan.precision != "fp16":
            raise InputError(f"loss scale {self.loss_scale:g} with precision {plan.precision}, which needs none: leave it out")

    def _check_torch(self):
        """`InputError` for what torch's engine leaves out."""
        plan, default = self.given, Plan()
        torchs = (
            ("--cp", plan.cp, 1), ("--attention", plan.attention, default.attention), ("--dp-overlap", plan.dp_overlap, True),
            ("--prefetch", plan.prefetch, default.prefetch), ("--cluster", self.box and self.box.get("cluster"), None),
            ("--inject", self.fault, None),
        )  # fmt: skip
        for flag, value, only in torchs:
            if value != only:
                raise InputError(f"{flag} {value} with engine torch, which leaves it out: leave it out, too, or take engine realrun")
        if plan.schedule == "dualpipe" and plan.stages > 1:
            raise InputError("schedule 'dualpipe' with engine torch, whose runtime has a stage on one rank: give 'dualpipe-v'")
        if plan.zero == 1 and plan.dp > 1 and (plan.tp > 1 or plan.stages > 1):
            raise InputError(
                f"zero = 1 with tp = {plan.tp}, {plan.stages} stages and engine torch, whose optimizer of ZeRO-1 takes no DTensors: "
                "give zero 0, 2 or 3"
            )
        splits = plan.stages > 1 and any(op.kind == "W" for ops in self.program.ranks for op in ops)
        if plan.zero == 3 and plan.dp > 1 and splits:
            raise InputError(
                f"zero = 3 with schedule {plan.schedule!r} and engine torch, which loses or mistakes gradients of weights that are freed "
                "between the two halves of a backward (seen with torch 2.13): give zero 2, or a schedule that does not split the backward"
            )

    @cached_property
    def given(self):
        """The `Plan` as it was asked for."""
        return Plan(**self.plan)

    @cached_property
    def executed(self):
        """The `Plan` that runs."""
        precision = self.precision or ("fp16" if self.given.precision == "fp16" else "fp32")
        gradient_bytes = self.given.gradient_bytes if precision == self.given.precision else None  # None: the precision's own
        return replace(self.given, precision=precision, gradient_bytes=gradient_bytes, seq=self.sizes["seq"], dropout=False)

    @cached_property
    def model(self):
        """The `simlab.Model` that runs."""
        sizes = self.sizes
        return Model(name="byte-level GPT", **sizes, vocab=256, positions=sizes["seq"])

    @cached_property
    def program(self):
        """Of one pipeline."""
        return replace(program_of(self.executed), name=self.name)

    @cached_property
    def name(self):
        """The plan in a few letters; its folder is called so."""
        degrees = [f"{field}{getattr(self.given, field)}" for field in ("dp", "cp", "tp", "pp") if getattr(self.given, field) > 1]
        zero = [f"zero{self.given.zero}"] if self.given.zero else []
        precision = [] if self.executed.precision == "fp32" else [self.executed.precision]
        engine = [] if self.engine == "realrun" else [self.engine]
        return "-".join([*(degrees or ["one"]), *zero, *([self.given.schedule] if self.given.pp > 1 else []), *precision, *engine])

    def instructions(self, rank):
        """[`Instruction`] of global rank `rank`."""
        _, c, p, _ = self.executed.ranks()[rank]
        return rank_instructions(self.model, self.executed, self.program, p, context_rank=c)

    # the machine that it runs on ------------------------------------------------------------------------------

    @property
    def is_predicted(self):
        """Whether 'predicted.json' is written before it runs."""
        return self.box is not None or self.predict_on is not None

    @cached_property
    def machine(self):
        """The `Cluster` of `predict_on`, with as many nodes as the ranks fill."""
        cluster = load_cluster(self.predict_on)
        return replace(cluster, nodes=-(-self.ranks // cluster.gpus_per_node))

    def prediction(self):
        """The `Trace` of a step of what runs, on `machine`; of torch's engine with what torch's sharding copies."""
        plan = replace(self.executed, library="torch") if self.engine == "torch" else self.executed
        return playback(self.model, plan, self.program, ClusterTimes(self.model, plan, self.machine, self.program))

    # the cluster in the box -------------------------------------------------------------------------------------

    @cached_property
    def box_cluster(self):
        """The catalogue's cluster, with as many GPUs a node as the ranks fill, and their share of its NICs."""
        nodes = self.box.get("nodes") or 1
        if self.ranks % nodes:
            raise InputError(f"{self.ranks} ranks on {nodes} nodes: give a number of nodes that divides them")
        cluster = load_cluster(self.box["cluster"])
        if self.ranks // nodes > cluster.gpus_per_node:
            raise InputError(
                f"{self.ranks // nodes} ranks on a node of {cluster.name}, which has {cluster.gpus_per_node} GPUs: give more nodes"
            )
        filled = self.ranks // nodes
        nics = max(1, cluster.nics_per_node * filled // cluster.gpus_per_node)
        return replace(cluster, nodes=nodes, gpus_per_node=filled, nics_per_node=nics)

    @cached_property
    def box_model(self):
        """The catalogue's model, cut to the layers that run."""
        model = replace(load_model(self.box.get("model") or "megatron-7.5b"), layers=self.sizes["layers"])
        self.box_plan.check(model)
        return model

    @property
    def box_plan(self):
        """The plan whose times it takes."""
        return replace(self.given, seq=self.box.get("seq"))

    # what `Pool` asks -------------------------------------------------------------------------------------------

    @property
    def ranks(self):
        """Number of processes."""
        return self.given.gpus

    @property
    def folder(self):
        """Where this plan's files are written."""
        return Path(self.out) / self.name

    @property
    def checkpoint_folder(self):
        """Where checkpoints are."""
        return Path(self.checkpoints or Path(self.out) / "checkpoints")

    @property
    def batch(self):
        """Sequences of a step: what another plan must have, too, to go on with this training."""
        return self.given.global_batch

    @property
    def folders(self):
        """[folders that are written to]"""
        return [self.folder]

    @property
    def record_bytes(self):
        """Of all ranks' records."""
        per_step = max(len(self.instructions(rank)) for rank in range(self.ranks))
        return self.ranks * (1 + self.warmup + self.steps) * per_step * RECORD.size

    def validate(self):
        """Nothing is left to be refused."""

    def model_bytes(self):
        """Bytes that all ranks together need for the model, about: in fp64 with gradients on each rank, which computes the reference by
        itself, and activations of 16 x hidden a token and layer."""
        tokens = self.given.global_batch * self.sizes["seq"]
        return self.ranks * (self.model.parameters * 48 + 8 * 16 * self.sizes["hidden"] * self.sizes["layers"] * tokens)

    def watch(self):
        """What looks after the ranks while they run."""
        from realrun.plan_watch import PlanWatch
        from realrun.torch_engine.watch import TorchWatch

        return TorchWatch(self) if self.engine == "torch" else PlanWatch(self)

    def to_json(self):
        return asdict(self)
