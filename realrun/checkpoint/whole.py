"""Which checkpoints are in a folder, and which of them are whole. No process group is needed."""

import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from realrun.checkpoint.errors import CheckpointError
from realrun.checkpoint.files import MANIFEST, check_file, read_manifest


def path_of(folder: str | Path, step: int) -> Path:
    """Where the checkpoint of `step` is."""
    return Path(folder) / f"step-{step:06d}"


def complete(folder: str | Path) -> list[int]:
    """The step of each complete checkpoint in `folder`, ascending."""
    found = [
        re.fullmatch(r"step-(\d{6,18})", path.parent.name)
        for path in Path(folder).glob(f"*/{MANIFEST}")
    ]
    return sorted(int(match[1]) for match in found if match)


def latest(folder: str | Path) -> Path | None:
    """The path of the complete checkpoint with the highest step in `folder`, or None if there is
    none."""
    steps = complete(folder)
    return path_of(folder, steps[-1]) if steps else None


def newest_readable(folder: str | Path) -> tuple[Path | None, dict[str, Any]]:
    """(path, extra) of the newest checkpoint in `folder` whose manifest can be read and has an extra
    that is a mapping; (None, {}) without one."""
    for step in reversed(complete(folder)):
        try:
            extra = read_manifest(path_of(folder, step))["extra"]
        except CheckpointError:
            continue
        if isinstance(extra, dict):
            return path_of(folder, step), extra
    return None, {}


def verify(path: str | Path) -> None:
    """`CheckpointError` unless every file of the checkpoint is there with the size and SHA-256 that
    its manifest says."""
    path = Path(path)
    for name, file in read_manifest(path)["files"].items():
        check_file(path / name, **file)


def last_whole(folder: str | Path) -> Path | None:
    """The newest checkpoint in `folder` that `verify` finds whole, or None. It reads all files of
    those that it looks at."""
    for step in reversed(complete(folder)):
        try:
            verify(path_of(folder, step))
        except CheckpointError:
            continue
        return path_of(folder, step)
    return None


def offer(folder: str | Path) -> str:
    """What can be done about a newest checkpoint that is damaged, in words."""
    whole = last_whole(folder)
    if whole is None:
        return f"no checkpoint in {str(folder)!r} is whole"
    return f"the last whole one is {str(whole)!r}, and --skip-damaged goes on from that"


def put_damaged_aside(folder: str | Path, say: Callable[[str], None]) -> None:
    """Rename the newest checkpoints in `folder` as long as they are damaged, so that nobody takes
    them for checkpoints, and say so of each. `CheckpointError` if none is whole."""
    whole = last_whole(folder)
    if whole is None and complete(folder):
        raise CheckpointError(offer(folder))
    for step in reversed(complete(folder)):
        path = path_of(folder, step)
        if path == whole:
            return
        aside = path.rename(path.with_name(f"{path.name}.damaged-{secrets.token_hex(4)}"))
        say(f"{path} is damaged: it is now called {aside.name}")
