"""The same plan with torch's own parallelism, which is what a user would rather have, held to the
same checks.

    ZeRO 0                DistributedDataParallel; replicate where weights are DTensors or belong to
                          a pipeline
    ZeRO 1                the same, with ZeroRedundancyOptimizer
    ZeRO 2, 3             fully_shard (FSDP2) of embedding, layers and head, as our units are; ZeRO
                          2 gathers once a step
    tensor parallelism    parallelize_module: columns and rows, and both ends by the vocabulary
    sequence parallelism  its SequenceParallel; what enters columns and leaves rows is cut by tokens
    pipelines             the runtime of torch.distributed.pipelining, which executes the program
                          that ours does
    16 bits               MixedPrecisionPolicy where weights are sharded or replicated; autocast
                          under DistributedDataParallel, and on one rank
    checkpoints           whole, by the names that ours have: either back-end goes on from the
                          other's

There is no list to be held against, because torch decides what it sends, and when. Its bytes are
counted by dimension in the first step, which slows that step (without warm-up steps it is a
measured one). They stand beside those of the simulator's list. Collectives are inside the boxes of
ops; what follows the last backward (norm, clipping, update) is the optimizer's.

These are left out, and `realrun.run.job.checks` refuses them: context parallelism, DualPipe's two
copies of a stage, faults on purpose, boxes, what only our list has (prefetch, overlap, attention by
parts), ZeRO-1 of anything but whole models (ZeroRedundancyOptimizer takes no DTensors), and ZeRO-3
under schedules that split the backward. The last is a mistake of torch as of 2.13: of weights that
are freed after the forward its runtime loses gradients (zb-h1, zb-v) or gets them wrong without a
word (dualpipe-v, by half). Also left out: activations in the memory, which rank is slow, and the
line of progress. A weight in 16 bits is a copy here: parameters are kept and counted in fp32.
"""
