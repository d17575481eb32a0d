"""Hugging Face's nanotron."""

from simlab.libraries.library import Library

NANOTRON = Library(
    name="nanotron",
    most_zero=1,
    has_eight_bits=False,
    has_flat_gradients=True,
    # FP32GradientAccumulator.backward in nanotron/optim/gradient_accumulator.py
    adds_after_backward=True,
    # make_ddp in nanotron/trainer.py
    copies_into_buckets=True,
    reduces_to_all=True,
    # nanotron/optim/clip_grads.py, gradient_accumulator.py
    clips_every_gradient=True,
    # all_gather_coalesced in nanotron/distributed.py
    gathers_lists=True,
    fuses_optimizer=True,
    # for barriers, and for the norm of gradients (mp_pg in nanotron/parallel/context.py)
    has_world_communicator=True,
    joins_products=True,
    # CausalSelfAttention.forward and GLUActivation in nanotron/models/llama.py
    reorders_heads=True,
    fuses_activation=False,
    # nanotron/parallel/tensor_parallel/functional.py
    fuses_loss=True,
    copies_logits=True,
    launches_each_expert=True,
    # counted with torch's dispatcher on a layer of the same form
    # (tests/simlab/cost/test_dispatched_ops.py). Its products beside a gather are three each, queries,
    # keys and values are copied into two orders, sequence lengths are summed in every layer, and each
    # gradient is added to its fp32 sum by itself
    layer_ops=((64, 66, 36), (92, 90, 36)),
)
