"""Transfers over shared links: each takes a route of links, and links share their bandwidth max-min
fairly."""

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import simpy

from simlab.collectives.transfer import Rounds, Transfer
from simlab.errors import InputError
from simlab.spec.hardware import Link


class Network:
    """Links by name and the route of each pair of ranks.

    links:  {name: `Link`}; `sharing` is not looked at: all are shared fairly.
    route:  (source, destination) → [names of links]. A transfer's latency is the sum of its links';
            its rate at any moment is what
            max-min fairness gives it (Bertsekas and Gallager 1992, section 6.5.2): raise all rates
            together; those on a link that is full stay there, the others go on.
    """

    def __init__(
        self, links: Mapping[Hashable, Link], route: Callable[[int, int], Sequence[Hashable]]
    ) -> None:
        self.links = links
        self.route = route

    @classmethod
    def of_pairs(cls, link: Link) -> "Network":
        """Every ordered pair of ranks has a `link` of its own."""
        return cls(_SameLink(link), lambda source, destination: [(source, destination)])


class _SameLink(dict[Hashable, Link]):
    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def __missing__(self, name: Hashable) -> Link:
        self[name] = self._link
        return self._link


def run_rounds(collectives: Sequence[Rounds], network: Network) -> list[float]:
    """Seconds at which each of `collectives`, lists of rounds that all begin at time 0, is done.

    A rank begins a round when it has received what the round before sends it and has sent its own
    part of that; ranks that a round does not mention go on to the next at once. Collectives do not
    wait for each other, but share links.
    """
    env = simpy.Environment()
    flows = _Flows(env, network)
    done_s = [0.0] * len(collectives)

    for number, rounds in enumerate(collectives):
        arrivals = {(k, t): env.event() for k, transfers in enumerate(rounds) for t in transfers}
        for rank in {
            rank for transfers in rounds for t in transfers for rank in (t.source, t.destination)
        }:
            env.process(_rank(env, flows, rounds, rank, arrivals, done_s, number))
    env.run()
    return done_s


def _rank(
    env: simpy.Environment,
    flows: "_Flows",
    rounds: Rounds,
    rank: int,
    arrivals: dict[Any, Any],
    done_s: list[float],
    number: int,
) -> Generator[simpy.Event, Any, None]:
    for k, transfers in enumerate(rounds):
        mine = [arrivals[k, t] for t in transfers if rank in (t.source, t.destination)]
        for t in transfers:
            if t.source == rank:
                flows.start(t, arrivals[k, t])
        yield env.all_of(mine)
        done_s[number] = max(done_s[number], env.now)


class _Flows:
    """All transfers under way. Whenever one begins or ends, the rates of all are worked out
    anew."""

    def __init__(self, env: simpy.Environment, network: Network) -> None:
        self.env = env
        self.network = network
        self.active: dict[Any, list[Any]] = {}  # arrival event: [bytes left, route, latency]
        self.rates: dict[Any, float] = {}
        self.updated_s = 0.0
        self.alarm = 0
        self.late = False  # whether something has begun whose rate is not worked out yet

    def start(self, transfer: Transfer, arrived: simpy.Event) -> None:
        """Begin `transfer`; the event `arrived` happens when its last byte is there."""
        route = self.network.route(transfer.source, transfer.destination)
        if not route:
            raise InputError(f"no route from rank {transfer.source} to rank {transfer.destination}")
        self._advance()
        latency_s = sum(self.network.links[name].latency_s for name in route)
        self.active[arrived] = [transfer.size_bytes, route, latency_s]
        if not self.late:  # once for all that begin at this moment
            self.late = True
            self.env.timeout(0).callbacks.append(lambda _: self._share())

    def _advance(self) -> None:
        passed_s = self.env.now - self.updated_s
        for event, rate in self.rates.items():
            self.active[event][0] = max(0.0, self.active[event][0] - rate * passed_s)
        self.updated_s = self.env.now

    def _share(self) -> None:
        self.late = False
        self.rates = max_min_rates(
            {event: flow[1] for event, flow in self.active.items()}, self.network.links
        )
        self.alarm += 1
        if self.active:
            next_s = min(
                _seconds(left, self.rates[event]) for event, (left, _, _) in self.active.items()
            )
            self.env.timeout(next_s, self.alarm).callbacks.append(self._on_alarm)

    def _on_alarm(self, alarm: simpy.Event) -> None:
        if alarm.value != self.alarm:
            return
        if self.late:
            self._share()
            return
        finishing = min(
            _seconds(left, self.rates[event]) for event, (left, _, _) in self.active.items()
        )
        done = [
            event
            for event, (left, _, _) in self.active.items()
            if _seconds(left, self.rates[event]) <= finishing * (1 + 1e-12)
        ]
        self._advance()
        for event in done:
            _, _, latency_s = self.active.pop(event)
            self.env.timeout(latency_s).callbacks.append(partial(_succeed, event))
        self._share()


def _succeed(event: simpy.Event, _: simpy.Event) -> None:
    event.succeed()


def _seconds(size_bytes: float, rate: float) -> float:
    return 0.0 if size_bytes == 0 or rate == float("inf") else size_bytes / rate


Flow = TypeVar("Flow", bound=Hashable)


def max_min_rates(
    routes: Mapping[Flow, Sequence[Hashable]], links: Mapping[Hashable, Link]
) -> dict[Flow, float]:
    """{flow: bytes per second} for `routes` {flow: [link names]} over `links` {name: `Link`},
    max-min fair."""
    left = {name: links[name].bandwidth_bytes_per_s for route in routes.values() for name in route}
    users: dict[Hashable, set[Flow]] = {}
    for flow, route in routes.items():
        for name in route:
            users.setdefault(name, set()).add(flow)
    rates: dict[Flow, float] = {}
    while users:
        narrowest = min(users, key=lambda name: left[name] / len(users[name]))
        rate = left[narrowest] / len(users[narrowest])
        for flow in list(users[narrowest]):
            rates[flow] = rate
            for name in routes[flow]:
                if flow in users.get(name, ()):
                    users[name].discard(flow)
                    left[name] = (
                        max(0.0, left[name] - rate) if left[name] != float("inf") else left[name]
                    )
                    if not users[name]:
                        del users[name]
    return rates
