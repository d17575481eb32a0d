"""The command why: where the time of a step goes, and what hangs."""

import argparse
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

from simlab.cli.options import add_json_options
from simlab.cli.output import print_json, print_text, write_file
from simlab.diagnosis import (
    Diagnosis,
    Hang,
    diagnose,
    hang_in_logs,
    hang_of,
    profile_graph,
    read,
    trace_graph,
)
from simlab.diagnosis.files import DUMP, LOG, PROFILE, TRACE, log_rank, rank_in
from simlab.display import plain
from simlab.errors import InputError
from simlab.views.viewers.profiles import profiles


class Answer(TypedDict):
    """Where the time of a step goes, or what hangs."""

    read: Annotated[str, (TRACE, PROFILE, DUMP, LOG)]
    diagnosis: Annotated[dict[str, Any], Diagnosis] | None
    hang: Annotated[dict[str, Any], Hang] | None


def why(arguments: argparse.Namespace) -> int:
    """Say where the time of a step goes, and what would make it shorter; or where a training hangs.

    A trace of simlab or realrun is one file, or the folder of a run. Profiles of torch.profiler are
    one file for each rank (.json or .json.gz), and so are dumps of torch's flight recorder as JSON,
    whose ranks are the last numbers in the files' names. Logs are those of one job in which torch's
    watchdog says that a collective timed out. No file is ever unpickled.
    """
    found = read(arguments.files)
    diagnosis: Diagnosis | None = None
    hang: Hang | None = None
    kind = found[0].kind
    if kind == DUMP:
        hang = hang_of([(rank_in(one.path), one.content) for one in found])
    elif kind == LOG:
        hang = hang_in_logs([(log_rank(one.path), one.content) for one in found])
    elif kind == TRACE:
        diagnosis = diagnose(trace_graph(found[0].content))
    else:
        diagnosis = diagnose(profile_graph([one.content for one in found]))
    if arguments.profiles:
        if kind != TRACE:
            raise InputError("--profiles writes a trace of simlab or realrun: give one")
        _write(Path(arguments.profiles), profiles(found[0].content))
    if arguments.json:
        print_json(Answer(read=kind, diagnosis=plain(diagnosis), hang=plain(hang)))
    else:
        print_text(str(diagnosis or hang))
    return 0


def _write(folder: Path, texts: list[str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {str(folder)!r}: {error.strerror}") from error
    for rank, text in enumerate(texts):
        write_file(str(folder / f"rank{rank}.json"), partial(_write_text, text))


def _write_text(text: str, path: Path) -> int:
    return path.write_text(text, encoding="utf-8")


def add_why(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `why`."""
    command.add_argument(
        "files",
        nargs="+",
        metavar="TRACE",
        help="a trace, the folder of a run, profiles, dumps or logs of all ranks",
    )
    command.add_argument(
        "--profiles",
        metavar="DIR",
        help="also write the trace as a profile for each rank, for Perfetto and Holistic Trace Analysis",
    )
    add_json_options(command, Answer)
