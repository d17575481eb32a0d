"""What a learner has done so far, in one local file: predictions, exercises, and the drill.

The file is `progress.json` in the folder `.simlab` of the home, or the path in the environment
variable SIMLAB_PROGRESS. Nothing leaves the machine. A file that cannot be read is kept beside the
new one, so that nothing is lost.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from simlab.input_files import read_text

MOST_PROGRESS_BYTES = 32_000_000
PARTS = ("predictions", "exercises", "points", "drill", "puzzle", "challenges")


def path() -> Path:
    """The file that holds the learner's progress."""
    return Path(os.environ.get("SIMLAB_PROGRESS") or Path.home() / ".simlab" / "progress.json")


def load() -> dict[str, Any]:
    """{"predictions": {id: …}, "exercises": {id: …}, "points": {id: …}, "drill": {…},
    "puzzle": {level: …}, "challenges": {id: {"at_s": when it was solved first}}}, each empty at first."""
    kept: dict[str, Any] = {part: {} for part in PARTS}
    file = path()
    if not file.exists():
        return kept
    try:
        found = json.loads(read_text(file, MOST_PROGRESS_BYTES))
        parts = {name: found[name] for name in kept if isinstance(found.get(name), dict)}
    except (OSError, ValueError, AttributeError, RecursionError):
        if file.is_file():
            file.replace(file.with_name(file.name + ".unreadable"))
        return kept
    return kept | parts


def keep(part: str, key: str, value: Any) -> None:
    """Write `value`, JSON, as `key` of a part of the progress. Where the file cannot be written
    the lesson goes on without it."""
    progress = load()
    progress[part][key] = value
    save(progress)


def is_of(kept: Any, version: int) -> bool:
    """Whether what is kept of an exercise is of this version of its task: the first one says none."""
    return isinstance(kept, dict) and kept.get("version", 1) == version


def keep_try(identifier: str, solved: bool, version: int = 1) -> None:
    """Count a try of an exercise: {"solved": whether any of them was right, "tries": how many,
    "first_s", "last_s": when the first one was, and the one that solved it or, before that, the last,
    "version": of its task, from the second on}. Tries of another version are not counted with it."""
    kept = load()["exercises"].get(identifier)
    before = kept if is_of(kept, version) else {"version": version} if version > 1 else {}
    now, was = time.time(), bool(before.get("solved"))
    last = {} if was and "last_s" in before else {"last_s": round(now)}
    first = {"first_s": before.get("first_s", round(now))}
    told = {"solved": solved or was, "tries": before.get("tries", 0) + 1}
    keep("exercises", identifier, before | told | first | last)


def save(progress: dict[str, Any]) -> None:
    """Write all progress at once: the file is whole at every moment."""
    file = path()
    if file.exists() and not file.is_file():
        return  # a device or a folder, in whose place no file is put
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(progress, indent=1, ensure_ascii=False), encoding="utf-8")
        beside.replace(file)
    except OSError:
        return
