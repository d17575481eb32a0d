"""python -m simlab: make, check and simulate pipeline programs from the command line."""

import argparse
import json
import os
import sys
from pathlib import Path

import simlab as sl
from simlab.errors import InputError, SimlabError
from simlab.schedules import ALIASES, CHUNKED, SCHEDULES
from simlab.units import MS, seconds_text
from simlab.views import timeline

EPILOG = """examples:
  python -m simlab schedule 1f1b --pp 4 --microbatches 8
  python -m simlab schedule 1f1b --pp 4 --microbatches 8 --csv mine.csv   then edit it, and
  python -m simlab check mine.csv
  python -m simlab simulate --csv mine.csv --forward-ms 20 --backward-ms 40 --picture mine.png

exit status: 0 done, 1 the check failed, 2 bad arguments"""


def main(argv=None):
    """Run the command line; returns the exit status. Answers go to stdout, messages to stderr."""
    arguments = parser().parse_args(argv)
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read it has enough, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 0


def _run(arguments):
    try:
        return arguments.run(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except SimlabError as error:
        if arguments.json:
            print(json.dumps({"ok": False, "error": str(error)}))
        print(f"failed: {error}", file=sys.stderr)
        return 1


def schedule(arguments):
    """Print a schedule's program, one row per rank; write it as CSV if asked."""
    program = sl.generate(arguments.name, arguments.pp, arguments.microbatches, chunks=arguments.chunks)
    if arguments.csv:
        _write(arguments.csv, lambda path: program.to_csv(path))
    if arguments.json:
        _print_json(
            {"schedule": program.name, "stages": program.stages, "microbatches": program.microbatches, "ranks": program.ranks_as_text}
        )
    else:
        print(program)
    return 0


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
        _print_json(facts)
    else:
        print("valid: {ranks} ranks, {stages} stages, {microbatches} microbatches, {ops} ops".format(**facts))
    return 0


def simulate(arguments):
    """Simulate a schedule or a CSV program with the given op times."""
    if arguments.csv:
        if arguments.pp or arguments.microbatches:
            raise InputError("--csv brings its own stages and microbatches: leave out --pp and --microbatches")
        program = sl.validate(sl.Program.from_csv(arguments.csv))
    else:
        if not (arguments.pp and arguments.microbatches):
            raise InputError("--schedule needs --pp and --microbatches, both at least 1")
        program = sl.generate(arguments.schedule, arguments.pp, arguments.microbatches, chunks=arguments.chunks)
    times = _times(arguments, program)
    trace = sl.simulate(program, times, link=sl.Link(latency_s=arguments.p2p_ms * MS))
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
    }
    if arguments.trace:
        _write(arguments.trace, lambda path: trace.save(path))
    if arguments.perfetto:
        _write(arguments.perfetto, lambda path: path.write_text(timeline(trace, renderer="perfetto"), encoding="utf-8"))
    if arguments.picture:
        _write(arguments.picture, lambda path: timeline(trace).savefig(path))
    if arguments.json:
        _print_json(result)
    else:
        print(_summary(result))
    return 0


def _times(arguments, program):
    """The stages' `OpTimes`: the arguments are for a rank's whole share of the layers, which its stages divide equally."""
    input_grad_ms, weight_grad_ms, backward_ms = arguments.input_grad_ms, arguments.weight_grad_ms, arguments.backward_ms
    if backward_ms is None:
        if input_grad_ms is None or weight_grad_ms is None:
            raise InputError("give --backward-ms, or both --input-grad-ms and --weight-grad-ms")
        backward_ms = input_grad_ms + weight_grad_ms
    part_s = MS * len(program.ranks) / program.stages
    split = {"input_grad_s": input_grad_ms, "weight_grad_s": weight_grad_ms}
    return sl.OpTimes(
        forward_s=arguments.forward_ms * part_s,
        backward_s=backward_ms * part_s,
        **{field: None if value is None else value * part_s for field, value in split.items()},
    )


def _summary(result):
    bubble = result["bubble"]
    return "\n".join(
        [
            "{schedule}: {stages} stages, {microbatches} microbatches, {ops} ops, {messages} messages".format(**result),
            f"step                     {seconds_text(result['step_s'])}",
            f"bubble / ideal time      {bubble['idle_over_ideal']:.4f}   (p-1)/m for GPipe and 1F1B with free communication",
            f"bubble / makespan        {bubble['idle_over_makespan']:.4f}   (p-1)/(m+p-1) likewise",
            f"bubble of longest stage  {bubble['longest_stage']:.4f}",
            f"peak live microbatches   {result['peak_live_microbatches']}",
        ]
    )


def _print_json(result):
    print(json.dumps(result))


def _write(path, write):
    """Call `write` with `path` as a Path; an `InputError` that quotes it if it cannot be written."""
    try:
        write(Path(path))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {path!r}: {getattr(error, 'strerror', None) or error}") from error
    print(f"wrote {path}", file=sys.stderr)


def parser():
    """The argument parser."""
    top = argparse.ArgumentParser(
        prog="python -m simlab",
        description="Pipeline schedules of large-model training: make them, check them, simulate them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    names = ", ".join([*SCHEDULES, *(f"{alias} (= {name})" for alias, name in ALIASES.items())])

    chunks = f"stages per rank, for {' and '.join(CHUNKED)} (default 2)"

    command = commands.add_parser("schedule", help="print a schedule's program, one row per rank", description=schedule.__doc__)
    command.add_argument("name", metavar="NAME", help=names)
    command.add_argument("--pp", type=int, required=True, metavar="P", help="pipeline stages")
    command.add_argument("--microbatches", type=int, required=True, metavar="M", help="microbatches in a step")
    command.add_argument("--chunks", type=int, metavar="V", help=chunks)
    command.add_argument("--csv", metavar="FILE", help="also write it as CSV, which torch.distributed.pipelining reads too")
    command.set_defaults(run=schedule)

    command = commands.add_parser("check", help="check a program in a CSV file", description=check.__doc__)
    command.add_argument("file", metavar="FILE.csv", help="one row per rank, one op such as 2F0 per cell")
    command.set_defaults(run=check)

    command = commands.add_parser("simulate", help="simulate a schedule or a CSV program", description=simulate.__doc__)
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--schedule", metavar="NAME", help=names)
    source.add_argument("--csv", metavar="FILE", help="a program as CSV")
    command.add_argument("--pp", type=int, metavar="P", help="pipeline stages")
    command.add_argument("--microbatches", type=int, metavar="M", help="microbatches in a step")
    command.add_argument("--chunks", type=int, metavar="V", help=chunks)
    command.add_argument("--forward-ms", type=float, required=True, metavar="F", help="one microbatch's forward on one rank, ms")
    command.add_argument("--backward-ms", type=float, metavar="B", help="its whole backward, ms (default I + W)")
    command.add_argument("--input-grad-ms", type=float, metavar="I", help="the part of it that other stages wait for, ms")
    command.add_argument("--weight-grad-ms", type=float, metavar="W", help="the rest of it, ms; for schedules that split it")
    command.add_argument("--p2p-ms", type=float, default=0.0, metavar="C", help="one message between stages, ms (default 0)")
    command.add_argument("--picture", metavar="X.png", help="draw the timeline and the memory strip (needs matplotlib)")
    command.add_argument("--trace", metavar="X.json", help="write the trace, see simlab.Trace")
    command.add_argument("--perfetto", metavar="X.json", help="write the trace for https://ui.perfetto.dev")
    command.set_defaults(run=simulate)

    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return top


if __name__ == "__main__":
    sys.exit(main())
