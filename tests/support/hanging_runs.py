"""It makes hangs: all ranks of a plan go through their lists of instructions, some of them stop, and
each leaves a dump as torch's flight recorder writes it for NCCL.

It is no part of what it tests: it knows only that a collective ends when all ranks of its group have
called it, and a message when it has been sent and received.
"""

from collections import defaultdict
from functools import cache
from typing import NamedTuple

from simlab.engine.play import _Groups
from simlab.lowering.build import program_of
from simlab.lowering.instructions import BEGIN, COMPUTE, rank_instructions


class Stopped(NamedTuple):
    """dumps: {rank: its dump}. awaited: the ranks that stopped, wait for nothing, and are waited for.
    missed: {each of them: (group, kind) of the first communication that it left out and others have
    come to}."""

    dumps: dict
    missed: dict
    awaited: list


@cache
def _lists(model, plan):
    """([per rank] its instructions, the groups of the plan)."""
    program, layout = program_of(plan), plan.layout
    places = [layout.coordinates(rank) for rank in range(plan.dp * plan.tp * plan.pp * plan.cp)]
    lists = [
        [
            one
            for one in rank_instructions(model, plan, program, p.pp, context_rank=p.cp)
            if one.kind != "copy"
        ]
        for p in places
    ]
    return lists, _Groups(plan)


class Run:
    """All ranks of a plan, of which `stops`, {rank: how many instructions it does}, stop.

    A rank goes on after a send: if it did not, 1F1B would hang by itself, since neighbours send to each
    other at the same time.
    """

    def __init__(self, model, plan, stops):
        self.lists, self.groups = _lists(model, plan)
        self.world, self.stops = len(self.lists), stops
        self.at = [0] * self.world
        self.called = defaultdict(set)  # {a communication: the ranks that have called it}
        self.entries = [[] for _ in range(self.world)]
        self.numbers = defaultdict(int)

    def stopped(self):
        """The dumps when no rank can go on, or None if the step was ended."""
        while sum(self._advance(rank) for rank in range(self.world)):
            pass
        if all(at >= len(its) for at, its in zip(self.at, self.lists)):
            return None
        open_ = [key for key in self.called if not self._ended(key)]
        waiting = {rank for key in open_ for rank in self.called[key]}
        blocking = {rank for key in open_ for rank in key[1]} - waiting
        awaited = [rank for rank in sorted(self.stops) if rank in blocking]
        missed = {}
        for rank in awaited:
            left = self.lists[rank][self.stops[rank] :]
            calls = [one for one in left if one.action != COMPUTE and self._is_call(one)]
            keys = {self._key(rank, one): one.kind for one in calls}
            group, kind = next((key[0], kind) for key, kind in keys.items() if key in open_)
            missed[rank] = group, kind
        return Stopped({rank: self._dump(rank) for rank in range(self.world)}, missed, awaited)

    def _is_call(self, one):
        """Whether an instruction is a call that the recorder sees: collectives begin, sends begin and
        receives wait."""
        return one.kind == "message" or one.action == BEGIN

    def _advance(self, rank):
        """Do what `rank` can do; whether that was anything."""
        first = self.at[rank]
        its = self.lists[rank]
        while self.at[rank] < min(len(its), self.stops.get(rank, len(its))):
            one = its[self.at[rank]]
            if one.action != COMPUTE:
                key = self._key(rank, one)
                if self._is_call(one) and rank not in self.called[key]:
                    self._call(rank, one, key)
                    first = -1
                if one.action != BEGIN and not self._ended(key):
                    break
            self.at[rank] += 1
        return self.at[rank] != first

    def _key(self, rank, one):
        ranks = self.groups.members(rank, one)
        group = "pp" if one.kind == "message" else f"{one.dimension} {ranks}"
        return group, ranks, one.op, one.name

    def _ended(self, key):
        return set(key[1]) <= self.called[key]

    def _call(self, rank, one, key):
        group, ranks = key[:2]
        self.called[key].add(rank)
        entry = {"process_group": [group, one.dimension], "key": key, "input_sizes": [[8]]}
        if one.kind == "message":
            entry["profiling_name"] = (
                f"nccl:send {rank}->{ranks[1]}"
                if one.action == BEGIN
                else f"nccl:recv {rank}<-{ranks[0]}"
            )
        else:
            entry["profiling_name"] = f"nccl:{one.kind}"
        number = self.numbers[rank, group] = self.numbers[rank, group] + 1
        is_message = one.kind == "message"
        entry |= {
            "is_p2p": is_message,
            "p2p_seq_id": number if is_message else 0,
            "collective_seq_id": 0 if is_message else number,
        }
        self.entries[rank].append(entry)

    def _dump(self, rank):
        config = {"pp": {"name": "pp", "ranks": str(list(range(self.world)))}}
        entries = []
        for at, entry in enumerate(self.entries[rank]):
            key = entry["key"]
            if not entry["is_p2p"]:
                config[key[0]] = {"name": key[0], "ranks": str(list(key[1]))}
            state = "completed" if self._ended(key) else "scheduled"
            kept = {name: value for name, value in entry.items() if name != "key"}
            entries.append(kept | {"record_id": at, "state": state})
        return {"version": "2.10", "pg_config": config, "entries": entries}
