"""It shows one or two pipeline schedules under each other on one time axis."""

from collections.abc import Sequence

from simlab.analysis import bubble, peak_memory
from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State, Timeline
from simlab.schedules import SCHEDULES, schedule_of
from simlab.studies.pipeline import PipelineCase
from simlab.trace import ACTIVATIONS, Trace
from simlab.units import MS, seconds_text
from simlab.views.chart import Words
from simlab.views.packing import panels

FORWARD_S = 0.02
MOST_STAGES, MOST_MICROBATCHES, MOST_CHUNKS = 8, 32, 4
NONE = "none"  # no second schedule
HEIGHT = 470  # CSS pixels: with the table on one screen of a laptop
IDEAL = Words(
    "Idle time of all ranks over the time that they would take without any.",
    "所有 rank 的空闲时间，除以没有空闲时所需的时间。",
)
NO_CHUNKS = Words(
    "Neither schedule lets one choose its number of chunks.", "这两个调度都不能选择 chunk 数。"
)
NO_WEIGHTS = Words(
    "Neither schedule divides the backward into I and W.", "这两个调度都不把反向分成 I 和 W。"
)
MAKESPAN = Words(
    "Idle time of all ranks over the whole step on all of them.",
    "所有 rank 的空闲时间，除以整步的总时长。",
)


def _controls() -> list[Control]:
    ratios = [0.5 + 0.25 * at for at in range(11)]
    shares = [round(0.1 * at, 1) for at in range(10)]
    return [
        Control("first", Words("schedule", "调度"), [*SCHEDULES], "gpipe"),
        Control("second", Words("below it", "对比"), [NONE, *SCHEDULES], "1f1b"),
        Control("stages", Words("stages p", "stage 数 p"), [*range(1, MOST_STAGES + 1)], 4),
        Control(
            "microbatches",
            Words("microbatches m", "micro-batch 数 m"),
            [*range(1, MOST_MICROBATCHES + 1)],
            8,
        ),
        Control(
            "chunks",
            Words("chunks of a rank", "每个 rank 的 chunk 数"),
            [*range(1, MOST_CHUNKS + 1)],
            2,
        ),
        Control("backward_over_forward", Words("backward / forward", "反向 / 前向"), ratios, 2.0),
        Control("weight_share", Words("W / backward", "W / 反向"), shares, 0.5),
        Control("link_ms", Words("link latency, ms", "链路延迟，ms"), [*range(21)], 0),
    ]


def traces(state: State) -> list[Trace]:
    """The simulated step of each schedule. Raises `InputError` for what one of them cannot do."""
    names = [state["first"], *([state["second"]] if state["second"] != NONE else [])]
    return [
        PipelineCase(
            schedule=name,
            stages=state["stages"],
            microbatches=state["microbatches"],
            forward_s=FORWARD_S,
            backward_s=FORWARD_S * state["backward_over_forward"],
            weight_share=state["weight_share"],
            link_s=state["link_ms"] * MS,
            chunks=state["chunks"] if schedule_of(name).chunked else None,
        ).trace()
        for name in names
    ]


def answer(state: State) -> Answer:
    """The figures of the schedules, and their timelines."""
    runs = traces(state)
    return Answer(
        _figures(runs),
        (Timeline("timeline", panels(runs), HEIGHT),),
        _note(runs),
        [run.metadata["name"] for run in runs],
        idle=_idle(state, runs),
    )


def _note(runs: Sequence[Trace]) -> Words:
    """How long a forward takes, and how two schedules compare."""
    english = f"A forward takes {FORWARD_S / MS:.0f} ms on a rank."
    chinese = f"一个 rank 的前向需要 {FORWARD_S / MS:.0f} ms。"
    if len(runs) == 2:
        (one, held), (other, others) = (
            (run.metadata["name"], max(peak_memory(run, ACTIVATIONS))) for run in runs
        )
        times = f"{runs[1].step_s / runs[0].step_s:.2f}"
        same = times == "1.00"
        step = Words(
            *(("the same step", "相同") if same else (f"{times} times the step", f"是 {times} 倍"))
        )
        english += (
            f" {other} against {one}: {step.en}, {others:.3g} microbatches held against {held:.3g}."
        )
        chinese += f"{other} 对 {one}：一步时间{step.zh}，最多持有 {others:.3g} 个 micro-batch，对 {held:.3g} 个。"
    return Words(english, chinese)


def _idle(state: State, runs: Sequence[Trace]) -> dict[str, Words]:
    """{control that changes nothing for the chosen schedules: why}."""
    names = [state["first"], *([state["second"]] if state["second"] != NONE else [])]
    found = {}
    if not any(schedule_of(name).chunked for name in names):
        found["chunks"] = NO_CHUNKS
    if not any(span.op_kind == "W" for run in runs for span in run.compute()):
        found["weight_share"] = NO_WEIGHTS
    return found


def _figures(runs: Sequence[Trace]) -> list[Figure]:
    bubbles = [bubble(run) for run in runs]
    held = [f"{max(peak_memory(run, ACTIVATIONS)):.3g}" for run in runs]
    return [
        Figure(Words("makespan", "总时长"), [seconds_text(run.step_s) for run in runs]),
        Figure(
            Words("idle / ideal", "空闲 / 理想"),
            [f"{each.idle_over_ideal:.1%}" for each in bubbles],
            IDEAL,
        ),
        Figure(
            Words("idle / makespan", "空闲 / 总时长"),
            [f"{each.idle_over_makespan:.1%}" for each in bubbles],
            MAKESPAN,
        ),
        Figure(
            Words("most held by a rank, microbatches", "单个 rank 最多持有的 micro-batch"), held
        ),
    ]


EXPLORER = Explorer("pipeline", Words("Pipeline schedules", "流水线调度"), _controls(), answer)
