"""What an explorer is: controls, and a function from their values to figures and pictures.

An explorer knows nothing of widgets. `simlab.apps` shows it in JupyterLab and the page of `web/`
shows it in a browser, both with the same front end, which draws the controls, asks `answer` whenever
one changes, and draws what it says. So there is one definition of each explorer, and what a learner
reads in a notebook and on the page is the same to the last digit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, NamedTuple

from simlab.errors import InputError, SimlabError, did_you_mean, shortened
from simlab.program import Program
from simlab.schedules import Schedule
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.views.chart import Chart, Words
from simlab.views.language import refusal
from simlab.views.packing import Panel

State = Mapping[str, Any]
"""{name of a control: its value}."""
MOST_NAMED = 24
"""The most values that an error message names."""


@dataclass(frozen=True)
class Control:
    """One control: a slider over `values` where they are numbers, a menu where they are texts, a
    box to tick where they are False and True.

    name:   its key in the state, and in the link that restores it.
    names:  what to show for each of `values`; None: the value itself.
    menu:   whether numbers, too, are chosen from a menu.
    shown:  whether it stands among the controls; one that does not is moved by a picture.
    resets: whether all others go back to where they start when it changes.
    """

    name: str
    label: Words
    values: Sequence[Any]
    start: Any
    names: Sequence[Words] | None = None
    menu: bool = False
    shown: bool = True
    resets: bool = False

    def check(self, value: Any) -> None:
        """`InputError` unless `value` is one of `values`. Where there is one only, those that can be
        chosen follow from the other controls (`Answer.values`), and every value passes."""
        if len(self.values) == 1 or value in self.values:
            return
        offered = [str(each) for each in self.values]
        meant = did_you_mean(value, offered)
        if len(offered) > MOST_NAMED:
            offered[3:-1] = ["..."]
        raise InputError(
            f"{self.name} = {shortened(value)}{meant}: give one of {', '.join(offered)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists, as the front end takes them."""
        return {
            "name": self.name,
            "label": self.label._asdict(),
            "values": [*self.values],
            "start": self.start,
            "names": self.names and [words._asdict() for words in self.names],
            "menu": self.menu,
            "shown": self.shown,
            "resets": self.resets,
        }


@dataclass(frozen=True)
class Timeline:
    """Traces under each other on one time axis, as `simlab.views.packing.panels` packs them.

    row: what a row is: a "rank", or "pp", a place in the pipeline that stands for all its ranks.
    """

    key: str
    panels: Sequence[Panel]
    height: int | None = None
    row: str = "rank"

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists; what is packed stays bytes."""
        panels = [panel._asdict() | {"row": self.row} for panel in self.panels]
        return {"picture": "timeline", "key": self.key, "panels": panels, "height": self.height}


@dataclass(frozen=True)
class Board:
    """Ops in rows, which the learner drags into another order within their row.

    control: the control whose value an order is, as text: a line for each row, its ops with the
             number of the row before each.
    rows:    per rank its ops, each as a kind and a microbatch, such as F0.
    told:    what is asked of the learner.
    """

    key: str
    control: str
    rows: Sequence[Sequence[str]]
    told: Words

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists."""
        rows = [[*row] for row in self.rows]
        return {"picture": "board", "key": self.key, "control": self.control, "rows": rows} | {
            "told": self.told._asdict()
        }


class Figure(NamedTuple):
    """One number of the answer, as a line of the table above the pictures. `tip` says what it
    means; where several things are compared there is one text in `values` for each."""

    label: Words
    values: Sequence[str]
    tip: Words | None = None


@dataclass(frozen=True)
class Answer:
    """What the front end shows for one state.

    heads:    the columns of `figures` where several things are compared; else empty.
    pictures: `Chart`s, `Timeline`s and `Board`s, which the front end lays out in a grid.
    note:     one sentence on what there is to see, or what was refused and why.
    values:   {control: the values that it can take in this state}, for controls whose range follows
              from others, such as the round of a collective.
    idle:     {control that changes nothing in this state: why}; the front end disables it.
    solved:   the id of the challenge that this state solves, which the learner's progress keeps; "" if none.
    """

    figures: Sequence[Figure] = ()
    pictures: Sequence[Chart | Timeline | Board] = ()
    note: Words | None = None
    heads: Sequence[str] = ()
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    idle: Mapping[str, Words] = field(default_factory=dict)
    solved: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists, as the front end takes them."""
        figures = [
            {"label": each.label._asdict(), "values": [*each.values]}
            | {"tip": each.tip._asdict() if each.tip else None}
            for each in self.figures
        ]
        return {
            "figures": figures,
            "pictures": [picture.to_dict() for picture in self.pictures],
            "note": self.note._asdict() if self.note else None,
            "heads": [*self.heads],
            "values": {name: [*values] for name, values in self.values.items()},
            "idle": {name: why._asdict() for name, why in self.idle.items()},
            "solved": self.solved,
        }


@dataclass(frozen=True)
class Explorer:
    """An explorer by name.

    answer: from a state with a value for each control to an `Answer`; it may raise `SimlabError`,
            which the front end shows beside the last answer.
    play:   the control that a Play button moves on, step by step, or None.
    own:    {control: (name, the object of one's own that it means)}, as `taking` makes it.
    """

    name: str
    title: Words
    controls: Sequence[Control]
    answer: Callable[[State], Answer]
    play: str | None = None
    own: Mapping[str, tuple[str, Any]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Its name, title and controls, as the front end takes them."""
        return {
            "name": self.name,
            "title": self.title._asdict(),
            "controls": [control.to_dict() for control in self.controls],
            "play": self.play,
        }

    def taking(self, values: State) -> tuple["Explorer", dict[str, Any]]:
        """This explorer with the objects among `values`, {control: value}, that are one's own: a
        `Model`, a `Cluster`, a `Schedule`, or a function (ranks, microbatches) → `Program`. Returns it, and
        the values with the name of each object, which its control offers beside its other values."""
        own = {name: its for name, value in values.items() if (its := _own(value))}
        controls = [
            _offering(each, own[each.name].name) if each.name in own else each
            for each in self.controls
        ]
        labels = {each.name: each.values[-1] for each in controls if each.name in own}
        named = {name: (labels.get(name, its.name), its) for name, its in own.items()}
        texts = {name: label for name, (label, _) in named.items()}
        return replace(self, controls=controls, own=named), {**values, **texts}

    def meant(self, state: State) -> dict[str, Any]:
        """`state` with the objects that its names mean."""
        chosen = {name: its for name, (label, its) in self.own.items() if state[name] == label}
        return {**state, **chosen}

    def ask(self, state: State) -> Answer:
        """The answer for `state`. Raises `InputError` for a state without a value for each control,
        and for a value that a control does not have."""
        for control in self.controls:
            if control.name not in state:
                raise InputError(f"the state has no {control.name!r}: give a value of each control")
            control.check(state[control.name])
        return self.answer(self.meant(state))

    def reply(self, state: State) -> dict[str, Any]:
        """The answer for `state` as the front end takes it; {"refused": {"en", "zh": why}} where
        there is none."""
        try:
            return self.ask(state).to_dict() | {"refused": None}
        except SimlabError as error:
            return {"refused": refusal(error)._asdict()}

    def start(self, **values: Any) -> dict[str, Any]:
        """The state in which it opens, with other `values` for some of the controls.

        Raises `InputError` for a control that it does not have."""
        known = {control.name: control.start for control in self.controls}
        for name in values:
            if name not in known:
                raise InputError(
                    f"no control {name!r}{did_you_mean(name, known)}: give some of {', '.join(known)}"
                )
        return known | values


def _own(value: Any) -> Model | Cluster | Schedule | None:
    """`value` if it is an object that a control can take; a function as a schedule of its name."""
    if isinstance(value, Model | Cluster | Schedule):
        return value
    return _schedule(value) if callable(value) else None


def _schedule(function: Callable[..., Any]) -> Schedule:
    """A function (ranks, microbatches) → `Program` as a schedule of its name. What goes wrong in it is
    refused by that name."""
    name = getattr(function, "__name__", "yours").replace("_", "-").strip("<>")

    @wraps(function)
    def named(*counts: int, **options: Any) -> Program:
        try:
            program = function(*counts, **options)
        except SimlabError:
            raise
        except Exception as error:
            raise InputError(f"the schedule {name!r}: {type(error).__name__}: {error}") from error
        if not isinstance(program, Program):
            raise InputError(f"the schedule {name!r} gives {shortened(program)}: give a Program")
        return program if program.name else Program(program.ranks, name)

    return Schedule(name, named)


def _offering(control: Control, name: str) -> Control:
    """`control` with one more value, the name of an object; one that it has already is told apart."""
    label = name or "yours"
    label += " (yours)" * (label in control.values)
    names = control.names and [*control.names, Words(label, label)]
    return replace(control, values=[*control.values, label], names=names)
