"""Exercises that are judged by processes: what each gives to the ranks, and which facts are right."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from realrun.launch.pool import Pool, RunError
from realrun.lessons.lesson import source
from simlab.errors import InputError, did_you_mean
from simlab.lessons.book import JUDGED_BY_PROCESSES
from simlab.lessons.exercise import Verdict, another_function, hints_of, not_written
from simlab.lessons.words import entry, word
from simlab.spec.plan import Plan


@dataclass(frozen=True)
class Practice:
    """An exercise for the question `id`, whose function runs on every rank of `plan`.

    judge:    the function of `realrun.lessons.practice` that calls the learner's, and whose facts are judged.
    cases:    the plain values that it is given, one run for each.
    right:    {fact: what is right}. A fact that is the name of a mistake tells that mistake.
    symptoms: {mistake: the facts that it shows}, for mistakes that no single fact names.
    solution: the name of a function in `realrun.lessons.practice.solutions`.
    """

    id: str
    judge: str
    plan: Plan
    right: Mapping[str, Any]
    solution: str
    cases: Sequence[Mapping[str, Any]] = ({},)
    symptoms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


PARALLEL = Plan(tp=4, dp=2)
PRACTICES = {
    one.id: one
    for one in (
        Practice(
            "b01",
            "weighted_mean",
            Plan(dp=4),
            right={"result": "right"},
            solution="mean",
            cases=({"sizes": [2, 4, 8, 18]}, {"sizes": [1, 1, 5, 1]}),
        ),
        Practice(
            "b02",
            "accumulation",
            Plan(dp=4),
            right={
                "reductions": 1,
                "last_forward_reduces": True,
                "last_backward_reduces": True,
                "ranks_alike": True,
                "as_one_process": True,
            },
            solution="step",
            cases=({"m": 2}, {"m": 4}),
            symptoms={
                "late": {"last_forward_reduces": False, "last_backward_reduces": True},
                "all_inside": {"last_forward_reduces": False},
                "not_divided": {"reductions": 1, "ranks_alike": True, "as_one_process": False},
                "every_time": {"ranks_alike": True, "as_one_process": True},
            },
        ),
        Practice(
            "d04",
            "column_row",
            PARALLEL,
            right={"output": "right", "input_gradient": "right", "weight_gradient": "right"},
            solution="mlp",
            cases=({"width": 8}, {"width": 12}),
            symptoms={
                "products_only": {"output": "partial_output"},
                "no_graph": {"output": "right", "input_gradient": "nothing"},
                "forward_only": {"output": "right", "input_gradient": "partial_gradient"},
                "summed_twice": {"output": "right", "weight_gradient": "summed_twice"},
            },
        ),
        Practice(
            "b05",
            "row_layer",
            PARALLEL,
            right={"output": "right", "sums": 1},
            solution="row",
            cases=({"inputs": 16}, {"inputs": 32}),
        ),
        Practice(
            "b06",
            "vocabulary_loss",
            PARALLEL,
            right={"loss": "right", "numbers": 3},
            solution="losses",
            cases=({"rows": 9, "scale": 400.0}, {"rows": 6, "scale": 1.0}),
            symptoms={"more_numbers": {"loss": "right"}},
        ),
        Practice(
            "d12",
            "global_norm",
            PARALLEL,
            right={"norm": "right"},
            solution="norm",
            cases=({"size": 4}, {"size": 9}),
        ),
        Practice(
            "b11",
            "ring_backward",
            Plan(cp=4, seq=64),
            right={"dq": "right", "dk": "right", "dv": "right"},
            solution="backward",
            cases=({"tokens": 3}, {"tokens": 8}),
        ),
        Practice(
            "d17",
            "agreement",
            Plan(tp=2, pp=2, microbatches=2),
            right={"calls": "right", "skipped_with_one": 4, "skipped_without": 0},
            solution="skip",
            symptoms={
                "unlike_calls": {"calls": "unlike_calls"},
                "own": {"skipped_with_one": 1},
                "one_group": {"skipped_with_one": 2},
                "apart": {"skipped_with_one": 3},
                "all_must": {"skipped_with_one": 0},
                "always": {"skipped_without": 4},
            },
        ),
    )
}
"""{question's id: exercise}"""


class Processes(Protocol):
    """Processes that judge: those of a `LessonPool`, or others."""

    pool: Pool | None

    def practice(
        self, name: str, plan: Plan, text: str, given: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """See `LessonPool.practice`."""


class Bound:
    """An exercise with the processes that judge it, in the form that a lesson's `exercise` takes."""

    def __init__(self, asked: Practice, pool: Processes) -> None:
        self.asked, self.pool = asked, pool
        self.id, self.level = asked.id, JUDGED_BY_PROCESSES[asked.id]

    def text(self, tongue: str | None = None) -> str:
        """What is asked, in `tongue` as `word` takes it."""
        return word(f"{self.id}.exercise.text", tongue=tongue)

    def hints(self, tongue: str | None = None) -> list[str]:
        """Three hints, from a nudge to nearly the code."""
        return hints_of(self.id, tongue)

    def solution_text(self) -> str:
        """The source of the solution."""
        return re.sub(r"  # type: ignore\S*", "", source(self.asked.solution, "practice"))

    def judge(self, attempt: Callable[..., Any] | str) -> Verdict:
        """The verdict on a learner's function, or its text: it raised or hung, with the rank and the
        line, is right, makes a known mistake, or differs in a fact that is told."""
        text = attempt if isinstance(attempt, str) else textwrap.dedent(inspect.getsource(attempt))
        if self.pool.pool is None:
            return Verdict(False, "form.needs_torch", word("form.needs_torch"))
        if callable(attempt):
            other = another_function(attempt, self.id, self._arguments())
            if other:
                return other
        for case in self.asked.cases:
            try:
                ranks = self.pool.practice(self.asked.judge, self.asked.plan, text, case)
            except RunError as error:
                ready = "" if self.pool.pool.closed else word("form.ranks_ready")
                text = word("form.ranks_raised", error=error) + ready
                return Verdict(False, "form.ranks_raised", text)
            verdict = self._verdict(ranks)
            if verdict is not None:
                return verdict
        text = word("form.ranks_solved", ranks=self.asked.plan.gpus, cases=len(self.asked.cases))
        return Verdict(True, "form.ranks_solved", text)

    def _arguments(self) -> list[str]:
        """The names of the function's arguments, from the solution."""
        (function,) = ast.parse(source(self.asked.solution, "practice")).body
        assert isinstance(function, ast.FunctionDef)
        return [argument.arg for argument in function.args.args]

    def _verdict(self, ranks: Sequence[Mapping[str, Any]]) -> Verdict | None:
        """What is wrong in the facts of all ranks; None where nothing is."""
        right = self.asked.right
        facts = {name: [its[name] for its in ranks if name in its] for its in ranks for name in its}
        if any("nothing" in found for found in facts.values()) and not self._mistake(facts):
            return not_written(self)
        wrong = {
            name: next(
                ((rank, value) for rank, value in enumerate(found) if value != right[name]), None
            )
            for name, found in facts.items()
            if name in right
        }
        off = {name: at for name, at in wrong.items() if at is not None}
        if not off:
            return None
        mistake = self._mistake(facts)
        if mistake is not None:
            key = f"{self.id}.exercise.mistakes.{mistake}"
            return Verdict(False, key, word(key))
        told = "; ".join(
            word("form.rank_found", rank=rank, fact=word(f"{self.id}.exercise.facts.{name}"),
                 found=_said(value), right=_said(right[name]))
            for name, (rank, value) in off.items()
        )  # fmt: skip
        return Verdict(False, "form.ranks_wrong", word("form.ranks_wrong", facts=told))

    def _mistake(self, facts: Mapping[str, Sequence[Any]]) -> str | None:
        """The known mistake that the facts show."""
        for name, shown in self.asked.symptoms.items():
            if all(value in facts.get(fact, ()) for fact, value in shown.items()):
                return name
        known = entry(f"{self.id}.exercise.mistakes")
        named = (value for found in facts.values() for value in found)
        return next((value for value in named if isinstance(value, str) and value in known), None)


def practice(identifier: str, pool: Processes) -> Bound:
    """The exercise of a question that `pool`'s processes judge. `InputError` if there is none."""
    if identifier not in PRACTICES:
        hint = did_you_mean(identifier, PRACTICES)
        raise InputError(f"no exercise for {identifier!r} is judged by processes{hint}")
    return Bound(PRACTICES[identifier], pool)


def _said(value: Any) -> str:
    """A fact's value as a person reads it."""
    if isinstance(value, bool):
        return word("form.yes" if value else "form.no")
    if value in ("right", "another"):
        return word(f"form.{value}")
    return f"{value:g}" if isinstance(value, int | float) else str(value)
