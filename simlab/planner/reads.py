"""Results that plans share: found once for all that have the same in the fields that they were found
from."""

from collections.abc import Callable
from functools import partial
from inspect import isfunction
from operator import attrgetter
from typing import Any, Generic, TypeVar, TypeVarTuple, cast

from simlab.spec.layout import DIMENSIONS
from simlab.spec.plan import Plan

Others = TypeVarTuple("Others")
T = TypeVar("T")
Values = Callable[[Plan], Any]

PLACES = ("order", "tp", "cp", "ep", "etp")
"""The fields from which the nodes of the groups of tp, cp and ep follow, which communicate within layers,
where these ranks are neighbours; where they are not, those of dp and pp do, too."""


class ByReads(Generic[*Others, T]):
    """A function of a plan that computes once what plans share.

    Its keys are the fields and properties that it has read of a plan, with what else it was given. A
    plan that has the same in all of them takes the same way through the function, whatever its other
    fields. Of a layout it may read the groups of tp, cp and ep (`PLACES`).
    """

    def __init__(self, function: Callable[[Plan, *Others], T]) -> None:
        self._function = function
        self._known: dict[Any, dict[tuple[str, ...], tuple[Values, dict[Any, T]]]] = {}

    def __call__(self, plan: Plan, *others: *Others) -> T:
        known = self._known.setdefault(others, {})
        for values_of, results in known.values():
            key = values_of(plan)
            if key in results:
                return results[key]
        reading = _Reading(plan)
        result = self._function(cast(Plan, reading), *others)
        names = tuple(reading.read)
        values_of, results = known.setdefault(names, (attrgetter(*names), {}))
        results[values_of(plan)] = result
        return result


class _Reading:
    """A plan that notes what is read of it."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self.read = plan, dict[str, None]()

    def __getattr__(self, name: str) -> Any:
        value = getattr(Plan, name, None)
        if isfunction(value):
            return partial(value, self)
        if name == "layout":
            near = self._plan.order == "-".join(DIMENSIONS)
            self.read.update(dict.fromkeys(PLACES if near else (*PLACES, "dp", "pp")))
        else:
            self.read["library" if name == "habits" else name] = None
        return getattr(self._plan, name)
