"""What a trained token costs, from prices that are to be edited."""

from dataclasses import dataclass
from typing import Any, TypedDict

from simlab.display import plain
from simlab.errors import require_between, require_positive, require_whole
from simlab.operations.rates import HOUR_S
from simlab.spec.fields import documented, with_field_docs

MONTH_S = 730 * HOUR_S
MILLION = 1e6
MOST_PRICE, MOST_TOKENS, MOST_BYTES = 1e12, 1e24, 1e24
"""The largest price of a thing, the most tokens, in all and in a second, and the most bytes. So no
cost is too large for a number."""


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices in one currency. The defaults are round numbers to be replaced, not quotes."""

    gpu_hour: float = documented("A GPU for an hour, with its part of the node.", default=2.0)
    kwh: float = documented("A kilowatt-hour, where power is paid apart.", default=0.0)
    gpu_kw: float = documented(
        "What a GPU draws with its part of the node and cooling, in kW.", default=1.0
    )
    tb_month: float = documented(
        "A terabyte (1e12 bytes) of checkpoint storage for a month.", default=20.0
    )

    def __post_init__(self) -> None:
        for name in ("gpu_hour", "kwh", "gpu_kw", "tb_month"):
            require_between(name, getattr(self, name), 0, MOST_PRICE)


@dataclass(frozen=True, repr=False)
class Cost:
    """What a training costs, in the currency of its prices."""

    tokens: float
    wall_s: float
    gpus: float
    spares: float
    storage: float
    power: float
    """Of the GPUs that train; a spare draws nothing here."""
    goodput: float

    def __repr__(self) -> str:
        return f"<Cost: {self.total:,.0f}, {self.per_million_tokens:.4g} per million tokens>"

    @property
    def total(self) -> float:
        """All of it."""
        return self.gpus + self.spares + self.storage + self.power

    @property
    def per_million_tokens(self) -> float:
        """For a million trained tokens."""
        return self.total / self.tokens * MILLION

    @property
    def of_failures(self) -> float:
        """The part of `total` that goes to spares, and to time that does not count; 0 where nothing
        costs anything."""
        spent = self.spares + (1 - self.goodput) * (self.gpus + self.power)
        return spent / self.total if self.total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values that JSON knows."""
        return plain(self) | {
            "total": self.total,
            "per_million_tokens": self.per_million_tokens,
            "of_failures": self.of_failures,
        }


class Totals(TypedDict):
    """What `Cost.to_dict` says beside the fields of a `Cost`."""

    total: float
    per_million_tokens: float
    of_failures: float
    """The part of `total` that goes to spares, and to time that does not count."""


def training_cost(
    *,
    tokens: float,
    tokens_per_s: float,
    gpus: int,
    prices: Prices | None = None,
    goodput: float = 1.0,
    spare_gpus: int = 0,
    kept_bytes: float = 0.0,
) -> Cost:
    """The cost of a training.

    tokens_per_s: of the whole training while nothing goes wrong, such as global batch x sequence
                  length / `Prediction.step_s`.
    goodput:      the part of the time that counts, such as `RunResult.goodput`.
    kept_bytes:   of all checkpoints that are kept, from the first day to the last.

    Left out: data, networks that are paid by the byte, people, and evaluation.
    """
    prices = Prices() if prices is None else prices
    for name, value in (("tokens", tokens), ("tokens_per_s", tokens_per_s), ("goodput", goodput)):
        require_positive(name, value)
        require_between(name, value, 1 / MOST_TOKENS, 1 if name == "goodput" else MOST_TOKENS)
    require_whole("gpus", gpus)
    require_whole("spare_gpus", spare_gpus, 0)
    require_between("kept_bytes", kept_bytes, 0, MOST_BYTES)
    wall_s = tokens / tokens_per_s / goodput
    hours = wall_s / HOUR_S
    return Cost(
        tokens=tokens,
        wall_s=wall_s,
        gpus=gpus * hours * prices.gpu_hour,
        spares=spare_gpus * hours * prices.gpu_hour,
        storage=kept_bytes / 1e12 * wall_s / MONTH_S * prices.tb_month,
        power=gpus * hours * prices.gpu_kw * prices.kwh,
        goodput=goodput,
    )
