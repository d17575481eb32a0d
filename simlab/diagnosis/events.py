"""It reads the events of a profile that torch.profiler wrote, in the forms of torch 1.8 to 2.13."""

from typing import Any, NamedTuple

from simlab.diagnosis.fields import time_field, whole_field
from simlab.errors import InputError, shortened

US = 1e-6
DAY_NS = 86_400 * 10**9
"""Times are read as seconds of a day, so that a float holds them to less than a nanosecond."""
KERNEL, COPY, OPERATOR, ANNOTATION, GPU_ANNOTATION, LAUNCH, OTHER, UNKNOWN = (
    "kernel", "copy", "operator", "annotation", "gpu annotation", "launch", "other", "unknown",
)  # fmt: skip
GPU = (KERNEL, COPY)
CATEGORIES = {
    KERNEL: ("kernel", "concurrent_kernel", "collective_comm"),
    COPY: ("gpu_memcpy", "gpu_memset", "memcpy", "memset"),
    OPERATOR: ("cpu_op", "operator", "hpu_op"),
    ANNOTATION: ("user_annotation",),
    GPU_ANNOTATION: ("gpu_user_annotation",),
    LAUNCH: ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "xpu_runtime",
             "privateuse1_runtime", "mtia_runtime"),
    OTHER: ("trace", "python_function", "overhead", "cuda_sync", "fwdbwd", "ac2g", "cpu_instant_event",
            "privateuse1_driver", "cuda_profiler_range", "profiler", "gpu_pm_counter"),
}  # fmt: skip
"""{what an event is: its categories in small letters}. Those up to torch 1.11 began with a capital:
'Kernel', 'Memcpy', 'Operator', 'Runtime' (pytorch/kineto: libkineto/src/output_json.cpp, before and
after the change of 2022; libkineto/src/ActivityType.cpp has today's)."""
OF_CATEGORY = {name: what for what, names in CATEGORIES.items() for name in names}
OF_PROCESS = {"CPU functions": OPERATOR, "CUDA functions": KERNEL}
"""torch.autograd.profiler had no categories, and named processes so (torch/autograd/profiler_util.py)."""
STEP = "ProfilerStep#"
"""How the names of the annotations of steps begin."""
RECORDING = "PyTorch Profiler ("
"""How the name of the slice begins that says from when to when events were recorded."""


class Event(NamedTuple):
    """A slice: its name, what it is ('kernel', 'operator', ...), its category, its thread, its start and
    end in seconds, and its arguments."""

    name: str
    what: str
    category: str
    thread: tuple[Any, Any]
    start_s: float
    end_s: float
    arguments: dict[str, Any]

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end_s - self.start_s


class Profile(NamedTuple):
    """What a file says: its rank, its slices by start, and whether it knows of a GPU."""

    number: int
    events: list[Event]
    has_gpu: bool


def profile_of(data: dict[str, Any], at: int) -> Profile:
    """The `Profile` of a file's content. Its number is `at` if it does not say which rank it is."""
    info = data.get("distributedInfo")
    number = at
    if isinstance(info, dict) and "rank" in info:
        number = whole_field("distributedInfo.rank", info["rank"])
    base_ns = whole_field("baseTimeNanoseconds", data.get("baseTimeNanoseconds") or 0)
    base_s = base_ns % DAY_NS * 1e-9
    events = [_event(event, base_s) for event in data["traceEvents"] if _is_slice(event)]
    if not events:
        raise InputError(f"the profile of rank {number} has no event with a duration")
    known = {event.what for event in events}
    if not known & {KERNEL, COPY, OPERATOR, ANNOTATION, LAUNCH}:
        names = ", ".join(sorted({repr(shortened(event.category)) for event in events})[:4])
        raise InputError(
            f"the profile of rank {number} has no slice of a category that torch.profiler writes, but "
            f"of {names}"
        )
    events.sort(key=lambda event: (event.start_s, -event.end_s))
    has_gpu = bool(data.get("deviceProperties")) or LAUNCH in known
    return Profile(number, events, has_gpu)


def recorded(events: list[Event]) -> tuple[float, float]:
    """From when to when events were recorded, in seconds, as far as the profile says."""
    window = [event for event in events if event.name.startswith(RECORDING)]
    if not window:
        return float("-inf"), float("inf")
    return window[0].start_s, window[0].end_s


def _is_slice(event: Any) -> bool:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return False
    return event.get("ts") is not None and event.get("dur") is not None


def _event(event: dict[str, Any], base_s: float) -> Event:
    start_s = base_s + US * time_field("ts of an event", event["ts"])
    arguments = event.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    category = str(event.get("cat") or "")
    thread = _thread(event)
    return Event(
        str(event.get("name", "")), _what(category, thread, arguments), category, thread,
        start_s, start_s + US * time_field("dur of an event", event["dur"], 0), arguments,
    )  # fmt: skip


def _what(category: str, thread: tuple[Any, Any], arguments: dict[str, Any]) -> str:
    """What an event is. One of an unknown category that has a stream is work of a GPU."""
    known = OF_CATEGORY.get(category.lower())
    if known is None and not category:
        known = OF_PROCESS.get(str(thread[0]), OTHER)
    if known is None:
        known = KERNEL if "stream" in arguments and "device" in arguments else UNKNOWN
    return known


def _thread(event: dict[str, Any]) -> tuple[Any, Any]:
    """(process, thread) of an event: numbers, or texts such as 'stream 7'."""
    for key in ("pid", "tid"):
        if not isinstance(event.get(key), int | float | str | None):
            raise InputError(
                f"{key} of an event = {shortened(event[key])}: give a whole number or a text"
            )
    return event.get("pid"), event.get("tid")
