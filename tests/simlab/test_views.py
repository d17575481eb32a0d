import json
import subprocess
import sys
from collections import Counter
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from simlab_oracles import op_times, plans, seconds_of_kinds

import simlab
from simlab import InputError, Link, Op, OpTimes, Program, Trace, critical_path, gaps, generate, memory_curve, simulate
from simlab.views import timeline
from simlab.views.interactive import update
from simlab.views.scene import CAP_COLOUR, FADED

ROOT = Path(simlab.__file__).parents[1]
TIMES = OpTimes(forward_s=0.02, backward_s=0.04)
SPLIT = Program.from_text("0F0 0F1 0I0 0W0 0B1\n1F0 1I0 1F1 1B1 1W0", name="split")


def two_traces():
    link = Link(latency_s=0.005)
    return [simulate(generate("gpipe", 3, 4), TIMES, link=link), simulate(generate("1f1b", 4, 8), TIMES, link=link)]


def split_trace():
    times = OpTimes(forward_s=0.01, backward_s=0.02, input_grad_s=0.012, weight_grad_s=0.008)
    return simulate(SPLIT, times, link=Link(latency_s=0.05), message_bytes=3)


def expected_boxes(trace):
    """The multiset of (rank, start, end) in ms that a picture of `trace` must show."""
    return Counter((span.rank, round(span.start_s * 1e3, 6), round(span.end_s * 1e3, 6)) for span in trace.compute())


def still_boxes(axes):
    """{(rank, start, end): colour} and the number of polygons of a matplotlib timeline, the idle background left out."""
    boxes, polygons = {}, 0
    background, *kinds = [item for item in axes.collections if isinstance(item, PolyCollection)]
    for collection in kinds:
        for path in collection.get_paths():
            (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            boxes[round((top + bottom) / 2), round(left, 6), round(right, 6)] = to_hex(collection.get_facecolor()[0]).upper()
            polygons += 1
    return boxes, polygons, len(background.get_paths())


def op_bars(figure, axis):
    return [bar for bar in figure.data if bar.type == "bar" and (bar.yaxis or "y") == axis and bar.name != "idle"]


def plotly_boxes(figure, axis):
    """{(rank, start, end): colour} of the bars of a plotly figure on the y axis named `axis`, idle time left out."""
    bars = op_bars(figure, axis)
    assert all(bar.orientation == "h" for bar in bars)
    return {
        (rank, round(base, 6), round(base + length, 6)): bar.marker.color
        for bar in bars
        for rank, base, length in zip(bar.y, bar.base, bar.x)
    }


# matplotlib and plotly ------------------------------------------------------------------------------------


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
        assert list(line.get_xdata()) == pytest.approx([time_s * 1e3 for time_s in [*times_s, trace.end_s]])
        assert list(line.get_ydata()) == [*amounts, amounts[-1]] and line.get_drawstyle() == "steps-post"
    assert rank == trace.ranks - 1


def test_the_still_picture_can_be_saved_without_a_screen():
    png = BytesIO()
    timeline(two_traces()).savefig(png, format="png")
    assert png.getvalue().startswith(b"\x89PNG")


def test_the_bars_of_the_plotly_figure_are_the_spans():
    traces = two_traces()
    figure = timeline(traces, renderer="plotly")
    for number, trace in enumerate(traces):
        axis = "y" if number == 0 else f"y{2 * number + 1}"
        shown = Counter(
            (rank, round(base, 6), round(base + length, 6))
            for bar in op_bars(figure, axis)
            for rank, base, length in zip(bar.y, bar.base, bar.x)
        )
        assert shown == expected_boxes(trace)


def test_all_parts_of_the_plotly_figure_share_one_time_axis():
    figure = timeline(two_traces(), renderer="plotly")
    axes = {item.xaxis or "x" for item in figure.data}
    assert len(axes) == 4
    followed = {axis: figure.layout[axis.replace("x", "xaxis")].matches for axis in axes}
    (leader,) = {target for target in followed.values() if target}
    assert followed.pop(leader) is None and set(followed.values()) == {leader}


def test_an_op_has_the_same_colour_in_both_pictures_and_each_kind_its_own():
    trace = split_trace()
    still, _, _ = still_boxes(timeline(trace).axes[0])
    assert still == {box: colour.upper() for box, colour in plotly_boxes(timeline(trace, renderer="plotly"), "y").items()}
    kind_of = {(span.rank, round(span.start_s * 1e3, 6), round(span.end_s * 1e3, 6)): Op.parse(span.op).kind for span in trace.compute()}
    assert len({(kind_of[box], colour) for box, colour in still.items()}) == len(set(still.values())) == 4


def a_hundred_seconds_later(trace):
    return Trace(
        [span._replace(start_s=span.start_s + 100, end_s=span.end_s + 100) for span in trace.spans],
        [point._replace(time_s=point.time_s + 100) for point in trace.memory],
        trace.metadata,
    )


def test_a_trace_whose_clock_does_not_begin_at_0_is_drawn_from_0_on():
    trace = two_traces()[0]
    assert still_boxes(timeline(a_hundred_seconds_later(trace)).axes[0])[0].keys() == expected_boxes(trace).keys()


def test_titles_say_source_name_step_and_bubble():
    measured = two_traces()[1]
    measured.metadata["source"] = "measured"
    assert timeline(measured).axes[0].get_title(loc="left") == "Measured: 1f1b, step 740.0 ms, idle 35.1%, peak 4 microbatches held"


def test_an_unknown_renderer_is_refused():
    with pytest.raises(InputError, match=r"^renderer 'ascii': give matplotlib, plotly, canvas or perfetto$"):
        timeline(two_traces(), renderer="ascii")


def test_a_perfetto_file_holds_one_trace():
    with pytest.raises(InputError, match="2 traces"):
        timeline(two_traces(), renderer="perfetto")


# idle time and the critical path ---------------------------------------------------------------------------


def corners(lines):
    """{(rank, start, end)} of those lines of (ms, row) that go round a box."""
    boxes = set()
    for line in lines:
        times, rows = zip(*line)
        if len(line) > 2:
            boxes.add((round((min(rows) + max(rows)) / 2), round(min(times), 6), round(max(times), 6)))
    return boxes


def path_of_plotly(figure, number):
    """The lines of (ms, row) of the critical path of trace `number`: the one line of the figure, cut at its Nones."""
    (item,) = [item for item in figure.data if item.name == "critical path" and item.meta[0] == number]
    lines = [[]]
    for point in zip(item.x, item.y):
        lines[-1].append(point)
        if point == (None, None):
            lines[-1:] = [lines[-1][:-1], []]
    return lines[:-1]


def test_both_pictures_outline_the_critical_path_and_join_its_ops():
    traces = two_traces()
    still, plotly = timeline(traces, critical_path=True), timeline(traces, critical_path=True, renderer="plotly")
    for number, trace in enumerate(traces):
        path = [span for span in critical_path(trace) if span.stream == "compute"]
        (collection,) = [item for item in still.axes[2 * number].collections if isinstance(item, LineCollection)]
        for lines in (collection.get_segments(), path_of_plotly(plotly, number)):
            assert corners(lines) == {(span.rank, round(span.start_s * 1e3, 6), round(span.end_s * 1e3, 6)) for span in path}
            joints = [[point[0] for point in line] for line in lines if len(line) == 2]
            assert joints == [pytest.approx([a.end_s * 1e3, b.start_s * 1e3]) for a, b in pairwise(path)]


def test_both_pictures_fade_the_ops_that_are_not_on_the_critical_path():
    trace = two_traces()[1]
    on_path = sum(span.stream == "compute" for span in critical_path(trace))
    _, *kinds = [item for item in timeline(trace, critical_path=True).axes[0].collections if isinstance(item, PolyCollection)]
    still = Counter(alpha for item in kinds for alpha in item.get_alpha())
    bars = op_bars(timeline(trace, critical_path=True, renderer="plotly"), "y")
    assert still == Counter(alpha for bar in bars for alpha in bar.marker.opacity)
    assert still.keys() == {1.0, FADED} and still[1.0] == on_path < still.total() == len(trace.compute())


def test_the_critical_path_is_drawn_only_if_asked_for_and_named_in_both_legends():
    trace = two_traces()[0]
    for asked in (False, True):
        still, plotly = timeline(trace, critical_path=asked), timeline(trace, critical_path=asked, renderer="plotly")
        assert ("critical path" in [text.get_text() for text in still.legends[0].get_texts()]) == asked
        assert ("critical path" in [item.name for item in plotly.data if item.showlegend]) == asked


def test_idle_time_in_the_plotly_figure_says_what_it_waited_for():
    traces = two_traces()
    figure = timeline([a_hundred_seconds_later(traces[0]), traces[1]], renderer="plotly")
    for trace, bar in zip(traces, [bar for bar in figure.data if bar.name == "idle"]):
        found = gaps(trace)
        assert [*bar.text] == [str(gap) for gap in found] and bar.hovertemplate.startswith("%{text}")
        assert [*bar.y] == [gap.rank for gap in found]
        assert [*bar.base] == pytest.approx([gap.start_s * 1e3 for gap in found])
        assert [*bar.x] == pytest.approx([(gap.end_s - gap.start_s) * 1e3 for gap in found])


def test_a_plotly_figure_with_a_critical_path_can_be_updated_to_other_traces():
    first, second = two_traces()
    figure = timeline(first, renderer="plotly", critical_path=True, ranks=4)
    update(figure, [second])
    fresh = timeline(second, renderer="plotly", critical_path=True)
    assert figure.to_plotly_json()["data"] == fresh.to_plotly_json()["data"]


# a cap on activations -------------------------------------------------------------------------------------

OVER_2_5 = [(40.0, 3.0), (60.0, 3.0)]  # (ms, microbatches): ranks 0 and 1 of 1F1B begin their third forward


def capped(cap):
    trace = simulate(generate("1f1b", 4, 8), TIMES)
    trace.metadata["activation_cap"] = cap
    return trace


def still_cap(strip):
    """(height of the cap line, [marks]) of a memory strip, (None, []) without a cap."""
    lines = {line.get_label(): line for line in strip.get_lines()}
    if "cap" not in lines:
        return None, []
    (marks,) = [line for line in lines.values() if line.get_marker() == "x"]
    assert {*map(to_hex, (lines["cap"].get_color(), marks.get_color()))} == {CAP_COLOUR.lower()}
    (height,) = {*lines["cap"].get_ydata()}
    return height, list(zip(marks.get_xdata(), marks.get_ydata()))


def plotly_cap(figure, number=0):
    """The same of trace `number` of a plotly figure."""
    items = {item.meta[1]: item for item in figure.data if item.meta[0] == number}
    line, marks = items["cap"], items["over the cap"]
    assert (marks.mode, marks.marker.color, line.line.color, marks.yaxis) == ("markers", CAP_COLOUR, CAP_COLOUR, line.yaxis)
    return line.y[0] if line.visible else None, list(zip(marks.x, marks.y))


@pytest.mark.parametrize("cap, marks", [(2.5, OVER_2_5), (4, []), (9, [])])
def test_both_pictures_draw_the_cap_and_mark_where_a_rank_first_holds_more(cap, marks):
    for height, over in (still_cap(timeline(capped(cap)).axes[1]), plotly_cap(timeline(capped(cap), renderer="plotly"))):
        assert height == cap
        assert [time_ms for time_ms, _ in over] == pytest.approx([time_ms for time_ms, _ in marks])
        assert [amount for _, amount in over] == [amount for _, amount in marks]


def test_marks_are_on_the_pictures_clock_though_the_traces_begins_later():
    later = a_hundred_seconds_later(capped(2.5))
    for _, over in (still_cap(timeline(later).axes[1]), plotly_cap(timeline(later, renderer="plotly"))):
        assert over == [pytest.approx(mark) for mark in OVER_2_5]


def test_a_cap_above_every_peak_is_still_in_the_picture():
    low, high = timeline(capped(9)).axes[1].get_ylim()
    assert low <= 0 and high > 9
    assert timeline(capped(9), renderer="plotly").layout.yaxis2.range[1] > 9


def test_without_a_cap_neither_picture_has_a_line_or_marks():
    trace = two_traces()[0]
    assert still_cap(timeline(trace).axes[1]) == plotly_cap(timeline(trace, renderer="plotly")) == (None, [])


def test_a_cap_comes_and_goes_when_a_plotly_figure_is_updated():
    figure = timeline(two_traces()[1], renderer="plotly")
    update(figure, [capped(2.5)])
    height, over = plotly_cap(figure)
    assert (height, len(over)) == (2.5, 2)
    update(figure, two_traces()[1:])
    assert plotly_cap(figure) == (None, [])


def test_each_trace_has_a_cap_of_its_own():
    traces = [capped(2.5), two_traces()[0], capped(3.5)]
    still, plotly = timeline(traces), timeline(traces, renderer="plotly")
    assert [still_cap(strip)[0] for strip in still.axes[1::2]] == [2.5, None, 3.5]
    assert [plotly_cap(plotly, number)[0] for number in range(3)] == [2.5, None, 3.5]
    assert [len(still_cap(strip)[1]) for strip in still.axes[1::2]] == [2, 0, 1]


def test_without_memory_the_still_picture_is_timelines_only():
    traces = [capped(2.5), *two_traces()]
    figure = timeline(traces, memory=False)
    assert len(figure.axes) == 3 and figure.get_figheight() < timeline(traces).get_figheight()
    for trace, axes in zip(traces, figure.axes):
        assert still_boxes(axes)[0].keys() == expected_boxes(trace).keys()
        assert axes.get_lines() == []
    assert figure.axes[-1].get_xlabel() == "time, ms"


# Chrome trace ---------------------------------------------------------------------------------------------


def events_of(trace):
    """{phase: its events} of the Chrome trace of `trace`."""
    phases = {}
    for event in json.loads(timeline(trace, renderer="perfetto"))["traceEvents"]:
        phases.setdefault(event["ph"], []).append(event)
    return phases


def tracks(events):
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events["M"] if event["name"] == "thread_name"}


def test_chrome_slices_are_the_spans_in_microseconds():
    trace = split_trace()
    slices = Counter((event["pid"], event["name"], event["ts"], event["dur"]) for event in events_of(trace)["X"])
    label = {"compute": "", "send": "send "}
    assert slices == Counter(
        (span.rank, label[span.stream] + span.op, round(span.start_s * 1e6, 3), round((span.end_s - span.start_s) * 1e6, 3))
        for span in trace.spans
    )


def test_chrome_ranks_have_a_compute_track_and_one_per_destination():
    events = events_of(simulate(generate("1f1b", 3, 2), TIMES, link=Link(latency_s=1e-6)))
    assert sorted((rank, name) for (rank, _), name in tracks(events).items()) == [
        (0, "compute"), (0, "send to rank 1"),
        (1, "compute"), (1, "send to rank 0"), (1, "send to rank 2"),
        (2, "compute"), (2, "send to rank 1"),
    ]  # fmt: skip
    names = tracks(events)
    assert all((event["name"].startswith("send")) == names[event["pid"], event["tid"]].startswith("send") for event in events["X"])


@given(st.data(), plans(), st.floats(0, 0.3), st.sampled_from(["serial", "fair"]))
@settings(max_examples=60)
def test_chrome_slices_of_one_track_never_overlap_for_perfetto_would_drop_them(data, program, latency_s, sharing):
    """https://perfetto.dev/docs/faq: X events of one thread may nest, not overlap. Compared in whole nanoseconds."""
    link = Link(latency_s=latency_s, sharing=sharing, bandwidth_bytes_per_s=1e5)
    trace = simulate(program, op_times(data.draw(seconds_of_kinds(program))), link=link, message_bytes=1000)
    free_at_ns = {}
    for event in sorted(events_of(trace)["X"], key=lambda event: (event["ts"], event["dur"])):
        start_ns, track = round(event["ts"] * 1e3), (event["pid"], event["tid"])
        assert start_ns >= free_at_ns.get(track, 0)
        free_at_ns[track] = start_ns + round(event["dur"] * 1e3)


def test_chrome_arrows_go_from_the_op_that_made_a_message_through_it_to_its_user():
    trace = split_trace()
    events = events_of(trace)
    where = {(event["pid"], event["tid"], event["ts"]): event["name"] for event in events["X"]}
    arrows = {}
    for phase in "stf":
        for event in events[phase]:
            arrows.setdefault(event["id"], []).append(where[event["pid"], event["tid"], event["ts"]])
    assert sorted(arrows.values()) == [
        ["0F0", "send 0F0", "1F0"], ["0F1", "send 0F1", "1F1"], ["1B1", "send 1B1", "0B1"], ["1I0", "send 1I0", "0I0"],
    ]  # fmt: skip


def test_chrome_arrows_of_messages_whose_user_never_ran_are_left_out():
    trace = split_trace()
    broken = Trace([span for span in trace.spans if (span.stream, span.op) != ("compute", "1F1")], trace.memory, trace.metadata)
    events = events_of(broken)
    assert len(events["s"]) == len(events["t"]) == len(events["f"]) == 3


def test_chrome_counters_are_the_memory_points():
    trace = split_trace()
    counters = [(event["pid"], event["name"], event["ts"], event["args"]) for event in events_of(trace)["C"]]
    units = trace.metadata["units"]
    assert counters == [
        (rank, f"{category} ({units[category]})", round(time_s * 1e6, 3), {category: amount})
        for rank, category, time_s, amount in trace.memory
    ]


# what importing loads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["simlab", "simlab.views", "simlab.__main__", "simlab.calibration", "simlab.comparison"])
def test_importing_loads_neither_torch_nor_numpy_nor_a_plotting_library(module):
    heavy = "{'torch', 'numpy', 'matplotlib', 'plotly', 'ipywidgets', 'anywidget', 'traitlets', 'IPython'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("renderer, library", [("matplotlib", "matplotlib"), ("plotly", "plotly"), ("canvas", "anywidget")])
def test_without_the_plotting_library_the_error_says_what_to_install(renderer, library):
    code = f"""
import sys
class NotInstalled:
    def find_spec(name, path=None, target=None):
        if name == "{library}":
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, NotInstalled)
import simlab as sl
try:
    sl.timeline(sl.simulate(sl.generate("gpipe", 1, 1), sl.OpTimes(forward_s=1, backward_s=1)), renderer="{renderer}")
except sl.SimlabError as error:
    print(error)"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"a {renderer} picture needs {library}: pip install {library}\n"
