"""It compares what context parallelism communicates with what it computes, over sequence lengths."""

from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from simlab.cost.stage_times import StageCost
from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State
from simlab.lowering.build import program_of
from simlab.lowering.kernels import Attention, Communication
from simlab.lowering.pieces import BEGIN, unit_pieces
from simlab.lowering.traffic import communication_bytes
from simlab.memory.step import StepWalk, held_by_rank
from simlab.spec.cluster import Cluster, load_cluster
from simlab.spec.model import Model, load_model
from simlab.spec.plan import Plan
from simlab.units import GIB, MS, bytes_text, seconds_text
from simlab.views.chart import Axis, Boxes, Chart, Line, Mark, Rule, Words
from simlab.views.language import LANGUAGE, colours
from simlab.views.scene import CATEGORY_COLOURS, CATEGORY_WORDS

MODEL, CLUSTER = "llama-3-8b", "dgx-h100"
KINDS = {
    "ring": (LANGUAGE["context"]["ring"], None),
    "all-gather": (LANGUAGE["context"]["all-gather"], (6, 3)),
    "all-to-all": (LANGUAGE["context"]["all-to-all"], (2, 2)),
}
"""{what the ranks send each other (`Plan.cp_kind`): (colour, dash)}."""
TOKENS = tuple(2**power for power in range(13, 21))
CONTROLS = (
    Control("tokens", Words("tokens in a sequence", "序列 token 数"), TOKENS, 2**16),
    Control("cp", Words("context-parallel ranks", "上下文并行 rank 数"), (2, 4, 8), 8),
    Control("kv_heads", Words("key and value heads (of 32)", "KV 头数（共 32 个头）"), (1, 2, 4, 8, 16, 32), 8),
    Control(
        "link",
        Words("ranks are connected by", "rank 之间的连接"),
        ("node", "network"),
        "network",
        (Words("NVLink, in a node", "节点内 NVLink"), Words("network, one rank a node", "网络，每节点一个 rank")),
    ),
    Control(
        "recompute",
        Words("recomputation", "重计算"),
        ("none", "full"),
        "none",
        (Words("none", "无"), Words("full", "全量")),
    ),
)  # fmt: skip


class Setting(NamedTuple):
    """A state of the controls."""

    tokens: int
    cp: int
    kv_heads: int
    link: str
    recompute: str

    @property
    def model(self) -> Model:
        return replace(load_model(MODEL), kv_heads=self.kv_heads)

    @property
    def cluster(self) -> Cluster:
        return load_cluster(CLUSTER, nodes=1 if self.link == "node" else self.cp)

    def plan(self, kind: str) -> Plan:
        """With ZeRO-3 over all ranks; across nodes, a rank's neighbours in its node are replicas."""
        ranks = self.cluster.gpus // self.cp
        order = "cp-dp-tp-pp" if self.link == "node" else "dp-cp-tp-pp"
        return Plan(
            cp=self.cp,
            dp=ranks,
            cp_kind=kind,
            seq=self.tokens,
            zero=3,
            recompute=self.recompute,
            order=order,
        )


class Layer(NamedTuple):
    """A layer's forward and backward of one sequence, on the rank with most to compute."""

    compute_s: float
    exposed_s: float
    """The communication of context parallelism that nothing hides."""


class RingStep(NamedTuple):
    """One step of the ring in a layer's forward."""

    compute_s: float
    message_s: float


@lru_cache(128)  # a slider changes one value, and many of the points are those of before
def cost_of(setting: Setting, kind: str) -> StageCost:
    """The times of what `setting` does under a `Plan.cp_kind`."""
    return StageCost(setting.model, setting.plan(kind), setting.cluster)


def layer(setting: Setting, kind: str) -> Layer:
    """The `Layer` of `setting` under a `Plan.cp_kind`."""
    cost = cost_of(setting, kind)
    both = cost.unit_parts("layer", "F").plus(cost.unit_parts("layer", "B"))
    return Layer(both.compute + both.host, both.cp)


def ring_step(setting: Setting) -> RingStep:
    """The mean `RingStep` of zigzag chunks, each part of it alone."""
    cost = cost_of(setting, "ring")
    forward = cost.kernels["layer"].forward
    attention = next(kernel for kernel in forward if isinstance(kernel, Attention))
    ring = next(k for k in forward if isinstance(k, Communication) and k.kind == "ring")
    return RingStep(cost.kernel_s(attention) / setting.cp, cost.kernel_s(ring) / ring.steps)


def sent_bytes(setting: Setting, kind: str) -> float:
    """What a rank sends for attention in a layer's forward and backward."""
    cost = cost_of(setting, kind)
    pieces = [p for op in "FB" for p in unit_pieces(cost.kernels["layer"], op, cost.plan)]
    begun = [piece for piece in pieces if piece.action == BEGIN and piece.dimension == "cp"]
    return sum(communication_bytes(piece, cost.plan) for piece in begun)


def held(setting: Setting, kind: str) -> dict[str, float]:
    """{category: bytes} at a rank's peak."""
    model, plan = setting.model, cost_of(setting, kind).plan
    program = program_of(plan)
    (found,) = held_by_rank(StepWalk(model, plan, program, plan.layers_of_stages(model.layers)))
    return found


def answer(state: State) -> Answer:
    """Exposed communication, a step of the ring and the memory of a rank."""
    chosen = Setting(*(state[control.name] for control in CONTROLS))
    layers = {kind: layer(chosen, kind) for kind in KINDS}
    memory = {kind: held(chosen, kind) for kind in KINDS}
    rows = (
        (Words("a layer computes", "一层的计算"), [seconds_text(its.compute_s) for its in layers.values()]),
        (Words("exposed communication", "暴露的通信"), [seconds_text(its.exposed_s) for its in layers.values()]),
        (Words("a rank sends in a layer", "每层每个 rank 发送"), [bytes_text(sent_bytes(chosen, kind)) for kind in KINDS]),
        (Words("a rank holds at its peak", "每个 rank 的显存峰值"), [bytes_text(sum(its.values())) for its in memory.values()]),
    )  # fmt: skip
    return Answer(
        [Figure(*row) for row in rows],
        [_exposed(chosen), _ring(chosen), _memory(memory)],
        _note(chosen),
        list(KINDS),
    )


def _note(chosen: Setting) -> Words:
    hidden = [tokens for tokens in TOKENS if _hides(chosen._replace(tokens=tokens))]
    where = f"{MODEL} on {CLUSTER}. ", f"{CLUSTER} 上的 {MODEL}。"
    if not hidden:
        return Words(
            f"{where[0]}Up to {TOKENS[-1]:,} tokens the ring's messages take longer than its computation.",
            f"{where[1]}直到 {TOKENS[-1]:,} 个 token，环上的消息都比计算慢。",
        )
    return Words(
        f"{where[0]}From {hidden[0]:,} tokens on, a step of the ring computes longer than its message takes: "
        "compute grows with the square of the tokens, messages grow with the tokens.",
        f"{where[1]}从 {hidden[0]:,} 个 token 起，环的一步计算比消息更久：计算随 token 数的平方增长，消息随 token 数线性增长。",
    )


def _hides(setting: Setting) -> bool:
    step = ring_step(setting)
    return step.compute_s >= step.message_s


def _exposed(chosen: Setting) -> Chart:
    marks: list[Mark] = []
    shares: dict[str, list[float]] = {}
    for kind, (colour, dash) in KINDS.items():
        found = [layer(chosen._replace(tokens=tokens), kind) for tokens in TOKENS]
        share = [100 * its.exposed_s / (its.compute_s + its.exposed_s) for its in found]
        shares[kind] = share
        name = Words(kind, kind)
        tips = [
            Words(f"{kind}, {tokens:,} tokens: {part:.1f}%", f"{kind}，{tokens:,} 个 token：{part:.1f}%")
            for tokens, part in zip(TOKENS, share)
        ]  # fmt: skip
        marks.append(Line(TOKENS, share, colour, name, dash, tips=tips))
    at, tokens = TOKENS.index(chosen.tokens), _short(chosen.tokens)
    best = min(shares, key=lambda kind: shares[kind][at])
    most = 10 * ceil(max(map(max, shares.values())) / 10 + 0.1)  # a tick at the top
    return Chart(
        "exposed",
        Words(
            f"Exposed communication of a layer: least with {best} at {tokens} tokens",
            f"一层中暴露的通信：{tokens} 个 token 时 {best} 最少",
        ),
        _tokens(),
        Axis(Words("% of the layer's time", "占一层用时的 %"), least=0, most=most),
        [*marks, _chosen(chosen)],
        height=200,
    )


def _ring(chosen: Setting) -> Chart:
    steps = [ring_step(chosen._replace(tokens=tokens)) for tokens in TOKENS]
    work = colours("work")
    compute = Words("compute of a step", "一步的计算")
    message = Words("message of a step", "一步的消息")
    marks: list[Mark] = [
        Line(TOKENS, [step.compute_s / MS for step in steps], work["F"], compute),
        Line(TOKENS, [step.message_s / MS for step in steps], work["send"], message, (6, 3)),
        _chosen(chosen),
    ]
    return Chart(
        "ring",
        Words(
            "A step of the ring: hidden where compute is above",
            "环的一步：计算线在上方时消息被掩盖",
        ),
        _tokens(),
        Axis(Words("ms", "ms"), "log10"),
        marks,
        height=200,
    )


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens < 2**20 else "1M"


def _tokens() -> Axis:
    names = [_short(tokens) for tokens in TOKENS]
    label = Words("tokens in a sequence", "序列 token 数")
    return Axis(label, "log2", ticks=TOKENS, names=names)


def _chosen(chosen: Setting) -> Rule:
    return Rule("ink", Words("chosen", "所选"), x=chosen.tokens)


def _memory(memory: dict[str, dict[str, float]]) -> Chart:
    """What a rank holds with each kind, beside the memory of a GPU."""
    marks: list[Mark] = []
    starts = [0.0] * len(memory)
    for part, name in CATEGORY_WORDS.items():
        if not any(its.get(part) for its in memory.values()):
            continue
        ends = [start + its[part] / GIB for start, its in zip(starts, memory.values())]
        places = [
            (x0, x1, row - 0.35, row + 0.35) for row, (x0, x1) in enumerate(zip(starts, ends))
        ]
        tips = [
            Words(*(f"{kind}: {text} {bytes_text(its[part])}" for text in name))
            for kind, its in memory.items()
        ]
        marks.append(Boxes.at(places, CATEGORY_COLOURS[part], name, tips=tips))
        starts = ends
    capacity = load_cluster(CLUSTER).gpu.memory_bytes / GIB
    name = Words(f"memory of an H100, {capacity:.1f} GiB", f"H100 显存，{capacity:.1f} GiB")
    marks.append(Rule("cap", name, x=capacity))
    return Chart(
        "memory",
        Words("What a rank holds at its peak, with ZeRO-3", "每个 rank 的显存峰值（ZeRO-3）"),
        Axis(Words("GiB", "GiB"), least=0, most=1.05 * max(*starts, capacity)),
        Axis(Words("", ""), ticks=range(len(memory)), names=list(memory), down=True),
        marks,
        height=140,
    )


EXPLORER = Explorer(
    "context",
    Words("Context parallelism: communication against compute", "上下文并行：通信与计算"),
    CONTROLS,
    answer,
)
