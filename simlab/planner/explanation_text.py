"""It writes an explanation, or advice, as text for reading."""

from collections.abc import Mapping

from simlab.planner.explain import PARTS, Advice, Explanation, Rival
from simlab.planner.rank import Ranked
from simlab.planner.search import layers_text, plan_text
from simlab.training.fit import FITS
from simlab.units import bytes_text, seconds_text


def explanation_text(why: Explanation) -> str:
    """An explanation for reading."""
    idle = [f"Its pipeline idles {why.idle}."] * bool(why.idle)
    layers = layers_text(why.best.plan)
    text = f"Layers are divided by what its stages take: {layers} (stages x layers)."
    unequal = [text] * bool(layers)
    lines = [f"The best plan: {why.binds}.", *idle, *unequal, _fit_text(why.best)]
    lines += _ties_lines(why)
    if why.runner_up:
        lines += ["Runner-up:", *_rival_lines(why.best, why.runner_up)]
    if why.families:
        lines.append("The best of other families:")
    for name, rival in why.families.items():
        first, *rest = _rival_lines(why.best, rival)
        lines += [f"  {name}: {first.strip()}", *rest]
    for change in why.changes:
        found = "the same plan" if change.same else "no plan fits"
        if change.best:
            step = seconds_text(change.best.step_s)
            found = f"{found if change.same else plan_text(change.best.plan)}, {step}"
        lines.append(f"With {change.change}: {found}.")
    return "\n".join(lines)


def _fit_text(best: Ranked) -> str:
    if best.fit.verdict == FITS:
        return f"It {best.fit}."
    return f"It is {best.fit}, if the allocator wastes no more than usual."


def _ties_lines(why: Explanation) -> list[str]:
    known = f"Error of such predictions: {why.uncertainty}."
    if not why.ties:
        return [known, _count_text(why)]
    return [
        known,
        _count_text(why),
        f"The simplest: {plan_text(why.simplest.plan)}.",
        f"That with most room: {plan_text(why.roomiest.plan)}.",
    ]


def _count_text(why: Explanation) -> str:
    """How many plans are as fast as the best one, as far as such predictions tell."""
    off, least = why.uncertainty.error, "At least " * why.more_ties
    if not why.uncertainty.is_near:
        count = f"{least.lower()}{why.ties}"
        return (
            f"Other plans within {off:.1%}, the error of the nearest predictions: {count}. That of these "
            "is not known: measuring decides."
        )
    if not why.ties:
        return f"No other plan is within {off:.1%}, the error of the predictions."
    others = "1 other plan is" if why.ties == 1 else f"{why.ties} other plans are"
    return (
        f"{least}{others} within {off:.1%}, the error of the predictions: a tie, to be settled by "
        "measuring."
    )


def _rival_lines(best: Ranked, rival: Rival) -> list[str]:
    slower = rival.ranked.step_s / best.step_s - 1
    return [
        f"  {plan_text(rival.ranked.plan)}",
        f"    {slower:+.1%}: {difference_text(rival.difference_s, best.step_s)}",
    ]


def difference_text(difference_s: Mapping[str, float], step_s: float) -> str:
    """The four largest parts of a difference between two steps, of which one takes `step_s`, and the
    rest: those of a thousandth of it or more."""
    parts = sorted(difference_s.items(), key=lambda item: -abs(item[1]))
    named = [(PARTS.get(name, name), seconds) for name, seconds in parts[:4]]
    named.append(("the rest", sum(seconds for _, seconds in parts[4:])))
    shown = [
        f"{name} {'+' if seconds > 0 else '-'}{seconds_text(abs(seconds))}"
        for name, seconds in named
        if abs(seconds) > 1e-3 * step_s
    ]
    return ", ".join(shown) or "hardly a difference"


def advice_text(found: Advice) -> str:
    """Advice for reading."""
    lines = [f"No plan can be made: {found.nearest}."]
    if found.missing_bytes:
        missing = bytes_text(found.missing_bytes)
        lines = ["No plan fits.", f"The nearest one misses {missing}: {found.nearest}."]
    if found.best:
        step = seconds_text(found.best.step_s)
        lines.append(
            f"The cheapest change: {found.change}; then {plan_text(found.best.plan)}, {step}."
        )
    else:
        lines.append("None of the changes that were tried makes one fit.")
    return "\n".join(lines)
