"""It reads the model, the plan and the cluster of a row of published runs.

A row often does not say everything. These are the assumptions, which follow the library that ran it:

- Fused attention: Megatron-LM and NeMo have the fastest kernel of the GPU in bf16 and fp8, FSDP2 has
  torch's (FlashAttention-2), and FSDP1, which is older than torch 2.0, has FlashAttention-1.
  Megatron-LM's fp16 runs are older than its fused attention, except with context parallelism, which
  needs it.
- FSDP is torch's own, except in JAX. Norms and activations are fused, except in torch without
  torch.compile. torchtitan's comparisons of tensor parallelism are all compiled.
- Sharded data parallelism overlaps its communication, but DeepSpeed's ZeRO-3 of 2021 gathers tensor
  by tensor. Plain data parallelism reduces after the last backward, and tensor parallelism does not
  overlap, unless the row says otherwise.
- NeMo's recipes overlap tensor parallelism, because all recipes that mention it do.
- Sequence parallelism goes with tensor parallelism, except in fp16 runs, which are older.
- A microbatch of a pipeline is one sequence. An interleaved pipeline has two stages on each rank,
  which is torchtitan's default.
- If the microbatch of FSDP2's pipeline is the whole batch of a replica, it is cut into as many parts
  as there are stages (torchtitan's local batch), or into the next number of parts that divides it.
- A batch that is no whole number of microbatches is cut into as many of equal size as it needs,
  rounded up.
- HSDP shards over the data-parallel ranks of a node.

Two things are left out. torch's pipelines keep FSDP2's gathered parameters and whole gradients from
the first microbatch of a step to the last (torch/distributed/pipelining/stage.py), so their memory is
higher than predicted and their step is shorter. float8 makes an additional pass for the largest
value of each tensor.
"""

import re
from dataclasses import replace
from math import ceil, gcd

from simlab.spec.cluster import Cluster, cluster_of_gpu, load_cluster
from simlab.spec.model import Model
from simlab.spec.plan import Plan
from simlab.studies.published_words import (
    FSDP,
    Row,
    Skip,
    attention_of,
    degree,
    hybrid_ranks,
    is_compiled,
    library_of,
    overlaps_dp,
    precision_of,
    recompute_of,
    said,
    tp_overlap_of,
    whole,
    yes,
    zero_stage,
)

NEEDED = (
    "step_s",
    "n_gpus",
    "gpu",
    "layers",
    "hidden",
    "heads",
    "vocab",
    "seq",
    "global_batch",
    "micro_batch",
)
"""The columns without which a row is not predicted."""


def described(row: Row) -> tuple[Model, Plan, Cluster]:
    """The model, the plan and the cluster of a row.

    Raises `Skip` with the reason if the row does not say enough, or says something that is not
    simulated.
    """
    if not row["micro_batch"].strip() and whole(row, "pp", 1) > 1:
        row = {**row, "micro_batch": "1"}
    for column in NEEDED:
        if not row[column].strip():
            raise Skip(f"{column} was not published")
    if degree(row, "ep") > 1:
        raise Skip(f"expert parallelism (ep = {row['ep']}) is not simulated")
    if re.search(EXPERTS, (row.get("model") or "").lower()):
        raise Skip(f"the model {row['model']!r} is not simulated: its experts have no column")
    name = _machine(row)
    if name is None:
        raise Skip(f"no cluster in the catalogue has the GPU {row['gpu']!r}")
    model, plan, in_node = _model(row), _plan(row), _in_node(row)
    return (
        model,
        plan,
        replace(load_cluster(name), gpus_per_node=in_node, nodes=whole(row, "n_gpus") // in_node),
    )


EXPERTS = r"mixtral|grok|moe|deepseek[\s_-]*v[23]|\d\s*x\s*\d+(?:\.\d+)?b\b"
"""A pattern of the names of models that have experts."""

MACHINES = {("via-research/vtrain", "dgx-a100"): "vtrain-a100"}
"""{(how the source of a row begins, the usual machine of its GPU): the machine that it ran on}."""


def _machine(row: Row) -> str | None:
    """The name in the catalogue of the machine that a row ran on; None if there is none."""
    usual, source = cluster_of_gpu(row["gpu"]), (row.get("source") or "").lower()
    return next(
        (
            name
            for (begin, of), name in MACHINES.items()
            if of == usual and source.startswith(begin)
        ),
        usual,
    )


def _in_node(row: Row) -> int:
    """The number of GPUs of each node that the run used, equally many of each node."""
    gpus = whole(row, "n_gpus")
    return gcd(gpus, min(gpus, whole(row, "gpus_per_node", 8)))


def _model(row: Row) -> Model:
    """The model of a row: a Llama if it has a gated MLP or grouped queries, else a GPT."""
    heads, hidden = whole(row, "heads"), whole(row, "hidden")
    gated = yes(row["gated_mlp"])
    grouped = whole(row, "kv_heads", heads) != heads
    llama = gated or grouped
    return Model(
        name=row.get("model", ""),
        layers=whole(row, "layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=whole(row, "kv_heads", heads),
        ffn=whole(row, "ffn", 4 * hidden),
        gated_mlp=gated,
        vocab=whole(row, "vocab"),
        seq=whole(row, "seq"),
        positions=0 if llama else whole(row, "seq"),
        bias=not llama,
        tied_head=not llama,
    )


def _plan(row: Row) -> Plan:
    """The plan of a row, under the assumptions that the text of this module lists."""
    tp, pp, cp = whole(row, "tp", 1), whole(row, "pp", 1), degree(row, "cp")
    dp = whole(row, "dp", max(1, whole(row, "n_gpus") // (tp * pp * cp)))
    sharding, overlap, precision = (
        said(row["sharding"]),
        row["overlap"].lower(),
        precision_of(row["precision"]),
    )
    zero, hybrid = zero_stage(row["sharding"]), hybrid_ranks(sharding, _in_node(row) // tp)
    fsdp, library = bool(re.search(FSDP, sharding)), library_of(sharding)
    microbatches, size, chunks = _cut(row, dp, pp, library)
    sequence_parallel = tp > 1 and yes(
        row["seq_parallel"].strip() or ("0" if precision == "fp16" else "1")
    )
    # What a row says of a dimension that it does not split has no effect and is left out.
    return Plan(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        zero=zero,
        hybrid=hybrid if zero and hybrid and dp * cp % hybrid == 0 else 0,
        microbatch_size=size,
        microbatches=microbatches,
        seq=whole(row, "seq"),
        chunks=chunks if chunks > 1 else None,  # type: ignore[arg-type]  # Plan fills it in
        schedule="interleaved-1f1b" if chunks > 1 else "1f1b",
        recompute=recompute_of(row["recompute"], fsdp),
        precision=precision,
        sequence_parallel=sequence_parallel,
        attention=attention_of(library, precision, cp),
        library=library,
        fused=library == "megatron" or is_compiled(library, overlap),
        prefetch=int(fsdp) if zero == 3 else 1,
        dp_overlap=overlaps_dp(overlap, zero),
        tp_overlap=tp_overlap_of(overlap) if tp > 1 else "weight-grad",
        stage_layers="uneven",
        bucket_bytes=_bucket_bytes(library, zero, precision, dp * cp),
    )


def _cut(row: Row, dp: int, pp: int, library: str) -> tuple[int, int, int]:
    """The microbatches of a replica, the sequences of each, and the stages of each rank."""
    only_named = pp > 1 and not row["vpp"].strip() and "interleaved" in said(row["overlap"])
    chunks = 2 if only_named else degree(row, "vpp")
    microbatches, size = _microbatches(row, dp)
    if library == "torch" and pp > 1 and microbatches == 1:
        microbatches = min((n for n in range(pp * chunks, size + 1) if size % n == 0), default=size)
        size //= microbatches
    return microbatches, size, chunks


def _bucket_bytes(library: str, zero: int, precision: str, ranks: int) -> int | None:
    """Megatron-LM's buckets: 40 million numbers, or a million for each rank where that is more, so
    that the latency of a ring is not paid too often."""
    if library != "megatron" or zero >= 2 or ranks == 1:
        return None
    return (2 if precision == "fp16" else 4) * max(40_000_000, 1_000_000 * ranks)


def _microbatches(row: Row, dp: int) -> tuple[int, int]:
    """The microbatches of a replica, and the sequences of each."""
    batch = whole(row, "global_batch")
    if batch < dp:
        raise Skip(f"a global batch of {batch} is less than a sequence for each of {dp} replicas")
    count = ceil(batch / (dp * whole(row, "micro_batch")))
    return count, ceil(batch / (dp * count))
