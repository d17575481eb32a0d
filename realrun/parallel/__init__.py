"""The kinds of parallelism, one file each, executed with torch.distributed: how a layer is cut is in
`realrun.parallel.layers`, and how a stage's parameters are sharded is here.

The teaching forms that lessons compare them with are in `realrun.parallel.naive`.
"""
