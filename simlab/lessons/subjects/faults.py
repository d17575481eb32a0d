"""What lesson 10 asks, when a training breaks: predictions, exercises, figures, and code that
answers follow-ups."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import sqrt
from random import Random
from statistics import mean, median, median_low
from typing import Any

from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.operations import failures
from simlab.spec.model import Model

DIMENSIONS = Choice("tp", "dp", "pp")
PREDICTIONS = [
    Prediction("w14", {"waiting": Number("ranks"), "silent": Choice("guilty", "others")}),
    Prediction("w14.change", {"far": Choice("1", "2", "3")}),
    Prediction("b14", {"higher": Choice("tp", "pp"), "tp": DIMENSIONS, "pp": DIMENSIONS}),
    Prediction("b14.change", {"gain": Number("x")}),
    Prediction("d14", {"longer": Choice("same", "some", "more"), "least": Choice("slow", "fast")}),
    Prediction("d14.change", {"seen": Choice("yes", "no")}),
    Prediction("d09", {"twice": Number("steps"), "other": Choice("bits", "rounding", "differs")}),
    Prediction("d09.change", {"minutes": Number("min"), "lost": Number("%")}),
]

# w14: who hangs
# ---------------------------------------------------------------------------------------------

GROUPS = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
ROUNDS = {"tp0": ("tp", "tp", "dp"), "tp1": ("tp", "tp", "tp", "dp")}
"""What the ranks of a tensor-parallel group call, again and again: the second one has more layers."""
MOST_BEGUN = 9


def _sequence(rank: int) -> list[str]:
    """The groups whose collectives a rank begins, in its order."""
    own = {name[:2]: name for name, ranks in GROUPS.items() if rank in ranks}
    return [own[kind] for kind in ROUNDS[own["tp"]]] * 4


def _begun(guilty: int, stops_before: int) -> dict[int, dict[str, int]]:
    """What each rank has begun when nothing moves any more: every rank runs its sequence of
    collectives, begins the next one when its last one is complete, and `guilty` begins no more
    than `stops_before`."""
    sequences = {rank: _sequence(rank) for rank in range(4)}
    at = dict.fromkeys(range(4), 0)  # collectives begun

    def count(rank: int, name: str) -> int:
        return sequences[rank][: at[rank]].count(name)

    def complete(rank: int) -> bool:
        last = sequences[rank][at[rank] - 1]
        return not at[rank] or all(count(p, last) >= count(rank, last) for p in GROUPS[last])

    moved = True
    while moved:
        moved = False
        for rank in range(4):
            most = stops_before if rank == guilty else len(sequences[rank])
            while at[rank] < most and complete(rank):
                at[rank] += 1
                moved = True
    return {
        rank: {name: count(rank, name) for name, ranks in GROUPS.items() if rank in ranks}
        for rank in range(4)
    }


def _recorded(draw: Random) -> dict[str, Any]:
    return {"groups": GROUPS, "begun": _begun(draw.randrange(4), draw.randrange(1, MOST_BEGUN))}


def _guilty(groups: Mapping[str, Sequence[int]], begun: Mapping[int, Mapping[str, int]]) -> int:
    """The rank whose stop leaves exactly these counts, found by trying all."""
    stops = range(1, MOST_BEGUN)
    return next(rank for rank in range(4) for most in stops if _begun(rank, most) == begun)


def solution_w14(groups, begun):  # type: ignore[no-untyped-def]
    """The rank that waits for nobody."""

    def waits(rank):  # type: ignore[no-untyped-def]
        return any(
            begun[rank][name] > min(begun[peer][name] for peer in ranks)
            for name, ranks in groups.items()
            if rank in ranks
        )

    return next(rank for rank in begun if not waits(rank))


# b14: MFU
# ---------------------------------------------------------------------------------------------


def _training(draw: Random) -> dict[str, Any]:
    gpus = draw.choice((64, 128, 512, 1024))
    return {
        "layers": draw.choice((24, 32, 40)),
        "hidden": draw.choice((2048, 4096, 5120)),
        "vocab": draw.choice((32_000, 50_304, 128_256)),
        "seq": draw.choice((2048, 4096, 8192)),
        "gpus": gpus,
        "tokens_per_s": gpus * draw.randrange(1500, 4000),
        "peak": draw.choice((312e12, 989e12)),
    }


def _mfu(
    layers: int, hidden: int, vocab: int, seq: int, gpus: int, tokens_per_s: float, peak: float
) -> float:
    model = Model(
        name="asked", layers=layers, hidden=hidden, heads=hidden // 128, vocab=vocab, seq=seq
    )
    return tokens_per_s * model.flops_per_token() / (gpus * peak)


def solution_b14(layers, hidden, vocab, seq, gpus, tokens_per_s, peak):  # type: ignore[no-untyped-def]
    """Forward once and backward twice: 3 times a forward's operations."""
    layer = 2 * 12 * hidden**2 + 4 * seq * hidden  # matrices, then scores and values
    head = 2 * hidden * vocab
    return tokens_per_s * 3 * (layers * layer + head) / (gpus * peak)


def _forward_only(**case: Any) -> float:
    return _mfu(**case) / 3


def _all_parameters(hidden: int, vocab: int, **case: Any) -> float:
    """With the embedding table, which is as large as the head and multiplies nothing."""
    return _without_attention(hidden=hidden, vocab=2 * vocab, **case)


def _without_attention(layers: int, hidden: int, vocab: int, **case: Any) -> float:
    rest = {name: case[name] for name in ("tokens_per_s", "gpus", "peak")}
    flops = 6 * (layers * 12 * hidden**2 + hidden * vocab)
    return float(rest["tokens_per_s"] * flops / (rest["gpus"] * rest["peak"]))


# d14: the straggler
# ---------------------------------------------------------------------------------------------


def _computed(draw: Random) -> dict[str, Any]:
    stages = draw.choice((1, 2, 4))
    per_stage = 4 if stages < 4 else 2
    stage_of = [stage for stage in range(stages) for _ in range(per_stage)]
    base = [1.0 + 0.6 * (stage == stages - 1 and stages > 1) for stage in range(stages)]
    seconds = [base[stage] * draw.uniform(0.98, 1.02) for stage in stage_of]
    if draw.random() < 0.7:
        seconds[draw.randrange(per_stage)] *= draw.uniform(1.3, 1.5)  # in the first stage
    if draw.random() < 0.4 and per_stage > 2:
        seconds[-1] *= 0.7  # a rank with less to do
    return {"computed_s": [round(s, 3) for s in seconds], "stage_of": stage_of}


def _slow(computed_s: Sequence[float], stage_of: Sequence[int]) -> int | None:
    for rank, mine in enumerate(computed_s):
        peers = [s for s, stage in zip(computed_s, stage_of) if stage == stage_of[rank]]
        if mine >= 1.25 * median_low(peers):
            return rank
    return None


def solution_d14(computed_s, stage_of):  # type: ignore[no-untyped-def]
    """Each rank beside the lower median of those that do the same work."""
    for rank, mine in enumerate(computed_s):
        peers = sorted(s for s, stage in zip(computed_s, stage_of) if stage == stage_of[rank])
        if mine >= 1.25 * peers[(len(peers) - 1) // 2]:
            return rank
    return "nobody"


def _longest(computed_s: Sequence[float], stage_of: Sequence[int]) -> int:
    return max(range(len(computed_s)), key=lambda rank: computed_s[rank])


def _against_all(computed_s: Sequence[float], stage_of: Sequence[int]) -> int | str:
    slow = [r for r, s in enumerate(computed_s) if s >= 1.25 * median_low(computed_s)]
    return slow[0] if slow else "nobody"


def _against(
    middle: Callable[[Sequence[float]], float],
    computed_s: Sequence[float],
    stage_of: Sequence[int],
) -> int | str:
    for rank, mine in enumerate(computed_s):
        peers = [s for s, stage in zip(computed_s, stage_of) if stage == stage_of[rank]]
        if mine >= 1.25 * middle(peers):
            return rank
    return "nobody"


def _always_somebody(computed_s: Sequence[float], stage_of: Sequence[int]) -> int:
    def excess(rank: int) -> float:
        peers = [s for s, stage in zip(computed_s, stage_of) if stage == stage_of[rank]]
        return computed_s[rank] / median_low(peers)

    return max(range(len(computed_s)), key=excess)


# d09: how often to save
# ---------------------------------------------------------------------------------------------


def _job(draw: Random) -> dict[str, Any]:
    return {
        "gpus": draw.choice((1024, 4096, 16_384)),
        "gpu_mtbf_h": float(draw.choice((20_000, 50_000))),
        "checkpoint_s": float(draw.choice((10, 30, 60))),
    }


def _interval_s(gpus: int, gpu_mtbf_h: float, checkpoint_s: float) -> float:
    """The best interval of those tried, by the expected goodput."""
    mtbf_s = gpu_mtbf_h * 3600 / gpus
    given = {"checkpoint_s": checkpoint_s, "restart_s": 0.0, "mtbf_s": mtbf_s}
    tried = [sqrt(2 * checkpoint_s * mtbf_s) * 1.002**n for n in range(-60, 61)]
    return max(tried, key=lambda s: failures.expected_goodput(interval_s=s, **given))


def solution_d09(gpus, gpu_mtbf_h, checkpoint_s):  # type: ignore[no-untyped-def]
    """Young's interval, with the mean time between failures of the whole job."""
    mtbf_s = gpu_mtbf_h * 3600 / gpus
    return (2 * checkpoint_s * mtbf_s) ** 0.5


def _near(found: Any, expected: Any) -> bool:
    """Young's interval is the first term of Daly's: a few percent are right."""
    number = isinstance(found, int | float) and isinstance(expected, int | float)
    return bool(number and abs(found - expected) <= 0.05 * expected)


EXERCISES = [
    Exercise(
        "w14",
        level=2,
        draw=_recorded,
        oracle=_guilty,
        solution=solution_w14,
        mistakes={
            "rank_0": lambda groups, begun: 0,
            "furthest": lambda groups, begun: max(begun, key=lambda r: sum(begun[r].values())),
            "fewest": lambda groups, begun: min(begun, key=lambda r: sum(begun[r].values())),
            "first_waiting": lambda groups, begun: next(
                rank
                for rank in begun
                if any(
                    begun[rank][name] > min(begun[peer][name] for peer in ranks)
                    for name, ranks in groups.items()
                    if rank in ranks
                )
            ),
        },
        sets=12,
    ),
    Exercise(
        "b14",
        level=1,
        draw=_training,
        oracle=_mfu,
        solution=solution_b14,
        mistakes={
            "gpus_twice": lambda gpus, **case: _mfu(gpus=gpus, **case) / gpus,
            "forward_only": _forward_only,
            "six_n": _without_attention,
            "all_parameters": _all_parameters,
        },
        unit="%",
        scale=100.0,
    ),
    Exercise(
        "d14",
        level=2,
        draw=_computed,
        oracle=lambda **case: "nobody" if _slow(**case) is None else _slow(**case),
        solution=solution_d14,
        mistakes={
            "longest": _longest,
            "against_all": _against_all,
            "always_somebody": _always_somebody,
            "mean": partial(_against, mean),
            "median": partial(_against, median),
            "fastest": partial(_against, min),
        },
        sets=12,
    ),
    Exercise(
        "d09",
        level=2,
        draw=_job,
        oracle=_interval_s,
        solution=solution_d09,
        mistakes={
            "one_gpu": lambda gpus, **case: _interval_s(gpus=1, **case),
            "no_two": lambda **case: _interval_s(**case) / sqrt(2),
            "not_squared": lambda gpus, gpu_mtbf_h, checkpoint_s: (
                2 * checkpoint_s * gpu_mtbf_h * 3600 / gpus
            ),
            "hours": lambda gpus, gpu_mtbf_h, checkpoint_s: _interval_s(
                gpus, gpu_mtbf_h / 3600, checkpoint_s
            ),
        },
        same=_near,
        unit="min",
        scale=1 / 60,
    ),
]

FIGURES = {
    "w14": {
        "ranks_named": Figure(6, 0.0),
        "ranks_waiting": Figure(3, 0.0),
        "guilty_waits": Figure(0, 0.0),
    },
    "b14": {
        "six_n_over_mfu": Figure(1.043, 0.001),
        "code_over_steps_a_gpu": Figure(1.043, 0.001),
    },
    "b14.change": {
        "gain": Figure(1.35, 0.05, measured=True),
        "waits_less": Figure(1, 0.0, measured=True),
    },
    "d14": {
        "held": Figure(1, 0.0, measured=True),
        "step_off_percent": Figure(0.0, 8.0, measured=True),
    },
    "d09": {"steps_twice": Figure(2, 0.0), "loss_difference": Figure(0.0, 1e-5)},
    "w14.change": {"far": Figure(3, 0.0)},
}

TRIES = {
    "d09.follow_ups.1": """\
import simlab as sl
from simlab.operations import failures

for gpus in (1_024, 16_384, 131_072):
    mtbf_s = 3.09 * 3600 * 16_384 / gpus
    interval_s = failures.daly_interval_s(60.0, mtbf_s)
    good = failures.expected_goodput(
        interval_s=interval_s, checkpoint_s=60.0, restart_s=600.0, mtbf_s=mtbf_s
    )
    print(f"{gpus:,} GPUs: every {interval_s / 60:.0f} min, {1 - good:.0%} lost")
assert good < 0.6, "at 131,072 GPUs less than six tenths would be left\"""",
    "b14.follow_ups.1": """\
import simlab as sl

model = sl.load_model("llama-3-8b")
for seq in (2_048, 8_192, 131_072):
    share = 1 - 6 * model.parameters / model.flops_per_token(seq)
    print(f"{seq:,} tokens: 6 N is {share:.0%} below the model's FLOPs")
assert share > 0.5, "at 131,072 tokens more than half of the work is attention\"""",
}
