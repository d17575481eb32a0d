"""The jobs that a command line and a plan file ask for.

A pipeline is a plan with dp = tp = cp = 1. Where such a plan asks for nothing else, its ops are timed
one by one, and its step is predicted from these times before it runs: that is a job of programs. Any
other plan is held to the simulator's instruction lists: that is a job of a plan. Which one it is
follows from the values that are asked for, not from which options are written.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from realrun.cli.options import BOX, EXPERTS, PIPELINE, RUN, SIZES
from realrun.run.job import Job
from realrun.run.job.asked import FORWARD_S
from realrun.run.job.pipelines import choose_compute, program_texts
from simlab.cli.options import flag, value_text
from simlab.cli.plan_options import FIELDS, given_values, plan_part
from simlab.errors import InputError, did_you_mean
from simlab.program import Program
from simlab.schedules import generate, schedule_of
from simlab.spec.plan import Plan
from simlab.units import MS

Given = Mapping[str, Any]
"""{option: value} of what is asked for."""
OTHERS = ("csv", "group", "no_check", "resume", "skip_damaged", "elastic", "reference", "inject")
OF_PROGRAMS = {"pp", "microbatches", "microbatch_size", "schedule", "chunks"}
"""Fields of a plan that a program has."""
OF_EVERY_JOB = {*OF_PROGRAMS, *SIZES, "steps", "warmup", "timeout", "out", "reference"}
NEED_TIMED_OPS = ("csv", "group", "no_check", *PIPELINE)
BROUGHT_BY_CSV = ("schedule", "pp", "microbatches", "chunks", "group", "activation_cap")


def values(arguments: argparse.Namespace) -> dict[str, Any]:
    """{option: value} of what the plan file says and, above it, of what the command line does."""
    typed = PIPELINE | BOX | SIZES | EXPERTS | RUN
    given = given_values(arguments, typed)
    given = {name: _typed(arguments.plan, name, value) for name, value in given.items()}
    said = {name: getattr(arguments, name) for name in OTHERS}
    if given.get("out") == "":
        raise InputError(f"{arguments.plan}: out = '': give the path of a folder")
    asked = {name: value for name, value in said.items() if value is not None}
    if given.get("backend") == "torch" and arguments.cluster is None:
        _without_cluster(arguments.plan, given)
    return given | {name: value for name, value in asked.items() if value is not False}


def _without_cluster(path: str, given: dict[str, Any]) -> None:
    """Take the cluster of a plan file out of what is `given`, and say so: torch's back-end keeps to no
    cluster's times."""
    its = [name for name in ("cluster", "nodes") if name in given]
    for name in its:
        del given[name]
    if its:
        text = f"note: backend torch leaves out the {' and '.join(its)} of {path}: it keeps to no times"
        print(text, file=sys.stderr)


def _typed(path: str, name: str, value: Any) -> Any:
    """A value of a plan file, a number where it has to be one: YAML takes 1e9 for text. Plans and
    sizes are checked where they are made."""
    options = PIPELINE | BOX | RUN
    kind = options[name].kind if name in options else str
    if name == "model" and isinstance(value, dict):  # a model's fields
        return value
    if name in options and kind is str and not isinstance(value, str):
        raise InputError(f"{path}: {name} = {value!r}: give a text, in quotes")
    if kind is str or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or number != float(value):
        raise InputError(f"{path}: {name} = {value!r}: give a {'whole ' * (kind is int)}number")
    return number


def jobs(given: Given, device: Callable[[int], str] = lambda ranks: "cpu") -> list[Job]:
    """The jobs of what is `given`: one of all its programs, or one of each schedule's plan. device:
    number of ranks → 'cpu' or 'cuda', on which they run."""
    other = beyond_timed_ops(given)
    # what a plan that is held to its list computes
    own = "padded" if "cluster" in given else "real"
    for name in NEED_TIMED_OPS if other else ():
        if name in given and (name, given[name]) != ("compute", own):
            raise InputError(
                f"{_written(name, given)} goes with a pipeline whose ops are timed one by one: "
                f"leave it out, or leave out {other}"
            )
    if other is None:
        return [_job_of_programs(given, device)]
    plans = [_job_of_plan({**given, "schedule": name}) for name in schedules(given)]
    if len({job.name for job in plans}) < len(plans):
        raise InputError(f"--schedule {given['schedule']}: two runs of one name; leave one out")
    return plans


def beyond_timed_ops(given: Given) -> str | None:
    """The first thing, as it is written, that only a plan can have that is held to instruction
    lists; None if ops are timed one by one."""
    for name, value in given.items():
        if name in OF_EVERY_JOB or name in NEED_TIMED_OPS:
            continue
        if (name == "precision" and value == "fp32") or (name == "backend" and value == "native"):
            continue
        if name not in FIELDS or name == "precision" or value != FIELDS[name].default:
            return _written(name, given)
    return None


def _written(name: str, given: Given) -> str:
    """The option `name` as it is written on the command line."""
    value = given[name]
    return (
        flag(name) if value is True and name not in FIELDS else f"{flag(name)} {value_text(value)}"
    )


def schedules(given: Given) -> list[str]:
    """[names of schedules] that are asked for."""
    return [name.strip() for name in str(given.get("schedule", Plan.schedule)).split(",")]


# programs, whose ops are timed one by one
# --------------------------------------------------------------------------------------------------


def programs(given: Given) -> list[Program]:
    """The programs that are asked for: of a file, or of schedules."""
    if "csv" in given:
        return [_program_of_file(given)]
    asked = [schedule_of(name) for name in schedules(given)]
    for schedule in asked:
        if not schedule.flush:
            raise InputError(
                f"{schedule.name} updates the weights after every backward; the executor trains with a flush: run 1f1b, whose order it has"
            )
    told = {
        option: given[name]
        for option, name in (("chunks", "chunks"), ("group", "group"), ("cap", "activation_cap"))
        if name in given
    }
    for option, value in told.items():
        if not any(option in schedule.options for schedule in asked):
            written = flag("activation_cap" if option == "cap" else option)
            raise InputError(f"{written} {value}: of no use to {', '.join(schedules(given))}")
    told |= _search_options(given)
    size = given.get("pp", Plan.pp), given.get("microbatches", Plan.microbatches)
    return [
        generate(each.name, *size, **{key: told[key] for key in each.options if key in told})
        for each in asked
    ]


def _program_of_file(given: Given) -> Program:
    if any(name in given for name in BROUGHT_BY_CSV):
        raise InputError(
            "--csv brings its own order, stages and microbatches: leave out --schedule and what it can be told"
        )
    program = Program.from_csv(given["csv"])
    # its folder in --out is called so
    return replace(program, name=re.sub(r"[^\w-]+", "_", program.name))


def op_times_ms(given: Given) -> tuple[float, float, float]:
    """(forward, backward, its input-gradient part) of one microbatch on one rank in padded compute,
    ms. What is not given follows from the rest."""
    forward = given.get("forward_ms", FORWARD_S / MS)
    whole, input_grad, weight_grad = (
        given.get(f"{part}_ms") for part in ("backward", "input_grad", "weight_grad")
    )
    if weight_grad is None:
        whole = 2 * forward if whole is None else whole
        return forward, whole, whole / 2 if input_grad is None else input_grad
    if input_grad is None:
        whole = 2 * weight_grad if whole is None else whole
        return forward, whole, whole - weight_grad
    if whole is not None and not math.isclose(whole, input_grad + weight_grad):
        raise InputError(
            f"--backward-ms {whole:g} is not the sum of --input-grad-ms {input_grad:g} and "
            f"--weight-grad-ms {weight_grad:g}: leave one of the three out"
        )
    return forward, input_grad + weight_grad, input_grad


def _search_options(given: Given) -> dict[str, float]:
    """The times for which zb-auto shall find an order: those of padded compute."""
    forward, backward, input_grad = op_times_ms(given)
    times_ms = {
        "forward_s": forward,
        "input_grad_s": input_grad,
        "weight_grad_s": backward - input_grad,
        "p2p_s": given.get("link_ms", 0.0),
    }
    return {option: value * MS for option, value in times_ms.items()}


def _job_of_programs(given: Given, device: Callable[[int], str]) -> Job:
    wanted = programs(given)
    times = [name for name in PIPELINE if name.endswith("_ms") and name != "link_ms"]
    paced = [flag(name) for name in times if name in given]
    ranks, asked = len(wanted[0].ranks), _compute(given)
    compute, why = choose_compute(
        ranks, asked=asked, padded_time_given=bool(paced), device=device(ranks)
    )
    if paced and compute != "padded":
        raise InputError(
            f"{' and '.join(paced)} set the pace of padded compute, but compute is {compute}: leave one out"
        )
    forward_ms, backward_ms, input_grad_ms = op_times_ms(given)
    gbps = given.get("link_gbps")
    return Job(
        programs=program_texts(wanted),
        compute=compute,
        why_compute=why,
        forward_s=forward_ms * MS,
        backward_s=backward_ms * MS,
        input_grad_s=input_grad_ms * MS,
        link_s=given.get("link_ms", 0.0) * MS,
        link_bytes_per_s=None if gbps is None else gbps * 1e9 / 8,
        sizes={name: given.get(name) for name in (*SIZES, "microbatch_size")},
        checked="no_check" not in given,
        reference="reference" in given,
        **_run_fields(given),
    )


def _compute(given: Given) -> str | None:
    asked = given.get("compute")
    if asked not in (None, "padded", "real"):
        hint = did_you_mean(asked, ["padded", "real"]) or ";"
        raise InputError(f"--compute {asked!r}{hint} there is padded, real")
    return asked


# a plan, held to instruction lists
# --------------------------------------------------------------------------------------------------


def _job_of_plan(given: Given) -> Job:
    box = {name: given[name] for name in BOX if name in given}
    like = box.pop("model") if set(box) == {"model"} else None
    if box and "cluster" not in box:
        raise InputError(
            f"{', '.join(box)} without cluster: say whose times are meant, such as cluster dgx-a100"
        )
    for name in ("checkpoints", "keep"):
        if name in given and "checkpoint_every" not in given and "resume" not in given:
            raise InputError(
                f"{_written(name, given)} without checkpoints: give --checkpoint-every or --resume"
            )
    if "skip_damaged" in given and "resume" not in given:
        raise InputError("--skip-damaged without --resume: give both, or leave it out")
    more = {name: given[name] for name in ("backend", "predict_on") if name in given}
    # what is asked for is what runs, but for fp8, which can give a box its times
    if "precision" in given:
        precision = given["precision"]
        more["precision"] = "bf16" if box and precision.startswith("fp8") else precision
    kept = ("checkpoint_every", "checkpoints", "keep", "loss_scale")
    return Job(
        plan={name: value for name, value in plan_part(given).items() if name != "seq"},
        sizes={name: given.get(name) for name in (*SIZES, *EXPERTS, "layer")},
        like=like,
        box=box or None,
        resume="resume" in given,
        skip_damaged="skip_damaged" in given,
        reference="reference" in given,
        fault=given.get("inject"),
        **more,
        **{name: given[name] for name in kept if name in given},
        **_run_fields(given),
    )


def _run_fields(given: Given) -> dict[str, Any]:
    """The fields that every job has."""
    fields = {"steps": "steps", "warmup": "warmup", "timeout": "timeout_s", "out": "out"}
    return {field: given[name] for name, field in fields.items() if name in given}


def stretched(given: Given, world: int) -> dict[str, int]:
    """{"dp", "microbatches"} that let the plan of `given` run on `world` ranks with the same
    sequences in a step: as many replicas as there is room for, each with its share of the
    microbatches."""
    plan = Plan(**plan_part(given))
    each, microbatches = plan.gpus // plan.dp, plan.dp * plan.microbatches
    possible = [dp for dp in range(1, microbatches + 1) if microbatches % dp == 0]
    if world % each or world // each not in possible:
        fitting = ", ".join(str(each * dp) for dp in possible)
        raise InputError(
            f"{world} ranks for a plan of tp x pp x cp = {each} with {microbatches} microbatches in all: give {fitting}"
        )
    return {"dp": world // each, "microbatches": microbatches // (world // each)}
