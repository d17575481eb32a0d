"""Challenges: a goal that a plan must reach, and controls for what of the plan may be changed.

What is asked follows from the prediction of the plan, as in the explorer of one plan.
"""

from collections.abc import Mapping
from typing import Any

from simlab.explorers.challenge.tasks import START, TASKS, VALUES, Task
from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State
from simlab.explorers.plan.step import pictures
from simlab.training import Prediction
from simlab.units import GIB, seconds_text
from simlab.views.chart import Words

CLOSE = 1.01
"""A step is as short as the best known one if it is longer by less than this factor."""
LABELS = {
    "nodes": Words("nodes", "节点数"),
    "tp": Words("tensor tp", "张量并行 tp"),
    "pp": Words("pipeline pp", "流水线 pp"),
    "cp": Words("context cp", "上下文 cp"),
    "ep": Words("experts ep", "专家并行 ep"),
    "microbatch_size": Words("microbatch size", "micro-batch 大小"),
    "zero": Words("ZeRO stage", "ZeRO 阶段"),
    "recompute": Words("recompute", "重计算"),
    "schedule": Words("schedule", "调度"),
    "precision": Words("precision", "精度"),
}
HINTS = (
    Words("none", "无"),
    Words("first", "第一条"),
    Words("second", "第二条"),
    Words("best known plan", "已知最好的方案"),
)


def _controls() -> list[Control]:
    numbers = [*range(1, len(TASKS) + 1)]
    names = [Words(*(f"{task.level} · {name}" for name in task.name)) for task in TASKS]
    return [
        Control("task", Words("challenge", "挑战"), numbers, 1, names, menu=True, resets=True),
        # what a task offers of these, its answer says
        *(Control(name, LABELS[name], [start], start, menu=True) for name, start in START.items()),
        Control("hint", Words("hint", "提示"), [*range(len(HINTS))], 0, HINTS, menu=True),
    ]


def answer(state: State) -> Answer:
    """The plan of the state beside the best known one, whether it reaches the goal, and a hint where one is
    asked for. Raises `InputError` for a plan that cannot be."""
    task = TASKS[state["task"] - 1]
    found, best = task.prediction(state), task.prediction(task.best)
    shown = [_figures(each) for each in (found, best)]
    labels = Words("step", "一步时间"), Words("MFU", "MFU"), Words("fullest GPU", "最满的 GPU")
    figures = [Figure(label, values) for label, values in zip(labels, zip(*shown))]
    values = {name: VALUES[name] if name in task.free else [state[name]] for name in VALUES}
    solved = task.id if task.is_solved(found) else ""
    heads = ["your plan", "best known plan"]
    return Answer(
        figures, pictures(found), _note(task, state, found, best), heads, values, solved=solved
    )


def _figures(found: Prediction) -> tuple[str, str, str]:
    held, capacity = sum(found.memory_bytes.values()) / GIB, found.capacity_bytes / GIB
    return seconds_text(found.step_s), f"{found.mfu:.1%}", f"{held:.1f} / {capacity:.0f} GiB"


def _note(task: Task, state: State, found: Prediction, best: Prediction) -> Words:
    """The task, the verdict, and the hint."""
    parts = [_asked(task, found), _verdict(task, found, best)]
    if state["hint"]:
        parts.append(_hint(task, state["hint"]))
    return Words(" ".join(each.en for each in parts), "".join(each.zh for each in parts))


def _asked(task: Task, found: Prediction) -> Words:
    goal, plan = task.asks(), found.plan
    seq = found.model.seq if plan.seq is None else plan.seq
    given = {name: value for name, value in task.given.items() if name not in ("nodes", "seq")}
    fixed, comma = _listed(given), bool(given)
    english = f"{task.model} on {plan.gpus} GPUs of {task.cluster}, {task.batch} sequences of {seq:,} tokens a step"
    told = f"{task.model}，{plan.gpus} 块 GPU（{task.cluster}），每步 {task.batch} 条序列，每条 {seq:,} 个 token"
    english += f"{', ' * comma}{fixed.en}."
    told += f"{'，' * comma}{fixed.zh}。"
    return Words(f"{english} Goal: {goal.en}.", f"{told}目标：{goal.zh}。")


def _verdict(task: Task, found: Prediction, best: Prediction) -> Words:
    """Whether the goal is reached; how far from the best known plan, or what is missing first."""
    fit = found.fit
    if not fit.fits:
        missing = f"{-fit.margin_bytes / GIB:.1f} GiB"
        return Words(f"Not yet: {missing} are missing.", f"还没有：缺 {missing}。")
    if not task.is_solved(found):
        return Words(
            "It fits; the rest of the goal is not reached yet.",
            "放得下，但目标的其余部分还没有达到。",
        )
    ratio = found.step_s / best.step_s
    if ratio <= CLOSE:
        return Words("Solved, as well as the best known plan.", "达成，和已知最好的方案一样好。")
    return Words(
        f"Solved; the step of the best known plan is {1 - 1 / ratio:.0%} shorter.",
        f"达成；已知最好的方案的一步还要短 {1 - 1 / ratio:.0%}。",
    )


def _hint(task: Task, number: int) -> Words:
    if number <= len(task.hints):
        return task.hints[number - 1]
    begin = task.start()
    plan = _listed({name: value for name, value in task.best.items() if value != begin[name]})
    return Words(
        f"Best known: {plan.en}. The question behind it is {task.teaches}.",
        f"已知最好：{plan.zh}。背后的问题是 {task.teaches}。",
    )


def _listed(values: Mapping[str, Any]) -> Words:
    """Fields of a plan with their values; the Chinese has the controls' labels."""
    english = (f"{name} = {value}" for name, value in values.items())
    chinese = (f"{LABELS[name].zh} = {value}" for name, value in values.items())
    return Words(", ".join(english), "，".join(chinese))


EXPLORER = Explorer("challenge", Words("Challenges", "挑战"), _controls(), answer)
