"""What ranks tell each other beside what a training sends: bytes for rank 0, and the greatest of numbers."""

import torch
import torch.distributed as dist


def greatest(number: float) -> float:
    """The greatest of what each rank says, on all of them. They call it together, and wait for each other
    in it."""
    found = torch.tensor([number], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def gather_bytes(data: bytes) -> list[bytes]:
    """The bytes of each rank, in the order of ranks, on rank 0; an empty list elsewhere. All ranks
    call it together. No pickle is involved."""
    world, rank = dist.get_world_size(), dist.get_rank()
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(data)]))
    longest = max(int(size) for size in sizes)
    mine = torch.zeros(longest, dtype=torch.uint8)
    mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    if rank:
        dist.gather(mine)
        return []
    parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world)]
    dist.gather(mine, parts)
    return [part.numpy().tobytes()[: int(size)] for part, size in zip(parts, sizes)]
