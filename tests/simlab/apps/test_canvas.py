"""The canvas timeline: what is packed for the browser, and what the browser makes of it, without a
notebook around it."""

from contextlib import contextmanager
from struct import calcsize, unpack

import pytest

import simlab as sl
from simlab.units import seconds_text
from simlab.views.canvas import CanvasTimeline
from simlab.views.language import LANGUAGE
from simlab.views.packing import MOST_EXPLAINED, panels
from simlab.views.scene import COLOURS, scenes
from tests.support.browser import chromium_page, needs_chromium, show_canvas

LINK = sl.Link(latency_s=0.005)
TIMES = sl.OpTimes(forward_s=0.02, backward_s=0.04, input_grad_s=0.025, weight_grad_s=0.015)


def trace(name="1f1b", stages=4, microbatches=8):
    return sl.simulate(sl.generate(name, stages, microbatches), TIMES, link=LINK)


def numbers(data, code, columns=1):
    values = unpack(f"<{len(data) // calcsize(code)}{code}", data)
    length = len(values) // columns
    return [list(values[length * column : length * (column + 1)]) for column in range(columns)]


# what Python packs
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved-1f1b"])
def test_the_bytes_are_the_scene(name):
    run = trace(name)
    (packed,), (scene,) = panels([run]), scenes([run])
    (starts, ends), (ranks,) = numbers(packed.boxes, "f", 2), numbers(packed.rows, "H")
    assert list(zip(ranks, packed.kinds.decode(), packed.ops.decode().split())) == [
        (box.rank, box.kind, box.op) for box in scene.boxes
    ]
    assert starts == pytest.approx([box.start_s for box in scene.boxes])
    assert ends == pytest.approx([box.end_s for box in scene.boxes])
    assert set(packed.used) == set(scene.kinds)
    same = ("title", "ranks", "memory_label", "cap", "breaches", "stages")
    assert [getattr(packed, field) for field in same] == [getattr(scene, field) for field in same]
    assert (packed.end_s, packed.peak) == (pytest.approx(scene.end_s), max(scene.peaks))


def test_the_memory_bytes_hold_what_the_curves_hold():
    run = trace()
    (packed,) = panels([run])
    (times, amounts), (ranks,) = numbers(packed.memory, "f", 2), numbers(packed.holders, "H")
    for rank in range(run.ranks):
        curve_times, curve_amounts = sl.memory_curve(run, rank)
        last = {0.0: 0.0} | {
            round(time, 6): amount
            for holder, time, amount in zip(ranks, times, amounts)
            if holder == rank
        }
        assert last == pytest.approx(
            {round(time, 6): amount for time, amount in zip(curve_times, curve_amounts)}, abs=1e-6
        )


def test_time_starts_at_the_first_op_and_the_cap_and_the_critical_path_come_along():
    run = trace()
    late = sl.Trace(
        [span._replace(start_s=span.start_s + 1e6, end_s=span.end_s + 1e6) for span in run.spans],
        [point._replace(time_s=point.time_s + 1e6) for point in run.memory],
        run.metadata | {"activation_cap": 2.5},
    )
    (packed,) = panels([late], critical_path=True)
    assert numbers(packed.boxes, "f", 2)[0] == pytest.approx(
        [span.start_s for span in run.compute()], abs=1e-6
    )
    assert packed.cap == 2.5 and [amount for _, amount in packed.breaches] == [3.0, 3.0]
    names = packed.ops.decode().split()
    on_path = [names[box] for box in numbers(packed.path, "I")[0]]
    assert on_path == [span.op for span in sl.critical_path(run) if span.stream == "compute"]


def test_each_op_after_idle_time_comes_with_what_it_waited_for_unless_there_are_too_many_ops():
    run = trace()
    (packed,) = panels([run])
    assert packed.waits == {
        gap.op: (gap.waited_for, gap.holder, gap.reason) for gap in sl.gaps(run) if gap.op
    }
    assert packed.waits["1F0"] == ("0F0", 0, "computing")
    many = trace(stages=2, microbatches=MOST_EXPLAINED // 4 + 1)
    assert panels([many])[0].waits == {} and sl.gaps(many)


def test_each_op_comes_with_the_message_that_it_sends_where_its_size_is_known():
    program = sl.generate("1f1b", 2, 2)
    run = sl.simulate(program, TIMES, link=LINK, message_bytes=2**20)
    sent = {
        "0F0": (1, "1.0 MiB"),
        "0F1": (1, "1.0 MiB"),
        "1B0": (0, "1.0 MiB"),
        "1B1": (0, "1.0 MiB"),
    }
    assert panels([run])[0].sends == sent and panels([trace()])[0].sends == {}


def test_a_span_that_is_no_op_is_named_and_a_step_without_time_is_refused():
    run = trace()
    with pytest.raises(sl.InputError, match="'2F0' is not an op"):
        CanvasTimeline(sl.Trace([sl.Span(0, "compute", "2F0", 0.0, 1.0)], [], run.metadata))
    with pytest.raises(sl.InputError, match="no op takes any time"):
        CanvasTimeline(sl.Trace([], [], run.metadata))
    with pytest.raises(sl.InputError, match="no trace to draw"):
        CanvasTimeline([])


def test_an_update_takes_traces_or_panels_and_sends_one_message(monkeypatch):
    picture = sl.timeline(trace(), renderer="canvas")
    sent = []
    monkeypatch.setattr(CanvasTimeline, "send_state", lambda self, key=None: sent.append({*key}))
    other = trace("zb-h1")
    picture.update(other)
    by_trace = picture.panels
    picture.update(panels([other]))
    assert picture.panels == by_trace and picture.serial == 3 and sent[0] == {"panels", "serial"}
    assert len(sent) == 2
    assert "zb-h1" in repr(picture) and len(repr(picture)) < 200


# what the browser makes of it
# -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page():
    with chromium_page(scale=2) as opened:
        yield opened


@pytest.fixture
def canvas(page):
    """A canvas that shows two traces, and the widget it belongs to."""
    page.goto("data:text/html,<body></body>")
    timeline = sl.timeline([trace(), trace("zb-h1")], renderer="canvas")
    return show_canvas(page, timeline), timeline


def visible(canvas):
    return [float(second) for second in canvas.get_attribute("data-range").split()]


def point(page, canvas, number, rank, time_s):
    left, top = canvas.evaluate("(canvas, at) => canvas.place(...at)", [number, rank, time_s])
    page.mouse.move(left, top)
    return left, top


def colour(canvas, number, rank, time_s):
    """The colour on the screen near the top of a box, where no label is."""
    read = """(canvas, [number, rank, time]) => {
        const [left, top] = canvas.place(number, rank, time), { x, y } = canvas.getBoundingClientRect(), scale = devicePixelRatio;
        return Array.from(canvas.getContext('2d').getImageData((left - x) * scale, (top - y - 8) * scale, 1, 1).data.slice(0, 3));
    }"""
    return "#" + "".join(f"{value:02X}" for value in canvas.evaluate(read, [number, rank, time_s]))


@contextmanager
def changing_range(page, canvas):
    """What is done within changes the visible interval: returns when that is painted."""
    seen = canvas.get_attribute("data-range")
    yield
    page.wait_for_function(
        "seen => document.querySelector('canvas').dataset.range !== seen", arg=seen
    )


@needs_chromium
def test_every_box_has_its_kinds_colour_and_the_pointer_names_it(page, canvas):
    canvas, _ = canvas
    for number, name in enumerate(("1f1b", "zb-h1")):
        run = trace(name)
        for span in run.compute()[::7]:
            middle = (span.start_s + span.end_s) / 2
            point(page, canvas, number, span.rank, middle)
            said = page.locator(".simlab-tip").inner_text()
            start_ms, end_ms = (
                f"{round(time_s * 1e3, 3):g}" for time_s in (span.start_s, span.end_s)
            )
            assert said.startswith(f"{span.op}: ") and f"rank {span.rank}" in said
            assert (
                f"{start_ms} – {end_ms} ms ({round((span.end_s - span.start_s) * 1e3, 3):g} ms)"
                in said
            )
            assert (
                colour(canvas, number, span.rank, middle)
                == COLOURS[sl.Op.parse(span.op).kind].upper()
            )


@needs_chromium
def test_idle_time_and_memory_are_named_too(page, canvas):
    canvas, _ = canvas
    gap = max(sl.gaps(trace()), key=lambda gap: gap.end_s - gap.start_s)
    _, top = point(page, canvas, 0, gap.rank, (gap.start_s + gap.end_s) / 2)
    said = page.locator(".simlab-tip").inner_text()
    assert (
        said.startswith(f"rank {gap.rank} idle")
        and f"({round((gap.end_s - gap.start_s) * 1e3, 3):g} ms)" in said
    )
    assert f"waited for {gap.waited_for} of rank {gap.holder}" in said
    light = LANGUAGE["themes"]["light"]
    middle_s = (gap.start_s + gap.end_s) / 2
    seen = {colour(canvas, 0, gap.rank, middle_s + at * 1e-4) for at in range(-40, 40)}
    assert (
        light["waiting"] in seen and len(seen) > 1
    )  # the background, and the lines of the hatching
    left, top = canvas.evaluate("canvas => canvas.place(0, 3, 0.1)")
    page.mouse.move(left, top + 60)
    held = [
        [amount for time_s, amount in zip(*sl.memory_curve(trace(), rank)) if time_s <= 0.1][-1]
        for rank in range(4)
    ]
    assert page.locator(".simlab-tip").inner_text().split("\n")[1:] == [
        f"rank {rank}: {amount:g}" for rank, amount in enumerate(held)
    ]


@needs_chromium
def test_wheel_drag_and_keys_change_what_is_visible_and_the_reset_undoes_it(page, canvas):
    canvas, _ = canvas
    whole = visible(canvas)
    step_s = max(trace().step_s, trace("zb-h1").step_s)
    assert whole == [0, pytest.approx(step_s, rel=0.01)]

    point(page, canvas, 0, 1, 0.2)
    page.mouse.wheel(0, -300)  # without the focus this scrolls the page
    page.wait_for_timeout(100)
    assert visible(canvas) == whole
    canvas.focus()
    with changing_range(page, canvas):
        page.mouse.wheel(0, -300)
    zoomed = visible(canvas)
    assert zoomed[0] < 0.2 < zoomed[1] and zoomed[1] - zoomed[0] < 0.9 * step_s

    with changing_range(page, canvas):
        page.keyboard.press("Shift+ArrowRight")
    assert visible(canvas)[0] > zoomed[0] and visible(canvas)[1] - visible(canvas)[
        0
    ] == pytest.approx(zoomed[1] - zoomed[0])

    with changing_range(page, canvas):
        page.locator("button").click()
    assert visible(canvas) == whole and page.locator("button").is_hidden()

    with changing_range(page, canvas):
        point(page, canvas, 0, 1, 0.1)
        page.mouse.down()
        point(page, canvas, 0, 1, 0.3)
        page.mouse.up()
    assert visible(canvas) == pytest.approx([0.1, 0.3], abs=2e-3)

    with changing_range(page, canvas):
        page.keyboard.press("0")
    assert visible(canvas) == whole


@needs_chromium
def test_an_update_is_painted_and_keeps_what_was_zoomed_in(page, canvas):
    canvas, timeline = canvas
    point(page, canvas, 0, 0, 0.1)
    canvas.focus()
    with changing_range(page, canvas):
        page.keyboard.press("+")
    zoomed, before = visible(canvas), canvas.screenshot()
    other = [trace("gpipe"), trace()]
    timeline.update(other)
    show_canvas(page, timeline)  # returns when this serial is painted
    assert (
        canvas.get_attribute("data-painted") == "2"
        and visible(canvas) == zoomed
        and canvas.screenshot() != before
    )
    assert f"gpipe, makespan {seconds_text(other[0].step_s)}" in canvas.get_attribute("aria-label")
    # device pixels
    assert canvas.evaluate("canvas => canvas.width / canvas.clientWidth") == pytest.approx(
        2, abs=0.01
    )
