"""How a command ends: the line that says what went wrong, and the exit status."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from simlab.cli.options import refuse_empty_paths
from simlab.errors import InputError, SimlabError, bounded

Command = Callable[[Namespace], int]
"""A command: it takes the parsed arguments and returns the exit status."""


def exit_status(run: Command, arguments: Namespace, *, unread: int = 0) -> int:
    """Run a command and return its exit status.

    The status is what `run(arguments)` returns, 2 if the arguments are wrong, 1 for other errors
    (but an error's own `status`) and for ^C, and `unread` if the reader of stdout has gone.

    An error is one line on stderr, which ends with the error's notes (`add_note`). With
    `arguments.json` an error that is not about the arguments is also an object on stdout, with its
    message and, if it has them, its `facts`.
    """
    try:
        status = _status(run, arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read it has enough, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return unread


def _status(run: Command, arguments: Namespace) -> int:
    try:
        refuse_empty_paths(arguments)
        return run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except InputError as error:
        _say("error", error, error)
        return 2
    except SimlabError as error:
        _fail(error, str(error), arguments)
        return error.status
    except OSError as error:
        _fail(error, f"{error.filename or 'a file'}: {error.strerror or error}", arguments)
        return 1


def _fail(error: Exception, reason: str, arguments: Namespace) -> None:
    """Say why the command failed, with `--json` as an object, too."""
    if arguments.json:
        print(json.dumps({"ok": False, "error": reason, **getattr(error, "facts", {})}))
    _say("failed", reason, error)


def _say(kind: str, reason: Any, error: Exception) -> None:
    print(f"{kind}: {bounded(str(reason))}", *getattr(error, "__notes__", []), file=sys.stderr)
