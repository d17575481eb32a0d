"""It reads the words and the numbers of a row of published runs."""

import re
from collections.abc import Mapping
from typing import TypeVar

Row = Mapping[str, str]
"""A row of a file of published runs: {column: text}."""


class Skip(Exception):
    """A row is not predicted; the text says why."""


def failed(row: Row) -> bool:
    """Whether a row says that its run failed: it has no step time, and the kind of the step time or
    the memory names the failure. Not each crash is for want of memory."""
    said_of_it = f"{row.get('step_s_kind', '')} {row['mem_gib']}".lower()
    return not row["step_s"].strip() and bool(re.search(FAILURE, said_of_it))


FAILURE = r"\boom\b|out of memory|crash|fail"
"""A pattern of what a row says of a run that failed, in lower case."""


FSDP1 = r"fsdp1(?!\d)|(?:full|hybrid|no)_shard|shard_grad_op"
"""A pattern of what FSDP of torch 1 and 2.0 calls its sharding, in lower case."""
FSDP = rf"fsdp|hsdp|(?:full|hybrid) shard|fully[ _-]sharded|{FSDP1}"


NANOTRON = r"nanotron|ultrascale"
"""A pattern of the sources whose runs are nanotron's: the Ultra-Scale Playbook's are."""


def library_of(sharding: str, source: str = "") -> str:
    """The library of a plan, from what the columns `sharding` and `source` say."""
    if re.search(NANOTRON, source.lower()):
        return "nanotron"
    if re.search(r"fsdp2(?!\d)", sharding):
        return "torch"
    return "fsdp1" if re.search(FSDP1, sharding) else "megatron"


def attention_of(library: str, precision: str, cp: int) -> str:
    """The attention kernel that a library had, with context parallelism of degree `cp`."""
    if library != "megatron":
        return "flash-1" if library == "fsdp1" else "flash-2"
    return "unfused" if precision == "fp16" and cp == 1 else "flash"


KERNELS = {
    "flash-2": r"flash[ _-]?att(?:entio)?n[ _-]?(?:v|=)?2",
    "flash-1": r"flash[ _-]?att(?:entio)?n",
    "unfused": ".",
}
"""{attention: the pattern of the kernel that a source names}. The first one that matches counts: a
sweep of kernels runs torch's attention, or Megatron-LM's softmax kernel, where it names no other."""


def kernels_of(source: str) -> tuple[str, bool] | None:
    """The attention kernel, and whether norms are one kernel, of a row whose source says "kernel=",
    as the sweeps of Hagemann et al. 2023 do; None if it does not."""
    said_kernel = re.search(r"\bkernel=(.+)", source.lower())
    if not said_kernel:
        return None
    return _first(KERNELS, "kernel", said_kernel[1]), "rms" in said_kernel[1]


DIMENSIONS = r"(?:(?:tp|pp|dp|cp|overlap\w*|and|=?(?:yes|true))[\s,;+&/]*)+"
"""A pattern of a text that only names the dimensions which overlap, such as "tp, pp, dp"."""


def overlapping(text: str) -> set[str]:
    """The dimensions that a text names which does nothing else, such as "tp+pp+dp overlap"."""
    named = re.fullmatch(DIMENSIONS, text.strip().lower())
    return set(re.findall(r"\b(?:tp|pp|dp|cp)\b", text.lower())) if named else set()


ASYNC_TP = r"async[ _-]?tp\b"


def is_compiled(library: str, overlap: str) -> bool:
    """Whether torch.compile was used, from what the column `overlap` says."""
    words = rf"compile|{ASYNC_TP}" + (r"|\btp\b" if library == "torch" else "")
    return bool(re.search(words, said(overlap)))


def said(text: str) -> str:
    """`text` in lower case, without what it denies ("no fp8", "non-interleaved")."""
    return re.sub(
        r"\b(?:no|not|non|without)[ -](?!shard|stated|published)[\w-]+(?: optimizer)?",
        "",
        text.lower(),
    ).strip()


def yes(text: str) -> bool:
    """Whether `text` is a yes, such as '1' or 'True'."""
    return text.strip().lower() in ("1", "1.0", "true", "yes", "y", "on")


PRECISIONS = {
    "fp8": "fp8|float8",
    "bf16": "bf16|bfloat16",
    "fp16": r"fp16|float16|half|\b16\b",
    "fp32": r"fp32|tf32|float32|\b32\b",
}
"""{precision: the pattern of its names}. The first one that matches counts."""


def precision_of(text: str) -> str:
    """The precision that `text` names; bf16 if it names none, `Skip` if it is not known."""
    if not said(text):
        return "bf16"
    return _first(PRECISIONS, "precision", text)


Key = TypeVar("Key", int, str)


def _first(patterns: Mapping[Key, str], column: str, text: str) -> Key:
    """The first key of {key: pattern} whose pattern matches `text`; `Skip` if none does."""
    for key, pattern in patterns.items():
        if re.search(pattern, said(text)):
            return key
    raise Skip(f"{column} = {text!r} is not known")


def recompute_of(text: str, fsdp: bool) -> str:
    """The kind of recomputation that `text` names, in FSDP or another library."""
    if yes(text):
        return "full"
    kinds = {
        "full": "full|block|uniform",
        "per-op" if fsdp else "selective": r"selective|per-op|\b(?:op|sac)\b|core_attn",
        "none": r"^$|^(?:none|no|false|0)\b",
    }
    return _first(kinds, "recompute", text)


STAGES: dict[int, str] = {
    2: "shard_grad_op",
    3: FSDP,
    1: "dist(?:ributed)?[ _-]?(?:opt|fused[ _-]?adam)|sharded[ _-]optimizer",
    0: "ddp|data[ _-]?parallel|^(?:none|-)?$",
}
"""{ZeRO stage: the pattern of its names}. The first one that matches counts."""


def zero_stage(text: str) -> int:
    """The ZeRO stage that `text` names; `Skip` if it is not known."""
    if number := re.search(r"(?:zero|stage)[ _-]*(?:stage[ _-]*)?([0-3])(?!\d)", said(text)):
        return int(number[1])
    return 0 if re.search(r"\bnot?[ _]shard", text.lower()) else _first(STAGES, "sharding", text)


def hybrid_ranks(text: str, in_node: int) -> int:
    """The ranks of a shard of HSDP: the number in `text`, or `in_node`; 0 if it is no HSDP."""
    if size := re.search(r"hsdp[ -]?(\d+)|fsdp\s*(\d+)\s*x\s*dp", text):
        return int(size[1] or size[2])
    return in_node if in_node > 1 and re.search("hsdp|hybrid[ _]shard", text) else 0


def says_reserved(source: str) -> bool:
    """Whether a source publishes the memory that the allocator has reserved: torchtitan's log has
    `max_reserved_gib` (its components/metrics.py). Others publish what tensors take."""
    return "torchtitan" in source.lower()


def overlaps_dp(text: str, zero: int) -> bool:
    """Whether data parallelism overlaps its communication, from what the column `overlap` says."""
    if "no dp overlap" in text or text.startswith("none"):
        return False
    named = "dp" in overlapping(text) or ("dp" in text and "overlap" in text)
    return zero > 0 or named or "dp=grad" in text


def tp_overlap_of(text: str) -> str:
    """How tensor parallelism overlaps its communication, from what the column `overlap` says."""
    async_tp = "tp" in overlapping(text) or re.search(ASYNC_TP, said(text))
    if "tp=1" in text or "tp= " in text or async_tp:
        return "pipelined"
    return "weight-grad" if "tp bwd" in text or "tp=0" in text else "none"


def degree(row: Row, column: str) -> int:
    """The degree in a column; 1 if the column is blank or says that there is none."""
    return 1 if row[column].strip().lower() in ("", "0", "none", "-", "n/a") else whole(row, column)


def number(row: Row, column: str) -> float:
    """The number above 0 in a column; `Skip` if there is none."""
    try:
        value = float(row[column])
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise Skip(f"{column} = {row[column]!r} is no number above 0")
    return value


def whole(row: Row, column: str, default: int | None = None) -> int:
    """The whole number above 0 in a column; `default` if it is blank, `Skip` if it is another
    text."""
    text = row[column].strip()
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.5
    if not value.is_integer() or value < 1:
        raise Skip(f"{column} = {row[column]!r} is no whole number above 0")
    return int(value)
