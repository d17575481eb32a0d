"""python -m docs.generate: write the parts of docs/ that are computed, or with --check say which
are old.

These parts are computed. The order of rooms in architecture.md is that of the test which holds it. The
tables of flags in command-line.md come from the argument parsers. The table of fields in executing.md
comes from realrun's checks. The tables of errors in validation.md come from the published runs, that of
Llama 3 405B's layout is predicted, and those of an H100's kernels are predicted beside what was measured.
The table of spellings in published-rows.md comes from the words that are read there. The schemas of plan
and cluster files, in docs/schemas, are computed as a whole, and so are the errors of published runs that a
prediction tells its uncertainty from.
"""

import argparse
import ast
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import simlab as sl
from benchmarks import kernels_on_a_gpu
from docs.schemas import SCHEMAS
from docs.spellings import tables
from realrun.cli import main as realrun_main
from realrun.cli.check import BACKENDS
from realrun.run.job.checks import EXECUTION
from simlab.cli import main as simlab_main
from simlab.cli.options import value_text
from simlab.studies.published.errors import Facts, recorded, suites
from simlab.studies.published.runs import (
    RUNS,
    RUNS_2026,
    SWEEPS,
    Result,
    read_runs,
    validate_runs,
)
from simlab.units import GIB, bytes_text

HERE = Path(__file__).parent
ROOT = HERE.parent


def main(argv: list[str] | None = None) -> int:
    """Write what is old, or with --check only name it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a part is old")
    arguments = parser.parse_args(argv)
    old = [name for name in (*PARTS, *WHOLE) if (HERE / name).read_text("utf-8") != current(name)]
    for name in old:
        print(f"{name} is old" if arguments.check else f"{name} written")
        if not arguments.check:
            (HERE / name).write_text(current(name), encoding="utf-8")
    return 1 if old and arguments.check else 0


def current(name: str) -> str:
    """The text that docs/`name` should have: its own words, with the computed parts made anew, or a
    schema."""
    if name == RECORDED:
        return "[\n" + ",\n".join(json.dumps(its) for its in recorded_errors()) + "\n]\n"
    if name in SCHEMAS:
        return json.dumps(SCHEMAS[name](), indent=1, allow_nan=False) + "\n"
    text = (HERE / name).read_text(encoding="utf-8")
    for mark, made in PARTS[name](text):
        begin, end = f"<!-- begin {mark} -->\n", f"<!-- end {mark} -->"
        before, _, rest = text.partition(begin)
        if end not in rest:
            raise SystemExit(f"{name} lacks {begin.strip()} ... {end}")
        text = before + begin + made + end + rest.partition(end)[2]
    return text


def room_order() -> dict[str, tuple[str, ...]]:
    """{package: its rooms, level by level}, as `tests/test_architecture.py` holds it."""
    tree = ast.parse((ROOT / "tests" / "test_architecture.py").read_text(encoding="utf-8"))
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ORDER"
    )


def rooms(text: str) -> Iterator[tuple[str, str]]:
    """(mark, the order of rooms for reading): a line for each package, an arrow to what may import the
    room."""
    lines = [
        f"{package:<8} " + " → ".join(level.replace(" ", ", ") for level in levels)
        for package, levels in room_order().items()
    ]
    yield "order", "".join(f"```\n{line}\n```\n\n" for line in lines)


def flags(text: str) -> Iterator[tuple[str, str]]:
    """(mark, tables) of the parsers of both packages."""
    commands = next(iter(subparsers(simlab_main.parser()).items()))[1]
    yield (
        "flags of simlab",
        "".join(
            f"\n### simlab {name}\n\n{' '.join((command.description or '').split())}\n\n"
            + flag_table(command)
            for name, command in commands.items()
        )
        + "\n",
    )
    realrun = realrun_main.parser()
    parsers = {"realrun": realrun} | {
        f"realrun {name}": one for name, one in realrun.commands.items()
    }
    yield (
        "flags of realrun",
        "".join(f"\n### {name}\n\n" + flag_table(parser) for name, parser in parsers.items())
        + "\n",
    )


def subparsers(parser: argparse.ArgumentParser) -> dict[str, dict[str, argparse.ArgumentParser]]:
    """{argument: {name: parser}} of a parser's commands."""
    return {
        action.dest: dict(action.choices)
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    }


def flag_table(parser: argparse.ArgumentParser) -> str:
    """A table of what a parser takes, group by group."""
    table = "| argument | meaning |\n|---|---|\n"
    for group in parser._action_groups:
        actions = [
            action
            for action in group._group_actions
            if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
            and action.help != argparse.SUPPRESS
        ]
        if actions and group.title not in ("options", "optional arguments", "positional arguments"):
            table += f"| | **{group.title}** |\n"
        table += "".join(f"| `{written(action)}` | {told(action)} |\n" for action in actions)
    return table


def written(action: argparse.Action) -> str:
    """An argument as it is written: its flag and what stands after it."""
    values = "" if action.choices is None else "{" + ",".join(map(str, action.choices)) + "}"
    value = str(action.metavar or values or action.dest.upper()).replace("|", "/")
    if not action.option_strings:
        return value
    return " ".join([action.option_strings[-1], *([value] if action.nargs != 0 else [])])


def told(action: argparse.Action) -> str:
    """What `--help` says of an argument."""
    said = (action.help or "").replace("|", "or").replace(f"{ROOT}/", "")
    choices = (
        "one of " + ", ".join(f"`{choice}`" for choice in action.choices)
        if action.choices and action.metavar
        else ""
    )
    given = {"default": action.default, "prog": ""}
    return "; ".join(filter(None, [said % given if "%(" in said else said, choices])) or "a number"


@cache
def results(file: Path) -> list[Result]:
    """The predictions of a file of published runs."""
    return validate_runs(read_runs(file))


def recorded_errors() -> list[Facts]:
    """The errors that `simlab.Prediction.uncertainty` reads, of all published runs."""
    return recorded(result for file in (RUNS, RUNS_2026, SWEEPS) for result in results(file))


def errors(text: str) -> Iterator[tuple[str, str]]:
    """(mark, table) of how far published runs are off, suite by suite, and of how well predictions
    choose among layouts."""
    columns = ("mape", "max", "bias", "constant_mape", "memory_mape")
    head = (
        "| suite | rows | mean error % | worst % | bias % | constant utilisation % | memory % |\n"
    )
    for mark, file in (("errors", RUNS), ("errors of 2026", RUNS_2026)):
        yield (
            mark,
            head
            + "|---|---|---|---|---|---|---|\n"
            + "".join(
                f"| {name} | {its['rows']} | "
                + " | ".join("" if its[key] is None else f"{its[key]:.1f}" for key in columns)
                + " |\n"
                for name, its in suites(results(file)).items()
                if its["rows"]
            ),
        )
    yield choices()
    yield llama()
    yield deepseek()
    yield machines()
    yield "kernels", kernels_on_a_gpu.tables()


def choices() -> tuple[str, str]:
    """(mark, table) of how well the predictions choose among the layouts of published sweeps."""
    keys = {"spearman": 2, "regret_pct": 1, "regret5_pct": 1, "fit_errors_pct": 1}
    head = (
        "| sweep | ran | failed | Spearman | its rule's | regret % | its rule's "
        "| best of five % | its rule's | fit errors % | its rule's |\n" + "|---" * 11 + "|\n"
    )
    lines = []
    for name, its in suites(results(SWEEPS)).items():
        figures = [
            f"{its[prefix + key]:.{digits}f}"
            for key, digits in keys.items()
            for prefix in ("", "rule_")
        ]
        counts = its["rows"] - its["failed"], its["failed"]
        lines.append(f"| {name} | " + " | ".join([*map(str, counts), *figures]) + " |\n")
    return "choices", head + "".join(lines)


def llama() -> tuple[str, str]:
    """(mark, table) of the layout of Llama 3 405B as it was published, and with sharded gradients."""
    model, cluster = sl.load_model("llama-3-405b"), sl.load_cluster("dgx-h100", nodes=2048)
    lines = ["| | step | MFU | without attention | peak of tensors |", "|---|---|---|---|---|"]
    for zero in (1, 2):
        plan = sl.Plan(
            dp=128, tp=8, pp=16, zero=zero, microbatches=16, schedule="interleaved-1f1b", chunks=8,
            seq=8192, sequence_parallel=True,
        )  # fmt: skip
        step = sl.predict(model, plan, cluster)
        bare = step.mfu * 6 * model.parameters / model.flops_per_token(plan.seq)
        held, room = sum(step.memory_bytes.values()), step.capacity_bytes
        more = f"{(held - room) / GIB:.1f} GiB too much" if held > room else "fits"
        lines.append(
            f"| predicted, ZeRO-{zero} | {step.step_s:.2f} s | {step.mfu:.1%} | {bare:.1%} | "
            f"{bytes_text(held)} of {bytes_text(room)}, {more}; "
            f"gradients {bytes_text(step.memory_bytes['gradients'])} |"
        )
    lines.append("| published | | 41% | | |")
    return "llama", "\n".join(lines) + "\n"


def deepseek() -> tuple[str, str]:
    """(mark, table) of DeepSeek-V3's own training, and of what its parts are worth."""
    model, cluster = sl.load_model("deepseek-v3"), sl.load_cluster("h800", nodes=256)
    plan = sl.Plan(
        dp=128, pp=16, ep=64, zero=1, microbatches=120, seq=4096, schedule="dualpipe", ep_overlap=True,
        dispatcher="once-a-node", recompute="outputs", precision="fp8", fp8_param_gather=True, moment_bytes=2,
        stage_layers="uneven",
    )  # fmt: skip
    any_experts = replace(model, expert_groups=0, groups_per_token=0)
    rows = {
        "predicted": (model, {}),
        "a 62nd layer, for the module that predicts a second token": (replace(model, layers=62), {}),
        "experts on any nodes, not on four": (any_experts, {}),
        "DualPipe-V": (model, {"schedule": "dualpipe-v"}),
        "no forward beside a backward": (model, {"ep_overlap": False}),
        "1F1B": (model, {"ep_overlap": False, "schedule": "1f1b"}),
        "1F1B, a copy for each expert": (
            model, {"ep_overlap": False, "schedule": "1f1b", "dispatcher": "all-to-all"},
        ),
    }  # fmt: skip
    lines = ["| | step | exposed all-to-alls | bubble | peak of tensors |", "|---|---|---|---|---|"]
    for name, (its, changes) in rows.items():
        step = sl.predict(its, replace(plan, **changes), cluster)
        spent, held = step.waterfall_s, sum(step.memory_bytes.values())
        lines.append(
            f"| {name} | {step.step_s:.1f} s | {spent.ep:.1f} s | {spent.bubble:.1f} s | {bytes_text(held)} |"
        )
    steps = 1e12 / (plan.global_batch * plan.seq)
    lines.append(f"| published | {180e3 * 3600 / plan.gpus / steps:.1f} s | | | |")
    return "deepseek", "\n".join(lines) + "\n"


def execution(text: str) -> Iterator[tuple[str, str]]:
    """(mark, table) of what realrun makes of each field of a plan."""
    lines = ["| field | executed | how one sees it, or why not |", "|---|---|---|"]
    for name, its in EXECUTION.items():
        values = "all values"
        if its.values is not None:
            values = (
                "its default" if its.values == (None,) else ", ".join(map(value_text, its.values))
            )
            values += "; with a box all" * its.in_box
        lines.append(f"| `{name}` | {values} | {its.seen} |")
    yield "execution of fields", "\n".join(lines) + "\n"


def machines() -> tuple[str, str]:
    """(mark, table) of what `realrun check` found on each machine whose file is in assets/measurements."""
    lines = [
        "| machine | what was trained | back-end | plans | median error | from, to |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted((ROOT / "assets" / "measurements").glob("check_*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        about, sizes = found["machine"], found["sizes"]
        model = f"{sizes['layers']} layers of {found['model']}, {sizes['hidden']} wide, {found['precision']}"
        for backend in BACKENDS:
            rows = [row for row in found["rows"] if row["backend"] == backend]
            off = [row["error"] for row in rows if "error" in row]
            lines.append(
                f"| [{about['ranks']} x {about['device']}](../assets/measurements/{path.name}), {about['measured_at'][:10]} "
                f"| {model} | {backend} | {len(off)} of {len(rows)} | {median(map(abs, off)):.1%} "
                f"| {min(off):+.1%} to {max(off):+.1%} |"
            )
    return "machines", "\n".join(lines) + "\n"


def spellings(text: str) -> Iterator[tuple[str, str]]:
    """(mark, table) of how a file of published runs is spelled."""
    yield "spellings", tables()


PARTS: dict[str, Callable[[str], Iterator[tuple[str, str]]]] = {
    "architecture.md": rooms,
    "command-line.md": flags,
    "executing.md": execution,
    "published-rows.md": spellings,
    "validation.md": errors,
}
"""{file of docs/: what gives its computed parts}."""
RECORDED = "../simlab/training/recorded_errors.json"
WHOLE = (*SCHEMAS, RECORDED)
"""Files that are computed as a whole."""

if __name__ == "__main__":
    sys.exit(main())
