"""It has learners' functions called in processes with limits, by an interpreter that holds no answers: what
is right is computed here, and never there. See `confined`."""

import json
import marshal
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simlab.errors import InputError
from simlab.lessons.exercise import Outcome
from simlab.lessons.teaching.attempts import Attempt
from simlab.lessons.teaching.confined import Request
from simlab.spec.plan import Plan

SERVES = """import sys
sys.path[:] = {path!r}
from simlab.lessons.teaching.confined import serve
serve()"""


class Limits(NamedTuple):
    """What a function may take on all its sets of parameters."""

    seconds: float
    memory_bytes: float


class Ended(NamedTuple):
    """How a process ended that said nothing: after its time, or by itself, `how`."""

    late: bool
    how: str = ""


class Apart:
    """An interpreter of its own, which starts with the first function. Use it as a context manager.
    `InputError` on a system that has no `fork`."""

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise InputError(
                "this system cannot limit a process: grade on Linux or macOS, or in WSL"
            )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Apart":
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if self._process is None:
            return
        if kind is not None:  # it may wait for a function
            self._process.terminate()
        self._process.communicate()
        self._process = None

    def outcomes(
        self,
        attempt: Attempt,
        cases: Sequence[Mapping[str, Any]],
        limit_s: float,
        limits: Limits,
    ) -> list[Outcome] | Ended:
        """What a learner's function does with each of `cases`, up to the first that it has no answer to, within
        `limit_s` for each of them. `InputError` for cases that cannot be handed to a process."""
        codes = [marshal.dumps(code) for code in (*attempt.needs, attempt.code)]
        try:
            request = pickle.dumps(Request(codes[:-1], codes[-1], cases, limit_s, *limits))
        except Exception as error:
            raise InputError(
                f"the parameters of {attempt.question!r} are no plain values, which alone can be handed to a "
                f"process: {error}"
            ) from error
        said, late, how = self._asked(request)
        try:
            return [Outcome(_value(each[0]), *_told(each)) for each in json.loads(said)]
        except (InputError, ValueError, TypeError, KeyError, IndexError, RecursionError):
            return Ended(late, how)

    def _asked(self, request: bytes) -> tuple[str, bool, str]:
        if self._process is None:
            code = SERVES.format(path=[os.path.abspath(place) for place in sys.path])
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(request)
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            self.__exit__()
            return "", False, "its process has ended"
        said, late, how = json.loads(line)
        return said, late, how


def _told(each: Any) -> tuple[str, int, bool]:
    _, error, line, ended = each
    if not (isinstance(error, str) and isinstance(line, int) and isinstance(ended, bool)):
        raise ValueError("no outcome")
    return error, line, ended


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        if isinstance(plain, list):
            raise ValueError("no value")
        return plain
    ((kind, its),) = plain.items()
    if kind == "table":
        return {_value(key): _value(value) for key, value in its}
    if kind == "other":
        return str(its)
    if kind == "plan":
        return Plan(**its)
    return {"list": list, "tuple": tuple, "set": set}[kind](map(_value, its))
