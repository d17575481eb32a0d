"""The spellings of words in a file of published runs, and what each is read as.

`simlab.studies.published.words` and `.overlap` read them by patterns. These are examples,
which a test holds against the readers and from which docs/published-rows.md is written.
"""

from typing import Any, NamedTuple

from simlab.studies.published.words import BLANK, NO, YES


class Meaning(NamedTuple):
    """What some texts of a column mean."""

    says: str
    """The meaning in words."""
    values: dict[str, Any]
    """{field of a plan, or of a model: value} that a row with any of the texts has."""
    texts: tuple[str, ...]
    """Examples of the texts; case and blanks around them are no matter."""


WORDS = {
    "any column": (Meaning("not published, or does not apply", {}, BLANK),),
    "any yes or no": (Meaning("yes", {}, YES), Meaning("no", {}, NO)),
    "any number": (
        Meaning("1024", {}, ("1024", "1024.0", "1,024", "1k", "1K", "1.024e3")),
        Meaning("4096", {}, ("4096", "4,096", "4k")),
    ),
    "tp, pp, vpp, cp, ep": (Meaning("1", {}, ("0", "1", "none", "-", "n/a", "")),),
}
"""{what is read: its meanings}, of what is the same in several columns."""

COLUMNS: dict[str, tuple[Meaning, ...]] = {
    "gated_mlp": (
        Meaning("gated", {"gated_mlp": True}, ("yes", "swiglu", "SwiGLU", "geglu", "glu", "gated")),
        Meaning("not gated", {"gated_mlp": False}, ("", "no", "gelu", "relu", "not gated")),
    ),
    "seq_parallel": (
        Meaning("sequence parallelism", {"sequence_parallel": True},
                ("yes", "sp", "tp+sp", "with SP", "sequence parallel")),
        Meaning("none", {"sequence_parallel": False}, ("no", "off", "no SP")),
        Meaning("none in fp16, else it goes with tp", {}, ("", "N/A", "none", "-")),
    ),
    "recompute": (
        Meaning("every layer", {"recompute": "full"},
                ("full", "yes", "uniform", "block", "AC", "gradient checkpointing",
                 "activation checkpointing", "full activation recomputation")),
        Meaning("attention, or in FSDP by op", {"recompute": "selective"},
                ("selective", "attn", "core_attn", "SAC", "selective AC", "op", "per-op")),
        Meaning("nothing", {"recompute": "none"},
                ("none", "no", "off", "0", "no AC", "no activation checkpointing")),
        Meaning("as little as makes the step fit", {}, ("", "n/a", "-", "nan")),
    ),
    "sharding": (
        Meaning("nothing is sharded", {"zero": 0}, ("", "none", "no", "0", "ddp", "dp", "NO_SHARD")),
        Meaning("ZeRO-1", {"zero": 1},
                ("1", "zero1", "ZeRO-1", "dist-opt", "distributed optimizer", "stage 1")),
        Meaning("ZeRO-2", {"zero": 2}, ("2", "zero2", "DeepSpeed stage 2", "SHARD_GRAD_OP")),
        Meaning("ZeRO-3", {"zero": 3}, ("3", "zero3", "FULL_SHARD", "DeepSpeed ZeRO-3")),
        Meaning("ZeRO-3 of torch's FSDP2", {"zero": 3, "library": "torch"},
                ("FSDP", "fsdp2", "fully sharded data parallel")),
        Meaning("ZeRO-3 of another FSDP", {"zero": 3, "library": "megatron"},
                ("Megatron-FSDP", "FSDP32 x DP", "FSDP (JAX)")),
        Meaning("ZeRO-3 within 8 ranks", {"zero": 3, "hybrid": 8}, ("HSDP", "HSDP 8", "HYBRID_SHARD")),
    ),
    "overlap": (
        Meaning("tp, and dp", {"tp_overlap": "pipelined", "dp_overlap": True},
                ("all", "yes", "tp, dp", "TP+DP overlap", "tp:yes pp:no dp:yes", "tp=1 dp=grad+param",
                 "dp (grad+param), tp (userbuffers)", "comm overlap: tp dp",
                 "tp_comm_overlap=1, overlap_grad_reduce=true")),
        Meaning("tp", {"tp_overlap": "pipelined", "dp_overlap": False},
                ("tp", "ep, tp", "tp_comm_overlap=1", "async TP", "tp=1 dp=0", "tp, no dp")),
        Meaning("dp", {"tp_overlap": "none", "dp_overlap": True},
                ("dp", "dp=grad overlap", "dp all-reduce overlapped", "overlap_grad_reduce=1")),
        Meaning("dp, and tp only its weight gradients", {"tp_overlap": "weight-grad", "dp_overlap": True},
                ("tp=0 dp=grad", "tp: off, dp: on")),
        Meaning("nothing", {"tp_overlap": "none", "dp_overlap": False},
                ("none", "no", "0", "no overlap", "none (local DDP)", "no DP overlap")),
        Meaning("messages between stages, so that the pipeline is interleaved",
                {"schedule": "interleaved-1f1b"}, ("pp", "tp, pp, dp", "pp overlap", "pp=1")),
    ),
    "precision": (
        Meaning("bf16", {"precision": "bf16"}, ("", "N/A", "bf16", "bfloat16", "amp_bf16")),
        Meaning("fp16", {"precision": "fp16"}, ("fp16", "float16", "16-mixed", "half")),
        Meaning("fp32", {"precision": "fp32"}, ("fp32", "float32", "tf32", "32")),
        Meaning("fp8", {"precision": "fp8"}, ("fp8", "fp8+bf16", "float8")),
        Meaning("fp8-current", {"precision": "fp8-current"}, ("fp8-cs", "fp8_cs", "FP8-current")),
        Meaning("fp8-mx", {"precision": "fp8-mx"}, ("mxfp8", "MXFP8")),
    ),
}  # fmt: skip
"""{column: its meanings}. A text that has none is a reason to skip the row, except in `overlap`, where
it may say something else."""

FAILED = (
    "OOM",
    "OOM Error",
    "out of memory",
    "out-of-memory",
    "error",
    "hang",
    "timeout",
    "crashed",
)
"""What the memory, the step time or its kind says of a run that failed; then the step time may be
blank, "nan" or "N/A"."""


def tables() -> str:
    """The tables of docs/published-rows.md."""
    lines = ["| column | spelled, for example | read as |", "|---|---|---|"]
    for column, meanings in {**WORDS, **COLUMNS}.items():
        for meaning in meanings:
            texts = ", ".join(f"`{text}`" if text else "blank" for text in meaning.texts)
            lines.append(f"| {column} | {texts} | {meaning.says} |")
    failed = ", ".join(f"`{text}`" for text in FAILED)
    lines.append(f"| step_s, step_s_kind, mem_gib | {failed} | the run failed |")
    return "\n".join(lines) + "\n"
