"""It shows what each rank of ring attention computes and sends, step by step, for both layouts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State
from simlab.spec.cluster import clusters, load_cluster
from simlab.spec.model import catalogue, load_model
from simlab.spec.plan import Plan
from simlab.studies.ring_attention import ring_trace
from simlab.trace import Trace
from simlab.units import seconds_text
from simlab.views.chart import Chart, Words
from simlab.views.charts.streams import streams_chart

LAYOUTS = {
    "contiguous": Words(
        "Contiguous: rank r has the r-th part of the sequence",
        "连续切分：rank r 拿序列的第 r 段",
    ),
    "zigzag": Words(
        "Zigzag: rank r has the r-th part from the front and from the back",
        "zigzag 切分：rank r 拿从前数和从后数的第 r 段",
    ),
}
INSIDE = "node"


def _controls() -> list[Control]:
    tokens = [2**power for power in range(12, 18)]
    across = [
        Words("in a node, NVLink", "节点内，NVLink"),
        Words("over the network", "跨节点网络"),
    ]
    return [
        Control("model", Words("model", "模型"), [*catalogue()], "llama-3-8b"),
        Control("cluster", Words("cluster", "集群"), [*clusters()], "dgx-h100"),
        Control("ranks", Words("ranks in the ring", "环中的 rank 数"), (2, 4, 8), 4),
        Control("tokens", Words("tokens", "token 数"), tokens, 32_768),
        Control("link", Words("the ring lies", "环的位置"), (INSIDE, "network"), INSIDE, across),
    ]


def traces(state: Mapping[str, Any]) -> list[Trace]:
    """The traces of one layer's forward attention in both layouts."""
    model, ranks = load_model(state["model"]), state["ranks"]
    inside = state["link"] == INSIDE
    cluster = load_cluster(state["cluster"], nodes=1 if inside else ranks)
    plan = Plan(
        cp=ranks,
        seq=state["tokens"],
        dp=1 if inside else cluster.gpus_per_node,
        order="dp-cp-tp-pp",
    )
    return [ring_trace(model, replace(plan, cp_layout=layout), cluster) for layout in LAYOUTS]


def answer(state: State) -> Answer:
    """Both layouts on one time axis. Raises `InputError` for a ring that the cluster cannot hold."""
    runs = traces(state)
    most = max(run.end_s for run in runs)
    pictures = [_picture(layout, run, most) for layout, run in zip(LAYOUTS, runs)]
    last = state["ranks"] - 1
    ratio = f"{runs[0].step_s / runs[1].step_s:.2f}"
    note = Words(
        f"Contiguous takes {ratio} times as long: the causal mask leaves its last rank most to do. "
        f"Scores 0←{last} are those of the queries of rank 0 with the keys of rank {last}.",
        f"连续切分用时是 zigzag 切分的 {ratio} 倍：因果掩码让最后一个 rank 的工作最多。"
        f"注意力 0←{last} 是 rank 0 的 Q 与 rank {last} 的 K、V 之间的部分。",
    )
    return Answer(_figures(runs), pictures, note)


def _figures(runs: list[Trace]) -> list[Figure]:
    names = (
        Words("one layer's attention, forward: contiguous", "一层注意力的前向：连续切分"),
        Words("one layer's attention, forward: zigzag", "一层注意力的前向：zigzag 切分"),
    )
    return [Figure(name, [seconds_text(run.step_s)]) for name, run in zip(names, runs)]


def _picture(layout: str, run: Trace, most: float) -> Chart:
    height = 70 + 26 * run.ranks
    return streams_chart(run, key=layout, title=LAYOUTS[layout], most=most, height=height)


EXPLORER = Explorer("ring", Words("Ring attention", "Ring Attention"), _controls(), answer)
