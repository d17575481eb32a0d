"""What an interview asks: whiteboard cases in stages, chains, and something to read. A part of a case or a chain
is posed with the numbers of the whole."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from simlab.lessons import book
from simlab.lessons.drill import boards, chains
from simlab.lessons.drill.artefacts import ARTEFACTS
from simlab.lessons.drill.posed import Item, Posed
from simlab.lessons.drill.single import aloud, exercise
from simlab.lessons.phrases import phrase
from simlab.lessons.prediction import Choice, Number, Value
from simlab.lessons.words import entry, word

KINDS = ("board", "chain", "artefact")
"""The kinds of items, which a drill asks where they are chosen."""
SUBJECTS = {
    "llama3": "planning",
    "deepseek": "experts",
    "million": "sequences",
    "fell": "operating",
    "hang": "faults",
    "budget": "planning",
    "profile": "operating",
    "recorder": "faults",
    "nccl": "collectives",
    "loss": "sequences",  # mixed precision and its overflows are there
    "launch": "planning",
}
"""{whiteboard case or artefact: the subject that it is about}, of a case but for some stages."""
SUBJECTS_OF_STAGES = {
    "states": "memory",
    "activations": "memory",
    "tp_sent": "tensor",
    "dp_sent": "data_parallel",
}
"""{stage of a whiteboard case: its own subject}."""


def items() -> list[Item]:
    """All that can be asked, whole."""
    return [
        *(Item("board", name) for name in boards.BOARDS),
        *(Item("chain", name) for name in chains.CHAINS),
        *(Item("artefact", name) for name in ARTEFACTS),
    ]


def parts(item: Item) -> list[Item]:
    """The parts of an item, in the order in which they are asked; itself if it has none."""
    if item.kind == "board":
        return [
            Item("board", f"{item.name}.{stage.name}") for stage in boards.board(item.name).stages
        ]
    if item.kind == "chain":
        return [
            Item("chain", f"{item.name}.{at}") for at in range(1 + len(chains.CHAINS[item.name]))
        ]
    return [item]


def whole(item: Item) -> Item:
    """The item that a part belongs to; itself if it is none."""
    return _wholes().get(item, item)


def question(item: Item) -> str:
    """The question that a part asks about: a link of a chain can belong to another one than the chain."""
    link = _link_of(item)
    return link[0] if link else whole(item).name


def asks(item: Item) -> set[tuple[str, str | int]]:
    """What a whole item asks: a question aloud, the exercise of one, or one of its follow-ups."""
    if item.kind != "chain":
        return {(item.name, item.kind)}
    links = {(name, link or "exercise") for name, link in chains.CHAINS[item.name]}
    return {(item.name, "aloud"), *links}


def skill(item: Item) -> str:
    """What a part takes: a chain opens with an answer aloud and may ask for a number; only the rest presses."""
    if item.kind != "chain":
        return item.kind
    link = _link_of(item)
    if link is None:
        return "aloud"
    return "exercise" if chains.is_exercise(link) else "chain"


def subject(item: Item) -> str:
    """The subject that an item, or a part of one, is about: a lesson's module."""
    if item.kind == "case":
        return "faults"
    if item.kind not in ("board", "artefact"):
        return book.subject(question(item))
    case = whole(item)
    if item == case:
        return SUBJECTS[item.name]
    stage = boards.board(case.name).stages[parts(case).index(item)]
    return SUBJECTS_OF_STAGES.get(stage.name, SUBJECTS[case.name])


def varied(kinds: Sequence[str], drawn: Mapping[str, list[Item]]) -> list[Item]:
    """Whole items of these kinds, of those drawn of each: none asks what another has asked, and each is about
    a subject of which least was asked."""
    chosen: list[Item] = []
    asked: set[tuple[str, str | int]] = set()
    times: Counter[str] = Counter()
    for kind in kinds:
        left = [one for one in drawn[kind] if asked.isdisjoint(asks(one))]
        if left:
            item = min(left, key=lambda one: times[subject(one)])
            chosen.append(item)
            asked |= asks(item)
            times[subject(item)] += 1
    return chosen


def forward(item: Item, left: Sequence[Item]) -> list[Item]:
    """The parts that are `left` with those of the next one about the subject of `item` brought forward, to
    come when `item` is at its end."""
    begun = [part for part in left if whole(part) == whole(item)]
    later = [part for part in left if whole(part) != whole(item)]
    again = next((one for one in map(whole, later) if subject(one) == subject(item)), None)
    first = [part for part in later if whole(part) == again]
    return [*begun, *first, *(part for part in later if whole(part) != again)]


def _link_of(item: Item) -> chains.Link | None:
    """The link of a chain that a part is; None of its opening, and of all else."""
    chain = whole(item)
    at = parts(chain).index(item) if item.kind == "chain" and item != chain else 0
    return chains.CHAINS[chain.name][at - 1] if at else None


@cache
def _wholes() -> dict[Item, Item]:
    return {part: item for item in items() for part in parts(item)}


def pose(item: Item, seed: str) -> Posed:
    """A part with the numbers of the whole, which `seed` draws."""
    return {"board": _stage, "chain": _link, "artefact": _artefact}[item.kind](item, seed)


def _artefact(item: Item, seed: str) -> Posed:
    made = ARTEFACTS[item.name](Random(f"artefact {item.name} {seed}"))
    key = f"artefacts.{item.name}"
    given: dict[str, Any] = dict(made.given)
    told = [word(f"{key}.explained.{fault}", **given) for fault in made.faults]
    choices = [one for one in made.fields.values() if isinstance(one, Choice)]
    return Posed(
        item=item,
        text=word(f"{key}.text"),
        fields=made.fields,
        labels={name: word(f"{key}.fields.{name}") for name in made.fields},
        answer=made.answer,
        options={one: word(f"{key}.options.{one}") for choice in choices for one in choice.options},
        rows=[[phrase(cell) for cell in row] for row in made.rows],
        explain=[*told, word("drill.listens", what=word(f"{key}.listens"))],
        hints=[*entry(f"{key}.hints")],
        tolerance=0.0,
        any_order=made.any_order,
    )


def _link(item: Item, seed: str) -> Posed:
    name, at = whole(item).name, parts(whole(item)).index(item)
    if at == 0:
        return aloud(item, name, chains.NEEDED)
    lead, link = chains.lead(name, at - 1), chains.CHAINS[name][at - 1]
    if chains.is_exercise(link):
        asked = exercise(link[0], seed)
        return replace(asked, item=item, text=f"{lead}\n\n{asked.text}", explain=[])
    question, answer = chains.follow_up(link)
    return Posed(
        item=item,
        text=f"{lead} **{question}**",
        fields={"held": Choice("yes", "no")},
        labels={"held": word("drill.held")},
        answer={"held": "yes"},
        options={one: word(f"drill.held_{one}") for one in ("yes", "no")},
        shown=f"**{word('form.answer')}**\n\n{answer}",
    )


def _said(value: Value) -> Any:
    """A value that a case tells: of a plan's choice such as "once-a-node" what it means."""
    return entry("boards.said").get(value, value)


def _stage(item: Item, seed: str) -> Posed:
    board = boards.board(whole(item).name)
    stage = board.stages[parts(whole(item)).index(item)]
    drawn, key = board.drawn(seed), f"boards.{board.name}"
    is_first = stage == board.stages[0]
    given = {name: _said(value) for name, value in drawn.given.items()}
    text = word(f"{key}.stages.{stage.name}.text")
    about = f"**{word(f'{key}.title')}**\n\n{word(f'{key}.text', **given)}"
    rows = [[phrase(cell) for cell in row] for row in drawn.rows]
    known = drawn.known(board.before(stage))
    hints = [*entry(f"{key}.stages.{stage.name}.hints")]
    sums = []
    if stage.hand:
        result = f"{boards.by_hand(stage.hand, known):.3g} {stage.unit}".strip()
        sums = [word("drill.by_hand", sum=boards.written(stage.hand, known), result=result)]
    expected = drawn.expected[stage.name]
    return Posed(
        item=item,
        text=f"{about}\n\n{text}" if is_first else text,
        fields={"answer": Choice(*stage.options) if stage.options else Number(stage.unit)},
        labels={"answer": word("drill.your_answer")},
        answer={"answer": expected},
        options={one: word(f"{key}.options.{one}") for one in stage.options},
        rows=rows if is_first else [],
        about="" if is_first else about,
        about_rows=[] if is_first else rows,
        explain=[word("drill.listens", what=word(f"{key}.stages.{stage.name}.listens"))],
        computed=" ".join([*hints[1:], *sums]),
        hints=[*hints, *sums],
        tolerance=stage.tolerance,
    )
