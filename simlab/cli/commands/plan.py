"""The command plan: the fastest plans of a model on a cluster, and why the best one wins."""

import argparse
import signal
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import NotRequired, TypedDict

import simlab as sl
from simlab.cli.commands.convert import SEARCHED
from simlab.cli.options import add_json_options, check_writable
from simlab.cli.output import COLUMNS, print_json, print_table, print_text, progress, write_file
from simlab.cli.plan_options import (
    add_batch_option,
    add_cluster_options,
    add_plan_options,
    given_values,
    plan_lines,
    plan_part,
)
from simlab.cost.roofline import assumptions
from simlab.errors import InputError
from simlab.planner import Ranked, Search, Space, advice, explanation, search
from simlab.planner.explain import AdviceFacts, ExplanationFacts
from simlab.planner.explanation_text import advice_text, explanation_text
from simlab.planner.search import DEGREES, KEPT, LAYERED, SearchFacts
from simlab.spec.cluster import nodes_of_file
from simlab.spec.model import MFU_CONVENTION
from simlab.spec.plan import Plan
from simlab.units import GIB, seconds_text

SHOWN = 10
"""The number of plans that the text shows where none is given."""
MOST_WORKERS = 1024
HEAD = "zero", "v", "size", "m", "recompute", "step", "MFU", "GiB", "fit", ""
SPARE = "size", "v", "m", "recompute"
"""Columns that a narrow terminal does without."""


class Why(ExplanationFacts):
    """Why the best plan wins."""

    advice: None


class NonFits(TypedDict):
    """What to do where no plan fits; nothing if the search was interrupted before."""

    advice: NotRequired[AdviceFacts]


class Answer(SearchFacts):
    """What a search found, the best plan first."""

    why: Why | NonFits


def plan(arguments: argparse.Namespace) -> int:
    """Search the fastest plans of a model on a cluster with a given global batch.

    Degrees, ZeRO, recomputation, schedule, chunks and the size of microbatches are searched, and layers are
    divided by what stages take; an option of a plan that is given, here or in a plan file, is kept as it is.
    Schedules are 1f1b and interleaved-1f1b unless one is given. Expert-parallel ranks (`--ep`) are searched
    for a model with experts.
    """
    begun_s = perf_counter()
    if arguments.out:
        check_writable(arguments.out)
    space = _space(arguments)
    with _workers(arguments.workers) as executor:
        found = search(
            space,
            kept=arguments.top or KEPT,
            layered=arguments.layers,
            executor=executor,
            watch=progress,
        )
    why: Why | NonFits = {}
    if found.plans:
        told = explanation(found, full=arguments.explain and not found.interrupted)
        why, text = {**told.to_dict(), "advice": None}, explanation_text(told)
    elif not found.interrupted:
        advised = advice(found)
        why, text = {"advice": advised.to_dict()}, advice_text(advised)
    else:
        text = "It was interrupted before a plan was found."
    if found.plans and arguments.out:
        content = plan_file(arguments, found.plans[0].plan)
        write_file(arguments.out, lambda path: path.write_text(content, encoding="utf-8"))
    found.seconds = perf_counter() - begun_s  # with the explanation, which may take as long
    if arguments.json:
        print_json({**found.to_dict(), "why": why})
    else:
        _print(found, arguments.top or SHOWN, text, _nodes_text(arguments, space))
    return int(found.interrupted or not found.plans)


def _space(arguments: argparse.Namespace) -> Space:
    """The space that the arguments and the plan file name."""
    given = given_values(arguments)
    for name in ("model", "cluster"):
        if not given.get(name):
            raise InputError(f"a plan is searched for a model on a cluster: give --{name}")
    for name, most in (("top", 10_000), ("workers", MOST_WORKERS)):
        value = getattr(arguments, name)
        if value is not None and not 1 <= value <= most:
            raise InputError(f"--{name} {value}: give 1 to {most}")
    if arguments.layers < 0:
        raise InputError(f"--layers {arguments.layers}: give a whole number, at least 0")
    nodes = given.get("nodes")
    if nodes is not None and not 1 <= nodes <= MOST_NODES:
        raise InputError(f"--nodes {nodes}: give a whole number from 1 to {MOST_NODES:,}")
    return Space(
        model=sl.load_model(given["model"]),
        cluster=sl.load_cluster(given["cluster"], nodes=nodes),
        global_batch=arguments.global_batch,
        fixed=plan_part(given),
    )


MOST_NODES = 2**17


def _workers(count: int) -> AbstractContextManager[Executor | None]:
    """Processes that predict plans; None for one. A ^C is for the process that asked."""
    if count == 1:
        return nullcontext()
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_deaf)


def _deaf() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def plan_file(arguments: argparse.Namespace, best: Plan) -> str:
    """The plan as YAML, for `simulate --plan` and `realrun --plan`: what is not the default, and
    which model on which cluster."""
    given = given_values(arguments)
    lines = [f"# simlab plan: the best of a global batch of {best.global_batch} sequences"]
    for name in ("model", "cluster"):
        path = Path(given[name])
        lines.append(f"{name}: {path.resolve() if path.is_file() else given[name]}")
    if given.get("nodes"):
        lines.append(f"nodes: {given['nodes']}")
    lines += plan_lines(best, {*SEARCHED, *given})
    return "\n".join(lines) + "\n"


def _nodes_text(arguments: argparse.Namespace, space: Space) -> str:
    """That one node was taken, where nothing says how many."""
    given = given_values(arguments)
    if given.get("nodes") or nodes_of_file(given["cluster"]) is not None:
        return ""
    return f"nodes: 1, as nothing says how many: --nodes 2 searches {2 * space.cluster.gpus} GPUs"


def _print(found: Search, most: int, text: str, nodes: str) -> None:
    """Print what was asked for, what is said of `nodes`, the first plans, `most` at most, the rejections by
    reason, and `text`."""
    space = found.space
    print_text(
        f"{space.model.name or 'a model'} on {space.cluster.gpus} x {space.cluster.gpu.name}: "
        f"{space.global_batch} sequences of {space.fixed.get('seq') or space.model.seq} tokens a step"
    )
    if nodes:
        print_text(nodes)
    for one in assumptions(space.cluster):
        print_text(f"assumed: {one}")
    if found.plans:
        degrees = DEGREES if space.model.experts else DEGREES[:-1]
        rows = [_cells(found, ranked, degrees) for ranked in found.listed[:most]]
        print_table((*degrees, *HEAD), rows, SPARE, COLUMNS)
        print_text(_legend(space, found.uncertainty.tie_text))
    print_text(
        f"{found.evaluated} candidates, {found.predictions} predicted, "
        f"in {seconds_text(found.seconds)}{' until it was interrupted' * found.interrupted}; rejected:"
    )
    for reason, count in found.rejected.items():
        print_text(f"  {count}: {reason}")
    print_text(text)


EXPERTS_LEGEND = (
    "; e after ep: experts are not cut (etp 1); o: all-to-alls run beside another microbatch"
)


def _legend(space: Space, tie: str) -> str:
    """What the columns of the table mean. tie: within how much plans are one."""
    room = f"{space.cluster.gpu_memory_bytes / GIB:.1f}"
    return (
        "u after pp: layers are divided by what stages take, see stage_layers; "
        "v: chunks, the stages of a pipeline rank; size: sequences of a microbatch; m: microbatches "
        "of a step (below: m x size sequences); GiB: tensors at the peak, which with a reserve have "
        f"to fit into {room}; tight: if the allocator wastes no more than usual; MFU: {MFU_CONVENTION}; "
        f"F: the fastest; T: a tie, within {tie}; S and R: the simplest and the roomiest of these"
        + EXPERTS_LEGEND
        * (space.model.experts > 0)
    )


def _cells(found: Search, ranked: Ranked, degrees: Sequence[str]) -> list[str]:
    plan = ranked.plan
    notes = ("F" if ranked is found.plans[0] else "T") * found.is_tie(ranked)
    if found.ties:
        notes += "S" * (ranked is found.simplest) + "R" * (ranked is found.roomiest)
    marks = {
        "pp": "u" * (not isinstance(plan.stage_layers, str)),
        "ep": "e" * plan.spreads_experts + "o" * plan.ep_overlap,
    }
    numbers = *degrees, "zero", "chunks", "microbatch_size", "microbatches"
    return [
        *(f"{getattr(plan, name)}{marks.get(name, '')}" for name in numbers),
        plan.recompute,
        seconds_text(ranked.step_s),
        f"{ranked.mfu:.1%}",
        f"{ranked.memory_bytes / GIB:.1f}",
        ranked.fit.verdict,
        notes,
    ]


def add_plan(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    add_cluster_options(
        command, nodes="the number of nodes (default: what the cluster's file says, else 1)"
    )
    add_batch_option(command, "", required=True)
    command.add_argument(
        "--top",
        type=int,
        metavar="N",
        help=f"plans to rank and to show (default: {KEPT} are ranked, {SHOWN} shown)",
    )
    command.add_argument(
        "--layers",
        type=int,
        default=LAYERED,
        metavar="N",
        help=f"how many of them to simulate layer by layer, too (default {LAYERED})",
    )
    command.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that predict (default 1)"
    )
    command.add_argument(
        "--explain",
        action="store_true",
        help="also the best plan of each family, and what would change the choice",
    )
    command.add_argument("--out", metavar="X.yaml", help="write the best plan as a plan file")
    fixed = command.add_argument_group("what is not searched: options of a plan that are kept")
    add_plan_options(fixed, skip=("microbatches",))
    add_json_options(command, Answer)
