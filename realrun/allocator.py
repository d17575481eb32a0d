"""What CUDA's caching allocator gave out at most: tensors that nobody names, too. CPUs have no such count, and None is the answer."""

import gc

import torch


def begin_peak(device):
    """From here on."""
    if device.type == "cuda":
        gc.collect()  # of what ran before, an executor may be in a cycle
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device):
    """Bytes allocated on `device` at a time, at most, since `begin_peak`; without what the allocator keeps in reserve."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
