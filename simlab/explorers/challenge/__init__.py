"""Challenges: a goal that a simulated step must reach, and controls for what may be changed for it.

In most a plan is sought, whose prediction is judged as in the explorer of one plan; in some a slow link.
"""

import json
from importlib.resources import files

from simlab.explorers.challenge.links import START as LINK_START
from simlab.explorers.challenge.links import LinkTask
from simlab.explorers.challenge.tasks import LABELS, START, Task, listed
from simlab.explorers.explorer import Answer, Control, Explorer, State
from simlab.views.chart import Words

CHALLENGES: tuple[Task | LinkTask, ...] = tuple(
    Task.read(entry) if "model" in entry else LinkTask.read(entry)
    for entry in json.loads((files("simlab.explorers.challenge") / "tasks.json").read_text("utf-8"))
)
"""All of them. The number of a challenge, which addresses name, is its place here."""
HINTS = (
    Words("none", "无"),
    Words("first", "第一条"),
    Words("second", "第二条"),
    Words("best known answer", "已知最好的答案"),
)


def _controls() -> list[Control]:
    numbers = [*range(1, len(CHALLENGES) + 1)]
    names = [Words(*(f"{task.level} · {name}" for name in task.name)) for task in CHALLENGES]
    return [
        Control("task", Words("challenge", "挑战"), numbers, 1, names, menu=True, resets=True),
        # what a task offers of these, its answer says
        *(
            Control(name, LABELS[name], [start], start, menu=True)
            for name, start in (START | LINK_START).items()
        ),
        Control("hint", Words("hint", "提示"), [*range(len(HINTS))], 0, HINTS, menu=True),
    ]


def answer(state: State) -> Answer:
    """What is asked, what the state gives beside the best that is known, whether it reaches the goal, and a
    hint where one is asked for. Raises `InputError` for a plan that cannot be."""
    task = CHALLENGES[state["task"] - 1]
    found, offers = task.judged(state), task.offers()
    values = {name: offers.get(name, [state[name]]) for name in LABELS}
    parts = [found.asks, found.says, *([_hint(task, state["hint"])] if state["hint"] else [])]
    note = Words(" ".join(each.en for each in parts), "".join(each.zh for each in parts))
    solved = task.id if found.solved else ""
    return Answer(found.figures, found.pictures, note, found.heads, values, solved=solved)


def _hint(task: Task | LinkTask, number: int) -> Words:
    if number <= len(task.hints):
        return task.hints[number - 1]
    begin = task.start()
    best = {name: task.best[name] for name in task.free if task.best[name] != begin[name]}
    told = listed(best)
    return Words(
        f"Best known: {told.en}. The question behind it is {task.teaches}.",
        f"已知最好：{told.zh}。背后的问题是 {task.teaches}。",
    )


EXPLORER = Explorer("challenge", Words("Challenges", "挑战"), _controls(), answer)
