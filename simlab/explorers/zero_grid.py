"""It shows which rank holds which slice of parameters, gradients and optimizer states."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State
from simlab.lowering.traffic import traffic
from simlab.memory.model_states import RECIPES, ModelStates, model_states
from simlab.spec.cluster import load_cluster
from simlab.spec.model import load_model
from simlab.spec.plan import Plan
from simlab.units import GIB, bytes_text
from simlab.views.chart import Axis, Boxes, Chart, Dots, Rule, Words
from simlab.views.scene import CATEGORY_COLOURS, CATEGORY_WORDS

CATEGORIES = {
    "parameters": 3,
    "gradients": 2,
    "optimizer": 1,
}
"""{category: the ZeRO stage from which it is sharded}, in the order of the columns."""
STAGES = {0: "ZeRO-0 (DDP)", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3 (FSDP)"}
NUMBERS: dict[str, dict[str, Any]] = {
    "zero": {"gradient_bytes": 2},
    "megatron": {"gradient_bytes": 4},
    "fp32": {"precision": "fp32"},
}
"""{recipe of model states: the fields of the plan that sends what it holds}."""
CLUSTER = "dgx-h100"
ROW, GAP = 0.8, 0.6
"""The height of a rank's boxes, and the room between two groups, in rows."""
ROW_PX, AROUND_PX = (25, 17), 44
"""CSS pixels of a row, of up to 8 ranks and of more, in which a number has room, and of the axis."""
BARS_PX = 160, 116
"""The height of the lower picture, so that with either both are on one screen of a laptop."""
CONTROLS = (
    Control(
        "model",
        Words("model", "模型"),
        ("gpt2-xl", "megatron-7.5b", "llama-3-8b", "llama-2-13b", "llama-3-70b"),
        "megatron-7.5b",
    ),
    Control("zero", Words("ZeRO stage", "ZeRO 阶段"), (0, 1, 2, 3), 1),
    Control("ranks", Words("data-parallel ranks", "数据并行 rank 数"), (2, 4, 8, 16), 8),
    Control(
        "group",
        Words("ranks that share one copy (fewer than all: HSDP)", "共享一份副本的 rank 数（小于全部即 HSDP）"),
        (2, 4, 8, 16),
        8,
    ),
    Control(
        "recipe",
        Words("bytes of a parameter: P + G + O", "每个参数的字节数：P + G + O"),
        tuple(NUMBERS),
        "zero",
        (
            Words("2 + 2 + 12 (ZeRO paper)", "2 + 2 + 12（ZeRO 论文）"),
            Words("2 + 4 + 12 (Megatron-LM)", "2 + 4 + 12（Megatron-LM）"),
            Words("4 + 4 + 8 (fp32)", "4 + 4 + 8（fp32）"),
        ),
    ),
)  # fmt: skip


class Slice(NamedTuple):
    """What a rank holds of one category: from the fraction `start` to the fraction `end` of it."""

    rank: int
    category: str
    start: float
    end: float
    number: int | None
    """Which of the slices it is; None where the rank holds all of them."""


def slices(plan: Plan) -> list[Slice]:
    """[what each rank holds of each category] under the ZeRO stage and the groups of `plan`."""
    found = []
    for rank in range(plan.gpus):
        group = plan.layout.group("shard", rank)
        number = group.index(rank)
        for category, stage in CATEGORIES.items():
            if plan.zero >= stage:
                edges = number / len(group), (number + 1) / len(group)
                found.append(Slice(rank, category, *edges, number))
            else:
                found.append(Slice(rank, category, 0.0, 1.0, None))
    return found


def answer(state: State) -> Answer:
    """What the ranks hold, and for each ZeRO stage the bytes that a rank holds and sends."""
    model, ranks, recipe = load_model(state["model"]), state["ranks"], state["recipe"]
    groups = [size for size in CONTROLS[3].values if size <= ranks]
    group = min(state["group"], ranks)
    plans = [
        Plan(dp=ranks, zero=zero, hybrid=group if zero and group < ranks else 0, **NUMBERS[recipe])
        for zero in STAGES
    ]
    held = [model_states(model.parameters, group, zero=zero, recipe=recipe) for zero in STAGES]
    sent = [traffic(model, plan)[0].dp for plan in plans]
    rows = [
        (CATEGORY_WORDS[category], [bytes_text(getattr(states, category)) for states in held])
        for category in CATEGORIES
    ]
    rows.append(
        (Words("a rank holds", "每个 rank 持有"), [bytes_text(each.total) for each in held])
    )
    figures = [Figure(*row) for row in rows]
    tip = Words(
        "in a step of one microbatch, as a ring sends it",
        "一步只有一个 micro-batch，按 ring 算法计",
    )
    name = Words("a rank sends in a step", "每个 rank 每步发送")
    figures.append(Figure(name, [bytes_text(each) for each in sent], tip))
    plan = plans[state["zero"]]
    return Answer(
        figures,
        [_grid(plan, recipe), _bars(held, plan.zero, BARS_PX[ranks > 8])],
        _note(plan, group, held),
        list(STAGES.values()),
        {"group": groups},
    )


def _note(plan: Plan, group: int, held: Sequence[ModelStates]) -> Words:
    if not plan.zero:
        return Words(
            "Every rank holds all of it, and the copies are equal.",
            "每个 rank 都持有全部内容，各份副本完全相同。",
        )
    less = held[0].total / held[plan.zero].total
    copies = plan.dp // group
    return Words(
        f"A rank holds 1/{less:.3g} of what it holds without ZeRO; "
        f"there {'is 1 copy' if copies == 1 else f'are {copies} copies'} of each slice.",
        f"每个 rank 的持有量是不用 ZeRO 时的 1/{less:.3g}；每个分片共有 {copies} 份。",
    )


def _grid(plan: Plan, recipe: str) -> Chart:
    """A row for each rank: the slices that it holds, as wide as their bytes."""
    widths = [getattr(RECIPES[recipe], category) for category in CATEGORIES]
    lefts = [sum(widths[:at]) + 0.5 * at for at in range(3)]
    left, width = dict(zip(CATEGORIES, lefts)), dict(zip(CATEGORIES, widths))
    tops = [rank + GAP * (rank // plan.shards) for rank in range(plan.gpus)]
    marks: list[Boxes] = []
    if plan.zero:
        cut = [c for c, stage in CATEGORIES.items() if plan.zero >= stage]
        places = [(left[c], left[c] + width[c], top) for top in tops for c in cut]
        starts, ends, above = zip(*places)
        name = Words("held by other ranks", "由其他 rank 持有")
        bottoms = [top + ROW for top in above]
        marks.append(Boxes(starts, ends, above, bottoms, "waiting", name, outline="axis"))
    for category in CATEGORIES:
        name = CATEGORY_WORDS[category]
        its = [each for each in slices(plan) if each.category == category]
        x0 = [left[category] + each.start * width[category] for each in its]
        x1 = [left[category] + each.end * width[category] for each in its]
        labels = ["" if each.number is None else str(each.number) for each in its]
        tips = [_tip(each, name) for each in its]
        bottoms = [top + ROW for top in tops]
        colour = CATEGORY_COLOURS[category]
        marks.append(Boxes(x0, x1, tops, bottoms, colour, name, labels=labels, tips=tips))
    middles = [top + ROW / 2 for top in tops]
    sizes = [f"{letter} {size:g} B" for letter, size in zip("PGO", widths)]
    ticks = [start + size / 2 for start, size in zip(lefts, widths)]
    return Chart(
        "grid",
        Words(
            f"Who holds what: {STAGES[plan.zero]} over {plan.gpus} ranks",
            f"谁持有什么：{plan.gpus} 个 rank，{STAGES[plan.zero]}",
        ),
        Axis(Words("bytes of each parameter", "每个参数的字节数"), ticks=ticks, names=sizes),
        Axis(
            Words("", ""), ticks=middles, names=[f"rank {r}" for r in range(plan.gpus)], down=True
        ),
        marks,
        height=AROUND_PX + round(ROW_PX[plan.gpus > 8] * (tops[-1] + ROW)),
    )


def _tip(each: Slice, name: Words) -> Words:
    if each.number is None:
        return Words(f"rank {each.rank}: all {name.en}", f"rank {each.rank}：全部{name.zh}")
    return Words(
        f"rank {each.rank}: slice {each.number} of the {name.en}",
        f"rank {each.rank}：{name.zh}的第 {each.number} 片",
    )


def _bars(held: Sequence[ModelStates], chosen: int, height: int) -> Chart:
    """What a rank holds under each ZeRO stage, beside a GPU's memory."""
    marks: list[Boxes | Dots | Rule] = []
    for at, category in enumerate(CATEGORIES):
        name = CATEGORY_WORDS[category]
        x0 = [sum(states[:at]) / GIB for states in held]
        x1 = [sum(states[: at + 1]) / GIB for states in held]
        tips = [
            Words(*(f"{STAGES[zero]}: {text} {bytes_text(states[at])}" for text in name))
            for zero, states in enumerate(held)
        ]
        y0, y1 = [zero - 0.35 for zero in STAGES], [zero + 0.35 for zero in STAGES]
        marks.append(Boxes(x0, x1, y0, y1, CATEGORY_COLOURS[category], name, tips=tips))
    x = [held[chosen].total / GIB]
    name, text = Words("the chosen stage", "所选阶段"), bytes_text(held[chosen].total)
    tip = Words(*(f"{STAGES[chosen]}: {text}" for _ in name))
    marks.append(Dots(x, [chosen], "ink", name, "diamond", tips=[tip]))
    memory = load_cluster(CLUSTER).gpu.memory_bytes / GIB
    name = Words(f"memory of an H100, {memory:.1f} GiB", f"H100 显存，{memory:.1f} GiB")
    marks.append(Rule("cap", name, x=memory))
    fitting = [STAGES[zero] for zero, states in enumerate(held) if states.total / GIB <= memory]
    some = ", ".join(fitting) or "none"
    return Chart(
        "bytes",
        Words(
            f"The model states fit an H100 with: {some}",
            f"模型状态放得进 H100 的：{'、'.join(fitting) or '无'}",
        ),
        Axis(Words("GiB", "GiB"), least=0, most=1.05 * max(memory, held[0].total / GIB)),
        Axis(Words("", ""), ticks=list(STAGES), names=list(STAGES.values()), down=True),
        marks,
        height=height,
    )


EXPLORER = Explorer(
    "zero_grid",
    Words("ZeRO: who holds which slice", "ZeRO：谁持有哪一片"),
    CONTROLS,
    answer,
)
