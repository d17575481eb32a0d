"""It has learners' functions called in processes with limits, by an interpreter that holds no answers: what
is right is computed here, and never there. See `confined`.

Exercises that processes of torch judge are judged there, beside the function: see `Ranks`.
"""

import json
import marshal
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from simlab.errors import InputError
from simlab.lessons.exercise import Outcome, Verdict
from simlab.lessons.teaching.attempts import Attempt
from simlab.lessons.teaching.confined import NOT_ALLOWED, Request
from simlab.lessons.words import language, word
from simlab.spec.plan import Plan

SERVES = """import sys
sys.path[:] = {path!r}
from {module} import serve
serve()"""
CONFINED, RANKS = "simlab.lessons.teaching.confined", "realrun.lessons.grading"
"""Modules that serve."""


class Limits(NamedTuple):
    """What a function may take on all its sets of parameters: seconds of the processor, and memory."""

    seconds: float
    memory_bytes: float


class Ended(NamedTuple):
    """How a process ended that said nothing: over a limit, the key of what is said of it, or by itself, `how`."""

    over: str
    how: str = ""


class Interpreter:
    """An interpreter of its own, in which `module` serves, from the first request on."""

    def __init__(self, module: str) -> None:
        path = [os.path.abspath(its) if os.path.exists(its or ".") else its for its in sys.path]
        self._command = [sys.executable, "-c", SERVES.format(path=path, module=module)]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
        }  # its processes', too
        self._process: subprocess.Popen[bytes] | None = None

    def asked(self, request: bytes) -> bytes:
        """The line that answers `request`; an empty one where the interpreter has ended. The next request
        gets another one."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
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
            self.close()
        return line

    def close(self, at_once: bool = False) -> None:
        """End it, also while it answers."""
        if self._process is None:
            return
        if at_once:
            self._process.terminate()
        self._process.communicate()
        self._process = None


class Apart:
    """What calls learners' functions: use it as a context manager. `InputError` on a system that has no
    `fork`."""

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise InputError(
                "this system cannot limit a process: grade on Linux or macOS, or in WSL"
            )
        self._confined, self._ranks = Interpreter(CONFINED), Interpreter(RANKS)

    def __enter__(self) -> "Apart":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        for each in (self._confined, self._ranks):
            each.close(at_once=kind is not None)

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
        if not (line := self._confined.asked(request)):
            return Ended("", "its process has ended")
        said, over, how = json.loads(line)
        try:
            return [Outcome(_value(each[0]), *_told(each)) for each in json.loads(said)]
        except (InputError, ValueError, TypeError, KeyError, IndexError, RecursionError):
            return Ended(over, how)

    def on_ranks(self, attempt: Attempt) -> Verdict:
        """The verdict on a function that processes of torch judge: `realrun.lessons.grading` starts them for
        it alone."""
        missing = next((its for its in ("realrun", "torch") if find_spec(its) is None), None)
        if missing:
            why = f"{missing} is not installed here"
            return Verdict(False, "form.needs_processes", word("form.needs_processes", why=why))
        if not attempt.text:
            return Verdict(
                False, "form.ended", word("form.ended", how="it is no function with a name")
            )
        asked = {"question": attempt.question, "text": attempt.text, "tongue": language()}
        if not (line := self._ranks.asked(json.dumps(asked).encode() + b"\n")):
            return Verdict(False, "form.ended", word("form.ended", how="its processes have ended"))
        solved, key, text = json.loads(line)
        return Verdict(solved, key, _in_words(text))


def _told(each: Any) -> tuple[str, int, bool]:
    _, error, line, ended = each
    if not (isinstance(error, str) and isinstance(line, int) and isinstance(ended, bool)):
        raise ValueError("no outcome")
    return _in_words(error), line, ended


def _in_words(said: str) -> str:
    """What a process says, with its refusal in the language of the class."""
    return said.replace(NOT_ALLOWED, word("form.not_allowed"))


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
