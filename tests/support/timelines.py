"""Traces for pictures of timelines, and what such a picture shows of them."""

from collections import Counter
from pathlib import Path

from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

import simlab
from simlab import (
    Link,
    OpTimes,
    Program,
    Trace,
    generate,
    simulate,
)

ROOT = Path(simlab.__file__).parents[1]
TIMES = OpTimes(forward_s=0.02, backward_s=0.04)
SPLIT = Program.from_text("0F0 0F1 0I0 0W0 0B1\n1F0 1I0 1F1 1B1 1W0", name="split")


def two_traces():
    link = Link(latency_s=0.005)
    return [
        simulate(generate("gpipe", 3, 4), TIMES, link=link),
        simulate(generate("1f1b", 4, 8), TIMES, link=link),
    ]


def split_trace():
    times = OpTimes(forward_s=0.01, backward_s=0.02, input_grad_s=0.012, weight_grad_s=0.008)
    return simulate(SPLIT, times, link=Link(latency_s=0.05), message_bytes=3)


def expected_boxes(trace):
    """The multiset of (rank, start, end) in ms that a picture of `trace` must show."""
    return Counter(
        (span.rank, round(span.start_s * 1e3, 6), round(span.end_s * 1e3, 6))
        for span in trace.compute()
    )


def still_boxes(axes):
    """{(rank, start, end): colour} and the number of polygons of a matplotlib timeline, the idle
    background left out, and the number of rows of that. A second collection has the outlines."""
    filled = [item for item in axes.findobj(PolyCollection) if len(item.get_facecolor())]
    background, *kinds = filled
    boxes, polygons = {}, 0
    for collection in kinds:
        (fill,) = collection.get_facecolor()
        for path in collection.get_paths():
            (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            boxes[round((top + bottom) / 2), round(left, 6), round(right, 6)] = to_hex(fill).upper()
            polygons += 1
    return boxes, polygons, len(background.get_paths())


def a_hundred_seconds_later(trace):
    return Trace(
        [span._replace(start_s=span.start_s + 100, end_s=span.end_s + 100) for span in trace.spans],
        [point._replace(time_s=point.time_s + 100) for point in trace.memory],
        trace.metadata,
    )
