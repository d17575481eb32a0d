"""The name of a device, and the most bytes that CUDA's caching allocator gave out at a time. That
counts tensors that nobody names, too. CPUs have no such count."""

import gc
import platform

import torch


def begin_peak(device: torch.device) -> None:
    """Count the peak from here on."""
    if device.type == "cuda":
        gc.collect()  # of what ran before, an executor may be in a cycle
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes that were allocated on `device` at a time since `begin_peak`, without what the
    allocator keeps in reserve. None: the device does not count."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def device_name(device: torch.device) -> str:
    """The device's name as people know it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.machine()})"
