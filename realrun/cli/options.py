"""The options of realrun: those of a plan, and those that only an execution has."""

from typing import Any, NamedTuple, NotRequired

from realrun.report.facts import Answer
from realrun.run.faults import KINDS
from realrun.run.job import Job
from simlab.cli.op_times import TIMES, add_group_option
from simlab.cli.options import Failure, add_alias, add_json_options, add_picture_option, flag
from simlab.cli.plan_options import CLUSTER_OPTIONS, add_plan_options
from simlab.schedules import ALIASES, SCHEDULES

DEFAULTS = {name: field.default for name, field in Job.__dataclass_fields__.items()}
"""{field of a job: its default}."""


class Option(NamedTuple):
    """An option that takes a value, which a plan file may have, too."""

    kind: type
    metavar: str
    help: str


PIPELINE = {
    "compute": Option(
        str,
        "MODE",
        "real: the model's own math; padded: small tensors, then sleep to the op's time "
        "(default: padded if op times are given or ranks outnumber cores, else real)",
    ),
    "forward_ms": Option(float, "F", f"padded: {TIMES['forward_ms'][1]} (default 20)"),
    "backward_ms": Option(float, "B", "padded: its whole backward, ms (default I + W, or twice F)"),
    "input_grad_ms": Option(float, "I", f"padded: {TIMES['input_grad_ms'][1]} (default B / 2)"),
    "weight_grad_ms": Option(float, "W", "padded: the rest of it, ms (default B - I)"),
    "link_ms": Option(float, "C", TIMES["link_ms"][1]),
    "link_gbps": Option(float, "G", "the bandwidth of every link, Gbit/s (default: unlimited)"),
    "activation_cap": Option(float, "X", "activations that zb-auto may hold on a rank (default P)"),
}
"""Options of a pipeline whose ops are timed one by one."""
BOX = {
    "cluster": Option(str, "NAME", CLUSTER_OPTIONS["cluster"]),
    "nodes": Option(int, "N", CLUSTER_OPTIONS["nodes"]),
    "model": Option(
        str,
        "NAME",
        f"{CLUSTER_OPTIONS['model']}: with --cluster, whose layers' times are kept to (default "
        "megatron-7.5b); without, whose layers are trained",
    ),
    "time_scale": Option(
        float, "X", "by how much times are stretched (default: a step of about 2 s)"
    ),
}
"""Options of a cluster in a box."""
SIZES = {
    "layers": Option(int, "L", "layers of the model, cut into stages (default: two a stage)"),
    "hidden": Option(int, "N", "its hidden size (default 64; 192 in real compute; --model's)"),
    "heads": Option(int, "N", "its attention heads (default 4; 6 in real compute; --model's)"),
    "seq": Option(int, "N", "tokens in a sequence (default 32; 512 in real compute)"),
}
"""Sizes of the model that is trained."""
EXPERTS = {
    "experts": Option(int, "N", "experts in each layer, of a plan (default: one MLP)"),
    "experts_per_token": Option(int, "N", "experts that compute a token (default 2)"),
}
"""Sizes of it that a plan may have."""
RUN = {
    "backend": Option(
        str,
        "NAME",
        "native: realrun's own executor; torch: DDP, FSDP2, DTensors and torch's pipelines "
        f"(default {DEFAULTS['backend']})",
    ),
    "predict_on": Option(
        str,
        "CLUSTER",
        "predict the step for this machine: of the catalogue, or a file of `realrun measure`",
    ),
    "steps": Option(int, "N", f"measured training steps (default {DEFAULTS['steps']})"),
    "warmup": Option(
        int, "N", f"steps run before them and not counted (default {DEFAULTS['warmup']})"
    ),
    "checkpoint_every": Option(int, "N", "write a checkpoint after every N steps (default: none)"),
    "checkpoints": Option(str, "DIR", "the folder of checkpoints (default: checkpoints in --out)"),
    "keep": Option(int, "N", f"how many checkpoints are kept (default {DEFAULTS['keep']})"),
    "loss_scale": Option(
        float,
        "X",
        "fp16: what the loss is multiplied by at first "
        f"(default {DEFAULTS['loss_scale']:g}; with --resume as it was)",
    ),
    "out": Option(str, "DIR", f"where everything is written (default {DEFAULTS['out']})"),
    "timeout": Option(
        float,
        "S",
        f"give up after so many seconds in which no rank moves (default {DEFAULTS['timeout_s']:g})",
    ),
}
"""Options of a run."""
SWITCHES = {
    "resume": "go on from the newest complete checkpoint, whatever plan wrote it",
    "skip_damaged": "with --resume: put a damaged newest checkpoint aside, and go on from the last whole one",
    "elastic": "under torchrun: as many replicas as it starts ranks for, with the same batch",
    "reference": "train the same in one process, too, and compare the losses",
    "anyway": "run padded ops that the cores of this machine cannot pace",
}
CHECKED = {
    "inject": Option(
        str, "FAULT", f"{', '.join(KINDS)}, as in hang@3:2: on rank 3 at measured step 2, the third"
    ),
    "max_error": Option(float, "PERCENT", "fail if a predicted step is further off than this"),
}
EXPLAINED = {"explain": "say where the time of the median measured step went, as `simlab why` does"}
"""What a plan file does not say of a run."""
NAMES = ", ".join([*SCHEDULES, *(f"{alias} (= {name})" for alias, name in ALIASES.items())])
"""The schedules that can be executed, which are those with a flush."""
PRECISION = "what runs: fp32, bf16, fp16 (default fp32; a box takes its times from bf16)"
SCHEDULE = (
    "The pipeline schedule: the order of forwards and backwards on each rank; several with "
    f"commas between them run one after the other: {NAMES} (default 1f1b)"
)


def add_run_options(parser: Any) -> None:
    """Add all options of an execution to `parser`."""
    plan = parser.add_argument_group("what to run: a plan (see simlab.Plan), or a program")
    add_plan_options(plan, skip=("seq",), instead={"precision": PRECISION, "schedule": SCHEDULE})
    plan.add_argument("--csv", metavar="FILE", help="a program as CSV, in place of --schedule")
    add_group_option(plan)
    pipeline = parser.add_argument_group(
        "one microbatch on one rank (all of its stages), where only pp is above 1"
    )
    add_options(pipeline, PIPELINE)
    add_alias(pipeline, "--p2p-ms", "link_ms", float)
    pipeline.add_argument(
        "--no-check",
        action="store_true",
        default=None,
        help="run a program that validation refuses, for example to see a deadlock",
    )
    add_options(parser.add_argument_group("a cluster in a box, whose times are kept to"), BOX)
    add_options(
        parser.add_argument_group(
            "the model that is trained, of bytes: a GPT, or one with --model's layers"
        ),
        SIZES | EXPERTS,
    )
    run = parser.add_argument_group("the run")
    add_options(run, RUN)
    # the values of the earlier option, too
    add_alias(run, "--engine", "backend", lambda name: {"realrun": "native"}.get(name, name))
    add_switches(run, SWITCHES)
    add_options(run, CHECKED)
    add_switches(run, EXPLAINED)
    add_picture_option(run, "the timelines of all runs, predicted over measured")
    add_device_options(run, Answer)


def add_options(group: Any, options: dict[str, Option]) -> None:
    """Add options that take a value to `group`."""
    for name, (kind, metavar, text) in options.items():
        group.add_argument(flag(name), type=kind, metavar=metavar, help=text)


def add_switches(group: Any, switches: dict[str, str]) -> None:
    """Add options without a value, {name: help}, to `group`."""
    for name, text in switches.items():
        group.add_argument(flag(name), action="store_true", help=text)


class BrokenOff(Failure):
    """A run broke off, or could not begin: exit status 1; or its arguments are wrong: 2."""

    partial: NotRequired[list[str]]
    """The files of what was recorded until then."""
    checkpoint: NotRequired[str | None]
    """The newest complete checkpoint that is left."""
    go_on: NotRequired[str | None]
    """The command that goes on from it."""


def add_device_options(group: Any, answer: Any) -> None:
    """Add `--device`, `--port`, and `--json`, which prints an object of the type `answer`."""
    group.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: cuda where there is a GPU for every rank (default auto)",
    )
    group.add_argument(
        "--port",
        type=int,
        default=0,
        metavar="N",
        help="port of the rendezvous on 127.0.0.1 (default: a free one)",
    )
    add_json_options(group, answer, BrokenOff)
