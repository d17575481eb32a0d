"""The kinds of parallelism, one short file each, executed with torch.distributed: the naive form first, the good one after it."""
