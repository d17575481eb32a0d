"""It shows one plan of one model on one cluster: the step, the memory, where the ranks are, and when
they do what."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from simlab.analysis import bubble
from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State, Timeline
from simlab.explorers.plan.rounds import (
    Collective,
    collectives,
    round_charts,
    round_figures,
    round_note,
)
from simlab.layer.passes.recomputation import RECOMPUTE
from simlab.schedules import SCHEDULES
from simlab.spec.cluster import clusters, load_cluster
from simlab.spec.model import MFU_CONVENTION, catalogue, load_model
from simlab.spec.plan import Plan
from simlab.trace import Trace
from simlab.training import Prediction, layer_trace, predict
from simlab.training.fit import DOES_NOT_FIT, FITS, TIGHT, Fit
from simlab.training.uncertainty import Uncertainty
from simlab.units import GIB, bytes_text, seconds_text
from simlab.views.chart import Chart, Words
from simlab.views.charts.bars import memory_chart, step_chart
from simlab.views.charts.ranks import ranks_chart
from simlab.views.charts.streams import streams_chart
from simlab.views.language import LANGUAGE
from simlab.views.packing import panels

WHOLE_STEP, WHOLE_OP, NO_COLLECTIVE = "whole step", "all layers", "none"
ALL_OF_IT, ALL_LAYERS = Words(WHOLE_STEP, "整步"), Words(WHOLE_OP, "所有层")
NONE = Words(NO_COLLECTIVE, "无")
ZOOMS = ("zoom", "unit", "collective", "round")
"""The controls that choose what is shown of a plan, from the outside in."""
DEGREES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128)
HEIGHT = 230  # CSS pixels of the timeline
CLICK = Words("Click a collective to see its rounds.", "点击一次集合通信，看它的各轮。")


def _controls() -> list[Control]:
    def degree(name: str, start: int, what: Words) -> Control:
        return Control(name, what, DEGREES, start, menu=True)

    nodes = [2**power for power in range(8)]
    return [
        Control("model", Words("model", "模型"), [*catalogue()], "llama-2-13b"),
        Control("cluster", Words("cluster", "集群"), [*clusters()], "dgx-a100"),
        Control("nodes", Words("nodes", "节点数"), nodes, 4, menu=True),
        degree("dp", 2, Words("data dp", "数据并行 dp")),
        degree("tp", 4, Words("tensor tp", "张量并行 tp")),
        degree("pp", 4, Words("pipeline pp", "流水线 pp")),
        degree("cp", 1, Words("context cp", "上下文 cp")),
        Control("zero", Words("ZeRO stage", "ZeRO 阶段"), (0, 1, 2, 3), 1, menu=True),
        Control("recompute", Words("recompute", "重计算"), [*RECOMPUTE], "none"),
        Control(
            "schedule",
            Words("schedule", "调度"),
            [name for name, its in SCHEDULES.items() if not its.timed],
            "1f1b",
        ),
        Control("microbatches", Words("microbatches", "micro-batch 数"), [*range(1, 129)], 16),
        Control("zoom", Words("zoom", "放大"), [WHOLE_STEP], WHOLE_STEP, [ALL_OF_IT], menu=True),
        Control(
            "unit", Words("of the op", "该 op 的"), [WHOLE_OP], WHOLE_OP, [ALL_LAYERS], menu=True
        ),
        Control(
            "collective",
            Words("rounds of", "看各轮"),
            [NO_COLLECTIVE],
            NO_COLLECTIVE,
            [NONE],
            menu=True,
        ),
        Control("round", Words("round", "轮次"), [0], 0),
    ]


@lru_cache(4)
def _prediction(model: str, cluster: str, nodes: int, **plan: Any) -> Prediction:
    return predict(load_model(model), Plan(**plan), load_cluster(cluster, nodes=nodes))


@lru_cache(2)
def _layers(model: str, cluster: str, nodes: int, **plan: Any) -> Trace:
    return layer_trace(load_model(model), Plan(**plan), load_cluster(cluster, nodes=nodes))


def _asked(state: State) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in ZOOMS}


def step_streams(state: State) -> Chart:
    """The whole step of the state's plan as a chart, for where there is no canvas."""
    trace = _prediction(**_asked(state)).trace
    title = Words("The step", "一步")
    row = _row(_prediction(**_asked(state)))
    return streams_chart(trace, key="timeline", title=title, row=row, height=HEIGHT)


def answer(state: State) -> Answer:
    """The figures and pictures of a plan. A zoom into an op that the plan does not have shows the
    whole step. Raises `InputError` for a plan that cannot be."""
    found = _prediction(**_asked(state))
    ops = [str(op) for op in found.program.ranks[0]]
    values: dict[str, Sequence[Any]] = {"zoom": [WHOLE_STEP, *ops], "unit": [WHOLE_OP]}
    if state["zoom"] in ops:
        return _zoomed(state, found, values)
    return Answer(_figures(found), pictures(found), _note(found, whole=True), values=values)


def pictures(found: Prediction) -> tuple[Chart | Timeline, ...]:
    """The pictures of a plan: its step, its memory, its ranks, and when they do what."""
    detail = Timeline("timeline", panels([found.trace]), HEIGHT, _row(found))
    return (*_whole(found), detail)


def _whole(found: Prediction) -> tuple[Chart, Chart, Chart]:
    """The pictures of the whole plan: its step, its memory and its ranks."""
    return (
        step_chart(found),
        memory_chart(found),
        ranks_chart(found.plan, found.cluster.gpus_per_node),
    )


def _zoomed(state: State, found: Prediction, values: dict[str, Sequence[Any]]) -> Answer:
    """An op of the plan, or one unit of it; of a collective of it also a round."""
    layers, op = _layers(**_asked(state)), state["zoom"]
    parts = (span.unit for span in layers.spans if span.op_text == op and span.unit)
    units = [WHOLE_OP, *dict.fromkeys(parts)]
    unit = state["unit"] if state["unit"] in units else WHOLE_OP
    those = collectives(found.plan, layers, op, "" if unit == WHOLE_OP else unit)
    detail = _op(layers, op, unit, those)
    values |= {"unit": units, "collective": [NO_COLLECTIVE, *those]}
    chosen = those.get(state["collective"])
    if not chosen:
        note = _note(found, whole=False, opens=bool(those))
        return Answer(_figures(found), (*_whole(found), detail), note, values=values)
    steps = chosen.steps()
    step = steps[min(state["round"], len(steps) - 1)]
    return Answer(
        round_figures(chosen, step, len(steps) - 1),
        (detail, *round_charts(chosen, step)),
        round_note(chosen),
        values=values | {"round": range(len(steps))},
    )


def _row(found: Prediction) -> str:
    """What a row is: a stage, or a place of the pipeline that has several stages."""
    return "stage" if found.program.has_a_rank_for_each_stage else "pp"


def _op(layers: Trace, op: str, unit: str, those: Mapping[str, Collective]) -> Chart:
    """What runs while `op` does, or while one unit of it does; a click on one of `those` opens it."""
    title = Words(f"{op} and what runs beside it", f"{op} 及同时进行的工作")
    window = layers.window(op)
    if unit != WHOLE_OP:
        spans = [span for span in layers.spans if span.op_text == op and span.unit == unit]
        window = min(span.start_s for span in spans), max(span.end_s for span in spans)
        title = Words(f"{op} {unit} and what runs beside it", f"{op} {unit} 及同时进行的工作")
    return streams_chart(
        layers,
        key="op",
        title=title,
        window=window,
        height=HEIGHT,
        control="collective",
        opens={one.span: name for name, one in those.items()},
    )


def _figures(found: Prediction) -> list[Figure]:
    held = sum(found.memory_bytes.values()) / GIB
    capacity = found.capacity_bytes / GIB
    mfu = Words(
        f"Model FLOPs utilisation, {MFU_CONVENTION}", f"模型 FLOPs 利用率，{MFU_CONVENTION}"
    )
    hfu = Words("Counts recomputed work, too", "也计入重计算的工作")
    return [
        Figure(Words("step", "一步时间"), [seconds_text(found.step_s)]),
        _error(found.uncertainty),
        Figure(Words("MFU", "MFU"), [f"{found.mfu:.1%}"], mfu),
        Figure(Words("HFU", "HFU"), [f"{found.hfu:.1%}"], hfu),
        Figure(Words("tokens/s", "token/s"), [f"{found.tokens_per_s:,.0f}"]),
        Figure(
            Words("fullest GPU", "最满的 GPU"),
            [f"{held:.1f} / {capacity:.0f} GiB"],
            _fit(found.fit),
        ),
    ]


def _error(off: Uncertainty) -> Figure:
    """How far predictions of the step's kind were off."""
    suites, differs = "、".join(off.suites), "、".join(DIFFERS[name] for name in off.differs)
    chinese = f"{off.runs} 次公开的训练（{suites}）：平均误差 {off.error:.1%}，偏差 {off.bias:+.1%}，十次中九次不超过 {off.nine_in_ten:.1%}"
    chinese += f"；与这里不同的是{differs}" * bool(differs)
    name = Words("error of such steps", "这类预测的误差")
    told = Words(f"How far such predictions were off: {off}", chinese)
    return Figure(name, [f"±{off.error:.1%}" if off.is_near else "?"], told)


DIFFERS = {
    "experts": "有没有专家",
    "architecture": "GPU 的架构",
    "GPU": "GPU",
    "precision": "精度",
    "library": "训练库",
}
"""What `Uncertainty.differs` names, in Chinese."""


def _note(found: Prediction, *, whole: bool, opens: bool = False) -> Words:
    word = LANGUAGE["words"][_row(found)]
    rows = Words(
        f"Row '{word['en']} 0' stands for all ranks at the first place of the pipeline, and so on.",
        f"{word['zh']} 0 一行代表流水线第一个位置的所有 rank，依此类推。",
    )
    if opens:
        rows = Words(*(f"{row} {more}" for row, more in zip(rows, CLICK)))
    if whole:
        rows = Words(*(f"{row} {more}" for row, more in zip(rows, _parts_of_the_step(found))))
    if found.fit.verdict == FITS:
        return rows
    told = _fit(found.fit)
    return Words(f"{told.en}. {rows.en}", f"{told.zh}。{rows.zh}")


def _fit(fit: Fit) -> Words:
    """Whether the plan fits, and why, as `Fit` has it."""
    names = {FITS: "放得下", TIGHT: "勉强放得下", DOES_NOT_FIT: "放不下"}
    beside, left = (
        bytes_text(fit.waste_bytes + fit.reserve_bytes),
        bytes_text(abs(fit.margin_bytes)),
    )
    sums = (
        f"张量 {bytes_text(fit.held_bytes)} + 预留 {beside}，共有 {bytes_text(fit.capacity_bytes)}"
    )
    rest = f"{'缺' if fit.margin_bytes < 0 else '剩余'} {left}"
    return Words(f"Memory: {fit}", f"显存{names[fit.verdict]}：{sums}，{rest}")


def _parts_of_the_step(found: Prediction) -> Words:
    """How the timeline's numbers follow from those of the step."""
    makespan_s, idle = found.trace.step_s, bubble(found.trace).idle_over_makespan
    pipeline, after = seconds_text(makespan_s), seconds_text(found.step_s - makespan_s)
    english = f"Step = makespan {pipeline} + {after} for the last reductions and the optimizer."
    chinese = f"一步时间 = 总时长 {pipeline} + 最后的归约与优化器 {after}。"
    if found.plan.pp > 1:
        idle_text = seconds_text(idle * makespan_s)
        english += f" In the makespan a rank idles {idle_text}: bubble + waits for messages."
        chinese += f"总时长内每个 rank 平均空闲 {idle_text}：气泡 + 等消息。"
    return Words(english, chinese)


EXPLORER = Explorer("plan", Words("One plan", "一个并行方案"), _controls(), answer, "round")
