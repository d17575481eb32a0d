"""A flight recorder's dumps of a hang, made: what torch's recorder keeps of eight ranks, one of which is at
fault."""

from dataclasses import dataclass
from random import Random
from typing import Any

from simlab.diagnosis import hang_of
from simlab.lessons.drill.artefacts.artefact import Artefact
from simlab.lessons.prediction import Choice, Number

REASONS = ("missing", "different", "size")
"""What the rank at fault did: it never called what the others wait in, it called something else there, or
it gave another size."""
LAYER_CALLS = ("all_gather", "reduce_scatter")
RANKS, NUMBERS = 8, 4_194_304


@dataclass(frozen=True)
class Recorded:
    """The dumps of all ranks, by rank, and what they show, as rows of a table."""

    dumps: list[dict[str, Any]]
    rows: list[list[str]]


def recorder(random: Random) -> Artefact:
    """A flight recorder's dump to read."""
    made = hanging(random)
    hang = hang_of([*enumerate(made.dumps)])
    return Artefact(
        rows=made.rows,
        fields={"rank": Number(), "reason": Choice(*REASONS)},
        answer={"rank": float(hang.culprit[0]), "reason": hang.reason},
        faults=(hang.reason,),
        given={"rank": hang.culprit[0], "number": hang.number, "kind": hang.name},
    )


def hanging(random: Random) -> Recorded:
    """The dumps of a training that hangs, of a reason and a rank at random."""
    return recorded(random, RANKS, random.choice(REASONS), random.randrange(RANKS))


def recorded(random: Random, ranks: int, reason: str, culprit: int) -> Recorded:
    """The dumps of a training with FSDP on so many ranks, one of which is at fault."""
    last = random.randrange(12, 40)
    dumps = [
        _dump(ranks, last, reason if rank == culprit else "", random.random() < 0.5)
        for rank in range(ranks)
    ]
    return Recorded(dumps, _rows(dumps))


def _dump(ranks: int, last: int, reason: str, is_started: bool) -> dict[str, Any]:
    """What one rank keeps. reason: what it did wrong; "" where it waits for another one.

    is_started: whether its GPU had begun the last call, which a rank that waits may have or not.
    """
    entries = [_entry(at, _kind(at), NUMBERS, "completed") for at in range(1, last)]
    waits = "started" if is_started else "scheduled"
    if reason == "different":
        entries.append(_entry(last, "all_reduce", NUMBERS, waits))
    elif reason == "size":
        entries.append(_entry(last, _kind(last), NUMBERS // 2, waits))
    elif not reason:
        entries.append(_entry(last, _kind(last), NUMBERS, waits))
    group = {"name": "0", "desc": "default_pg", "ranks": str([*range(ranks)])}
    return {"version": "2.10", "pg_config": {"0": group}, "entries": entries}


def _kind(at: int) -> str:
    return LAYER_CALLS[at // 8 % 2]


def _entry(number: int, kind: str, numbers: int, state: str) -> dict[str, Any]:
    return {
        "record_id": number - 1,
        "process_group": ["0", "default_pg"],
        "profiling_name": f"nccl:{kind}",
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "state": state,
        "input_sizes": [[numbers]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[numbers]],
        "output_dtypes": ["BFloat16"],
    }


def _rows(dumps: list[dict[str, Any]]) -> list[list[str]]:
    """The last two calls of each rank, as one reads them from the dumps."""
    rows = [["", "call", "kind", "numbers", "state"]]
    for rank, dump in enumerate(dumps):
        for entry in dump["entries"][-2:]:
            kind = entry["profiling_name"].partition(":")[2]
            size = str(entry["input_sizes"][0][0])
            rows.append(
                [f"rank {rank}", str(entry["collective_seq_id"]), kind, size, entry["state"]]
            )
    return rows
