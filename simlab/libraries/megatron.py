"""Megatron-LM, NeMo and DeepSpeed."""

from simlab.libraries.library import Library

MEGATRON = Library(
    name="megatron",
    # --exp-avg-dtype and --fp8-param-gather need the distributed optimizer
    keeps_narrow_states=True,
    # --recompute-modules layernorm moe_act mla_up_proj
    own_recomputation="outputs",
    # --mtp-num-layers (core/transformer/multi_token_prediction.py)
    predicts_more_tokens=True,
    has_flat_gradients=True,
    # --gradient-accumulation-fusion (core/tensor_parallel/layers.py)
    adds_in_place=True,
    # apex's or Transformer Engine's FusedAdam
    fuses_optimizer=True,
    # Transformer Engine's quantize_weight (pytorch/module/base.py), and what its layers save
    # (pytorch/module/linear.py, grouped_linear.py)
    keeps_eight_bit_copies=True,
    keeps_eight_bit_inputs=True,
    joins_products=True,
    # apply_rotary_pos_emb in core/models/common/embeddings/rope_utils.py: "mscale is not supported by
    # TE's fused RoPE" (NVIDIA/Megatron-LM@d98e8a64)
    rotates_apart=True,
    # weighted_bias_quick_geglu_impl in core/fusions/fused_bias_geglu.py; TEGroupedMLP._apply_bias
    # in core/transformer/moe/experts.py (NVIDIA/Megatron-LM@d98e8a64)
    limits_apart=True,
    adds_biases_apart=True,
    # core/tensor_parallel/cross_entropy.py
    fuses_loss=True,
    # --cross-entropy-loss-fusion with --cross-entropy-fusion-impl te (core/models/common/language_module)
    compiles_loss=True,
    # --cuda-graph-impl (docs/user-guide/features/cuda_graph.md)
    records_launches=True,
    # Transformer Engine's get_cublas_workspace (pytorch/cpp_extensions/gemm.py)
    has_product_workspace=True,
    # Transformer Engine's multi_stream_cublas_gemm (common/gemm/cublaslt_gemm.cu)
    launches_each_expert=True,
)
