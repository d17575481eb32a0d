"""Questions of one part each: an exercise with numbers, an answer said aloud, an on-call case, and a prediction
again."""

from random import Random
from typing import Any

from simlab.lessons import book, progress
from simlab.lessons.drill import on_call
from simlab.lessons.drill.posed import POINTS_NEEDED, Item, Posed
from simlab.lessons.mistakes import roundings
from simlab.lessons.phrases import phrase
from simlab.lessons.prediction import Choice, Number
from simlab.lessons.words import entry, shows_solutions, word

ONLY_IN_THE_LESSON = (
    "d18.blind",
    *(f"{name}.executed" for name in ("b03", "w03", "t1", "w09", "w10", "b10")),
)
"""Predictions about what their lesson shows beside them, or about how fast one machine is: they cannot
be asked without it."""


def items() -> list[Item]:
    """All that can be asked now; a prediction once a lesson has shown its result."""
    kept = progress.load()["predictions"]
    found = {name for name, one in kept.items() if isinstance(one, dict) and one.get("found")}
    found -= {*ONLY_IN_THE_LESSON}
    return [
        *(Item("exercise", name) for name, one in book.exercises().items() if one.asked_in_drill()),
        *(Item("aloud", name) for name in book.questions()),
        *(Item("case", cause) for cause in on_call.CAUSES),
        *(Item("prediction", name) for name in book.predictions() if name in found),
    ]


def pose(item: Item, seed: str) -> Posed:
    """The question of an item with the numbers of `seed`."""
    makers = {"exercise": exercise, "aloud": _aloud, "case": _case, "prediction": _prediction}
    return makers[item.kind](item.name, seed)


def exercise(name: str, seed: str) -> Posed:
    """The exercise of a question, with numbers."""
    asked = book.exercise(name)
    values = asked.draw(Random(f"drill {name} {seed}"))
    label = word("drill.your_answer")
    right = asked.oracle(**values)
    whole = type(right) is int
    code = f"\n\n```python\n{asked.solution_text()}\n```"
    how = code if shows_solutions() else asked.hints()[-1]
    given = ", ".join(f"{one} = {_short(value)}" for one, value in values.items())
    tera = {one: value / 1e12 for one, value in values.items() if isinstance(value, float)}
    return Posed(
        item=Item("exercise", name),
        text=word(f"{name}.exercise.drill", tera=tera, **values),
        fields={"answer": Number(asked.unit)},
        labels={"answer": label},
        answer={"answer": asked.scale * float(right)},
        explain=[word(f"{name}.takeaway")],
        computed=word("drill.computed", values=given, how=how),
        wrong=[
            (asked.scale * float(value), f"{name}.exercise.mistakes.{key}")
            for key, mistake in asked.mistakes.items()
            if isinstance(made := mistake(**values), int | float)
            for value in (roundings(made) if whole else (made,))
        ],
    )


def _short(value: Any) -> str:
    """A drawn value as it is written in a formula."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _aloud(name: str, seed: str) -> Posed:
    return aloud(Item("aloud", name), name)


def aloud(item: Item, name: str, needed: int = POINTS_NEEDED) -> Posed:
    """A question to answer aloud. needed: of its five points, those that are enough."""
    points = "\n".join(f"- {point}" for point in entry(f"{name}.points"))
    return Posed(
        item=item,
        text=word("drill.aloud", title=word(f"{name}.title")),
        fields={"points": Number()},
        labels={"points": word("drill.points_said")},
        answer={"points": float(needed)},
        shown=f"**{word('drill.points')}**\n\n{points}",
        explain=[f"**{word(f'{name}.headline')}**", word(f"{name}.spoken")],
        at_least=True,
    )


def _case(cause: str, seed: str) -> Posed:
    seen = on_call.case(cause, seed)
    still = [word("drill.nothing_moves")] if cause in on_call.STACKS else []
    return Posed(
        item=Item("case", cause),
        text=" ".join([word("drill.case"), *still]),
        fields={"rank": Number(), "cause": Choice(*on_call.CAUSES)},
        labels={"rank": word("drill.rank"), "cause": word("drill.cause")},
        answer={"rank": float(seen.rank), "cause": cause},
        options={one: word(f"drill.causes.{one}") for one in on_call.CAUSES},
        rows=[[phrase(cell) for cell in row] for row in seen.rows],
        explain=[word(f"drill.explained.{cause}", rank=seen.rank)],
    )


def _prediction(name: str, seed: str) -> Posed:
    asked = book.prediction(name)
    kept: dict[str, Any] = progress.load()["predictions"][name]
    shown = {one: kept["found"][one] for one in asked.fields if one in kept["found"]}
    options = {
        option: asked.text(one, option)
        for one in shown
        for option in getattr(asked.fields[one], "options", ())
    }
    return Posed(
        item=Item("prediction", name),
        text=_in_context(name),
        fields={one: asked.fields[one] for one in shown},
        labels={one: asked.label(one) for one in shown},
        answer=shown,
        options=options,
        explain=[word(f"{asked.question}.takeaway")],
    )


def _in_context(name: str) -> str:
    """What a prediction asks; one after a changed line follows what was asked before the change."""
    asked = book.prediction(name)
    changed = name == f"{asked.question}.change"
    before = [book.prediction(asked.question)] if changed else []
    return "\n\n".join(one.asks() for one in (*before, asked))
