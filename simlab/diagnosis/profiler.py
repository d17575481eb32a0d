"""It reads traces of torch.profiler (Kineto), one file for each rank.

A rank's own work is what its GPU computes or, in a trace without GPU kernels, the outermost operators
of the thread that runs the steps. A collective is a kernel of NCCL, or what a thread of gloo does.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from simlab.diagnosis.fields import time_field, whole_field
from simlab.diagnosis.graph import COMPUTE, DATA, HOST
from simlab.errors import InputError, shortened

US = 1e-6
DAY_NS = 86_400 * 10**9
"""Times are read as seconds of a day, so that a float holds them to less than a nanosecond."""
STEP = "ProfilerStep#"
LOADER = "enumerate(DataLoader)#"
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
SMALL_S = 20e-6
"""Operators of a CPU that end sooner than this are mostly dispatch: their time is the host's."""
NOT_WORK = ("autograd::", "c10d::", "record_param_comms")
"""How names of operators begin that only wrap others, or only begin a communication."""
ALL_MEET = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no rank can leave before all have entered them."""


class Piece(NamedTuple):
    """What one rank does for a while: a part, a name for people, start and end in seconds, and for a
    collective its kind and its group."""

    part: str
    name: str
    start_s: float
    end_s: float
    kind: str = ""
    group: str = ""


class Rank(NamedTuple):
    """What was read of one rank: its number, its own work and its collectives by start, the window
    of its steps in seconds, and how many they are."""

    number: int
    own: list[Piece]
    collectives: list[Piece]
    window: tuple[float, float]
    steps: int


def world(data: dict[str, Any]) -> int:
    """How many ranks the training has, as the profile `data` says; 0 if it does not."""
    info = data.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return 0 if size is None else whole_field("distributedInfo.world_size", size)


def rank_of(data: dict[str, Any], at: int) -> Rank:
    """What `data` says of its rank; its number is `at` if it does not say which one it is."""
    info = data.get("distributedInfo")
    number = at
    if isinstance(info, dict) and "rank" in info:
        number = whole_field("distributedInfo.rank", info["rank"])
    base_ns = whole_field("baseTimeNanoseconds", data.get("baseTimeNanoseconds") or 0)
    base_s = base_ns % DAY_NS * 1e-9
    events = [_event(event, base_s) for event in data["traceEvents"] if _is_slice(event)]
    if not events:
        raise InputError(f"the profile of rank {number} has no event with a duration")
    events.sort(key=lambda event: (event.start_s, -event.end_s))
    steps = [
        event
        for event in events
        if event.name.startswith(STEP) and event.category != "gpu_user_annotation"
    ]
    threads = {event.thread for event in steps}
    window = (events[0].start_s, max(event.end_s for event in events))
    if steps:
        window = steps[0].start_s, max(event.end_s for event in steps)
    events = [event for event in events if window[0] <= event.start_s < window[1]]
    kernels = [event for event in events if event.category in GPU_CATEGORIES]
    own = list(_gpu_work(kernels) if kernels else _cpu_work(events, threads or _busiest(events)))
    own = _with_loading(own, list(_loading(events)), gpu=bool(kernels))
    collectives = [one for event in events if (one := _collective(event))]
    return Rank(number, own, collectives, window, len(steps) or 1)


class _Event(NamedTuple):
    name: str
    category: str
    thread: tuple[Any, Any]
    start_s: float
    end_s: float
    arguments: dict[str, Any]


def _is_slice(event: Any) -> bool:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return False
    return event.get("ts") is not None and event.get("dur") is not None


def _event(event: dict[str, Any], base_s: float) -> _Event:
    start_s = base_s + US * time_field("ts of an event", event["ts"])
    arguments = event.get("args")
    return _Event(
        str(event.get("name", "")), str(event.get("cat", "")), _thread(event),
        start_s, start_s + US * time_field("dur of an event", event["dur"], 0),
        arguments if isinstance(arguments, dict) else {},
    )  # fmt: skip


def _thread(event: dict[str, Any]) -> tuple[Any, Any]:
    """(process, thread) of an event: numbers, or texts such as 'stream 7'."""
    for key in ("pid", "tid"):
        if not isinstance(event.get(key), int | float | str | None):
            raise InputError(
                f"{key} of an event = {shortened(event[key])}: give a whole number or a text"
            )
    return event.get("pid"), event.get("tid")


def _busiest(events: Iterable[_Event]) -> set[tuple[Any, Any]]:
    """The thread that runs most of the operators, of a profile without steps."""
    busy: dict[tuple[Any, Any], float] = defaultdict(float)
    for event in events:
        if event.category == "cpu_op":
            busy[event.thread] += event.end_s - event.start_s
    return {max(busy, key=busy.__getitem__)} if busy else set()


def _gpu_work(kernels: Iterable[_Event]) -> Iterator[Piece]:
    """What the GPU computes or copies: the union of its kernels that are no collectives."""
    end_s = 0.0
    for event in kernels:
        if not _collective(event) and event.end_s > end_s:
            yield Piece(COMPUTE, event.name, max(end_s, event.start_s), event.end_s)
            end_s = event.end_s


def _cpu_work(events: Iterable[_Event], threads: set[tuple[Any, Any]]) -> Iterator[Piece]:
    """The outermost operators of the threads that run the steps."""
    end_s = 0.0
    for event in events:
        is_work = event.category == "cpu_op" and "::" in event.name
        if not is_work or event.thread not in threads or event.name.startswith(NOT_WORK):
            continue
        if event.end_s > end_s:
            start_s = max(end_s, event.start_s)
            part = HOST if event.end_s - start_s < SMALL_S else COMPUTE
            yield Piece(part, event.name, start_s, event.end_s)
            end_s = event.end_s


def _loading(events: Iterable[_Event]) -> Iterator[Piece]:
    """The time in which the data loader makes the next batch."""
    for event in events:
        if event.name.startswith(LOADER):
            yield Piece(DATA, "data loader", event.start_s, event.end_s)


def _with_loading(own: list[Piece], loading: list[Piece], *, gpu: bool) -> list[Piece]:
    """`own` and `loading` by start, without overlap: what a CPU does while it loads data is loading,
    and loading while the GPU computes costs nothing."""
    first, second = (own, loading) if gpu else (loading, own)
    return sorted([*first, *_beside(second, first)], key=lambda piece: piece.start_s)


def _beside(pieces: list[Piece], others: list[Piece]) -> Iterator[Piece]:
    """The parts of `pieces` in which none of `others`, which are by start, runs."""
    starts = [other.start_s for other in others]
    for piece in pieces:
        free_s = piece.start_s
        first = max(0, bisect_right(starts, piece.start_s) - 1)
        for other in others[first:]:
            if other.start_s >= piece.end_s:
                break
            if other.start_s > free_s:
                yield piece._replace(start_s=free_s, end_s=other.start_s)
            free_s = max(free_s, other.end_s)
        if free_s < piece.end_s:
            yield piece._replace(start_s=free_s)


def _collective(event: _Event) -> Piece | None:
    """The collective that an event shows, if it shows one."""
    backend, _, gloo_kind = event.name.partition(":")
    is_gloo = backend == "gloo" and bool(gloo_kind)
    if not is_gloo and not (event.category == "kernel" and "nccl" in event.name.lower()):
        return None
    kind = gloo_kind if is_gloo else str(event.arguments.get("Collective name", event.name))
    kind = kind.strip("_")
    for known in ALL_MEET:
        if known.replace("_", "") in kind.replace("_", "").lower():
            kind = known
    group = str(event.arguments.get("Process Group Ranks") or "")
    part = str(event.arguments.get("Process Group Description") or "communication")
    return Piece(part, kind, event.start_s, event.end_s, kind, group)
