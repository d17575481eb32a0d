"""The losses of a training, in a file that grows while it trains: whatever ends a run, the losses
until then are there."""

from pathlib import Path

LOSSES = "losses.csv"
"""The name of the file, in the folder of a run."""
HEADER = "step,loss,gradient_norm,seconds\n"


class LossFile:
    """The file in `folder`, new. A line has the number of steps done, warm-up steps counted, their
    last one's loss in nats per byte, the norm of its gradients (empty if it is not finite), and its
    seconds."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / LOSSES).open("w", encoding="utf-8", buffering=1)
        self._file.write(HEADER)

    def write(self, step: int, loss: float, norm: float | None, seconds: float) -> None:
        """Add the line of a step."""
        self._file.write(f"{step},{loss!r},{'' if norm is None else repr(norm)},{seconds:.6g}\n")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
