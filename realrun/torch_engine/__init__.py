"""The same plan with torch's own parallelism: what a user would rather have, held to the same checks.

    ZeRO 0                DistributedDataParallel; replicate where weights are DTensors or a pipeline's
    ZeRO 1                and ZeroRedundancyOptimizer
    ZeRO 2, 3             fully_shard (FSDP2) of embedding, layers and head, as our units are; 2 keeps what it gathered until the backward
    tensor parallelism    parallelize_module: columns and rows, and both ends by the vocabulary
    sequence parallelism  its SequenceParallel, and what enters columns and leaves rows cut by tokens
    pipelines             the runtime of torch.distributed.pipelining, which executes the program that ours does
    16 bits               MixedPrecisionPolicy of the sharded and the replicated; autocast of what DistributedDataParallel has, or nothing
    checkpoints           by the names that ours have, whole: either engine goes on from the other's

There is no list to be held against: what torch sends, and when, is torch's to decide. Its bytes are counted by dimension, in the first
step (without warm-up steps a measured one, which that slows), and stand beside those of the simulator's list.

Left out, and refused (`PlanJob`): context parallelism, DualPipe's two copies of a stage, faults, boxes, ZeRO-1 of anything but whole
models (ZeroRedundancyOptimizer takes no DTensors), ZeRO-3 under schedules that split the backward. That last is torch's mistake, as of
2.13: of weights that are freed after the forward its runtime loses gradients (zb-h1, zb-v) or gets them wrong without a word
(dualpipe-v, by half). A weight in 16 bits is a copy here: parameters are kept and counted in fp32.
"""
