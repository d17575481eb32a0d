"""It shows how much of data parallelism's gradient reduction the backward hides."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State
from simlab.spec.cluster import Cluster, load_cluster
from simlab.spec.model import load_model
from simlab.spec.plan import Plan
from simlab.trace import COMPUTE, OPTIMIZER, Span, Trace
from simlab.training import layer_trace
from simlab.units import MIB, MS, bytes_text, seconds_text
from simlab.views.chart import Area, Axis, Boxes, Chart, Mark, Rule, Words
from simlab.views.language import LANGUAGE, colours

CLUSTER, GPUS_PER_NODE = "dgx-a100", 8
WORK = colours("work")
EXPOSED = Words("exposed reduction", "暴露的归约")
EXPOSED_LOOK: dict[str, Any] = {
    "colour": WORK["all-reduce"],
    "pattern": "hatched",
    "name": EXPOSED,
}
"""How the exposed reduction looks in every picture: the colour of a reduction, hatched as a wait."""
HIDDEN = Words("reduction hidden beside the backward", "被反向掩盖的归约")
CONTROLS = (
    Control("model", Words("model", "模型"), ("gpt2", "gpt2-medium"), "gpt2"),
    Control("gpus", Words("GPUs (8 a node)", "GPU 数（每节点 8 块）"), (8, 16, 64, 256), 16),
    Control("microbatch_size", Words("sequences in a microbatch", "每个 micro-batch 的序列数"), (1, 2, 4, 8, 16), 4),
    Control("bucket_mib", Words("bucket, MiB of gradients", "桶大小（梯度，MiB）"), (5, 10, 25, 50, 100, 250, 500), 25),
)  # fmt: skip


class Point(NamedTuple):
    """What a step costs at one microbatch size and one bucket size."""

    step_s: float
    exposed_s: float
    """From the end of the last backward to the begin of the optimizer, which waits for all
    gradients."""
    reduction_s: float
    """The reductions of all buckets, hidden or not."""


def plan_of(gpus: int, microbatch_size: int, bucket_mib: int) -> Plan:
    """Plain data parallelism, as torch's DDP does it: one microbatch, gradients in buckets."""
    bucket_bytes = bucket_mib * MIB
    return Plan(
        dp=gpus, microbatch_size=microbatch_size, bucket_bytes=bucket_bytes, library="torch"
    )


def _cluster(gpus: int) -> Cluster:
    return load_cluster(CLUSTER, nodes=-(-gpus // GPUS_PER_NODE))


def trace_of(model: str, gpus: int, microbatch_size: int, bucket_mib: int) -> Trace:
    """The predicted step, layer by layer."""
    plan = plan_of(gpus, microbatch_size, bucket_mib)
    return layer_trace(load_model(model), plan, _cluster(gpus))


@lru_cache(256)  # a slider changes one value, and most of the points are those of before
def point(model: str, gpus: int, microbatch_size: int, bucket_mib: int) -> Point:
    """The `Point` of the predicted step."""
    spans = trace_of(model, gpus, microbatch_size, bucket_mib).spans
    (optimizer,) = (span for span in spans if span.stream == OPTIMIZER)
    computed_s = max(span.end_s for span in spans if span.stream == COMPUTE)
    reductions = [span.end_s - span.start_s for span in spans if span.stream == "dp"]
    exposed_s = max(0.0, optimizer.start_s - computed_s)
    return Point(optimizer.end_s, exposed_s, sum(reductions))


def answer(state: State) -> Answer:
    """The chosen point's timeline, and what is exposed over bucket and microbatch sizes."""
    at = model, gpus, size, bucket = [state[control.name] for control in CONTROLS]
    trace, chosen = trace_of(*at), point(*at)
    tokens_per_s = gpus * size * load_model(model).seq / chosen.step_s
    buckets = sum(span.stream == "dp" for span in trace.spans)
    hidden = 1 - chosen.exposed_s / chosen.reduction_s
    figures = [
        Figure(Words("step", "一步时间"), [seconds_text(chosen.step_s)]),
        Figure(Words("all gradient reduction", "梯度归约总用时"), [seconds_text(chosen.reduction_s)]),
        Figure(EXPOSED, [seconds_text(chosen.exposed_s)]),
        Figure(Words("hidden beside the backward", "被反向掩盖的比例"), [f"{hidden:.0%}"]),
        Figure(Words("buckets", "桶数"), [str(buckets)]),
        Figure(Words("tokens per second", "每秒 token 数"), [f"{tokens_per_s:,.0f}"]),
    ]  # fmt: skip
    sizes, mibs = CONTROLS[2].values, CONTROLS[3].values
    over_buckets = [point(model, gpus, size, mib) for mib in mibs]
    over_sizes = [point(model, gpus, each, bucket) for each in sizes]
    fastest = min(zip(over_sizes, sizes), key=lambda its: its[0].step_s / its[1])[1]
    pictures = [
        _stack(
            "buckets",
            Words(
                f"The exposed reduction is least at {_least_exposed(over_buckets)} MiB",
                f"暴露的归约在 {_least_exposed(over_buckets)} MiB 时最少",
            ),
            Axis(Words("bucket, MiB", "桶大小，MiB"), "log10", ticks=mibs),
            Axis(Words("ms a step", "ms/步"), least=0),
            [each.exposed_s / MS for each in over_buckets],
            [(each.reduction_s - each.exposed_s) / MS for each in over_buckets],
            (HIDDEN, WORK["W"]),
            bucket,
        ),
        _stack(
            "microbatches",
            Words(
                f"A sequence takes least time with {fastest} in a microbatch",
                f"每个 micro-batch 有 {fastest} 条时，每条序列用时最短",
            ),
            Axis(
                Words("sequences in a microbatch", "每个 micro-batch 的序列数"), "log2", ticks=sizes
            ),
            Axis(Words("ms a sequence", "ms/序列"), least=0),
            [each.exposed_s / MS / count for each, count in zip(over_sizes, sizes)],
            [(each.step_s - each.exposed_s) / MS / count for each, count in zip(over_sizes, sizes)],
            (Words("compute and optimizer", "计算与优化器"), WORK["F"]),
            size,
        ),
        _timeline(trace),
    ]
    return Answer(figures, pictures, _note(model, over_buckets))


def _least_exposed(over_buckets: Sequence[Point]) -> int:
    """The bucket size, in MiB, that exposes least."""
    found = min(zip(over_buckets, CONTROLS[3].values), key=lambda its: its[0].exposed_s)
    return int(found[1])


def _note(model: str, over_buckets: Sequence[Point]) -> Words:
    steps = dict(zip(CONTROLS[3].values, (each.step_s / MS for each in over_buckets)))
    best, other = min(steps, key=lambda mib: steps[mib]), _least_exposed(over_buckets)
    english = (
        f"{model} on {CLUSTER}. Small buckets pay the latency many times and slow the backward for "
        f"longer, large ones begin late. Here {best} MiB give the shortest step, {steps[best]:.2f} ms"
    )
    chinese = (
        f"{CLUSTER} 上的 {model}。桶小，延迟要付很多次，反向也被拖慢更久；桶大，归约开始得晚。"
        f"这里 {best} MiB 的一步最短，{steps[best]:.2f} ms"
    )
    if best != other:
        english += f"; {other} MiB expose least, but slow the backward more: {steps[other]:.2f} ms"
        chinese += f"；{other} MiB 暴露最少，但反向被拖慢得更多：{steps[other]:.2f} ms"
    return Words(f"{english}.", f"{chinese}。")


def _stack(
    key: str,
    title: Words,
    x: Axis,
    y: Axis,
    exposed: Sequence[float],
    rest: Sequence[float],
    rest_look: tuple[Words, str],
    chosen: int,
) -> Chart:
    """What is exposed, and the `rest` on top of it, over the ticks of `x`."""
    values = x.ticks or ()
    total = [one + other for one, other in zip(exposed, rest)]
    name, colour = rest_look
    marks: list[Mark] = [
        Area(values, [0.0] * len(values), exposed, stepped=False, **EXPOSED_LOOK),
        Area(values, exposed, total, colour, name, stepped=False),
        Rule("ink", Words("chosen", "所选"), x=chosen),
    ]
    return Chart(key, title, x, y, marks, height=170)


def _timeline(trace: Trace) -> Chart:
    """The backward and the gradients' reduction, a row each, and the optimizer after them."""
    backward = [each for each in trace.spans if each.stream == COMPUTE and each.op_kind == "B"]
    reduction = [each for each in trace.spans if each.stream == "dp"]
    optimizer = next(each for each in trace.spans if each.stream == OPTIMIZER)
    zero_s, end_s = backward[0].start_s, backward[-1].end_s

    def boxes(its: Sequence[Span], row: int, colour: str, name: Words, **look: Any) -> Boxes:
        edges = [((each.start_s - zero_s) / MS, (each.end_s - zero_s) / MS) for each in its]
        places = [(start, end, row - 0.4, row + 0.4) for start, end in edges]
        long = [seconds_text(each.end_s - each.start_s) for each in its]
        tips = [Words(*(f"{each.op}: {time}" for _ in name)) for each, time in zip(its, long)]
        return Boxes.at(places, colour, name, outline="background", tips=tips, **look)

    names = {key: Words(LANGUAGE["work"][key]["en"], LANGUAGE["work"][key]["zh"]) for key in WORK}
    units, sizes = [each.unit for each in backward], [bytes_text(each.bytes) for each in reduction]
    bucket = Words("all-reduce of a bucket", "一个桶的 all-reduce")
    marks: list[Mark] = [
        boxes(backward, 0, WORK["B"], names["B"], labels=units),
        boxes(reduction, 1, WORK["all-reduce"], bucket, labels=sizes),
        boxes(
            [optimizer], 0, WORK["optimizer"], names["optimizer"], labels=[names["optimizer"].en]
        ),
    ]
    if optimizer.start_s > end_s:
        wait = ((end_s - zero_s) / MS, (optimizer.start_s - zero_s) / MS, -0.4, 0.4)
        marks.insert(2, Boxes.at([wait], **EXPOSED_LOOK))
    return Chart(
        "timeline",
        Words("The backward, and the reduction of its gradients", "反向，以及梯度的归约"),
        Axis(Words("time since the backward began, ms", "反向开始后的时间，ms"), least=0),
        Axis(Words("", ""), ticks=[0, 1], names=["compute", "dp"], down=True),
        marks,
        height=130,
        timed=True,
    )


EXPLORER = Explorer(
    "buckets",
    Words("Gradient buckets: what the backward hides", "梯度分桶：反向能掩盖多少"),
    CONTROLS,
    answer,
)
