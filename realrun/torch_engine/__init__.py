"""The same plan with torch's own parallelism: what a user would rather have, held to the same checks.

    ZeRO 0                DistributedDataParallel; replicate where weights are DTensors or a pipeline's
    ZeRO 1                and ZeroRedundancyOptimizer
    ZeRO 2, 3             fully_shard (FSDP2) of embedding, layers and head, as our units are; 2 gathers once a step
    tensor parallelism    parallelize_module: columns and rows, and both ends by the vocabulary
    sequence parallelism  its SequenceParallel, and what enters columns and leaves rows cut by tokens
    pipelines             the runtime of torch.distributed.pipelining, which executes the program that ours does
    16 bits               MixedPrecisionPolicy of the sharded and the replicated; autocast of what DistributedDataParallel has, or one rank
    checkpoints           by the names that ours have, whole: either engine goes on from the other's

There is no list to be held against: what torch sends, and when, is torch's to decide. Its bytes are counted by dimension, in the first
step (without warm-up steps a measured one, which that slows), and stand beside those of the simulator's list. Collectives are inside the
boxes of ops; what follows the last backward (norm, clipping, update) is the optimizer's.

Left out, and refused (`PlanJob`): context parallelism, DualPipe's two copies of a stage, faults on purpose, boxes, what only our list has
(prefetch, overlap, attention by parts), ZeRO-1 of anything but whole models (ZeroRedundancyOptimizer takes no DTensors), ZeRO-3 under
schedules that split the backward. That last is torch's mistake, as of 2.13: of weights that are freed after the forward its runtime loses
gradients (zb-h1, zb-v) or gets them wrong without a word (dualpipe-v, by half). Left out, too: activations in the memory, who is slow, the
line while it trains. A weight in 16 bits is a copy here: parameters are kept and counted in fp32.
"""
