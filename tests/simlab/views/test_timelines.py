"""Timelines: the still picture draws every op of every trace where the trace says."""

from io import BytesIO

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from timelines import (
    a_hundred_seconds_later,
    expected_boxes,
    split_trace,
    still_boxes,
    two_traces,
)

import simlab as sl
from simlab import (
    InputError,
    Op,
    OpTimes,
    generate,
    memory_curve,
    simulate,
)
from simlab.trace import ACTIVATIONS, LIVE
from simlab.views import timeline
from simlab.views.scene import COLOURS, scene


def test_the_still_picture_draws_every_op_of_both_traces():
    traces = two_traces()
    figure = timeline(traces)
    for trace, axes in zip(traces, figure.axes[::2]):
        boxes, polygons, rows = still_boxes(axes)
        assert boxes.keys() == expected_boxes(trace).keys()
        assert (polygons, rows) == (len(trace.compute()), trace.ranks)


def test_all_parts_of_the_still_picture_share_one_time_axis_that_holds_the_longest_trace():
    traces = two_traces()
    axes = timeline(traces).axes
    assert len(axes) == 4
    limits = {part.get_xlim() for part in axes}
    assert len(limits) == 1
    ((left, right),) = limits
    assert left == 0 and right >= max(trace.step_s for trace in traces) * 1e3
    axes[0].set_xlim(5, 7)
    assert {part.get_xlim() for part in axes} == {(5, 7)}


def test_the_memory_strip_of_the_still_picture_is_the_memory_curve():
    trace = two_traces()[1]
    strip = timeline(trace).axes[1]
    for rank, line in enumerate(strip.get_lines()):
        times_s, amounts = memory_curve(trace, rank)
        assert list(line.get_xdata()) == pytest.approx(
            [time_s * 1e3 for time_s in [*times_s, trace.end_s]]
        )
        assert (
            list(line.get_ydata()) == [*amounts, amounts[-1]]
            and line.get_drawstyle() == "steps-post"
        )
    assert rank == trace.ranks - 1


def test_the_still_picture_can_be_saved_without_a_screen():
    png = BytesIO()
    timeline(two_traces()).savefig(png, format="png")
    assert png.getvalue().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["interleaved-1f1b", "zb-v", "dualpipe"])
def test_a_shade_tells_the_chunk_and_a_row_says_which_stages_it_has(name):
    times = OpTimes(forward_s=0.01, backward_s=0.02, input_grad_s=0.01, weight_grad_s=0.01)
    trace = simulate(generate(name, 4, 8), times)
    axes = timeline(trace).axes[0]
    still, _, _ = still_boxes(axes)
    stages = {rank: sorted({span.stage for span in trace.compute(rank)}) for rank in range(4)}
    shades = {}
    for span in trace.compute():
        box = (span.rank, round(span.start_s * 1e3, 6), round(span.end_s * 1e3, 6))
        shades.setdefault((span.kind, stages[span.rank].index(span.stage)), set()).add(still[box])
    assert all(len(found) == 1 for found in shades.values())  # one shade for a kind and chunk
    assert len({colour for (colour,) in shades.values()}) == len(shades)  # and each its own
    assert all(shades[kind, 0] == {COLOURS[kind].upper()} for kind, _ in shades)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"rank {rank}: stages {first}, {second}" for rank, (first, second) in stages.items()
    ]


def test_each_kind_of_ops_has_a_colour_of_its_own():
    trace = split_trace()
    still, _, _ = still_boxes(timeline(trace).axes[0])
    kind_of = {
        (span.rank, round(span.start_s * 1e3, 6), round(span.end_s * 1e3, 6)): Op.parse(
            span.op
        ).kind
        for span in trace.compute()
    }
    assert (
        len({(kind_of[box], colour) for box, colour in still.items()})
        == len(set(still.values()))
        == 4
    )


def test_a_trace_whose_clock_does_not_begin_at_0_is_drawn_from_0_on():
    trace = two_traces()[0]
    assert (
        still_boxes(timeline(a_hundred_seconds_later(trace)).axes[0])[0].keys()
        == expected_boxes(trace).keys()
    )


def test_titles_say_origin_name_makespan_and_idle_over_makespan():
    measured = two_traces()[1]
    measured.metadata["source"] = "measured"
    assert (
        timeline(measured).axes[0].get_title(loc="left")
        == "Measured: 1f1b, makespan 740.0 ms, idle / makespan 35.1%, peak 4 microbatches held"
    )


def test_predicted_is_what_was_simulated_for_a_machine():
    given, _ = two_traces()
    program = sl.generate("1f1b", 2, 4)
    seconds, link = {"F": [0.1, 0.1], "B": [0.2, 0.2]}, {"latency_s": 0.001}
    measured = sl.Calibration(op_seconds=seconds, links={"0-1": link, "1-0": link}, message_bytes=8)
    calibrated = measured.predict(program)
    cluster = sl.load_cluster("dgx-h100")
    plan = sl.Plan(dp=2, pp=4, microbatches=8)
    model = sl.load_model("llama-3-8b")
    predicted = sl.predict(model, plan, cluster).trace
    layers = sl.layer_trace(model, plan, cluster)
    titles = [scene(trace).title for trace in (given, calibrated, predicted)]
    assert [title.split(": ")[0] for title in titles] == [
        "Simulated",
        "Predicted",
        f"Predicted for {cluster.name}",
    ]
    assert layers.metadata["cluster"] == cluster.name


def test_a_title_says_one_microbatch_and_no_origin_where_there_is_none():
    one = simulate(generate("1f1b", 2, 1), OpTimes(forward_s=1, backward_s=2))
    assert scene(one).title.endswith(", peak 1 microbatch held")
    one.metadata = {"name": "as it is drawn", "ranks": 2}
    assert scene(one).title.startswith("as it is drawn, makespan ")


def test_a_still_legend_has_each_kind_in_its_shades_and_says_what_they_are():
    times = OpTimes(forward_s=0.01, input_grad_s=0.01, weight_grad_s=0.01)
    figure = timeline(simulate(generate("zb-v", 4, 8), times))
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    kinds = ["F forward", "I input gradient", "W weight gradient"]
    assert texts == [*kinds, "shades: chunks 0, 1", "idle"]
    swatches = {to_hex(patch.get_facecolor()).upper() for patch in legend.findobj(Rectangle)}
    drawn, _, _ = still_boxes(figure.axes[0])
    assert {*drawn.values()} <= swatches  # both shades of each kind


def test_an_unknown_renderer_is_refused():
    with pytest.raises(
        InputError, match=r"^renderer 'ascii': give matplotlib, canvas or perfetto$"
    ):
        timeline(two_traces(), renderer="ascii")


def test_a_perfetto_file_holds_one_trace():
    with pytest.raises(InputError, match="2 traces"):
        timeline(two_traces(), renderer="perfetto")


def test_a_title_says_in_which_unit_ranks_with_several_stages_hold():
    """Of a measured run it is known of how many (stage, microbatch) pairs something is held; a
    simulated one counts the shares of a microbatch, as the table of schedules does."""
    times = OpTimes(forward_s=0.1, input_grad_s=0.1, weight_grad_s=0.1)
    simulated = simulate(generate("zb-v", 4, 8), times)
    assert "peak 4 microbatches held" in scene(simulated, ACTIVATIONS).title
    pairs = scene(simulated, LIVE)
    assert "peak 8 stage activations held" in pairs.title
    assert pairs.memory_label == "stage activations\nheld"
    one = simulate(generate("1f1b", 4, 8), OpTimes(forward_s=0.1, backward_s=0.2))
    assert "peak 4 microbatches held" in scene(one, LIVE).title
