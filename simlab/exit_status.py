"""How a command ends: the line that says what went wrong, and the exit status."""

import json
import os
import sys

from simlab.errors import InputError, SimlabError


def exit_status(run, arguments, *, unread=0):
    """What `run(arguments)` returns; 2 if the arguments are wrong, 1 for other errors and ^C, `unread` if stdout's reader has gone.

    An error is a line on stderr, its notes (`add_note`) at the end of it. With `arguments.json` one that is not of the arguments is an
    object on stdout, too: its message and, if it has them, its `facts`.
    """
    try:
        status = _status(run, arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read it has enough, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return unread


def _status(run, arguments):
    try:
        return run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except InputError as error:
        _say("error", error, error)
        return 2
    except (SimlabError, OSError) as error:
        reason = error if isinstance(error, SimlabError) else f"{error.filename or 'a file'}: {error.strerror or error}"
        if arguments.json:
            print(json.dumps({"ok": False, "error": str(reason), **getattr(error, "facts", {})}))
        _say("failed", reason, error)
        return 1


def _say(kind, reason, error):
    print(f"{kind}: {reason}", *getattr(error, "__notes__", []), file=sys.stderr)
