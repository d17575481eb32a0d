"""How a command ends: the line that says what went wrong, and the exit status."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simlab.cli.options import Failure, refuse_paths
from simlab.cli.streams import end_stdout
from simlab.errors import InputError, SimlabError, bounded

Command = Callable[[Namespace], int]
"""A command: it takes the parsed arguments and returns the exit status."""


def exit_status(run: Command, arguments: Namespace, *, unread: int = 0) -> int:
    """Run a command and return its exit status.

    The status is what `run(arguments)` returns, 2 if the arguments are wrong, 1 for other errors
    (but an error's own `status`), for ^C and where stdout takes no more, and `unread` if the reader
    of stdout has gone.

    An error is one line on stderr, which ends with the error's notes (`add_note`). With
    `arguments.json` an error is also an object on stdout, with its message and, if it has them, its
    `facts`.
    """
    try:
        status = _status(run, arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read it has enough, as in `| head -1`
        end_stdout()
        return unread
    except OSError as error:
        end_stdout()
        _say("failed", f"stdout: {error.strerror or error}", error)
        return 1


def _status(run: Command, arguments: Namespace) -> int:
    try:
        refuse_paths(arguments)
        return run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except InputError as error:
        _fail(error, str(error), arguments, "error")
        return 2
    except SimlabError as error:
        _fail(error, str(error), arguments)
        return error.status
    except OSError as error:
        _fail(error, _reason(error), arguments)
        return 1


def _reason(error: OSError) -> str:
    reason = str(error.strerror or error)
    if error.filename:
        return f"{error.filename}: {reason}"
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the current folder does not exist any more: change to one that does"
    return reason


def _fail(error: Exception, reason: str, arguments: Namespace, kind: str = "failed") -> None:
    """Say why the command failed, with `--json` as an object, too."""
    if arguments.json:
        failure = Failure(ok=False, error=reason)
        print(json.dumps(failure | getattr(error, "facts", {})))
    _say(kind, reason, error)


def _say(kind: str, reason: Any, error: Exception) -> None:
    # at once: several ranks write into one terminal
    said = " ".join([f"{kind}: {bounded(str(reason))}", *getattr(error, "__notes__", [])])
    sys.stderr.write(f"{said}\n")
