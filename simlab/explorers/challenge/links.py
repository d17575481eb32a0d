"""Challenges to find the one slow link of a pipeline: what is suspected is simulated, and held against the
step with the fault, op by op."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simlab.analysis import bubble
from simlab.collectives.nccl import p2p_s
from simlab.cost import OpTimes
from simlab.engine import simulate
from simlab.explorers.challenge.tasks import Judged, nearest, texts
from simlab.explorers.explorer import Figure, Timeline
from simlab.program import Program
from simlab.schedules import generate
from simlab.spec.cluster import load_cluster
from simlab.spec.hardware import Link
from simlab.trace import Trace
from simlab.units import bytes_text, seconds_text
from simlab.views.chart import Words
from simlab.views.packing import panels

NO_LINK = "none"
FACTORS = (2, 4, 8, 16)
START = {"link": NO_LINK, "slower": FACTORS[0]}
"""Where both controls start."""
FAULT, SUSPICION = "step with the fault", "your suspicion"
CLOSE = 0.005
"""An op begins as in the step with the fault if it is off by less than this part of that step."""
HEIGHT = 470  # CSS pixels of both timelines
Pair = tuple[int, int]


@dataclass(frozen=True)
class LinkTask:
    """A pipeline one of whose links is slow, in one direction.

    teaches:   the id of the question that it is about.
    cluster:   the name of the one whose network joins the ranks, which are on nodes of their own.
    chunks:    stages of each rank, for a schedule that lets one choose; else None.
    forward_s, backward_s: of a stage, s; the last one takes `last` times that.
    message_bytes: what one stage sends to the next.
    free:      "link", and "slower" where the learner has to find out, too, how slow it is.
    hints:     from a nudge to nearly the link.
    best:      {"link": the slow one as it is shown, "slower": how many times as long a message takes on it}.
    """

    id: str
    level: int
    name: Words
    teaches: str
    cluster: str
    schedule: str
    ranks: int
    microbatches: int
    chunks: int | None
    forward_s: float
    backward_s: float
    last: float
    message_bytes: float
    free: tuple[str, ...]
    hints: tuple[Words, Words]
    best: Mapping[str, Any]

    @cached_property
    def links(self) -> dict[str, Pair]:
        """{as it is shown: (source, destination)} of all links that the schedule sends over."""
        around = self.program.stages > self.ranks  # from the last rank on to the first one
        down = [(at, (at + 1) % self.ranks) for at in range(self.ranks - (not around))]
        return {f"{a} → {b}": (a, b) for a, b in (*down, *((b, a) for a, b in down))}

    @cached_property
    def program(self) -> Program:
        """The order of its ops."""
        return generate(self.schedule, self.ranks, self.microbatches, chunks=self.chunks)

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "LinkTask":
        """The task of an entry of `tasks.json`."""
        return cls(**{**entry, **texts(entry)})

    def offers(self) -> dict[str, Sequence[Any]]:
        """{what is free: the values to choose from}."""
        values: dict[str, Sequence[Any]] = {"link": [NO_LINK, *self.links], "slower": FACTORS}
        return {name: values[name] for name in self.free}

    def start(self) -> dict[str, Any]:
        """The values of what is free in which it opens."""
        return {name: START[name] for name in self.free}

    def traces(self, chosen: Mapping[str, Any]) -> tuple[Trace, Trace]:
        """The simulated step with the fault, and the one with what `chosen` suspects, or with the nearest to
        it that is offered; what is not free is as in `best`."""
        return self._step(FAULT, **self.best), self._step(SUSPICION, **self._chosen(chosen))

    def _chosen(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: nearest(values, chosen[name]) for name, values in self.offers().items()}
        return {**self.best, **own}

    def _step(self, name: str, *, link: str, slower: float) -> Trace:
        program, slow = self.program, self.links.get(link)
        work = [*[1.0] * (program.stages - 1), self.last]
        forward_s, backward_s = (
            tuple(each_s * each for each in work) for each_s in (self.forward_s, self.backward_s)
        )
        half_s = tuple(each_s / 2 for each_s in backward_s)
        times = OpTimes(forward_s=forward_s, backward_s=backward_s, input_grad_s=half_s, weight_grad_s=half_s)  # fmt: skip
        healthy = self.message_bytes / self.message_s()
        links = {
            pair: Link(bandwidth_bytes_per_s=healthy / (slower if pair == slow else 1))
            for pair in self.links.values()
        }
        named = Program(program.ranks, name)
        return simulate(named, times, link=links, message_bytes=self.message_bytes)

    def message_s(self) -> float:
        """Seconds of a message on a healthy link."""
        return p2p_s(self.message_bytes, load_cluster(self.cluster), same_node=False, share=1)

    def judged(self, chosen: Mapping[str, Any]) -> Judged:
        """What is suspected in `chosen` beside the step with the fault, and whether every op begins alike."""
        both = fault, found = self.traces(chosen)
        off_s = _off_s(fault, found)
        close_s = CLOSE * fault.step_s
        share = sum(each < close_s for each in off_s) / len(off_s)
        labels = (
            Words("step", "一步时间"),
            Words("idle / makespan", "空闲 / 总时长"),
            Words("ops that begin as with the fault", "开始时刻与故障时相同的 op"),
        )
        columns = (
            [seconds_text(each.step_s) for each in both],
            [f"{bubble(each).idle_over_makespan:.1%}" for each in both],
            ["100%", f"{share:.0%}"],
        )
        solved = max(off_s) < close_s
        return Judged(
            [FAULT, SUSPICION],
            [Figure(label, values) for label, values in zip(labels, columns)],
            [Timeline("timeline", panels(both), HEIGHT)],
            self._asks(),
            _verdict(
                fault,
                found,
                None if self._chosen(chosen)["link"] == NO_LINK else max(off_s),
                solved,
            ),
            solved,
        )

    def _asks(self) -> Words:
        times = [seconds_text(each) for each in (self.forward_s, self.backward_s, self.message_s())]
        size = bytes_text(self.message_bytes)
        english = (
            f"{self.schedule}, {self.ranks} ranks, {self.microbatches} microbatches. A stage's forward takes "
            f"{times[0]}, its backward {times[1]}, a message of {size} {times[2]} (network of {self.cluster})."
        )
        chinese = (
            f"{self.schedule}，{self.ranks} 个 rank，{self.microbatches} 个 micro-batch。每个 stage 的前向用时 {times[0]}，"
            f"反向 {times[1]}，{size} 的消息 {times[2]}（{self.cluster} 的网络）。"
        )
        if self.last != 1:
            english += f" The last stage takes {self.last:g} times as long."
            chinese += f"最后一个 stage 的用时是其他的 {self.last:g} 倍。"
        if "slower" in self.free:
            english += " One link is slower in one direction; how much is not known."
            chinese += "有一条链路在一个方向上变慢了，慢多少未知。"
        else:
            factor = self.best["slower"]
            english += f" On one link, in one direction, messages take {factor} times as long."
            chinese += f"有一条链路在一个方向上，消息用时是正常的 {factor} 倍。"
        english += (
            " Goal: simulated with your suspicion, every op begins as in the step with the fault."
        )
        chinese += "目标：按你的判断仿真，每个 op 的开始时刻都与有故障的一步相同。"
        return Words(english, chinese)


def _off_s(one: Trace, other: Trace) -> list[float]:
    """How far the starts of each op are apart, s, in two steps with the same ops."""
    starts = [{span.op_text: span.start_s for span in each.compute()} for each in (one, other)]
    return [abs(starts[0][op] - starts[1][op]) for op in starts[0]]


def _verdict(fault: Trace, found: Trace, off_s: float | None, solved: bool) -> Words:
    """Whether the suspicion is right, or how far off the worst op is; `off_s` is None where there is none."""
    if off_s is None:
        healthy = seconds_text(found.step_s)
        return Words(
            f"Without a fault the step takes {healthy}: suspect a link.",
            f"没有故障时，一步是 {healthy}：请选一条可疑的链路。",
        )
    if solved:
        return Words(
            "Solved: every op begins as in the step with the fault.",
            "达成：每个 op 的开始时刻都与有故障的一步相同。",
        )
    off = seconds_text(off_s)
    return Words(
        f"Not yet: your suspicion gives a step of {seconds_text(found.step_s)} instead of "
        f"{seconds_text(fault.step_s)}, and an op begins {off} off.",
        f"还没有：按你的判断，一步是 {seconds_text(found.step_s)}，而不是 {seconds_text(fault.step_s)}；"
        f"相差最大的 op，开始时刻差 {off}。",
    )
