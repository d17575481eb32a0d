"""It reads the model, the plan and the cluster of a row of published runs.

A row often does not say everything. These are the assumptions, which follow the library that ran it:

- Fused attention: Megatron-LM and NeMo have the fastest kernel of the GPU in bf16 and fp8, FSDP2 has
  torch's (FlashAttention-2), and FSDP1, which is older than torch 2.0, has FlashAttention-1.
  Megatron-LM's fp16 runs are older than its fused attention, except with context parallelism, which
  needs it.
- The columns `library`, `attention`, `fused`, `gradient_bytes`, `machine`, `tied_head` and
  `checks_collectives` say what is else assumed. The sweeps of kernels (Hagemann et al. 2023) name
  those of each row; what they do not name is not fused.
- A text that only names dimensions ("tp, pp, dp") says that each of them overlaps
  (`simlab.studies.published.overlap` has the other forms). Messages between stages overlap only in an
  interleaved pipeline (Megatron-LM's --overlap-p2p-communication), so "pp" implies one.
- FSDP is torch's own (FSDP2 where nothing else is said), except in JAX and Megatron-FSDP. Norms and
  activations are fused, except in torch without torch.compile. torchtitan's comparisons of tensor
  parallelism are all compiled. Its loss was not: torchtitan turned that off in December 2024 (commit
  e8977b0), before these runs, and on again in April 2025 (bbb1b61).
- Sharded data parallelism overlaps its communication, but DeepSpeed's ZeRO-3 of 2021 gathers tensor
  by tensor. Plain data parallelism reduces after the last backward, and tensor parallelism does not
  overlap, unless the row says otherwise.
- The runs of the Ultra-Scale Playbook are nanotron's: it has FlashAttention-2, a kernel for norms
  and for rotary embedding, and none for the gated activation. With ZeRO-1 it reduces all gradients
  to all ranks, and gathers all parameters, when the last backward is over (nanotron/trainer.py,
  `training_step`), whatever the row says of overlap. Without ZeRO it is torch's DDP. Its stages are
  cut by the cost of their blocks. The sweep's own scripts are public (scaling_benchmarks.py of
  nanotron's branch nouamane/bench2, run_multinode.sh there and in examples/mamba): EC2 P5 instances,
  asynchronous tensor parallelism, small models with one matrix for embedding and head. The earlier
  script, whose grid has one pipeline stage, checks no collectives; the later one sets
  TORCH_DISTRIBUTED_DEBUG=DETAIL, and runs with several stages are taken to be the later ones.
- What recipes, scripts and machines of a source and a release are known for stands in sources.json
  (`simlab.studies.published.sources`): gradients in 16 bits, dispatchers, recomputed modules and others.
- FSDP's float8 has a scale for each tensor, unless the precision or the overlap says "rowwise".
- NeMo's recipes overlap tensor parallelism, because all recipes that mention it do.
- Sequence parallelism goes with tensor parallelism, except in fp16 runs, which are older.
- A microbatch of a pipeline is one sequence. An interleaved pipeline has two stages on each rank,
  which is torchtitan's default.
- If the microbatch of FSDP2's pipeline is the whole batch of a replica, it is cut into as many parts
  as there are stages (torchtitan's local batch), or into the next number of parts that divides it.
- A batch that is no whole number of microbatches is cut into as many of equal size as it needs,
  rounded up.
- Pipelines of FSDP2 keep parameters gathered after a forward: torchtitan's default is
  `reshard_after_forward = not pp_enabled` (`apply_fsdp` in its parallelize.py).
- HSDP shards over the data-parallel ranks of a node.
- Megatron-LM and NeMo shard the optimizer's states where the row does not say. Elsewhere as little is
  sharded and recomputed as makes the step fit.
- Megatron-LM's stages hold equally many layers, or do so where the embedding and the head count as one
  each; a number that comes out even neither way is spread unevenly.
- Tensor-parallel ranks share experts with other ranks, and do not cut them, where a row has both.
- A node of an NVL72 is what shares NVLink: of the rack's 72 GPUs as many as divide those of the run.
- A model with experts is the one of its name in the catalogue, cut to the row's layers. Experts are
  balanced.
"""

import re
from dataclasses import replace
from math import ceil, gcd
from typing import Any

from simlab.errors import InputError
from simlab.libraries import LIBRARIES
from simlab.spec.cluster import Cluster, cluster_of_gpu, clusters, load_cluster
from simlab.spec.model import Model, load_model
from simlab.spec.plan import Plan
from simlab.spec.plan_checks import ATTENTIONS
from simlab.studies.published.overlap import overlapping, overlaps, overlaps_dp, tp_overlap_of
from simlab.studies.published.sources import Facts, effective, facts_of
from simlab.studies.published.words import (
    FSDP,
    Row,
    Skip,
    attention_of,
    degree,
    failed,
    float8_of,
    hybrid_ranks,
    is_compiled,
    is_gated,
    is_sequence_parallel,
    library_of,
    named,
    precision_of,
    recompute_of,
    said,
    whole,
    with_blanks,
    yes_or_no,
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
"""The columns without which a row is not predicted; a run that failed has no `step_s`."""
OPTIONAL = (
    "library",
    "attention",
    "fused",
    "gradient_bytes",
    "machine",
    "tied_head",
    "checks_collectives",
)
"""The columns that a file may leave out, of what is else assumed."""


def described(row: Row) -> tuple[Model, Plan, Cluster]:
    """The model, the plan and the cluster of a row.

    Raises `Skip` with the reason if the row does not say enough, or says something that is not
    simulated.
    """
    row = _filled(row)
    if not row["micro_batch"].strip() and degree(row, "pp") > 1:
        row = {**row, "micro_batch": "1"}
    known = known_model(row)
    if known is not None:
        row = {**row, **{name: row[name].strip() or str(getattr(known, name)) for name in SIZES}}
    elif has_experts(row):
        raise Skip(f"the model {row['model']!r} is not simulated: its experts have no column")
    for column in NEEDED:
        if not row[column].strip() and not (column == "step_s" and failed(row)):
            raise Skip(f"{column} was not published")
    model = known or _model(row)
    facts = facts_of(row, model.name)
    cluster = _cluster(row, facts)
    plan = _plan(row, model, cluster.gpus_per_node, facts)
    if not plan.ep_overlap:  # with which modules are not simulated
        model = replace(model, mtp_layers=facts.get("mtp_layers", 0))
    checks = yes_or_no("checks_collectives", row["checks_collectives"] or "no")
    return model, plan, replace(cluster, checks_collectives=checks)


def _filled(row: Row) -> Row:
    """The row with all columns that are read."""
    return with_blanks({**dict.fromkeys(OPTIONAL, ""), **row})


def alternatives(row: Row, plan: Plan) -> list[Plan]:
    """`plan`, and where the row and its source do not say what is recomputed or sharded, the same with
    more of it, in the order in which they are tried until one fits."""
    row = _filled(row)
    facts = facts_of(row, (known_model(row) or _model(row)).name)
    kinds = [plan.recompute]
    if not row["recompute"].strip() and "recompute" not in facts:
        own = ["outputs"] if plan.library == "megatron" and (plan.ep > 1) else []
        own = own if plan.habits.has_flat_gradients else ["per-op"]
        kinds = ["none", "selective", *own, "full"]
    stages = [plan.zero]
    if not row["sharding"].strip() and plan.zero == 0 and plan.library == "megatron":
        stages += [1] if plan.holders > 1 else []
    found = []
    for kind in kinds:
        for zero in stages:
            fields: dict[str, Any] = {"recompute": kind, "zero": zero}
            if kind == "full":
                fields["ep_overlap"] = False
            try:
                found.append(replace(plan, **fields))
            except InputError:
                continue
    return found


EXPERTS = (
    r"mixtral|grok|moe|deepseek[\s_-]*v[2-9]|gpt[\s_-]*oss|nemotron[\s_-]*3|kimi|llama[\s_-]*4|"
    r"\d\s*x\s*\d+(?:\.\d+)?b\b|\db?[\s_-]+a\d+b\b"
)
"""A pattern of the names of models that have experts."""

KNOWN = {
    r"mixtral[\s_-]*8x7b": "mixtral-8x7b",
    r"mixtral[\s_-]*8x22b": "mixtral-8x22b",
    r"deepseek[\s_-]*v2(?![\s_-]*lite)": "deepseek-v2",
    r"deepseek[\s_-]*v3": "deepseek-v3",
    r"qwen3[\s_-]*235b": "qwen3-235b-a22b",
    r"qwen3[\s_-]*30b": "qwen3-30b-a3b",
    r"gpt[\s_-]*oss[\s_-]*20b": "gpt-oss-20b",
    r"gpt[\s_-]*oss[\s_-]*120b": "gpt-oss-120b",
    r"kimi[\s_-]*k2": "kimi-k2",
    r"grok[\s_-]*1\b": "grok-1",
    r"nemotron[\s_-]*3[\s_-]*nano": "nemotron-3-nano-30b-a3b",
    r"nemotron[\s_-]*3[\s_-]*super": "nemotron-3-super-120b-a12b",
}
"""{pattern of the name of a model with experts: its name in the catalogue}"""
SIZES = ("layers", "hidden", "heads", "vocab")
"""The columns that a row may leave out whose model the catalogue has."""


def has_experts(row: Row) -> bool:
    """Whether a row names a model that has experts."""
    name = (row.get("model") or "").lower()
    return any(re.search(pattern, name) for pattern in (EXPERTS, *KNOWN))


def known_model(row: Row) -> Model | None:
    """The model of the catalogue that a row names, if it has experts, for which there is no column.

    A run of fewer layers has one dense layer first, where the model has several: SimuMax's do (the
    notes of its summary, "dense_layers=1").
    """
    said_name = (row.get("model") or "").lower()
    name = next((name for text, name in KNOWN.items() if re.search(text, said_name)), None)
    if name is None:
        return None
    model = load_model(name)
    layers = whole(row, "layers", model.layers)
    dense = model.dense_layers if layers == model.layers else min(model.dense_layers, 1)
    return replace(model, layers=layers, dense_layers=dense, seq=whole(row, "seq", model.seq))


def _cluster(row: Row, facts: Facts) -> Cluster:
    """The GPUs that a row ran on; `Skip` if the catalogue has no machine with them."""
    usual = cluster_of_gpu(row["gpu"])
    name = named(row, "machine", clusters(), "") or facts.get("machine", {}).get(usual, usual)
    if name is None:
        raise Skip(f"no cluster in the catalogue has the GPU {row['gpu']!r}")
    cluster = cluster_of(name, whole(row, "n_gpus"), whole(row, "gpus_per_node", 8))
    return with_nics(cluster, facts)


def with_nics(cluster: Cluster, facts: Facts) -> Cluster:
    """A cluster with the NICs that a row or its source says."""
    if "nics" not in facts:
        return cluster
    nics, bandwidth = facts["nics"]
    inter = replace(cluster.inter, bandwidth_bytes_per_s=bandwidth)
    return replace(cluster, nics_per_node=nics, inter=inter)


def cluster_of(name: str, gpus: int, in_node: int) -> Cluster:
    """So many GPUs of a machine of the catalogue, equally many of each node.

    in_node: the GPUs of a node, as a row says it. Of a rack that shares NVLink, such as an NVL72, it
             is those of a tray, and as many are taken as the rack has.
    """
    cluster = load_cluster(name)
    if (rack := cluster.gpus_per_node) > 8:
        each = max(count for count in range(1, min(gpus, rack) + 1) if gpus % count == 0)
    else:
        each = gcd(gpus, min(gpus, in_node))
    return replace(cluster, gpus_per_node=each, nodes=gpus // each)


def _model(row: Row) -> Model:
    """The model of a row: a Llama if it has a gated MLP or grouped queries, else a GPT."""
    heads, hidden = whole(row, "heads"), whole(row, "hidden")
    gated = is_gated(row["gated_mlp"])
    grouped = whole(row, "kv_heads", heads) != heads
    llama = gated or grouped
    tied = yes_or_no("tied_head", row["tied_head"] or ("no" if llama else "yes"))
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
        tied_head=tied,
    )


def _plan(row: Row, model: Model, in_node: int, facts: Facts) -> Plan:
    """The plan of a row on nodes of so many GPUs, under the assumptions that the text of this module
    lists, and the facts of its source."""
    tp, pp, cp, ep = (degree(row, name) for name in ("tp", "pp", "cp", "ep"))
    dp = whole(row, "dp", max(1, whole(row, "n_gpus") // (tp * pp * cp)))
    sharding, overlap, precision = (
        said(row["sharding"]),
        row["overlap"].lower(),
        precision_of(row["precision"]),
    )
    source = (row.get("source") or "").lower()
    zero = zero_stage(row["sharding"]) if row["sharding"].strip() else facts.get("zero", 0)
    hybrid = hybrid_ranks(f"{sharding} {source}", in_node // tp)
    fsdp = bool(re.search(FSDP, sharding))
    library = named(row, "library", LIBRARIES, facts.get("library") or library_of(sharding))
    if precision.startswith("fp8") and library in ("torch", "fsdp1"):
        precision = float8_of(f"{row['precision']} {row['overlap']}")
    microbatches, size, chunks = _cut(row, dp, pp, library)
    usual = facts.get("attention") or attention_of(library, precision, cp)
    attention = named(row, "attention", ATTENTIONS, usual)
    is_fused = library in ("megatron", "nanotron") or is_compiled(library, overlap)
    sequence_parallel = is_sequence_parallel(row["seq_parallel"], precision != "fp16") and tp > 1
    spreads = tp > 1 and ep > 1 and (tp * dp * cp) % ep == 0
    # What a row says of a dimension that it does not split has no effect and is left out.
    fields: dict[str, Any] = {
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "etp": 1 if spreads else None,
        "zero": zero,
        "hybrid": hybrid if zero and ep == 1 and hybrid and dp * cp % hybrid == 0 else 0,
        "microbatch_size": size,
        "microbatches": microbatches,
        "seq": whole(row, "seq"),
        "chunks": chunks if chunks > 1 else None,
        "schedule": "interleaved-1f1b" if chunks > 1 else "1f1b",
        "precision": precision,
        "attention": attention,
        "library": library,
        "fused": yes_or_no("fused", row["fused"] or str(is_fused)),
        "prefetch": int(fsdp) if zero == 3 else 1,
        "reshard": not (zero == 3 and library == "torch" and pp > 1),
        "dp_overlap": overlaps_dp(overlap, zero) and not (library == "nanotron" and zero),
        "tp_overlap": "weight-grad",
        "stage_layers": _stage_layers(row, model, pp * chunks, library),
        "bucket_bytes": _bucket_bytes(library, zero, precision, dp * cp),
    }
    if tp > 1 and library != "nanotron":
        fields["tp_overlap"] = tp_overlap_of(overlap)
    fields |= _of_source(row, facts, fields)
    if row["recompute"].strip():
        whole_layers = recompute_of(row["recompute"], fsdp)
        if whole_layers != "none" or facts.get("recompute") != "outputs":
            fields["recompute"] = whole_layers  # else the modules that the source names
    fields["sequence_parallel"] = sequence_parallel or (fields["etp"] == 1 and tp > 1 and ep > 1)
    return Plan(**fields)


def _of_source(row: Row, facts: Facts, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of the plan of a row that its source says, and the row does not."""
    its = effective(
        facts,
        zero=fields["zero"],
        tp=fields["tp"],
        ep=fields["ep"],
        precision=row["precision"],
    )
    if "tp" in overlaps(row["overlap"]) and its.get("tp_overlap") == "pipelined":
        del its["tp_overlap"]  # the row's words say which; that none is on, the recipe knows better
    stages = str(fields["pp"] * (fields["chunks"] or 1))
    if layers := its.pop("stage_layers", {}).get(stages):
        its["stage_layers"] = tuple(layers)
    return {name: value for name, value in its.items() if name not in OF_OTHERS}


OF_OTHERS = ("machine", "nics", "zero", "library", "attention", "mtp_layers")
"""The facts that are no fields of a plan, or are read with what the row says of them."""


def _stage_layers(row: Row, model: Model, stages: int, library: str) -> str | tuple[int, ...]:
    """The layers of each stage, where the source does not say them."""
    if library == "nanotron":
        return _nanotron_layers(row, stages)
    ends = model.layers % stages and (model.layers + 2) % stages == 0
    return "ends-count-as-layers" if library == "megatron" and ends else "uneven"


def _nanotron_layers(row: Row, stages: int) -> str | tuple[int, ...]:
    """The layers of each stage in nanotron, which fills a stage with blocks until their cost is more
    than the stage's part of the whole (`build_model` in nanotron/models/base.py).

    A layer costs 4 h^2 + 3 h f and the output head h V, for h hidden, an MLP of f and a vocabulary
    of V (`get_block_compute_costs` in nanotron/models/llama.py); all else costs nothing. So the
    block that goes beyond a threshold stays on the stage, and the first stage has a layer more than
    its part. With many stages the last ones get the head and the loss only. A `Plan` knows no stage
    without a layer before the last one, so such a stage is given one of the nearest stage before it
    that has several; this moves the head to the last stage. Raises `Skip` where there is none.
    """
    if stages == 1:
        return "uneven"
    h, f, layers = whole(row, "hidden"), whole(row, "ffn"), whole(row, "layers")
    layer, head = 4 * h * h + 3 * h * f, h * whole(row, "vocab")
    counts, stage, spent = [0] * stages, 0, 0
    for _ in range(layers):
        counts[stage] += 1
        spent += layer
        # in whole numbers: spent > whole cost x (stage + 1) / stages
        stage += spent * stages > (layers * layer + head) * (stage + 1)
    for empty in (s for s in range(stages - 1) if counts[s] == 0):
        several = [s for s in range(empty) if counts[s] > 1]
        if not several:
            raise Skip(f"nanotron gives no layer to some of {stages} stages")
        counts[several[-1]] -= 1
        counts[empty] = 1
    return tuple(counts)


MOST_OPS = 500_000
"""The most microbatches x stages of a pipeline that is predicted, which takes about ten seconds."""


def _cut(row: Row, dp: int, pp: int, library: str) -> tuple[int, int, int]:
    """The microbatches of a replica, the sequences of each, and the stages of each rank."""
    text = row["overlap"]
    implied = "interleaved" in said(text) or "pp" in overlapping(text)
    only_named = pp > 1 and not row["vpp"].strip() and implied
    chunks = 2 if only_named else degree(row, "vpp")
    microbatches, size = _microbatches(row, dp)
    if library == "torch" and pp > 1 and microbatches == 1:
        microbatches = min((n for n in range(pp * chunks, size + 1) if size % n == 0), default=size)
        size //= microbatches
    if pp > 1 and microbatches * pp * chunks > MOST_OPS:
        raise Skip(
            f"{microbatches} microbatches of {pp * chunks} stages are more than {MOST_OPS:,}"
        )
    return microbatches, size, chunks


def _bucket_bytes(library: str, zero: int, precision: str, ranks: int) -> int | None:
    """Megatron-LM's buckets: 40 million numbers, or a million for each rank where that is more, so
    that the latency of a ring is not paid too often. nanotron's: DDP's of 25 MiB of 16-bit
    gradients, which are reduced in fp32, or with ZeRO-1 all of them at once."""
    if library == "nanotron" and ranks > 1:
        return 2**40 if zero else 2 * 25 * 2**20
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
