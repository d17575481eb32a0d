"""It reads traces of torch.profiler (Kineto), one file for each rank.

A rank's own work is what its GPU computes or, in a trace without GPU kernels, the outermost operators
of the thread that runs the steps. A collective is a kernel of a library that communicates, or what a
thread of gloo does.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from simlab.diagnosis.events import (
    ANNOTATION,
    GPU,
    GPU_ANNOTATION,
    LAUNCH,
    OPERATOR,
    OTHER,
    STEP,
    UNKNOWN,
    Event,
    Profile,
    profile_of,
    recorded,
)
from simlab.diagnosis.fields import whole_field
from simlab.diagnosis.graph import COMPUTE, DATA, HOST
from simlab.diagnosis.kernels import BACKENDS, COLLECTIVES, collective_in, communication_of
from simlab.diagnosis.launched import WRAPPERS, Launched, launched
from simlab.errors import shortened
from simlab.units import seconds_text

LOADER = "enumerate(DataLoader)#"
PARAMETERS = "record_param_comms"
"""The operator in which torch begins a communication, and which says what it is."""
SMALL_S = 20e-6
"""Operators of a CPU that end sooner than this are mostly dispatch: their time is the host's."""
ALL_MEET = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no rank can leave before all have entered them."""
MESSAGES = ("send", "recv")
"""What gloo calls the two ends of a message."""
STUB = 0.5
"""The first or the last step is not whole if it holds fewer events than this fraction of the others'."""
RESUMED_S = 1e-3
"""A thread of gloo notes the end of its work up to this time after the rank that waited has gone on."""
MOST_NESTED = 50
"""The most annotations that are looked at for the one around a time."""
ROUNDING_S = 1e-9
"""Profiles have times to the nanosecond."""
FEW = 3
"""Of fewer steps, a mean is said to be one of few."""


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
    of its steps in seconds, how many they are, what is to be said of the file, what it launched, and its
    operators by end and its annotations by start, of which `before` tells."""

    number: int
    own: list[Piece]
    collectives: list[Piece]
    window: tuple[float, float]
    steps: int
    notes: tuple[str, ...] = ()
    launched: Launched | None = None
    operators: Sequence[Piece] = ()
    annotations: Sequence[Piece] = ()


def before(rank: Rank, time_s: float, after: str) -> str:
    """What ran last on a rank before a time: `after`, a kernel or a collective, then the last operator that
    had ended, and the annotation around that time, for people."""
    at = bisect_right(rank.operators, time_s + ROUNDING_S, key=lambda one: one.end_s) - 1
    operator = rank.operators[at].name if at >= 0 else ""
    at = bisect_right(rank.annotations, time_s + ROUNDING_S, key=lambda one: one.start_s)
    around = (one.name for one in rank.annotations[max(0, at - MOST_NESTED) : at][::-1]
              if one.end_s > time_s)  # fmt: skip
    texts = [after, operator if operator != after else "", next(around, "")]
    words = ("work {}", "operator {}", "annotation {}")
    return ", ".join(word.format(shortened(t)) for word, t in zip(words, texts) if t)


def world(data: dict[str, Any]) -> int:
    """How many ranks the training has, as the profile `data` says; 0 if it does not."""
    info = data.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return 0 if size is None else whole_field("distributedInfo.world_size", size)


def rank_of(data: dict[str, Any], at: int) -> Rank:
    """What `data` says of its rank; its number is `at` if it does not say which one it is."""
    profile = profile_of(data, at)
    events = profile.events
    whole, cut = _steps(events)
    threads = {event.thread for event in whole}
    window = events[0].start_s, max(event.end_s for event in events)
    kernels = [event for event in events if event.what in GPU]
    if whole:
        window = _window(whole, kernels, events)
    parameters = _parameters(events)
    inside = [
        (event, _collective(event, parameters))
        for event in events
        if window[0] <= event.start_s < window[1]
    ]
    events = [event for event, _ in inside]
    collectives = [one for _, one in inside if one]
    if kernels:
        own = list(_gpu_work(event for event, one in inside if event.what in GPU and not one))
    else:
        own = list(_cpu_work(events, threads or _busiest(events)))
        collectives = _until_resumed(collectives, own)
    own = _with_loading(own, list(_loading(events)), gpu=bool(kernels))
    notes = tuple(_notes(profile, whole, cut, window, gpu=bool(kernels)))
    begun = launched([event for event, one in inside if not one])
    operators = sorted(_named(events, OPERATOR), key=lambda piece: piece.end_s)
    annotations = list(_named(events, ANNOTATION))
    steps = len(whole) or 1
    return Rank(
        profile.number, own, collectives, window, steps, notes, begun, operators, annotations
    )


def _named(events: Iterable[Event], what: str) -> Iterator[Piece]:
    """The operators or the annotations, without those that say which step it is."""
    for event in events:
        if event.what == what and not event.name.startswith((STEP, *WRAPPERS)):
            yield Piece(what, event.name, event.start_s, event.end_s)


def _steps(events: Sequence[Event]) -> tuple[list[Event], int]:
    """(the steps that were recorded from their begin to their end, how many others there are)."""
    since_s, until_s = recorded(list(events))
    steps = [
        event for event in events if event.name.startswith(STEP) and event.what != GPU_ANNOTATION
    ]
    whole = [step for step in steps if since_s <= step.start_s and step.end_s <= until_s] or steps
    starts = [event.start_s for event in events if event.what in (*GPU, OPERATOR, LAUNCH)]
    held = [bisect_left(starts, s.end_s) - bisect_left(starts, s.start_s) for s in whole]
    for edge in (-1, 0):
        others = held[1:] if edge == 0 else held[:-1]
        if others and held[edge] < STUB * median(others):
            del whole[edge], held[edge]
    return whole, len(steps) - len(whole)


def _window(
    steps: Sequence[Event], kernels: Sequence[Event], events: Sequence[Event]
) -> tuple[float, float]:
    """From when to when the steps last. Where the GPU is behind its host, they begin when it has ended
    what was launched before them, and end when it has ended what was launched in them."""
    since_s, until_s = steps[0].start_s, max(step.end_s for step in steps)
    launched = {
        number: event.start_s
        for event in events
        if event.what == LAUNCH and (number := _correlation(event)) is not None
    }
    begin_s, end_s = since_s, until_s
    for event in kernels:
        number = _correlation(event)
        launched_s = None if number is None else launched.get(number)
        if (event.start_s if launched_s is None else launched_s) < since_s:
            begin_s = max(begin_s, event.end_s)
        elif launched_s is None or launched_s < until_s:
            end_s = max(end_s, event.end_s)
    return begin_s if begin_s < end_s else since_s, end_s


def _correlation(event: Event) -> int | None:
    """The number that a launch and its kernel share."""
    number = event.arguments.get("correlation")
    return number if isinstance(number, int) else None


def _notes(
    profile: Profile,
    steps: Sequence[Event],
    cut: int,
    window: tuple[float, float],
    *,
    gpu: bool,
) -> Iterator[str]:
    """What is to be said of a profile beside its times."""
    if not gpu:
        yield (
            "The profile has no GPU activity, so the CPU's operators are what is computed. Where there "
            "is a GPU, record it: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
        )
    if not steps:
        yield (
            f"The profile has no steps: its window is {seconds_text(window[1] - window[0])}, from the "
            "first event to the last. profiler.step() at the end of each step marks them."
        )
    if cut:
        yield f"Steps that were not recorded whole are left out: {cut}."
    if 0 < len(steps) < FEW:
        yield f"Whole steps in the profile: {len(steps)}. A mean of so few may be far from others."
    seconds: Counter[str] = Counter()
    for event in profile.events:
        if event.what == UNKNOWN:
            seconds[event.category] += 1
    if seconds:
        names = ", ".join(repr(shortened(name)) for name, _ in seconds.most_common(3))
        yield f"Nothing is known of events of these categories, which are left out: {names}."


def _busiest(events: Iterable[Event]) -> set[tuple[Any, Any]]:
    """The thread that runs most of the operators, of a profile without steps."""
    busy: dict[tuple[Any, Any], float] = defaultdict(float)
    for event in events:
        if event.what == OPERATOR:
            busy[event.thread] += event.seconds
    return {max(busy, key=busy.__getitem__)} if busy else set()


def _gpu_work(kernels: Iterable[Event]) -> Iterator[Piece]:
    """What the GPU computes or copies: the union of its kernels that are no collectives."""
    end_s = 0.0
    for event in kernels:
        if event.end_s > end_s:
            yield Piece(COMPUTE, event.name, max(end_s, event.start_s), event.end_s)
            end_s = event.end_s


def _cpu_work(events: Iterable[Event], threads: set[tuple[Any, Any]]) -> Iterator[Piece]:
    """The outermost operators of the threads that run the steps."""
    end_s = 0.0
    for event in events:
        is_work = event.what == OPERATOR and "::" in event.name
        if not is_work or event.thread not in threads or event.name.startswith(WRAPPERS):
            continue
        if event.end_s > end_s:
            start_s = max(end_s, event.start_s)
            part = HOST if event.end_s - start_s < SMALL_S else COMPUTE
            yield Piece(part, event.name, start_s, event.end_s)
            end_s = event.end_s


def _until_resumed(collectives: Iterable[Piece], own: Sequence[Piece]) -> list[Piece]:
    """`collectives`, where one that was waited for ends when the rank went on."""
    starts = [piece.start_s for piece in own]
    found = []
    for one in collectives:
        at = bisect_left(starts, one.end_s - RESUMED_S)
        resumed_s = starts[at] if at < len(starts) else one.end_s
        waited = not at or own[at - 1].end_s < resumed_s - RESUMED_S
        if waited and one.start_s < resumed_s < one.end_s:
            one = one._replace(end_s=resumed_s)
        found.append(one)
    return found


def _loading(events: Iterable[Event]) -> Iterator[Piece]:
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


def _parameters(events: Iterable[Event]) -> dict[Any, dict[str, Any]]:
    """{id: what torch says of the communication that it began in the operator with that id}"""
    return {
        event.arguments["External id"]: event.arguments
        for event in events
        if event.name == PARAMETERS and isinstance(event.arguments.get("External id"), int)
    }


def _collective(event: Event, parameters: dict[Any, dict[str, Any]]) -> Piece | None:
    """The communication that an event shows, if it shows one."""
    said = event.arguments
    dimension = ""
    if event.what in GPU:
        launched_in = said.get("External id")
        annotated = parameters.get(launched_in) if isinstance(launched_in, int) else None
        named = communication_of(event.name)
        if named is None and annotated is None and "Collective name" not in said:
            return None
        dimension, kind = named or ("", event.name)
        said = said if "Collective name" in said else annotated or said
    elif event.what != OTHER and (found := BACKENDS.match(event.name)):
        kind = found[1]
    else:
        return None
    kind = str(said.get("Collective name") or kind).strip("_")
    if kind not in MESSAGES:
        named_kind = collective_in(kind)
        kind = named_kind if named_kind in COLLECTIVES else kind
    group = str(said.get("Process Group Ranks") or "")
    part = str(said.get("Process Group Description") or dimension or "communication")
    return Piece(part, kind, event.start_s, event.end_s, kind, group)
