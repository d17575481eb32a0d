"""python -m simlab: make, check and simulate pipeline programs from the command line."""

import argparse
import math
import sys

import simlab as sl
from simlab.catalog import catalog_json, catalog_text
from simlab.commands import (
    ONLY_WITH_MODEL,
    ONLY_WITH_OP_TIMES,
    add_memory,
    add_plan,
    add_validate,
    explained,
    explained_lines,
    fill_in,
    flag,
    memory,
    print_json,
    refuse_given,
    simulate_model,
    validate,
    write_file,
)
from simlab.errors import InputError
from simlab.exit_status import exit_status
from simlab.partition import best_partition, even_partition, stage_work
from simlab.program import WEIGHT_GRAD_MEMORY
from simlab.schedules import ALIASES, CHUNKED, SCHEDULES, WITHOUT_FLUSH
from simlab.survey import parameter_shares, rank_shares, search_options, survey, survey_table
from simlab.trace import ACTIVATIONS
from simlab.units import MS, seconds_text
from simlab.views import timeline

MOST_LAYERS = 2_000
SEARCHED = tuple(name for name in ONLY_WITH_OP_TIMES if name not in ("csv", "group", "layers", "embedding", "head", "partition"))
EPILOG = """examples:
  python -m simlab schedule 1f1b --pp 4 --microbatches 8
  python -m simlab schedule 1f1b --pp 4 --microbatches 8 --csv mine.csv   then edit it, and
  python -m simlab check mine.csv
  python -m simlab simulate --csv mine.csv --forward-ms 20 --backward-ms 40 --picture mine.png
  python -m simlab schedules --pp 4 --microbatches 8 --forward-ms 20 --input-grad-ms 20 --weight-grad-ms 20
  python -m simlab simulate --model llama-3-8b --cluster dgx-h100 --nodes 2 --tp 4 --pp 2 --microbatches 8
  python -m simlab memory --params 7.5B --dp 64 --zero 3
  python -m simlab validate tests/published/runs.csv

exit status: 0 done, 1 the check failed, 2 bad arguments"""


def main(argv=None):
    """Run the command line; returns the exit status. Answers go to stdout, messages to stderr."""
    arguments = parser().parse_args(argv)
    return exit_status(arguments.run, arguments)


def schedule(arguments):
    """Print a schedule's program, one row per rank; write it as CSV if asked."""
    if arguments.name != "zb-auto" and any(getattr(arguments, name) is not None for name in SEARCHED):
        raise InputError(f"times and cap are for zb-auto's search: {arguments.name} has the same order for all of them")
    fill_in(arguments)
    program = _generate(arguments, arguments.name)
    if arguments.csv:
        write_file(arguments.csv, lambda path: program.to_csv(path))
    if arguments.json:
        print_json(
            {"schedule": program.name, "stages": program.stages, "microbatches": program.microbatches, "ranks": program.ranks_as_text}
        )
    else:
        print(program)
    return 0


def _generate(arguments, name):
    options = _options(arguments)
    if name == "zb-auto":
        if None in (arguments.forward_ms, arguments.input_grad_ms, arguments.weight_grad_ms):
            raise InputError("zb-auto searches the best order for given times: give --forward-ms, --input-grad-ms and --weight-grad-ms")
        options |= {
            "cap": arguments.activation_cap,
            **search_options(_rank_times(arguments), _link(arguments), arguments.weight_grad_memory),
        }
    return sl.generate(name, arguments.pp, arguments.microbatches, **options)


def _options(arguments):
    return {"chunks": arguments.chunks, "group": arguments.group}


def check(arguments):
    """Hold a CSV program against the rules."""
    program = sl.validate(sl.Program.from_csv(arguments.file))
    facts = {
        "ok": True,
        "ranks": len(program.ranks),
        "stages": program.stages,
        "microbatches": program.microbatches,
        "ops": len(program.rank_of),
    }
    if arguments.json:
        print_json(facts)
    else:
        print("valid: {ranks} ranks, {stages} stages, {microbatches} microbatches, {ops} ops".format(**facts))
    return 0


def simulate(arguments):
    """Simulate a schedule or a CSV program with the given op times, or a model's training step on a cluster."""
    if arguments.model is not None:
        return simulate_model(arguments)
    if not (arguments.schedule or arguments.csv):
        raise InputError("nothing to simulate: give --schedule or --csv with op times, or --model and --cluster")
    refuse_given(arguments, ONLY_WITH_MODEL, "goes with --model: with op times there is only a pipeline")
    fill_in(arguments)
    if arguments.forward_ms is None:
        raise InputError("give --forward-ms, the time of a forward, or --model and --cluster")
    if arguments.csv:
        if any(value is not None for value in (arguments.pp, arguments.microbatches, *_options(arguments).values())):
            raise InputError("--csv brings its own stages and microbatches: leave out --pp, --microbatches and what a schedule can be told")
        program = sl.validate(sl.Program.from_csv(arguments.csv))
    else:
        if not (arguments.pp and arguments.microbatches):
            raise InputError("--schedule needs --pp and --microbatches, both at least 1")
        program = _generate(arguments, arguments.schedule)
    if arguments.pair_ms is not None and not program.paired:
        raise InputError(f"--pair-ms {arguments.pair_ms:g}: {program.name} has no forward beside a backward; DualPipe's schedules have")
    _check_split(arguments, program)
    times, memory = rank_shares(program, _rank_times(arguments), arguments.weight_grad_memory)
    if work := _stage_work(arguments, program.stages):
        times = times.weighted(work)
    trace = sl.simulate(program, times, link=_link(arguments), memory=memory)
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
    if work:
        result["stage_work"] = work
    if arguments.activation_cap is not None:
        trace.metadata["activation_cap"] = arguments.activation_cap
        breaches = sl.breaches(trace, arguments.activation_cap)
        result |= {"fits": not breaches, "breaches": [breach._asdict() for breach in breaches]}
        for breach in breaches:
            print(f"over the cap of {arguments.activation_cap:g}: {breach}", file=sys.stderr)
    if arguments.explain:
        result |= explained(trace)
    if program.name in WITHOUT_FLUSH:
        result |= sl.staleness(program)._asdict() | {"steady_idle": sl.steady_idle(trace)}
    if arguments.trace:
        write_file(arguments.trace, lambda path: trace.save(path))
    if arguments.perfetto:
        write_file(arguments.perfetto, lambda path: path.write_text(timeline(trace, renderer="perfetto"), encoding="utf-8"))
    if arguments.picture:
        write_file(arguments.picture, lambda path: timeline(trace, critical_path=arguments.explain).savefig(path))
    if arguments.json:
        print_json(result)
    else:
        print(_summary(result))
    return 0


def schedules(arguments):
    """Simulate every schedule on the same ranks, microbatches and times: one table."""
    fill_in(arguments)
    rows = survey(
        arguments.pp, arguments.microbatches, _rank_times(arguments), link=_link(arguments),
        weight_grad_memory=arguments.weight_grad_memory, options={**_options(arguments), "cap": arguments.activation_cap},
    )  # fmt: skip
    if arguments.picture:
        traces = [row.trace for row in rows if row.trace]
        write_file(arguments.picture, lambda path: timeline(traces, memory=False).savefig(path))
    if arguments.json:
        print_json({"schedules": [_row(row) for row in rows]})
    else:
        print(survey_table(rows))
    return 0


def catalog(arguments):
    """List the models and the clusters that come with simlab."""
    print(catalog_json() if arguments.json else catalog_text())
    return 0


def _row(row):
    """What is known of a `Row`, as plain values."""
    facts = {field: value for field, value in vars(row).items() if field != "trace" and value is not None}
    return facts | ({"bubble": row.bubble._asdict()} if row.bubble else {})


def _rank_times(arguments):
    """`OpTimes` of a rank's whole share of the layers."""
    input_grad_ms, weight_grad_ms, backward_ms = arguments.input_grad_ms, arguments.weight_grad_ms, arguments.backward_ms
    if backward_ms is None:
        if input_grad_ms is None or weight_grad_ms is None:
            raise InputError("give --backward-ms, or both --input-grad-ms and --weight-grad-ms")
    elif None not in (input_grad_ms, weight_grad_ms) and not math.isclose(backward_ms, input_grad_ms + weight_grad_ms):
        parts = f"{input_grad_ms:g} + {weight_grad_ms:g}"
        print(
            f"note: B is {backward_ms:g} ms, I + W {parts}: schedules with and without a split backward do different work", file=sys.stderr
        )
    if not 0 <= arguments.weight_grad_memory <= 1:
        raise InputError(f"--weight-grad-memory {arguments.weight_grad_memory:g}: give a part of the activations, 0 to 1")
    seconds = {f"{kind}_s": _seconds(arguments, f"{kind}_ms") for kind in ("forward", "backward", "input_grad", "weight_grad", "pair")}
    return sl.OpTimes(**seconds, jitter=arguments.jitter, seed=arguments.seed)


def _seconds(arguments, field):
    """The argument `field` in s; None where it is not given."""
    value = getattr(arguments, field)
    if value is not None and not 0 <= value < float("inf"):
        raise InputError(f"{flag(field)} {value:g}: give a finite number of milliseconds, 0 or more")
    return None if value is None else value * MS


def _check_split(arguments, program):
    """`InputError` if the program has the parts of a backward, and their times are not given."""
    parts = sorted({op.kind for op in program.rank_of} & {"I", "W"})
    missing = [flag(name) for name in ("input_grad_ms", "weight_grad_ms") if getattr(arguments, name) is None]
    if parts and missing:
        raise InputError(f"{program.name} has {' and '.join(parts)} ops, parts of a backward: give {' and '.join(missing)}")


def _link(arguments):
    """The `Link` that the arguments ask for; None where messages take no time."""
    latency_s = _seconds(arguments, "p2p_ms")
    return sl.Link(latency_s=latency_s) if latency_s else None


def _stage_work(arguments, stages):
    """[work of each stage] if layers were given, in a layer's; else None."""
    if arguments.layers is None:
        if arguments.embedding or arguments.head or arguments.partition:
            raise InputError("--embedding, --head and --partition are about layers: give --layers too")
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


def _summary(result):
    bubble = result["bubble"]
    lines = [
        "{schedule}: {stages} stages, {microbatches} microbatches, {ops} ops, {messages} messages".format(**result),
        f"step                     {seconds_text(result['step_s'])}",
        f"bubble / ideal time      {bubble['idle_over_ideal']:.4f}   idle / busy time, of all ranks",
        f"bubble / makespan        {bubble['idle_over_makespan']:.4f}   idle / whole time, of all ranks",
        f"bubble of longest stage  {bubble['longest_stage']:.4f}   idle / span of the rank with the longest one",
        f"peak live microbatches   {result['peak_live_microbatches']}",
        f"peak activations         {[round(value, 3) for value in result['peak_activations']]}   of a rank's share of a microbatch",
    ]
    if "stage_work" in result:
        lines.append(f"work of each stage       {result['stage_work']}   in layers")
    if "weight_versions" in result:
        lines.append(f"weight versions          {result['weight_versions']}   staleness {result['staleness']} updates")
        if result["steady_idle"] is not None:
            lines.append(f"idle while it is full    {result['steady_idle']:.4f}   of all ranks' time: all there is without a flush")
    if "gaps" in result:
        lines += explained_lines(result)
    return "\n".join(lines)


def parser():
    """The argument parser."""
    top = argparse.ArgumentParser(
        prog="python -m simlab",
        description="How large models are trained on many GPUs: schedules, memory, step times, simulated.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    names = ", ".join([*SCHEDULES, *WITHOUT_FLUSH, *(f"{alias} (= {name})" for alias, name in ALIASES.items())])

    command = commands.add_parser("schedule", help="print a schedule's program, one row per rank", description=schedule.__doc__)
    command.add_argument("name", metavar="NAME", help=names)
    _add_size(command, required=True)
    _add_times(command, required=False, title="zb-auto only: what the search is for")
    command.add_argument("--csv", metavar="FILE", help="also write it as CSV, which torch.distributed.pipelining reads too")
    command.set_defaults(run=schedule)

    command = commands.add_parser("check", help="check a program in a CSV file", description=check.__doc__)
    command.add_argument("file", metavar="FILE.csv", help="one row per rank, one op such as 2F0 per cell")
    command.set_defaults(run=check)

    command = commands.add_parser(
        "simulate", help="simulate a schedule, a CSV program, or a model on a cluster", description=simulate.__doc__
    )
    source = command.add_mutually_exclusive_group()
    source.add_argument("--schedule", metavar="NAME", help=names)
    source.add_argument("--csv", metavar="FILE", help="a program as CSV")
    _add_size(command, required=False)
    add_plan(command)
    _add_times(command, required=False)
    layers = command.add_argument_group("stages of unequal work (the times above are then those of the mean stage)")
    layers.add_argument("--layers", type=int, metavar="L", help="layers to cut into stages")
    layers.add_argument("--embedding", type=float, metavar="X", help="work of the embedding, in layers (default 0)")
    layers.add_argument("--head", type=float, metavar="X", help="work of head and loss, in layers (default 0)")
    layers.add_argument("--partition", choices=("even", "best"), help="equally many layers a stage (default), or the best contiguous cut")
    command.add_argument("--explain", action="store_true", help="say what idle time waited for; show the critical path")
    command.add_argument("--picture", metavar="X.png", help="draw the timeline and the memory strip (needs matplotlib)")
    command.add_argument("--trace", metavar="X.json", help="write the trace, see simlab.Trace")
    command.add_argument("--perfetto", metavar="X.json", help="write the trace for https://ui.perfetto.dev")
    command.set_defaults(run=simulate)

    command = commands.add_parser("schedules", help="one table of all schedules", description=schedules.__doc__)
    _add_size(command, required=True)
    _add_times(command)
    command.add_argument("--picture", metavar="X.png", help="draw them under each other on one time axis (needs matplotlib)")
    command.set_defaults(run=schedules)

    command = commands.add_parser("catalog", help="list the models and clusters that come with simlab", description=catalog.__doc__)
    command.set_defaults(run=catalog)

    command = commands.add_parser("memory", help="bytes of model states per rank, under ZeRO", description=memory.__doc__)
    add_memory(command)
    command.set_defaults(run=memory)

    command = commands.add_parser("validate", help="predict published runs, say how far off", description=validate.__doc__)
    add_validate(command)
    command.set_defaults(run=validate)

    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return top


def _add_size(command, *, required):
    command.add_argument("--pp", type=int, required=required, metavar="P", help="pipeline stages, one rank each")
    command.add_argument("--microbatches", type=int, required=required, metavar="M", help="microbatches in a step")
    command.add_argument("--chunks", type=int, metavar="V", help=f"stages per rank, for {' and '.join(CHUNKED)} (default 2)")
    command.add_argument("--group", type=int, metavar="G", help="microbatches in a group, for interleaved-1f1b (default about P)")


def _add_times(command, *, required=True, title="one microbatch on one rank (all of its stages)"):
    times = command.add_argument_group(title)
    times.add_argument("--forward-ms", type=float, required=required, metavar="F", help="its forward, ms")
    times.add_argument("--backward-ms", type=float, metavar="B", help="its whole backward, ms (default I + W)")
    times.add_argument("--input-grad-ms", type=float, metavar="I", help="the part of it that other stages wait for, ms")
    times.add_argument("--weight-grad-ms", type=float, metavar="W", help="the rest of it, ms; for schedules that split it")
    times.add_argument("--pair-ms", type=float, metavar="T", help="F&B, a forward beside a backward, in DualPipe, ms (default F + B)")
    times.add_argument("--p2p-ms", type=float, metavar="C", help="one message between stages, ms (default 0)")
    times.add_argument("--jitter", type=float, metavar="CV", help="coefficient of variation of every op's time (default 0)")
    times.add_argument("--seed", type=int, metavar="N", help="of the jitter (default 0)")
    times.add_argument(
        "--weight-grad-memory", type=float, metavar="X",
        help=f"part of its activations that stays from I to W (default {WEIGHT_GRAD_MEMORY})",
    )  # fmt: skip
    cap = "the most activations to hold, 1 is a microbatch's on a rank: zb-auto keeps to it (default P), others are told of"
    times.add_argument("--activation-cap", type=float, metavar="X", help=cap)


if __name__ == "__main__":
    sys.exit(main())
