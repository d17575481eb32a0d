"""It runs a learner's function, stops a loop that does not end, and says in which line it was."""

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any


class NoEndError(BaseException):
    """A function computes for longer than it may. No `except Exception` of a learner takes it."""


def answer_within(limit_s: float, attempt: Callable[..., Any], case: Mapping[str, Any]) -> Any:
    """`attempt(**case)`. `NoEndError` in the line that runs when this process has computed for
    `limit_s`: time in which a busy machine does something else does not count."""
    timers = sys.platform not in ("emscripten", "win32")
    watched = timers and threading.current_thread() is threading.main_thread()
    with _alarm(limit_s) if watched else _tracing(limit_s, _file(attempt)):
        return attempt(**case)


def own_line(attempt: Callable[..., Any], error: BaseException) -> int:
    """The last line of the function's own file that `error` passed; 0 where it passed none."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == _file(attempt)]
    return (lines or [0])[-1] or 0


@contextmanager
def _alarm(limit_s: float) -> Iterator[None]:
    """By a timer of the operating system, which costs nothing. It fires again for a loop that takes
    every error."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise NoEndError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit_s, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _tracing(limit_s: float, file: str) -> Iterator[None]:
    """By looking at the time at each instruction of the functions of `file`: in a browser, on
    Windows, and in a thread, where there is no such timer."""
    before, end_s = sys.gettrace(), time.process_time() + limit_s

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        if time.process_time() > end_s:
            raise NoEndError
        return step

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        frame.f_trace_opcodes = True  # a loop of one line comes to no new line
        return step

    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)


def _file(attempt: Callable[..., Any]) -> str:
    code = getattr(attempt, "__code__", None)
    return code.co_filename if code else ""
