"""It lets the learner order the ops of a small pipeline by dragging them, and judges the order.

A level says how many ranks and microbatches there are, how long an op takes, and how many
microbatches a rank may hold. Its par is what the best known schedule within that cap needs: its step,
and the most that one of its ranks holds.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from simlab.analysis import breaches, peak_memory
from simlab.cost import FIELD_OF_KIND, OpTimes
from simlab.errors import InputError
from simlab.explorers.explorer import Answer, Board, Control, Explorer, Figure, State, Timeline
from simlab.program import Op, Program
from simlab.program.validation import reachable_positions, waits
from simlab.studies.puzzle import Puzzle
from simlab.trace import ACTIVATIONS, Trace
from simlab.units import MS, seconds_text
from simlab.views.chart import Words
from simlab.views.packing import panels

Order = list[list[Op]]
"""Per rank its ops in their order; rank r has stage r."""
HEIGHT = 250  # CSS pixels of the timeline
CLOSE = 1 + 1e-9  # two steps are equal within the rounding of sums


class Level(NamedTuple):
    """A puzzle and the name of what it teaches."""

    name: Words
    puzzle: Puzzle


def _level(en: str, zh: str, ranks: int, microbatches: int, cap: int, *ms: float) -> Level:
    """ms: the times of F and B, or of F, I and W."""
    forward, *backward = (each * MS for each in ms)
    times = (
        OpTimes(forward_s=forward, backward_s=backward[0])
        if len(backward) == 1
        else OpTimes(forward_s=forward, input_grad_s=backward[0], weight_grad_s=backward[1])
    )
    return Level(Words(en, zh), Puzzle(ranks, microbatches, times, cap))


LEVELS = (
    _level("1: fill the pipeline", "1：把流水线填满", 2, 3, 3, 1, 2),
    _level("2: three ranks", "2：三个 rank", 3, 4, 4, 1, 2),
    _level("3: memory for three", "3：只能持有三份", 3, 6, 3, 1, 2),
    _level("4: a split backward", "4：拆开的反向", 3, 4, 3, 1, 1, 1),
    _level("5: a slow input gradient", "5：较慢的输入梯度", 3, 5, 3, 1, 2, 1),
    _level("6: less memory than 1F1B", "6：比 1F1B 更省显存", 4, 6, 3, 1, 1, 1),
    _level("7: no bubble with more memory", "7：用显存换掉气泡", 4, 6, 7, 1, 1.5, 0.5),
)


@dataclass(frozen=True)
class Attempt:
    """An order of a level's ops and what came of it.

    order: the ops of each rank; the level's start where the asked order has other ops.
    trace: the simulated step; None where no rank can go on.
    held:  the most microbatches that a rank holds.
    solved: whether it holds no more than the cap.
    """

    level: Level
    order: Order
    says: Words
    trace: Trace | None = None
    held: float = 0.0
    solved: bool = False


def attempt(state: State) -> Attempt:
    """The `Attempt` that the state {"level": its number, "order": the program as text} says."""
    level = LEVELS[state["level"] - 1]
    puzzle = level.puzzle
    start, asked = parsed(puzzle.start), parsed(state["order"])
    same = [Counter(ops) for ops in asked] == [Counter(ops) for ops in start]
    order = asked if same else start
    if stuck := _stuck(order):
        return Attempt(level, order, stuck)
    trace = puzzle.check(as_text(order)).trace
    assert trace is not None  # every op finds what it needs
    held = max(peak_memory(trace, ACTIVATIONS))
    if over := breaches(trace, puzzle.cap):
        first = over[0]
        says = Words(
            f"Too much memory: rank {first.rank} holds {first.amount:g} microbatches from "
            f"{seconds_text(first.time_s)} on; {puzzle.cap:g} may be held.",
            f"超出显存：rank {first.rank} 从 {seconds_text(first.time_s)} 起持有 {first.amount:g} 个 "
            f"micro-batch，最多只能持有 {puzzle.cap:g} 个。",
        )
        return Attempt(level, order, says, trace, held)
    return Attempt(level, order, _praise(puzzle, trace.step_s), trace, held, solved=True)


def parsed(text: str) -> Order:
    """The order that a program says, which has one line for each rank; empty where it says none."""
    try:
        return [[*ops] for ops in Program.from_text(text, name="yours").ranks]
    except InputError:
        return []


def as_text(order: Order) -> str:
    """The program of an order, one line for each rank, as `Program.from_text` reads it."""
    return "\n".join(" ".join(map(str, ops)) for ops in order)


def _stuck(order: Order) -> Words | None:
    """Why some rank can never go on; None where every op gets its turn."""
    program = Program(order)
    blocked = waits(program, reachable_positions(program)).values()
    for wait in blocked:
        op, missing = _name(wait.op), _name(wait.need)
        if wait.holder == wait.rank:
            return Words(
                f"Not yet: rank {wait.rank} stops at {op}, which needs {missing}; that "
                "stands later in its own row.",
                f"还不行：rank {wait.rank} 停在 {op}，它需要 {missing}，而"
                f" {missing} 排在这一行的后面。",
            )
    if not blocked:
        return None
    en = [
        f"Rank {wait.rank} stops at {_name(wait.op)} for {_name(wait.need)} of rank {wait.holder}."
        for wait in blocked
    ]
    zh = [
        f"rank {wait.rank} 停在 {_name(wait.op)}，等 rank {wait.holder} 的 {_name(wait.need)}。"
        for wait in blocked
    ]
    return Words(
        "Not yet: ranks wait for each other. " + " ".join(en),
        "还不行：rank 互相等待。" + "".join(zh),
    )


def _name(op: Op) -> str:
    """As a tile of the board has it: F0."""
    return f"{op.kind}{op.microbatch}"


def _praise(puzzle: Puzzle, step_s: float) -> Words:
    """How good a valid order is."""
    took, par = seconds_text(step_s), seconds_text(puzzle.shortest_s)
    if step_s <= puzzle.bound_s * CLOSE:
        return Words(
            f"{took}: no order can be shorter. The last rank waits for its first input only, and then "
            "never stops.",
            f"{took}：不可能更短了。最后一个 rank 只等第一个输入，之后从不停下。",
        )
    if step_s < puzzle.shortest_s / CLOSE:
        return Words(
            f"{took}: shorter than every schedule that is known here ({par}).",
            f"{took}：比这里已知的所有调度都短（{par}）。",
        )
    if step_s <= puzzle.shortest_s * CLOSE:
        return Words(
            f"{took}: as short as the best known schedule.", f"{took}：和已知最好的调度一样短。"
        )
    more = seconds_text(step_s - puzzle.shortest_s)
    return Words(
        f"Valid: {took}, which is {more} longer than the best known schedule.",
        f"可行：{took}，比已知最好的调度长 {more}。",
    )


Best = Callable[[Attempt], tuple[float, float] | None]
"""From an attempt to (the step in seconds, the microbatches held) of the learner's best order."""


def answer(state: State, best: Best | None = None) -> Answer:
    """The board, the verdict, and the order's timeline; `best` adds a line of the learner's own."""
    found = attempt(state)
    puzzle = found.level.puzzle
    own = (found.trace.step_s, found.held) if found.trace else None
    scores = {"your order": own, "best known schedule": (puzzle.shortest_s, puzzle.least_held)}
    if best:
        scores["your best"] = best(found)
    shown = [
        (seconds_text(each[0]), f"{each[1]:g}") if each else ("–", "–") for each in scores.values()
    ]
    steps, held = zip(*shown, strict=True)
    rows = [[*map(_name, ops)] for ops in found.order]
    pictures: list[Board | Timeline] = [Board("board", "order", rows, _told(puzzle))]
    if found.trace:
        pictures.append(Timeline("timeline", panels([found.trace]), HEIGHT))
    figures = (
        Figure(Words("makespan", "总时长"), steps),
        Figure(
            Words("most held by a rank, microbatches", "单个 rank 最多持有的 micro-batch"), held
        ),
    )
    return Answer(
        figures, pictures, found.says, [*scores], values={"order": [as_text(found.order)]}
    )


def _told(puzzle: Puzzle) -> Words:
    """What is asked."""
    times = [
        f"{kind} {seconds_text(getattr(puzzle.times, FIELD_OF_KIND[kind]))}"
        for kind in puzzle.kinds
    ]
    last = "B" if puzzle.kinds == "FB" else "W"
    return Words(
        f"Drag the ops (or Shift and the arrow keys) so that the step is short. {', '.join(times)}; a rank may "
        f"hold at most {puzzle.cap:g} microbatches, from the start of F to the end of {last}.",
        f"拖动 op（或按 Shift 加方向键），让一步尽量短。{'，'.join(times)}；每个 rank 最多同时持有 {puzzle.cap:g} 个 "
        f"micro-batch，从 F 开始到 {last} 结束。",
    )


def _controls() -> list[Control]:
    numbers = range(1, len(LEVELS) + 1)
    names = [level.name for level in LEVELS]
    return [
        Control("level", Words("level", "关卡"), [*numbers], 1, names=names, menu=True),
        Control("order", Words("order", "顺序"), [""], "", shown=False),
    ]


EXPLORER = Explorer("puzzle", Words("Order the ops", "自己排顺序"), _controls(), answer)
