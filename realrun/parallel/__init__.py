"""The kinds of parallelism, one file each, executed with torch.distributed.

The teaching forms that lessons compare them with are in `realrun.parallel.naive`.
"""
