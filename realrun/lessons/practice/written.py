"""A function that a learner wrote, as text: it is made on a rank, and its errors name their line."""

import linecache
import math
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from simlab.errors import SimlabError

FILE = "<your function>"
SEEN = {"torch": torch, "dist": dist, "F": functional, "nullcontext": nullcontext, "math": math}
"""What a learner's function finds beside its arguments."""

Facts = dict[str, Any]
"""{what is judged: a name, a truth value or a number}. A name is "right", "another", or that of a
known mistake."""


class WrittenError(SimlabError):
    """A learner's function raised."""


def written(text: str) -> Callable[..., Any]:
    """The function that `text` defines, last. What it raises comes as a `WrittenError` that quotes
    the line of the text."""
    linecache.cache[FILE] = len(text), None, text.splitlines(keepends=True), FILE
    names: dict[str, Any] = dict(SEEN)
    try:
        exec(compile(text, FILE, "exec"), names)
    except Exception as error:
        raise WrittenError(_told(error)) from None
    functions = [value for name, value in names.items() if name not in SEEN and callable(value)]
    if not functions:
        raise WrittenError("the cell defines no function")

    def call(*arguments: Any) -> Any:
        try:
            return functions[-1](*arguments)
        except Exception as error:
            raise WrittenError(_told(error)) from error

    return call


def _told(error: Exception) -> str:
    """The error in one line, with the line of the learner's text that it comes from."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == FILE]
    at = f"line {frames[-1].lineno} ({frames[-1].line}): " if frames else ""
    text = " ".join(str(error).split())
    if "connection closed" in text.lower() or "connection reset" in text.lower():
        return f"{at}other ranks ended without this call: all ranks must make the same calls"
    hint = f" (it sees its arguments and {', '.join(SEEN)})" if isinstance(error, NameError) else ""
    return f"{at}{type(error).__name__}: {text[:300]}{hint}"


def closest(found: Any, right: Tensor, mistakes: Mapping[str, Tensor]) -> str:
    """The name of what `found` equals: "right", a mistake's, or "another"; "nothing" for None."""
    if found is None:
        return "nothing"
    if not isinstance(found, Tensor) or found.shape != right.shape:
        return "another"
    for name, one in {"right": right, **mistakes}.items():
        if torch.allclose(found.detach().to(one.dtype), one, rtol=1e-7, atol=1e-10):
            return name
    return "another"
