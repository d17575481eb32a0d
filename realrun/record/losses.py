"""The losses of a training, in a file that grows while it trains: whatever ends a run, the losses
until then are there, and a run that goes on adds to them."""

from pathlib import Path

from simlab.errors import SimlabError

LOSSES = "losses.csv"
"""The name of the file, in the folder of a run."""
HEADER = b"step,loss,gradient_norm,seconds\n"


class LossFile:
    """The file in `folder`. A line has the number of steps done, warm-up steps counted, their last
    one's loss in nats per byte, the norm of its gradients (empty if it is not finite), and its
    seconds.

    first: how many steps were done before. The lines of these stay, and later ones, which are trained
    again, go. `SimlabError` if the file cannot be written.
    """

    def __init__(self, folder: Path, first: int = 0) -> None:
        self._path = folder / LOSSES
        try:
            before = self._path.read_bytes() if first and self._path.exists() else b""
            kept = _bytes_up_to(first, before)
            self._file = self._path.open("ab" if kept else "wb", buffering=0)
            if kept:
                self._file.truncate(kept)
        except OSError as error:
            raise self._cannot(error.strerror) from error
        if not kept:
            self._add(HEADER)

    def write(self, step: int, loss: float, norm: float | None, seconds: float) -> None:
        """Add the line of a step."""
        text = f"{step},{loss!r},{'' if norm is None else repr(norm)},{seconds:.6g}\n"
        self._add(text.encode())

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _add(self, line: bytes) -> None:
        try:
            written = self._file.write(line)
        except OSError as error:
            raise self._cannot(error.strerror) from error
        if written != len(line):
            raise self._cannot("No space left on device")

    def _cannot(self, reason: str | None) -> SimlabError:
        return SimlabError(
            f"cannot write {str(self._path)!r}: {reason}; make room for it, and --resume goes on from "
            "the last checkpoint, if the run writes any"
        )


def _bytes_up_to(step: int, text: bytes) -> int:
    """How many bytes of a file of losses are of steps up to `step`; 0 if it is none of ours."""
    if not text.startswith(HEADER):
        return 0
    end = len(HEADER)
    for line in text[end:].splitlines(keepends=True):
        number = line.partition(b",")[0]
        if not (number.isdigit() and int(number) <= step and line.endswith(b"\n")):
            break
        end += len(line)
    return end
