"""It reads the dumps of torch's flight recorder, one for each rank."""

import re
from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import Any

from simlab.diagnosis.fields import whole_field
from simlab.diagnosis.hangs.calls import (
    COALESCED,
    COUNTED_IN,
    DONE,
    RECV,
    SCHEDULED,
    SEND,
    STARTED,
    Call,
    Calls,
    Group,
    squeezed,
)
from simlab.diagnosis.hangs.causes import UNSEEN, hang_in
from simlab.diagnosis.hangs.hang import Hang
from simlab.errors import InputError, shortened

DEFAULT = ("0", "default_pg")
"""Name and description of the group of all ranks."""
STATES = {"completed": DONE, "started": STARTED, "scheduled": SCHEDULED}
MESSAGE = re.compile(r"(send|recv)\b\s*(?:(\d+)\s*(?:->|<-)\s*(\d+))?")
"""How torch names a send and a receive: 'send 0->1', 'recv 1<-0', in ranks of the group."""
GLOO = "gloo:"
Members = dict[str, set[tuple[int, ...]]]
"""{name of a group: its ranks, of each group of that name}."""


def hang_of(dumps: Sequence[tuple[int | None, dict[str, Any]]]) -> Hang:
    """The `Hang` that some dumps show.

    dumps: (the rank, the parsed JSON of its dump). Where the rank is None, it is the position: dumps
    do not say whose they are.

    Raises `InputError` if a dump is not one, or two are of one rank.
    """
    ranked: dict[int, dict[str, Any]] = {}
    members: Members = defaultdict(set)
    for at, (named, data) in enumerate(dumps):
        rank = at if named is None else named
        if rank in ranked:
            raise InputError(f"two dumps are of rank {rank}")
        ranked[rank] = data
        _checked(rank, _add_groups, members, data)
    world = tuple(sorted({*ranked, *(one for its in members.values() for it in its for one in it)}))
    seen: dict[str, set[int]] = defaultdict(set)
    for rank, data in ranked.items():
        for name in _checked(rank, _names, data):
            seen[name].add(rank)
    groups = _Groups(members, seen, world)
    read = {rank: _checked(rank, _calls, rank, data, groups) for rank, data in ranked.items()}
    whole = all(_is_whole(data) for data in ranked.values())
    calls = [call for its in read.values() for call in its]
    sees = not _is_gloo(ranked)
    found = Calls(calls if whole else _aligned(calls), ranked, world, sees_messages=sees)
    return hang_in(found, _nothing(ranked))


def _checked(rank: int, read: Any, *arguments: Any) -> Any:
    """What `read` gives, or an `InputError` that names the rank whose dump it could not read."""
    try:
        return read(*arguments)
    except InputError as error:
        raise InputError(f"the dump of rank {rank}: {error}") from error
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise InputError(
            f"the dump of rank {rank} is not a flight recorder's: {type(error).__name__} {error}"
        ) from error


def _entries(data: dict[str, Any]) -> list[dict[str, Any]]:
    """torch 2.13 leaves the entries out where a rank has none."""
    return data.get("entries") or []


def _is_whole(data: dict[str, Any]) -> bool:
    """Whether a dump holds all calls from the first on: its buffer keeps a limited number."""
    return not any(entry.get("record_id", 0) for entry in _entries(data)[:1])


def _nothing(ranked: dict[int, dict[str, Any]]) -> str:
    """What is to be said of dumps that show no hang."""
    if not any(_entries(data) for data in ranked.values()):
        return "The dumps hold no calls: set TORCH_FR_BUFFER_SIZE before the job starts."
    if _is_gloo(ranked):
        return (
            f"{UNSEEN}: ranks may wait in one. Nor does it tell gloo's calls that failed from those that "
            "were completed."
        )
    return ""


def _is_gloo(ranked: dict[int, dict[str, Any]]) -> bool:
    """Whether all calls are gloo's."""
    entries = [entry for data in ranked.values() for entry in _entries(data)]
    return all(str(entry.get("profiling_name")).startswith(GLOO) for entry in entries)


class _Groups:
    """Finds the group of an entry."""

    def __init__(self, members: Members, seen: dict[str, set[int]], world: tuple[int, ...]) -> None:
        self.members, self.seen, self.world = members, seen, world

    def of(self, rank: int, name: str, description: str) -> Group:
        """The group with that name that `rank` is in."""
        own = [ranks for ranks in self.members.get(name, ()) if rank in ranks]
        if own:
            return Group(name, min(own))
        if (name, description) == DEFAULT or name in ("", DEFAULT[0]):
            return Group(name, self.world)
        return Group(name, tuple(sorted(self.seen[name])), is_known=False)


def _add_groups(members: Members, data: dict[str, Any]) -> None:
    """Add the groups that a dump names. Those of gloo have no names there, and are not known."""
    for name, config in (data.get("pg_config") or {}).items():
        ranks = config.get("ranks", "") if isinstance(config, dict) else ""
        numbers = (
            map(int, ranks.strip("[]() ").replace(",", " ").split())
            if isinstance(ranks, str)
            else ranks
        )
        its = {whole_field(f"a rank of group {shortened(name)}", one) for one in numbers}
        if its:
            members[str(config.get("name") or name)].add(tuple(sorted(its)))


def _named(entry: dict[str, Any]) -> tuple[str, str]:
    """(name, description) of the group of an entry."""
    name, description = [*(entry.get("process_group") or [""]), "", ""][:2]
    return str(name), str(description)


def _names(data: dict[str, Any]) -> set[str]:
    return {_named(entry)[0] for entry in _entries(data)}


def _calls(rank: int, data: dict[str, Any], groups: _Groups) -> list[Call]:
    """The calls of one rank, in their order."""
    found: list[Call] = []
    counts: dict[tuple[Any, ...], int] = defaultdict(int)
    states = _states(_entries(data))
    for entry, state in zip(_entries(data), states):
        name = str(entry["profiling_name"]).rpartition(":")[2]
        group = groups.of(rank, *_named(entry))
        frames = entry.get("frames") or []
        where = "{filename}:{line} {name}".format(**frames[0]) if frames else ""
        sizes = f"{entry.get('input_sizes')} {entry.get('input_dtypes', '')}".strip()
        message = MESSAGE.match(name)
        if message:
            kind, here, there = message.groups()
            peer = _peer(group, rank, here, there)
            key: tuple[Any, ...] = (kind, group, peer)
            counts[key] += 1
            size = _numbers(entry, "input" if kind == SEND else "output")
            call = Call(rank, group, kind, counts[key], 0, peer, size, sizes, state, where)
        elif not state:
            continue
        else:
            number = whole_field("collective_seq_id", entry["collective_seq_id"])
            part = counts[group, number]
            counts[group, number] += 1
            size = _size(name, entry)
            call = Call(rank, group, name, number, part, -1, size, sizes, state, where)
        found.append(call._replace(at=len(found)))
    return found


def _states(entries: Sequence[dict[str, Any]]) -> list[str]:
    """The state of each entry. A batch of calls is closed by an entry 'coalesced' with their number,
    and they have its state; it is itself no call, which '' says, unless it stands alone."""
    last = {_named(entry): at for at, entry in enumerate(entries)}
    states = [_state(entry, at == last[_named(entry)]) for at, entry in enumerate(entries)]
    ends: dict[tuple[Any, ...], tuple[int, str]] = {}
    for at in range(len(entries) - 1, -1, -1):
        entry = entries[at]
        key = _named(entry), _sequence(entry)
        if str(entry.get("profiling_name")).rpartition(":")[2] == COALESCED:
            ends[key] = at, states[at]
        elif key in ends:
            closing, states[at] = ends[key]
            states[closing] = ""
    return states


def _sequence(entry: dict[str, Any]) -> Any:
    """The number that the entries of a batch share."""
    is_message = bool(entry.get("is_p2p"))
    return is_message, entry.get("p2p_seq_id" if is_message else "collective_seq_id")


def _state(entry: dict[str, Any], is_last: bool) -> str:
    """The state of an entry. One that says none is done if another one of its group follows."""
    # gloo's entries stay 'scheduled', and are retired when they are completed
    if entry.get("retired") is True or entry.get("time_discovered_completed_ns"):
        return DONE
    if entry.get("state") is None:
        return SCHEDULED if is_last else DONE
    return STATES.get(str(entry["state"]), SCHEDULED)


def _peer(group: Group, rank: int, here: str | None, there: str | None) -> int:
    """The other rank of a message, whose name has ranks of the group."""
    if there is not None and int(there) < len(group.ranks):
        return group.ranks[int(there)]
    others = [one for one in group.ranks if one != rank]
    return others[0] if len(others) == 1 else -1


def _size(name: str, entry: dict[str, Any]) -> str:
    """How many numbers every rank must give; '' if ranks may differ."""
    side = COUNTED_IN.get(squeezed(name))
    if side is None:
        return ""
    outputs = entry.get("output_sizes") or []
    if squeezed(name) == "allgather" and len({str(size) for size in outputs}) > 1:
        side = "output"  # Ranks give what is their own, and all know how much.
    return _numbers(entry, side)


def _numbers(entry: dict[str, Any], side: str) -> str:
    """How many numbers the tensors of one side hold, and of which types."""
    sizes = entry.get(f"{side}_sizes")
    if sizes is None:
        return ""
    types = sorted(set(entry.get(f"{side}_dtypes") or []))
    return f"{sum(prod(size) for size in sizes)} {' '.join(map(str, types))}"


def _aligned(calls: Sequence[Call]) -> list[Call]:
    """`calls`, where the messages of a pair are numbered so that the last one that was sent and the
    last one that was received have the same number: their first ones were dropped."""
    done: dict[tuple[Any, ...], int] = defaultdict(int)
    for call in calls:
        if call.is_message and call.is_done:
            done[call.name, call.pair] = max(done[call.name, call.pair], call.number)

    def behind(call: Call) -> int:
        other = RECV if call.name == SEND else SEND
        return max(0, done[other, call.pair] - done[call.name, call.pair])

    return [
        call._replace(number=call.number + behind(call)) if call.is_message else call
        for call in calls
    ]
