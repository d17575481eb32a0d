"""What is asked of a job: plain JSON values, so that it can cross processes."""

from dataclasses import asdict, dataclass, field
from typing import Any

FORWARD_S = 0.02
"""Seconds of one microbatch's F on one rank in padded compute, unless it is told."""
FIRST_LOSS_SCALE = 2.0**16
KEPT_STEPS = 20
"""How many measured steps are kept, with all that ranks did in them: the last ones."""


@dataclass(kw_only=True)
class Asked:
    """The fields of a job. It runs either a whole plan, or `programs`: pipelines, each of them a plan
    with dp = tp = cp = 1 whose ops come in the order that the program says, and which are predicted
    from a calibration."""

    plan: dict[str, Any] = field(default_factory=dict)
    """Fields of `simlab.Plan`. Its precision is that of the times in a box; for what runs see
    `precision`."""
    programs: dict[str, str] | None = None
    """{name: text form}, see `Program.from_text`. All have the same number of ranks; the model is
    cut anew for each number of stages."""
    sizes: dict[str, Any] = field(default_factory=dict)
    """layers, hidden, heads, seq of the byte-level GPT that is trained, and with programs
    microbatch_size; what is left out has a default that suits the plan, or `compute`. With a plan
    also experts in each layer (0: one MLP) and experts_per_token."""

    like: str | dict[str, Any] | None = None
    """A model of the catalogue, the path of a config.json, or a model's fields, whose layers a plan
    trains: see `realrun.model.sizes.sizes_like`. None: those of a GPT."""

    compute: str | None = None
    """Programs: 'padded': real math on small tensors, then sleep to `forward_s` / `backward_s`.
    'real': the model's own math on a CPU core. 'cuda': on a GPU."""
    why_compute: str = "asked for"
    """Why this compute mode was chosen; said in every report."""
    forward_s: float | None = None
    """Padded compute: seconds of one microbatch's F on one rank (None: 0.02); a rank of v stages
    spends 1/v of it in each."""
    backward_s: float | None = None
    """Padded compute: likewise of its B; None: twice `forward_s`."""
    input_grad_s: float | None = None
    """Padded compute: the part of B that is I, the rest being W; None: half of it."""
    link_s: float = 0.0
    """Programs: extra latency of each message, kept by arrival stamps."""
    link_bytes_per_s: float | None = None
    """Programs: bandwidth of each directed link, kept by arrival stamps; None: as fast as the
    machine."""
    checked: bool = True
    """False: run a program even though validation refuses it."""

    box: dict[str, Any] | None = None
    """None: as fast as this machine. Else {"cluster", "nodes", "model", "seq", "time_scale"}:
    compute takes, scaled in time, what it takes `model`'s layers on the catalogue's `cluster` with
    sequences of `seq` tokens (None: the model's own), and links are paced likewise. nodes None:
    what the cluster's file says, else as many as the ranks take.
    time_scale None: as much as gives a step of `realrun.run.box.STEP_S`."""
    predict_on: str | None = None
    """A cluster of the catalogue, or the path of a file such as `realrun measure` writes: the
    machine that this runs on. The step of the byte-level GPT is predicted for it before it runs.
    None: only a box and programs are predicted."""
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
    """Whether to go on from the newest complete checkpoint there, if there is one, of whatever plan
    it is."""
    skip_damaged: bool = False
    """With `resume`: whether a newest checkpoint that is damaged is put aside, and the last whole
    one is gone on from."""
    fault: str | None = None
    """One to put in on purpose, 'hang@3:2' on rank 3 at step 2: see `realrun.run.faults`."""
    backend: str = "native"
    """'native', whose ranks are held against the simulator's lists, or 'torch', by torch's own
    means: see `realrun.backends.torch`."""
    reference: bool = False
    """Whether one process trains the same model on the same data afterwards, for its losses."""
    precision: str | None = None
    """What is executed: 'fp32', 'bf16' or 'fp16'. None: fp16 if the plan's is that, for its ranks
    then communicate more; else fp32."""
    loss_scale: float = FIRST_LOSS_SCALE
    """In fp16: what the loss is multiplied by at first."""
    timeout_s: float = 60.0
    """Seconds without any rank making progress after which the run is given up. Under torchrun,
    where nobody watches all ranks: seconds that one rank waits for one message."""
    out: str = "out"
    """Folder for calibration, predictions, traces and reports."""

    @property
    def op_times_s(self) -> tuple[float, float, float]:
        """(forward, backward, its input-gradient part) of one microbatch on one rank, s: as given,
        or by default."""
        forward_s = FORWARD_S if self.forward_s is None else self.forward_s
        backward_s = 2 * forward_s if self.backward_s is None else self.backward_s
        split_s = backward_s / 2 if self.input_grad_s is None else self.input_grad_s
        return forward_s, backward_s, split_s

    def to_json(self) -> dict[str, Any]:
        """{field: value}"""
        return asdict(self)
