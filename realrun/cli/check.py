"""The command `realrun check`: this machine is measured, plans are predicted for it and then run by both
back-ends, and one file says how far off the predictions were."""

import argparse
import json
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NotRequired, TypedDict

from realrun.cli.doctor import examined
from realrun.cli.jobs import jobs
from realrun.cli.measure import About, choose_ranks, measured_file
from realrun.cli.options import SIZES, Option, add_device_options, add_options
from realrun.cli.run_command import fraction, say, written
from realrun.launch import ranks as launch
from realrun.launch.pool import Pool, RunError
from realrun.run.job import Job
from realrun.run.job.checks import BACKENDS
from simlab.cli.output import print_json, print_text
from simlab.display import plain
from simlab.errors import InputError
from simlab.operations.doctor import Finding, Machine, findings
from simlab.operations.doctor.machine import PORT
from simlab.units import bytes_text, percent_text, seconds_text

EPILOG = """examples:
  realrun check
  realrun check --ranks 2 --hidden 256 --layers 2 --steps 2 --device cpu
  torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d \\
    --rdzv-endpoint HOST:29400 -m realrun check --predict-on two_nodes.json

exit status: 0 everything ran and was right, 1 a run failed, its gradients are
not those of one process, or it is predicted worse than --max-error allows,
2 bad arguments"""
MODEL, SEQUENCES, MOST_RANKS = "llama-3-8b", 16, 8
WIDTHS = {
    "cpu": {"hidden": 512, "heads": 8, "seq": 256},
    "cuda": {"hidden": 2048, "heads": 16, "seq": 2048},
}
"""{kind of device: sizes of the model that is trained}: kernels count, and a GPU of 16 GB holds it."""
PRECISION = {"cpu": "fp32", "cuda": "bf16"}
OPTIONS = {
    "out": Option(str, "DIR", "where everything is written (default check)"),
    "ranks": Option(
        int, "N", "processes, a power of 2 up to 8 (default: as many as GPUs, or else cores)"
    ),
    "model": Option(str, "NAME", f"whose layers are trained (default {MODEL})"),
    "layers": Option(int, "L", "its layers (default 4, or as many as ranks)"),
    "hidden": Option(int, "N", "its hidden size (default 512 on a CPU, 2048 on GPUs)"),
    "heads": Option(int, "N", "its attention heads (default 8 on a CPU, 16 on GPUs)"),
    "seq": Option(int, "N", "tokens in a sequence (default 256 on a CPU, 2048 on GPUs)"),
    "steps": Option(int, "N", "measured steps of each run (default 3)"),
    "predict_on": Option(str, "CLUSTER", "predict for this machine, and measure none"),
    "max_error": Option(float, "PERCENT", "fail if a predicted step is further off than this"),
}


class Row(TypedDict):
    """One run: a plan, executed by a back-end. Bytes are those of the rank that has most; loss and
    gradients are held against those of one process, in float64."""

    plan: dict[str, Any]
    backend: Annotated[str, BACKENDS]
    failed: list[str]
    refused: NotRequired[str]
    """Why this plan cannot be run by this back-end."""
    predicted_step_s: NotRequired[float]
    measured_step_s: NotRequired[float]
    steps_s: NotRequired[list[float]]
    error: NotRequired[float]
    gradient_error: NotRequired[float]
    predicted_bytes: NotRequired[float]
    allocator_bytes: NotRequired[float | None]


class Answer(TypedDict):
    """What the machine is, and how its runs were predicted."""

    ok: bool
    failed: list[str]
    file: str
    report: str
    model: str
    sizes: dict[str, int]
    precision: str
    ranks: int
    machine: NotRequired[About]
    """What was measured, unless --predict-on names a cluster."""
    findings: list[Annotated[dict[str, Any], Finding]]
    rows: list[Row]


def check_command(arguments: argparse.Namespace) -> int:
    """Measure this machine, predict ten plans for it (six where it has one rank), run
    each by both back-ends, and write one file that says how far off each prediction
    was."""
    limit, out = fraction(arguments.max_error), Path(arguments.out)
    ranks, device = _ranks(arguments)
    sizes = {"layers": max(4, ranks)} | WIDTHS[device]
    sizes |= {name: its for name in SIZES if (its := getattr(arguments, name)) is not None}
    model, machine = arguments.model, arguments.predict_on or str(out / "machine.json")
    answer: Answer = {
        "ok": False,
        "failed": [],
        "file": str(out / "check.json"),
        "report": str(out / "report.html"),
        "model": model,
        "sizes": sizes,
        "precision": PRECISION[device],
        "ranks": ranks,
        "findings": [],
        "rows": [],
    }
    given = {"model": model, "precision": PRECISION[device], "steps": arguments.steps, **sizes}
    tried = [_asked(plan, BACKENDS[0], given, out)[0] for plan in plans(ranks)]
    if all(
        "refused" in row for row in tried
    ):  # then what was typed is wrong: before anything is measured
        raise InputError(tried[0]["refused"])
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {str(out)!r}: {error.strerror}") from error
    if not launch.under_torchrun():
        machines = examined(ranks, str(out.absolute()), arguments.port or PORT)
        answer["findings"] = plain(findings(Machine.of(machines[0]["machine"]), ranks=ranks))
        if not arguments.predict_on:
            found = measured_file(machine, ranks, device, quick=True, port=arguments.port)
            answer["machine"] = found["measured"]
    given["predict_on"] = machine
    wanted = [
        _asked(plan, backend, given, out / f"{backend}-{number}")
        for number, plan in enumerate(plans(ranks))
        for backend in BACKENDS
    ]
    answer["rows"] = [row for row, _ in wanted]
    done = [(job, row) for row, job in wanted if job]
    ran: list[tuple[Job, dict[str, Any]]] = []
    for (job, row), facts in zip(done, _facts([job for job, _ in done], device)):
        if isinstance(facts, RunError):
            row["failed"].append(str(facts))
        else:
            _fill(row, facts, limit)
            ran.append((job, facts))
        say(_line(row))
        _keep(answer)
    if launch.under_torchrun() and not ran:
        return 0  # another rank reports
    if ran:
        written([job for job, _ in ran], [facts for _, facts in ran], out / "report.html")
    if arguments.json:
        print_json(answer)
    else:
        print_text(_text(answer))
    return 0 if answer["ok"] else 1


def _ranks(arguments: argparse.Namespace) -> tuple[int, str]:
    """(ranks, kind of device). Unless asked for, so many that they can be halved to 1."""
    if launch.under_torchrun():
        if not arguments.predict_on:
            raise InputError(
                "RANK and WORLD_SIZE are set: a check under torchrun measures nothing; run `realrun measure` "
                "on a node, write its network into the file, and give it as --predict-on"
            )
        ranks = launch.world()
        if ranks not in (1, 2, 4, 8, SEQUENCES):
            raise InputError(f"torchrun started {ranks} ranks: start 1, 2, 4, 8 or {SEQUENCES}")
        return ranks, launch.choose_device(arguments.device, ranks, say=say)
    asked = arguments.ranks
    if asked is None:
        found = min(MOST_RANKS, choose_ranks(None, arguments.device)[0])
        asked = 1 << (found.bit_length() - 1)
    if asked not in (1, 2, 4, MOST_RANKS):
        raise InputError(f"--ranks {asked}: give 1, 2, 4 or {MOST_RANKS}")
    return choose_ranks(asked, arguments.device)


def plans(ranks: int) -> list[dict[str, Any]]:
    """Plans of `ranks` processes, a power of 2, that take `SEQUENCES` sequences in a step: fields of
    `simlab.Plan`. Tensor parallelism is 2 wide, so that few key and value heads suffice."""
    found: list[dict[str, Any]]
    if ranks == 1:
        found = [{"microbatch_size": size} for size in (4, 1, 8)]
        found += [{"recompute": which} for which in ("selective", "full")]
        found += [{"microbatch_size": 8, "recompute": "full"}]
        return [_batch(plan) for plan in found]
    rest = ranks // 2
    found = [
        *({"dp": ranks, "zero": zero} for zero in range(4)),
        {"dp": rest, "tp": 2},
        {"dp": rest, "tp": 2, "sequence_parallel": True, "zero": 1 if rest > 1 else 0},
        *({"pp": ranks, "schedule": name} for name in ("gpipe", "1f1b", "zb-h1")),
    ]
    mixed = {"dp": ranks // 4, "tp": 2, "pp": 2}
    found.append(mixed if ranks > 2 else {"dp": 2, "zero": 3, "recompute": "full"})
    return [_batch(plan) for plan in found]


def _batch(plan: dict[str, Any]) -> dict[str, Any]:
    """`plan` with microbatches that make `SEQUENCES`, at least two on a rank, and as many as stages."""
    dp, pp = plan.get("dp", 1), plan.get("pp", 1)
    size = plan.get("microbatch_size", max(1, min(4, SEQUENCES // 2 // max(dp, pp))))
    return plan | {"microbatch_size": size, "microbatches": max(1, SEQUENCES // size // dp)}


def _asked(
    plan: dict[str, Any], backend: str, given: dict[str, Any], out: Path
) -> tuple[Row, Job | None]:
    """The row of a plan, and the job that fills it; None: it is refused."""
    row: Row = {"plan": plan, "backend": backend, "failed": []}
    try:
        return row, jobs(given | plan | {"backend": backend, "out": str(out)})[0]
    except InputError as error:
        row["refused"] = str(error)
        return row, None


def _facts(wanted: Sequence[Job], device: str) -> Iterator[dict[str, Any] | RunError]:
    """The facts of each job's run, or why it failed. On another rank of torchrun than 0 there are none."""
    if launch.under_torchrun():
        with launch.held(wanted):
            yield from launch.run(wanted, device, say=say) or ()
        return
    pool: Pool | None = None
    try:
        for job in wanted:
            try:
                if pool is None or pool.closed:
                    pool = Pool(job.ranks, device=device, say=say)
                yield pool.run(job)
            except RunError as error:
                yield error
    finally:
        if pool is not None:
            pool.close()


def _fill(row: Row, facts: dict[str, Any], limit: float | None) -> None:
    """Put what a run found into its row."""
    from realrun.report.summary import failures

    for name in ("predicted_step_s", "measured_step_s", "steps_s", "error", "gradient_error"):
        row[name] = facts[name]
    row["predicted_bytes"] = max(sum(held.values()) for held in facts["memory_bytes_predicted"])
    allocated = [size for size in facts["allocator_bytes"] if size is not None]
    row["allocator_bytes"] = max(allocated, default=None)
    row["failed"] += failures(facts, max_error=limit)


def _keep(answer: Answer) -> None:
    """Judge `answer`, and write it into its file: after each run, so that nothing is lost."""
    answer["failed"] = [
        f"{row['backend']}, {_plan_text(row)}: {line}"
        for row in answer["rows"]
        for line in row["failed"]
    ]
    answer["ok"] = not answer["failed"]
    Path(answer["file"]).write_text(json.dumps(answer, indent=1, allow_nan=False), "utf-8")


def _plan_text(row: Row) -> str:
    return " ".join(f"{name} {value}" for name, value in row["plan"].items() if value)


def _line(row: Row) -> str:
    """A row as a line of text."""
    what = f"{row['backend']:<7}"
    if "measured_step_s" not in row:
        return f"{what} {_plan_text(row)}: {row.get('refused') or '; '.join(row['failed'])}"
    times = [seconds_text(row[name]) for name in ("predicted_step_s", "measured_step_s")]
    held = bytes_text(row["predicted_bytes"])
    if row["allocator_bytes"] is not None:
        held += f" of tensors, {bytes_text(row['allocator_bytes'])} allocated"
    error = percent_text(row["error"])
    return f"{what} {times[0]:>9} {times[1]:>9} {error:>7}  {held:>10}  {_plan_text(row)}"


def _text(answer: Answer) -> str:
    """The check as text: the machine, a line for each run, and how far off predictions were."""
    about = answer.get("machine")
    lines = [f"{answer['ranks']} x {about['device']}, torch {about['torch']}"] if about else []
    layers, hidden, seq = (answer["sizes"][name] for name in ("layers", "hidden", "seq"))
    lines += [
        f"{layers} layers of {answer['model']}, {hidden} wide, {SEQUENCES} sequences of {seq}, {answer['precision']}",
        f"{'':7} predicted  measured   error  held",
        *map(_line, answer["rows"]),
    ]
    for backend in BACKENDS:
        errors = [
            row["error"] for row in answer["rows"] if row["backend"] == backend and "error" in row
        ]
        if errors:
            middle = f"{median(map(abs, errors)):.1%}"
            lines.append(
                f"{backend}: {len(errors)} plans, median error {middle}, {percent_text(min(errors))} to {percent_text(max(errors))}"
            )
    lines += [f"failed: {line}" for line in answer["failed"]]
    lines.append(f"to keep: {answer['file']}   report: {answer['report']}")
    return "\n".join(lines)


def add_check(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `check`."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.description, command.epilog = cleandoc(check_command.__doc__ or ""), EPILOG
    add_options(command, OPTIONS)
    command.set_defaults(out="check", model=MODEL, steps=3)
    add_device_options(command, Answer)
