"""It reads the files that a diagnosis starts from, and says which of the kinds each one is.

A file is only ever parsed as JSON. A pickle, which could execute code when it is read, is refused.
"""

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from simlab.diagnosis.hangs.watchdog import CAUGHT
from simlab.errors import InputError
from simlab.input_files import first_bytes, read_bytes
from simlab.trace import FIRST_FORMAT, FORMAT, Trace

TRACE, PROFILE, DUMP, LOG = "trace", "profile", "dump", "log"
LARGEST_BYTES = 4 * 2**30
"""No file is read beyond this size, unpacked."""
PICKLES = (b"\x80", b"PK\x03\x04")
"""How a pickle begins, and an archive that torch.save wrote, which holds one."""
DUMPED = {"pg_config", "pg_status", "nccl_comm_state"}
"""What a dump holds besides its entries, which torch 2.13 leaves out where there are none."""
OF_A_RANK = re.compile(r"rank\S*\d$")
"""How the names of the files end that torch itself dumps: nccl_trace_rank_3, ..._rank_node02_3."""
LOGS = (".log", ".txt", ".out", ".err")
"""How the names of logs end."""
MOST_NAMED = 8
"""Folders that a message names."""
MEASURED = ("measured.json", "predicted.json")
"""The traces that `realrun` leaves in a run's folder: the first that is there is read."""


class Found(NamedTuple):
    """A file that was read: its path, which kind it is, and its content."""

    path: Path
    kind: str
    content: Any


def read(paths: Sequence[str | Path]) -> list[Found]:
    """What the files in `paths` hold, which must all be of one kind; of a folder, the files in it.

    Raises `InputError`, which names the file, if it cannot be read or is of no known kind.
    """
    files = [file for path in paths for file in _files(Path(path))]
    found = [_read(path) for path in files]
    kinds = {one.kind for one in found}
    if len(kinds) > 1:
        names = ", ".join(f"{one.path.name} ({one.kind})" for one in found[:4])
        raise InputError(f"give files of one kind, not {names}")
    if kinds == {TRACE} and len(found) > 1:
        raise InputError(f"give one trace, not {len(found)}: a trace of simlab holds all ranks")
    return found


def log_rank(path: Path) -> int | None:
    """The rank in the name of a log, which is after the word rank; None if it has none."""
    found = re.search(r"rank[_-]?(\d+)", path.name, re.IGNORECASE)
    return int(found[1]) if found else None


def rank_in(path: Path) -> int | None:
    """The rank in a file's name, which is the last number in it, as in 'dump_rank_3.json'; None if
    there is no number."""
    numbers = re.findall(r"\d+", path.name.partition(".json")[0])
    return int(numbers[-1]) if numbers else None


def _files(path: Path) -> list[Path]:
    """The files that `path` stands for; of the folder of a run of realrun, one trace of it."""
    if not path.is_dir():
        return [path]
    for name in MEASURED:
        if (path / name).is_file():
            return [path / name]
    try:
        inside = sorted(one for one in path.iterdir() if not one.name.startswith("."))
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from error
    runs = [one for one in inside if any((one / name).is_file() for name in MEASURED)]
    if len(runs) > 1:
        names = ", ".join(str(one) for one in runs[:MOST_NAMED])
        raise InputError(f"{str(path)!r} holds {len(runs)} runs: give the folder of one: {names}")
    if runs:
        return _files(runs[0])
    named = [one for one in inside if one.name.endswith((".json", ".json.gz"))]
    of_ranks = [one for one in inside if OF_A_RANK.search(one.name)]
    named = [*named, *(one for one in of_ranks if _is_left(one, named))] if named else of_ranks
    named = named or [one for one in inside if one.suffix in LOGS]
    if not named and any(one.suffix == ".records" for one in inside):
        raise InputError(
            f"{str(path)!r} is of a run that did not finish: `realrun show {path}` says what it recorded"
        )
    if not named:
        raise InputError(f"{str(path)!r}: no .json or .json.gz file in the folder, and no log")
    return named


def _is_left(path: Path, made: Sequence[Path]) -> bool:
    """Whether a file is a pickle of which none of the JSON files `made` was made."""
    if not path.is_file() or any(one.name.partition(".json")[0] == path.name for one in made):
        return False
    with path.open("rb") as file:
        return file.read(4).startswith(PICKLES)


def _read(path: Path) -> Found:
    raw = _unpacked(path, read_bytes(path, LARGEST_BYTES))
    is_json = raw.lstrip()[:1] == b"{"
    if not is_json and (CAUGHT.encode() in raw or path.suffix in LOGS):
        return Found(path, LOG, raw.decode(errors="replace"))
    data = _parsed(path, raw)
    try:
        if data.get("format") in (FORMAT, FIRST_FORMAT):
            return Found(path, TRACE, Trace.from_dict(data))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if isinstance(data.get("traceEvents"), list):
        return Found(path, PROFILE, data)
    if isinstance(data.get("entries"), list) or DUMPED & data.keys():
        return Found(path, DUMP, data)
    raise InputError(
        f"{str(path)!r}: neither a trace of simlab (format {FORMAT!r}), nor of torch.profiler "
        "(traceEvents), nor a flight recorder's dump (entries), nor a log of its watchdog"
    )


def _unpacked(path: Path, raw: bytes) -> bytes:
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        with gzip.open(BytesIO(raw)) as file:
            text = first_bytes(file, LARGEST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{str(path)!r} is not a gzip file: {error}") from error
    except MemoryError as error:
        raise InputError(f"{str(path)!r}: there is no memory for what it unpacks to") from error
    if len(text) > LARGEST_BYTES:
        raise InputError(f"{str(path)!r}: more than {LARGEST_BYTES >> 30} GiB when unpacked")
    return text


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    if text.startswith(PICKLES):
        raise InputError(
            f"{str(path)!r} is a pickle, which is never read: it could execute code. Dump the flight "
            "recorder as JSON: torch._C._distributed_c10d._dump_nccl_trace_json() on each rank; or, if "
            'you trust whoever wrote the file, make it JSON: python -c "import json, pickle, sys; '
            "json.dump(pickle.load(open(sys.argv[1], 'rb')), open(sys.argv[1] + '.json', 'w'))\" FILE"
        )
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{str(path)!r} is not JSON: {str(error)[:200]}; nor is it a log in which torch's watchdog "
            "has written"
        ) from error
    except MemoryError as error:
        raise InputError(f"{str(path)!r}: there is no memory for what it holds") from error
    if isinstance(data, list) and any(isinstance(one, dict) and "ph" in one for one in data):
        data = {"traceEvents": data}
    if not isinstance(data, dict):
        raise InputError(f"{str(path)!r}: its JSON is no object")
    return data
