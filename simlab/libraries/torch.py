"""torch's own means: DDP and FSDP2, or FSDP1, with its optimizers and its loss."""

from dataclasses import replace

from simlab.libraries.library import Library

TORCH = Library(
    name="torch",
    # torchao's recipe
    scales_rows=True,
    # torchtitan's selective checkpointing
    own_recomputation="per-op",
    # torchtitan's compile.components
    compiles_loss=True,
    # torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py
    cuts_each_tensor=True,
    # torch/distributed/pipelining/stage.py
    reduces_after_last_backward=True,
    autocasts=True,
    # Redistribute in torch/distributed/tensor/_redistribute.py
    keeps_gathered_inputs=True,
    # SequenceParallel of q_norm and k_norm in allenai/OLMo-core, nn/attention/__init__.py
    exchanges_heads=True,
    # set_checkpoint_early_stop in torch/utils/checkpoint.py
    stops_recomputing_early=True,
    # tensor_to_scale in torchao/float8
    searches_largest_values=True,
)

FSDP1 = replace(
    TORCH,
    name="fsdp1",
    # torch/distributed/fsdp/_flat_param.py
    cuts_each_tensor=False,
    joins_gradients=True,
    reduces_after_last_backward=False,
    autocasts=False,
    exchanges_heads=False,
    # its users take the reentrant form
    stops_recomputing_early=False,
)
"""Flat parameters, of which each parameter is a view."""
