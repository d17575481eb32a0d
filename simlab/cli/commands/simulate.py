"""The command simulate: a schedule or a CSV program with given op times, or a model's training step."""

import argparse
import sys
from typing import Annotated, Any

import simlab as sl
from simlab.analysis import BubbleParts, bubble_parts, busy_s, warm_up_form
from simlab.cli.commands.program import NAMES
from simlab.cli.commands.step import (
    BATCH,
    REPLICAS,
    Explained,
    StepAnswer,
    explained,
    explained_lines,
    simulate_model,
    write_trace,
)
from simlab.cli.op_times import (
    DEFAULTS,
    add_group_option,
    add_time_options,
    fill_in,
    generated,
    link,
    rank_times,
    schedule_options,
)
from simlab.cli.options import add_json_options, add_picture_option, flag, refuse_given
from simlab.cli.output import print_json, print_text
from simlab.cli.plan_options import FIELDS, add_batch_option, add_cluster_options, add_plan_options
from simlab.errors import InputError
from simlab.program import Program
from simlab.schedules import RECORDS
from simlab.studies.partition import best_partition, even_partition, stage_work
from simlab.studies.survey import parameter_shares, rank_shares
from simlab.trace import ACTIVATIONS, Trace
from simlab.units import seconds_text

MOST_LAYERS = 2_000
SHARED = ("schedule", "pp", "microbatches", "chunks")
"""Fields of a plan that a pipeline with given op times has, too."""
ONLY_WITH_MODEL = (
    "cluster",
    "nodes",
    "global_batch",
    *(name for name in FIELDS if name not in SHARED),
)
ONLY_WITH_OP_TIMES = {
    "csv": None,
    "group": None,
    **DEFAULTS,
    "layers": None,
    "embedding": 0.0,
    "head": 0.0,
    "partition": None,
}
"""{option: what it is where it is not given}."""


class MayBeAsked(Explained, total=False):
    """What some schedules and options add."""

    stage_work: list[float]
    fits: bool
    breaches: list[Annotated[dict[str, Any], sl.Breach]]
    weight_versions: list[int]
    staleness: list[int]
    steady_idle: float | None


class PipelineAnswer(MayBeAsked):
    """A schedule or a CSV program with given op times."""

    schedule: str
    stages: int
    microbatches: int
    ops: int
    messages: int
    step_s: float
    bubble: Annotated[dict[str, float], sl.Bubble]
    bubble_parts: Annotated[dict[str, Any], BubbleParts]
    idle_s: list[float]
    peak_live_microbatches: list[int]
    peak_activations: list[float]
    parameters: list[float]


Answer = PipelineAnswer | StepAnswer


def simulate(arguments: argparse.Namespace) -> int:
    """Simulate a schedule or a CSV program with the given op times, or a model's training step on a
    cluster."""
    if arguments.model is not None or arguments.plan is not None:
        refuse_given(arguments, ONLY_WITH_OP_TIMES, "goes with op times, not with --model")
        return simulate_model(arguments)
    if not (arguments.schedule or arguments.csv):
        raise InputError(
            "nothing to simulate: give --schedule or --csv with op times, or --model and --cluster"
        )
    refuse_given(
        arguments, ONLY_WITH_MODEL, "goes with --model: with op times there is only a pipeline"
    )
    fill_in(arguments, ONLY_WITH_OP_TIMES)
    if arguments.strict and arguments.activation_cap is None:
        raise InputError(
            "--strict goes with --model, or with --activation-cap: else nothing can fit or not"
        )
    program = _program(arguments)
    times, memory = rank_shares(program, rank_times(arguments), arguments.weight_grad_memory)
    if work := _stage_work(arguments, program.stages):
        times = times.weighted(work)
    between = link(arguments)
    trace = sl.simulate(program, times, link=between, memory=memory)
    free_s = sl.simulate(program, times).step_s if between else trace.step_s
    result = _facts(program, trace)
    parts = bubble_parts(busy_s(trace), trace.step_s, free_s)
    result["bubble_parts"] = parts._asdict()
    if work:
        result["stage_work"] = work
    if arguments.activation_cap is not None:
        result |= _held_to_the_cap(trace, arguments.activation_cap)
    if arguments.explain:
        result |= explained(trace)
    write_trace(arguments, trace, lambda: trace)
    if arguments.json:
        print_json(result)
    else:
        print_text(_summary(result, parts.text(trace.step_s, warm_up_form(program))))
    return int(arguments.strict and not result["fits"])


def _program(arguments: argparse.Namespace) -> Program:
    """The program of the file or the schedule that is given."""
    if arguments.forward_ms is None:
        raise InputError("give --forward-ms, the time of a forward, or --model and --cluster")
    if arguments.csv:
        brought = (
            arguments.schedule,
            arguments.pp,
            arguments.microbatches,
            *schedule_options(arguments).values(),
        )
        if any(value is not None for value in brought):
            raise InputError(
                "--csv brings its own order, stages and microbatches: leave out --pp, --microbatches and --schedule"
            )
        program = sl.validate(sl.Program.from_csv(arguments.csv))
    else:
        if not (arguments.pp and arguments.microbatches):
            raise InputError("--schedule needs --pp and --microbatches, both at least 1")
        program = generated(arguments, arguments.schedule)
    if arguments.pair_ms is not None and not program.paired:
        raise InputError(
            f"--pair-ms {arguments.pair_ms:g}: {program.name} has no forward beside a backward; DualPipe's schedules have"
        )
    _check_split(arguments, program)
    return program


def _facts(program: Program, trace: Trace) -> dict[str, Any]:
    """What is known of a simulated program, as plain values."""
    result = {
        "schedule": program.name,
        "stages": program.stages,
        "microbatches": program.microbatches,
        "ops": len(trace.compute()),
        "messages": len(trace.messages()),
        "step_s": trace.step_s,
        "bubble": sl.bubble(trace)._asdict(),
        "idle_s": sl.idle_s(trace),
        "peak_live_microbatches": sl.peak_memory(trace),
        "peak_activations": sl.peak_memory(trace, ACTIVATIONS),
        "parameters": parameter_shares(program),
    }
    if program.name in RECORDS and not RECORDS[program.name].flush:
        result |= sl.staleness(program)._asdict() | {"steady_idle": sl.steady_idle(trace)}
    return result


def _held_to_the_cap(trace: Trace, cap: float) -> dict[str, Any]:
    """Whether `trace` keeps to the cap of activations; every breach is said on stderr."""
    trace.metadata["activation_cap"] = cap
    breaches = sl.breaches(trace, cap)
    for breach in breaches:
        print(f"over the cap of {cap:g}: {breach}", file=sys.stderr)
    return {"fits": not breaches, "breaches": [breach._asdict() for breach in breaches]}


def _check_split(arguments: argparse.Namespace, program: Program) -> None:
    """`InputError` if the program has the parts of a backward, and their times are not given."""
    parts = sorted({op.kind for op in program.rank_of} & {"I", "W"})
    missing = [
        flag(name)
        for name in ("input_grad_ms", "weight_grad_ms")
        if getattr(arguments, name) is None
    ]
    if parts and missing:
        raise InputError(
            f"{program.name} has {' and '.join(parts)} ops, parts of a backward: give {' and '.join(missing)}"
        )


def _stage_work(arguments: argparse.Namespace, stages: int) -> list[float] | None:
    """[work of each stage] if layers were given, in a layer's; else None."""
    if arguments.layers is None:
        if arguments.embedding or arguments.head or arguments.partition:
            raise InputError(
                "--embedding, --head and --partition are about layers: give --layers too"
            )
        return None
    if not 1 <= arguments.layers <= MOST_LAYERS:
        raise InputError(f"{arguments.layers} layers: give 1 to {MOST_LAYERS}")
    for name, work in (("--embedding", arguments.embedding), ("--head", arguments.head)):
        if not 0 <= work < float("inf"):
            raise InputError(f"{name} {work}: give a finite number of layers, 0 or more")
    blocks = [1.0] * arguments.layers
    if arguments.partition == "best":
        layers = [arguments.embedding, *blocks, arguments.head]
        return stage_work(layers, best_partition(layers, stages))
    work = stage_work(blocks, even_partition(blocks, stages))
    work[0] += arguments.embedding
    work[-1] += arguments.head
    return work


def _summary(result: dict[str, Any], idle: str) -> str:
    bubble = result["bubble"]
    lines = [
        "{schedule}: {stages} stages, {microbatches} microbatches, {ops} ops, {messages} messages".format(
            **result
        ),
        f"step                     {seconds_text(result['step_s'])}",
        f"bubble / ideal time      {bubble['idle_over_ideal']:.4f}   idle / busy time, of all ranks",
        f"bubble / makespan        {bubble['idle_over_makespan']:.4f}   idle / whole time, of all ranks",
        f"bubble of longest stage  {bubble['longest_stage']:.4f}   idle / span of the rank with the longest one",
        *[f"idle time                {idle}"] * bool(idle),
        f"peak live microbatches   {result['peak_live_microbatches']}",
        f"peak activations         {[round(value, 3) for value in result['peak_activations']]} of a rank's share of a microbatch",
    ]
    if "stage_work" in result:
        lines.append(f"work of each stage       {result['stage_work']}   in layers")
    if "weight_versions" in result:
        lines.append(
            f"weight versions          {result['weight_versions']}   staleness {result['staleness']} updates"
        )
        if result["steady_idle"] is not None:
            lines.append(
                f"idle while it is full    {result['steady_idle']:.4f}   of all ranks' time: all there is without a flush"
            )
    if "gaps" in result:
        lines += explained_lines(result)
    return "\n".join(lines)


def add_simulate(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `simulate`."""
    source = command.add_argument_group("a pipeline with op times")
    source.add_argument("--csv", metavar="FILE", help="a program as CSV, in place of --schedule")
    add_group_option(source)
    plan = command.add_argument_group(
        "a model on a cluster (instead of op times): see the catalog command for names"
    )
    add_cluster_options(plan)
    names = f"the order of forwards and backwards: {NAMES} (default 1f1b)"
    add_batch_option(plan, BATCH)
    add_plan_options(plan, instead={"dp": REPLICAS, "schedule": names})
    add_time_options(command, required=False)
    _add_stage_options(command)
    command.add_argument(
        "--explain",
        action="store_true",
        help="say what idle time waited for; show the critical path",
    )
    add_picture_option(command, "the timeline and the memory strip")
    plan.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 if the step does not fit into the memory",
    )
    command.add_argument("--trace", metavar="X.json", help="write the trace, see simlab.Trace")
    command.add_argument(
        "--perfetto", metavar="X.json", help="write the trace for https://ui.perfetto.dev"
    )
    add_json_options(command, Answer)


def _add_stage_options(command: argparse.ArgumentParser) -> None:
    layers = command.add_argument_group(
        "stages of unequal work (the times above are then those of the mean stage)"
    )
    layers.add_argument(
        "--layers", type=int, metavar="L", help="layers of the model, cut into stages"
    )
    layers.add_argument(
        "--embedding", type=float, metavar="X", help="work of the embedding, in layers (default 0)"
    )
    layers.add_argument(
        "--head", type=float, metavar="X", help="work of head and loss, in layers (default 0)"
    )
    layers.add_argument(
        "--partition",
        choices=("even", "best"),
        help="equally many layers a stage (default), or the best contiguous cut",
    )
