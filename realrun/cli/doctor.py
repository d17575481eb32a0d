"""The command `realrun doctor`: examine the machine of every rank, their clocks and links."""

import argparse
import json
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from realrun.cli.options import BrokenOff
from realrun.launch.pool import Pool
from realrun.launch.ranks import under_torchrun, world
from realrun.launch.worker import Rank, use_loopback
from realrun.run.job import plan_fields
from simlab.cli.commands.running.doctor import add_machine_options, healthy, print_findings
from simlab.cli.options import add_json_options
from simlab.cli.output import print_json, print_text
from simlab.display import plain
from simlab.errors import InputError, require_whole
from simlab.operations.doctor import Finding, Machine, differences, findings
from simlab.operations.doctor.machine import check_place
from simlab.spec.plan import Plan

FUNCTIONS, NAME = "realrun.measure.doctor:EXAMINE", "examine"
MOST_RANKS = 64
EPILOG = """examples:
  realrun doctor --ranks 4
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
    --rdzv-endpoint HOST:29400 -m realrun doctor --folder /checkpoints

exit status: 0 nothing breaks a training, 1 something does, 2 bad arguments"""


class Answer(TypedDict):
    """The machines of all ranks, their clocks and links, and what of them breaks a training."""

    ranks: list[Annotated[dict[str, Any], Machine]]
    skews_s: list[float]
    bytes_per_s: list[float]
    findings: list[Annotated[dict[str, Any], Finding]]
    differences: list[Annotated[dict[str, Any], Finding]]
    ok: bool


def doctor_command(arguments: argparse.Namespace) -> int:
    """Examine the machine of every rank, and say which differences break a training."""
    require_whole("--ranks", arguments.ranks)
    given = {"folder": os.path.abspath(arguments.folder), "port": arguments.port}
    check_place(arguments.folder, arguments.port)
    if under_torchrun():
        facts = _as_rank(given)
    else:
        if arguments.ranks > MOST_RANKS:
            raise InputError(f"--ranks {arguments.ranks}: give at most {MOST_RANKS} on one machine")
        facts = examined(arguments.ranks, **given)
    return 0 if facts is None else report(facts, as_json=arguments.json)


def examined(ranks: int, folder: str, port: int) -> list[dict[str, Any]]:
    """What `realrun.measure.doctor.examine` finds on each of `ranks` processes of this machine."""
    with Pool(ranks) as pool:
        return pool.call(FUNCTIONS, NAME, Plan(dp=ranks), folder=folder, port=port)


def report(facts: Sequence[dict[str, Any]], *, as_json: bool) -> int:
    """Print what `realrun.measure.doctor.examine` found on each rank; returns the exit status."""
    machines = [Machine.of(each["machine"]) for each in facts]
    skews_s = [each["ahead_s"] - facts[0]["ahead_s"] for each in facts]
    speeds = [each["bytes_per_s"] for each in facts]
    speeds[0] = max(speeds)  # rank 0 has no link to itself
    hosts = {machine.host: rank for rank, machine in reversed(list(enumerate(machines)))}
    found: list[Finding] = []
    for host, rank in sorted(hosts.items(), key=lambda item: item[1]):
        here = sum(machine.host == host for machine in machines)
        named = f"{host} " if len(hosts) > 1 else ""
        found += [
            one._replace(subject=named + one.subject)
            for one in findings(machines[rank], ranks=here)
        ]
    unlike = differences(machines, skews_s=skews_s, bytes_per_s=speeds) if len(facts) > 1 else []
    ok = healthy([*found, *unlike])
    if as_json:
        print_json(
            {
                "ranks": plain(machines),
                "skews_s": skews_s,
                "bytes_per_s": speeds,
                "findings": plain(found),
                "differences": plain(unlike),
                "ok": ok,
            }
        )
    else:
        print_text(
            f"{len(machines)} rank{'s' * (len(machines) > 1)} on {len(hosts)} machine{'s' * (len(hosts) > 1)}"
        )
        print_findings(found)
        if unlike:
            print_text("between the ranks:")
            print_findings(unlike)
    return 0 if ok else 1


def _as_rank(given: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The facts of all ranks on rank 0, None elsewhere. They go through the store as JSON, so nothing
    is unpickled."""
    import torch.distributed as dist

    size, rank = world(), int(os.environ["RANK"])
    local = int(os.environ.get("LOCAL_RANK", rank))
    if int(os.environ.get("LOCAL_WORLD_SIZE", size)) == size:
        use_loopback()
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=60)))
    store = dist.PrefixStore(f"doctor {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    member = Rank(rank, size, local, store, "cpu")
    facts = member.call(FUNCTIONS, NAME, plan_fields(Plan(dp=size)), given)
    store.set(f"facts {rank}", json.dumps(facts))
    # all facts are read before rank 0, which may hold the store, leaves
    found = [json.loads(store.get(f"facts {each}")) for each in range(size)] if rank == 0 else None
    dist.barrier()
    member.leave()
    return found


def add_doctor(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.description, command.epilog = doctor_command.__doc__, EPILOG
    command.add_argument(
        "--ranks",
        type=int,
        default=2,
        metavar="N",
        help="processes to start here (default 2); torchrun says how many there are",
    )
    add_machine_options(command)
    add_json_options(command, Answer, BrokenOff)
