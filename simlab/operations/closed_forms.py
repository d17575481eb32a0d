"""Young's and Daly's closed forms of a training with failures and checkpoints.

Both assume that failures come at random with a constant rate, also while the training starts again,
that the training stands still for a checkpoint and that it is complete then, that each restart takes
the same time, and that nothing is ever short. `simlab.operations.goodput` says which of these do not
hold of a run.
"""

import math

from simlab.errors import InputError


def expected_goodput(
    *, interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float
) -> float:
    """The goodput of a long training, on average (Daly 2006, "A higher order estimate of the
    optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22(3): the
    cost function for exponentially distributed failures).

    With t = interval_s + checkpoint_s and failures at the rate 1/M, a piece that must run t seconds
    without one takes (M + R) (e^(t/M) - 1) on average if each failure is followed by R seconds that
    cannot fail, and M e^(R/M) (e^(t/M) - 1) if they can, as
    here: a try fails with probability 1 - e^(-t/M), and what failed tries and restarts take adds up
    to that. Goodput is interval_s over it.
    """
    check_times(
        interval_s=interval_s, checkpoint_s=checkpoint_s, restart_s=restart_s, mtbf_s=mtbf_s
    )
    t, m = interval_s + checkpoint_s, mtbf_s
    try:
        return interval_s / (m * math.exp(restart_s / m) * math.expm1(t / m))
    except OverflowError:  # hardly a piece ever ends
        return 0.0


def most_restart_s(goodput: float, *, checkpoint_s: float, mtbf_s: float) -> float:
    """The longest restart with which a training still has that goodput at Daly's interval; negative
    if none is short enough.

    `expected_goodput` is g = t / (M e^(R/M) (e^((t + C)/M) - 1)), so R = M ln(t / (g M (e^(...) - 1))).
    """
    if not 0 < goodput < 1:
        raise InputError(f"goodput = {goodput!r}: give a part of the time, between 0 and 1")
    t = daly_interval_s(checkpoint_s, mtbf_s)
    check_times(interval_s=t)
    return mtbf_s * math.log(t / (goodput * mtbf_s * math.expm1((t + checkpoint_s) / mtbf_s)))


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """The best seconds of training between checkpoints, to first order (Young 1974, Communications
    of the ACM 17(9)): sqrt(2 C M).

    A checkpoint costs C each interval T, a failure each M costs T/2 on average: C/T + T/(2M) is
    least there. Good for C much below M.
    """
    check_times(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    return math.sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """The same to higher order (Daly 2006): sqrt(2CM) (1 + sqrt(C/2M)/3 + (C/2M)/9) - C; M from C =
    2M on."""
    check_times(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    half = checkpoint_s / (2 * mtbf_s)
    return (
        young_interval_s(checkpoint_s, mtbf_s) * (1 + math.sqrt(half) / 3 + half / 9) - checkpoint_s
    )


def check_times(**times: float) -> None:
    """`InputError` for a time that cannot be: checkpoints and restarts may take none."""
    for name, value in times.items():
        least = "of at least" if name in ("checkpoint_s", "restart_s") else "above"
        good = (
            isinstance(value, (int, float))
            and math.isfinite(value)
            and (value > 0 or (value == 0 and least == "of at least"))
        )
        if not good:
            raise InputError(f"{name} = {value!r}: give a finite time {least} 0 s")
