"""How often a training is interrupted, and by what: published rates and mixes of causes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any, NamedTuple

from simlab.errors import (
    InputError,
    did_you_mean,
    require_between,
    require_positive,
    require_source,
    require_whole,
    shortened,
)

DAY_S = 86_400.0
HOUR_S = 3_600.0


class Cause(NamedTuple):
    """One cause of failures."""

    name: str
    """What failed, in the words of the source."""
    seen: float
    """How often, in the period that was observed, or any number in proportion to it."""
    takes_node: bool = True
    """Whether the node is away until it is repaired. Else the job starts again on the same nodes."""


@dataclass(frozen=True, kw_only=True, repr=False)
class FailureRate:
    """How often the nodes of a training fail, and why.

    Nodes fail independently of each other, and as likely in the next second whatever has passed. So
    a job on n nodes fails n times as often as a job on one. That is an approximation: measured jobs of
    1,024 GPUs on Meta's RSC-1 ran 7.9 h between failures, where the rate of the whole cluster gives
    28.8 h (arXiv:2410.21680). A job also has failures of its own, and a few bad nodes may fail much
    more often than the others. So measure the rate of your own job before you trust a cluster's.
    """

    name: str
    per_1000_node_days: float
    """Failures in a thousand days of one node."""
    causes: tuple[Cause, ...] = (Cause("any", 1),)
    """The mix of causes; `seen` is relative."""
    source: str = "given by the user"

    def __post_init__(self) -> None:
        require_positive("per_1000_node_days", self.per_1000_node_days)
        require_between("per_1000_node_days", self.per_1000_node_days, 0, 1e12)
        require_source(f"failure rate {self.name!r}", self.source)
        if not self.causes:
            raise InputError("causes = (): give at least one cause of failures")
        for cause in self.causes:
            require_positive(f"count of {shortened(cause.name)}", cause.seen)

    def __repr__(self) -> str:
        return (
            f"<FailureRate {self.name}: {self.per_1000_node_days:.3g} per 1,000 node-days, "
            f"{len(self.causes)} cause{'s' * (len(self.causes) > 1)}>"
        )

    @property
    def failures(self) -> float:
        """The number of failures of all causes."""
        return sum(cause.seen for cause in self.causes)

    @property
    def shares(self) -> dict[str, float]:
        """{cause: its part of all failures}."""
        return {cause.name: cause.seen / self.failures for cause in self.causes}

    @property
    def node_share(self) -> float:
        """The part of failures that take a node out until it is repaired."""
        return sum(cause.seen for cause in self.causes if cause.takes_node) / self.failures

    def mtbf_s(self, nodes: int) -> float:
        """Mean seconds between failures of a job on `nodes` nodes."""
        return mtbf_s(nodes, self.per_1000_node_days)

    def draw(self, luck: Random) -> Cause:
        """One cause at random, as likely as it is frequent."""
        return luck.choices(self.causes, [cause.seen for cause in self.causes])[0]


def mtbf_s(nodes: int, per_1000_node_days: float) -> float:
    """Mean seconds between failures of a job: with r failures per 1,000 node-days, n nodes fail
    n r / 1000 times a day, so once in 1000 / (n r) days, which is 24,000 / (n r) hours."""
    require_whole("nodes", nodes)
    require_positive("per_1000_node_days", per_1000_node_days)
    return 1000 * DAY_S / (nodes * per_1000_node_days)


def rate_per_1000_node_days(failures: float, nodes: int, days: float) -> float:
    """Failures in a thousand days of one node, from those that `nodes` nodes had in `days` days."""
    require_positive("failures", failures)
    require_whole("nodes", nodes)
    require_positive("days", days)
    return 1000 * failures / (nodes * days)


@cache
def failure_rates() -> dict[str, FailureRate]:
    """{name: published failure rate}."""
    text = (files("simlab.operations") / "data" / "failures.json").read_text(encoding="utf-8")
    return {name: _rate(name, facts) for name, facts in json.loads(text).items()}


def failure_rate(name: str) -> FailureRate:
    """The published failure rate of that name; `InputError` if there is none."""
    rates = failure_rates()
    if name not in rates:
        hint = did_you_mean(name, rates) or ";"
        raise InputError(f"failure rate {shortened(name)}{hint} there is {', '.join(rates)}")
    return rates[name]


def observed(
    name: str, counts: Mapping[str, float], *, nodes: int, days: float, source: str = "own log"
) -> FailureRate:
    """The `FailureRate` of failures that were counted by cause. All are taken to need a new node."""
    causes = tuple(Cause(cause, count) for cause, count in counts.items())
    total = sum(counts.values())
    rate = rate_per_1000_node_days(total, nodes, days)
    return FailureRate(name=name, per_1000_node_days=rate, causes=causes, source=source)


def _rate(name: str, facts: Mapping[str, Any]) -> FailureRate:
    causes = tuple(
        Cause(cause, count, who == "node")
        for cause, (count, who) in facts.get("causes", {}).items()
    )
    per = facts.get("per_1000_node_days") or rate_per_1000_node_days(
        sum(cause.seen for cause in causes),
        facts["gpus"] // facts["gpus_per_node"],
        facts["days"],
    )
    return FailureRate(
        name=name,
        per_1000_node_days=per,
        causes=causes or (Cause("any", 1),),
        source=facts["source"],
    )
