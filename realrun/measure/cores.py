"""The processors and GPUs of this machine."""

import os


def usable_cores() -> int:
    """The number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def shared_gpus(ranks: int) -> str | None:
    """Why the times of `ranks` processes are not those of a GPU each, where several of this machine's
    share one; None: they do not."""
    import torch

    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not 0 < gpus < here:
        return None
    several = "s" if gpus > 1 else ""
    return (
        f"{here} ranks share {gpus} CUDA device{several}: they take turns there and send through sockets, "
        "so times say nothing of a GPU for each"
    )
