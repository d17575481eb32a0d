"""python -m realrun with a plan: run it whole, under dp x cp x tp x pp and ZeRO, in processes or a cluster's ranks."""

import argparse
import json
import os
import sys
from dataclasses import MISSING, fields
from pathlib import Path

from realrun.faults import KINDS
from realrun.plan_job import ENGINES
from simlab.errors import InputError, did_you_mean
from simlab.plan import ATTENTIONS, CP_KINDS, CP_LAYOUTS, PRECISIONS, RECOMPUTE, Plan

CHOICES = {
    "recompute": RECOMPUTE, "precision": tuple(PRECISIONS), "attention": ATTENTIONS, "cp_layout": CP_LAYOUTS, "cp_kind": CP_KINDS,
}  # fmt: skip
DEGREES = ("dp", "tp", "pp", "cp", "zero", "microbatches", "microbatch_size", "chunks", "prefetch")
SWITCHES = ("sequence_parallel", "dp_overlap")
SIZES = ("layers", "hidden", "heads", "seq")
BOX = {"cluster": str, "nodes": int, "model": str, "slow_down": float}
RUN = {
    "engine": str, "predict_on": str, "steps": int, "warmup": int, "timeout": float, "out": str, "checkpoint_every": int,
    "checkpoints": str, "keep": int, "loss_scale": float,
}  # fmt: skip
ONLY_HERE = (
    "plan", "dp", "tp", "cp", "zero", "prefetch", "order", "elastic", "engine", "resume", "reference", "inject", "checkpoint_every",
    "checkpoints", "keep", "loss_scale", "predict_on", *CHOICES, *SWITCHES, *BOX,
)  # fmt: skip
"""Arguments that say that a whole plan is meant."""

EPILOG = """what happens: loss and all gradients are held against the same model in one process (float64). Then the plan trains a byte-level
GPT. Every rank is held against the simulator's list of what it computes, sends and waits for, communication by communication, to the byte.

With --cluster the plan runs in a box: compute is padded, and links are paced, to what --model's layers need on that cluster, slowed down.
That proves order, dependencies, overlap and traffic; the times of kernels and links it takes from the simulator, and cannot prove.

With --predict-on the step of the model that is trained is predicted for that machine before it runs: real kernels, real links.

a plan file (YAML) has the same names:
  dp: 2
  tp: 2
  pp: 2
  zero: 1
  microbatches: 8
  cluster: dgx-a100

examples:
  python -m realrun --dp 2 --tp 2 --pp 2 --microbatches 4
  python -m realrun --dp 4 --zero 3 --cluster dgx-a100 --model llama-2-7b
  python -m realrun --plan plan.yaml --steps 20
  torchrun --nproc-per-node 8 -m realrun --dp 2 --tp 4 --layers 16 --hidden 4096 --heads 32 --seq 2048 --precision bf16 \
    --engine torch --predict-on dgx-h100
  torchrun --nproc-per-node 8 -m realrun --dp 2 --tp 4
  torchrun --nnodes 1:2 --nproc-per-node 4 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint HOST:29400 \\
    -m realrun --dp 8 --zero 1 --elastic --resume --checkpoint-every 10        # goes on when a node is lost

exit status: 0 done, 1 the run or a check failed, 2 bad arguments"""


def means_a_plan(argv):
    """Whether the arguments `argv` ask for a whole plan."""
    names = {argument.split("=")[0] for argument in argv}
    return any(f"--{name.replace('_', '-')}" in names for name in ONLY_HERE)


def run(arguments):
    """Make the job, run it in processes of our own or as a rank under torchrun, report."""
    from realrun import launch
    from realrun.plan_report import failures, summary, write_pictures

    given = values(arguments)
    if arguments.elastic:
        given |= stretched(given, launch.world())
    job = make_job(given, resume=arguments.resume, reference=arguments.reference, fault=arguments.inject)
    if arguments.max_error is not None and not job.is_predicted:
        raise InputError(f"--max-error {arguments.max_error:g} for a run that is not predicted: give --cluster or --predict-on, too")
    if not launch.under_torchrun():
        launch.check_memory(job.ranks, 0)
    device = launch.choose_device(arguments.device, job.ranks, only_cpu=job.box is not None)
    facts = launch.run(job, device, port=arguments.port, say=_say)
    if facts is None:
        return 0  # another rank reports
    pictures = write_pictures(job, facts)
    max_error = None if arguments.max_error is None else arguments.max_error / 100
    wrong = failures(facts, max_error=max_error)
    if arguments.json:
        print(json.dumps({"ok": not wrong, "failed": wrong, "out": job.out} | facts))
    else:
        print(summary(job, facts))
        print(f"\npictures: {', '.join(map(str, pictures))}")
    sys.stdout.flush()
    for line in wrong:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if wrong else 0


def values(arguments):
    """{name: value} of what the plan file says and, above it, of what the command line does."""
    given = plan_file(arguments.plan) if arguments.plan else {}
    for name in (*DEGREES, *CHOICES, *SWITCHES, "schedule", "order", *SIZES, *BOX, *RUN):
        if getattr(arguments, name) is not None:
            value = getattr(arguments, name)
            given[name] = value == "yes" if name in SWITCHES else value
    return given


def stretched(given, world):
    """{"dp", "microbatches"} that let the plan of {name: value} `given` run on `world` ranks with the same sequences in a step: as many
    replicas as there is room for, each with its share of the microbatches."""
    plan = Plan(**{name: value for name, value in given.items() if name in {field.name for field in fields(Plan)}})
    each, microbatches = plan.gpus // plan.dp, plan.dp * plan.microbatches
    possible = [dp for dp in range(1, microbatches + 1) if microbatches % dp == 0]
    if world % each or world // each not in possible:
        fitting = ", ".join(str(each * dp) for dp in possible)
        raise InputError(f"{world} ranks for a plan of tp x pp x cp = {each} with {microbatches} microbatches in all: give {fitting}")
    return {"dp": world // each, "microbatches": microbatches // (world // each)}


def plan_file(path):
    """{name: value} of the YAML file at `path`: plain values only, no code."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no plain YAML: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise InputError(f"--plan {path}: {error.strerror}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds {type(content).__name__}, not 'name: value' lines: see python -m realrun plan --help")
    known = [*(field.name for field in fields(Plan)), *SIZES, *BOX, *RUN]
    for name in content:
        if name not in known:
            raise InputError(f"{path}: unknown name {name!r}{did_you_mean(str(name), known) or ';'} there is {', '.join(known)}")
    return {name: _typed(path, name, value) for name, value in content.items()}


def _typed(path, name, value):
    """A value of a plan file, a number where it has to be one: YAML takes 1e9 for text. Plans and sizes are checked where they are made."""
    kind = (BOX | RUN).get(name, str)
    if kind is str or value is None:
        return value
    try:
        number = kind(value)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, bool) or number != float(value):
        raise InputError(f"{path}: {name} = {value!r}: give a {'whole ' * (kind is int)}number")
    return number


def make_job(given, **more):
    """The `PlanJob` of {name: value}."""
    from realrun.plan_job import PlanJob

    plan_fields = {field.name for field in fields(Plan)} - {"seq"}
    box = {name: given[name] for name in BOX if given.get(name) is not None}
    if box and "cluster" not in box:
        raise InputError(f"{', '.join(box)} without cluster: say whose times are meant, such as cluster dgx-a100")
    run = {name: given[name] for name in RUN if name in given}
    if "timeout" in run:
        run["timeout_s"] = run.pop("timeout")
    plan = {name: value for name, value in given.items() if name in plan_fields}
    if "precision" in plan:  # what is asked for is what runs, but for fp8, which can give a box its times
        run["precision"] = "bf16" if box and plan["precision"] == "fp8" else plan["precision"]
    if plan.get("pp", 1) > 1:
        plan.setdefault("microbatches", 2 * plan["pp"] if isinstance(plan["pp"], int) else 1)
    return PlanJob(plan=plan, sizes={name: given.get(name) for name in SIZES}, box=box or None, **run, **more)


def _say(text, now=None):
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def parser():
    """The argument parser."""
    top = argparse.ArgumentParser(
        prog="python -m realrun", description=__doc__.split(": ", 1)[1], epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = top.add_argument_group("the plan (see simlab.Plan)")
    what.add_argument("--plan", metavar="FILE", help="a YAML file with the names below; what the command line says comes first")
    defaults = {field.name: None if field.default is MISSING else field.default for field in fields(Plan)}
    for name in DEGREES:
        what.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=f"default {defaults[name]}")
    what.add_argument("--schedule", metavar="NAME", help=f"default {defaults['schedule']}")
    what.add_argument("--order", metavar="ORDER", help=f"of the ranks' dimensions, the fastest first (default {defaults['order']})")
    for name, choices in CHOICES.items():
        default = "what runs: default fp32, with a cluster's times of bf16" if name == "precision" else f"default {defaults[name]}"
        what.add_argument(f"--{name.replace('_', '-')}", metavar="X", help=f"{' | '.join(choices)} ({default})")
    for name in SWITCHES:
        what.add_argument(f"--{name.replace('_', '-')}", choices=("yes", "no"), help=f"default {'yes' if defaults[name] else 'no'}")
    box = top.add_argument_group("a cluster in a box")
    box.add_argument("--cluster", metavar="NAME", help="of the catalogue, or the path of a JSON file: whose times are kept to")
    box.add_argument("--nodes", type=int, metavar="N", help="how many of its nodes the ranks are spread over (default 1)")
    box.add_argument("--model", metavar="NAME", help="whose layers' times are kept to (default megatron-7.5b)")
    box.add_argument("--slow-down", type=float, metavar="X", help="by how much times are stretched (default: what processes can keep to)")
    sizes = top.add_argument_group("the model that is trained, a byte-level GPT")
    for name in SIZES:
        sizes.add_argument(f"--{name}", type=int, metavar="N")
    rest = top.add_argument_group("the rest")
    rest.add_argument("--predict-on", metavar="CLUSTER", help="the machine it runs on, of the catalogue or a file of `realrun measure`")
    rest.add_argument("--steps", type=int, metavar="N", help="measured training steps (default 5)")
    rest.add_argument("--warmup", type=int, metavar="N", help="steps run before them and not counted (default 1)")
    rest.add_argument("--checkpoint-every", type=int, metavar="N", help="write a checkpoint after every N steps")
    rest.add_argument("--checkpoints", metavar="DIR", help="their folder (default DIR/checkpoints, DIR being --out)")
    rest.add_argument("--keep", type=int, metavar="N", help="how many are kept (default 2)")
    rest.add_argument("--loss-scale", type=float, metavar="X", help="fp16: the loss's factor at first (default 65536; --resume: as it was)")
    rest.add_argument("--resume", action="store_true", help="go on from the newest complete checkpoint, whatever plan wrote it")
    rest.add_argument(
        "--engine", choices=ENGINES, help="realrun, or torch: DDP, FSDP2, DTensors and its pipelines in place of realrun's own"
    )
    rest.add_argument("--elastic", action="store_true", help="under torchrun: as many replicas as it starts ranks, the same batch")
    rest.add_argument("--reference", action="store_true", help="train the same in one process, too, and compare the losses")
    rest.add_argument(
        "--inject", metavar="FAULT", help=f"{' | '.join(KINDS)}, as in hang@3:2: on rank 3 at measured step 2, the third, to see it found"
    )
    rest.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="cuda needs one GPU per rank (default auto)")
    rest.add_argument("--out", metavar="DIR", help="where everything is written (default out)")
    rest.add_argument("--max-error", type=float, metavar="PERCENT", help="fail if the predicted step is further off than this")
    rest.add_argument("--timeout", type=float, metavar="S", help="give up after so many seconds in which no rank moves (default 60)")
    rest.add_argument("--port", type=int, default=0, metavar="N", help="port of the rendezvous on 127.0.0.1 (default: a free one)")
    rest.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return top
