"""It reads the words and the numbers of a row of published runs."""

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

Row = Mapping[str, str]
"""A row of a file of published runs: {column: text}."""


class Skip(Exception):
    """A row is not predicted; the text says why."""


BLANK = ("", "-", "--", "–", "—", "?", "n/a", "n.a.", "na", "nan", "nil", "null", "none")
"""What a field says, in lower case, that was not published or does not apply."""
NAMES = ("id", "suite", "model", "source")
"""The columns of names, which are never blank words."""
NONE_IS_A_CHOICE = ("recompute", "overlap", "sharding")
"""The columns in which "none" says something: none of it is done."""


def with_blanks(row: Row) -> Row:
    """The row with empty fields for all blank words, so that they mean the same in every column."""
    return {
        column: "" if _is_blank(column, text) else text
        for column, text in row.items()
        if isinstance(text, str)
    }


def _is_blank(column: str, text: str) -> bool:
    word = text.strip().lower()
    if column in NAMES or (word == "none" and column in NONE_IS_A_CHOICE):
        return False
    return word in BLANK


def failed(row: Row) -> bool:
    """Whether a row says that its run failed: it has no step time, and the step time, its kind or
    the memory names the failure. Not each crash is for want of memory."""
    said_of_it = f"{row['step_s']} {row.get('step_s_kind', '')} {row['mem_gib']}".lower()
    return not number_of(row["step_s"]) > 0 and bool(re.search(FAILURE, said_of_it))


FAILURE = (
    r"\boom|out[ _-]?of[ _-]?mem|crash|fail|\berror|\bhang|\bhung|time[ _-]?out|timed[ _-]out|"
    r"\bkilled|\babort"
)
"""A pattern of what a row says of a run that failed, in lower case."""


FSDP1 = r"fsdp1(?!\d)|(?:full|hybrid|no)_shard|shard_grad_op"
"""A pattern of what FSDP of torch 1 and 2.0 calls its sharding, in lower case."""
FSDP = rf"fsdp|hsdp|(?:full|hybrid) shard|fully[ _-]sharded|{FSDP1}"


OTHERS_FSDP = r"\bjax\b|maxtext|fsdp\s*\d[\w. ]*\bx\s*dp|(?:megatron|custom)[ _-]?fsdp"
"""A pattern of a sharding whose FSDP is not torch's: JAX's ("FSDP64 x DP" is how MaxText writes it) and
Megatron-FSDP."""


def library_of(sharding: str) -> str:
    """The library of a plan, from what the column `sharding` says."""
    if re.search(r"fsdp2(?!\d)", sharding):
        return "torch"
    if re.search(FSDP1, sharding):
        return "fsdp1"
    others = re.search(OTHERS_FSDP, sharding)
    return "torch" if re.search(FSDP, sharding) and not others else "megatron"


def attention_of(library: str, precision: str, cp: int) -> str:
    """The attention kernel that a library had, with context parallelism of degree `cp`."""
    if library != "megatron":
        return "flash-1" if library == "fsdp1" else "flash-2"
    return "unfused" if precision == "fp16" and cp == 1 else "flash"


def named(row: Row, column: str, names: Iterable[str], default: str) -> str:
    """The name in an optional column; `default` if it is blank, `Skip` if it is none of `names`."""
    name = row[column].strip()
    if name and name not in (names := [*names]):
        raise Skip(f"{column} = {name!r}: give one of {', '.join(names)}")
    return name or default


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


YES = ("1", "1.0", "true", "t", "yes", "y", "on", "enabled")
NO = ("0", "0.0", "false", "f", "no", "n", "off", "disabled")
"""The words for yes and no in every column, in lower case."""
GATED = r"glu(?![a-z])|(?<!un)gated"
NOT_GATED = r"gelu|relu|ungated|\bmlp\b|\bplain\b"
"""Patterns of activations whose MLP is gated, and of those whose MLP is not."""
SEQUENCE_PARALLEL = r"\bsp\b|sequence|megatron"
"""A pattern of what a row calls tensor parallelism with sequence parallelism."""


def yes(text: str) -> bool:
    """Whether `text` is a yes, such as '1' or 'True'."""
    return text.strip().lower() in YES


def yes_or_no(column: str, text: str, positive: str = "$^", negative: str = "$^") -> bool:
    """Whether the text of a column is a yes, or matches the pattern `positive`; `Skip` if it is
    neither that nor a no, nor matches `negative`. What it denies is a no."""
    word = text.strip().lower()
    if word in YES or re.search(positive, said(word)):
        return True
    denied = not said(word) or re.match(r"(?:no|non|without)\b", word)
    if word in NO or denied or re.search(negative, said(word)):
        return False
    raise Skip(f"{column} = {text!r} is neither yes nor no")


def is_gated(text: str) -> bool:
    """Whether a row has a gated MLP; no if the column is blank."""
    return yes_or_no("gated_mlp", text, GATED, NOT_GATED)


def is_sequence_parallel(text: str, default: bool) -> bool:
    """Whether sequences are split with tensor parallelism; `default` if the column is blank."""
    words = text.strip()
    return yes_or_no("seq_parallel", words, SEQUENCE_PARALLEL) if words else default


PRECISIONS = {
    "fp4": "nvfp4|fp4",
    "fp8-mx": "mxfp8|fp8[-_]mx",
    "fp8-current": r"fp8[-_](?:cs|current)",
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


def float8_of(text: str) -> str:
    """The precision of torchao's float8 that `text` names: with a scale for each row, or each tensor."""
    return "fp8-rowwise" if re.search(r"row[-_ ]?wise", said(text)) else "fp8"


Key = TypeVar("Key", int, str)


def _first(patterns: Mapping[Key, str], column: str, text: str) -> Key:
    """The first key of {key: pattern} whose pattern matches `text`; `Skip` if none does."""
    for key, pattern in patterns.items():
        if re.search(pattern, said(text)):
            return key
    raise Skip(f"{column} = {text!r} is not known")


CHECKPOINTING = r"checkpoint|recomput|\bremat|\bac\b"
"""A pattern of the names of recomputation in general."""


def recompute_of(text: str, fsdp: bool) -> str:
    """The kind of recomputation that `text` names, in FSDP or another library. A name of
    recomputation in general is that of whole layers."""
    word, named = text.strip().lower(), said(text)
    if yes(word) or re.search("full|block|uniform|whole", named):
        return "full"
    if re.search(r"selective|per-op|\b(?:op|sac)\b|\battn\b|core_attn|attention", named):
        return "per-op" if fsdp else "selective"
    if word in NO or not named or re.match(r"(?:none|no|without|false|0|off)\b", word):
        return "none"
    if re.search(CHECKPOINTING, named):
        return "full"
    raise Skip(f"recompute = {text!r} is not known")


STAGES: dict[int, str] = {
    2: "shard_grad_op|optim_grads$",
    3: f"{FSDP}|optim_grads_params",
    1: "dist(?:ributed)?[ _-]?(?:opt|fused[ _-]?adam)|sharded[ _-]optimizer|^optim$",
    0: "ddp|data[ _-]?parallel|^(?:none|dp|no|off|false|replicated)?$",
}
"""{ZeRO stage: the pattern of its names}. The first one that matches counts."""


def zero_stage(text: str) -> int:
    """The ZeRO stage that `text` names; `Skip` if it is not known."""
    zero = r"(?:zero|stage)[ _-]*(?:stage[ _-]*)?([0-3])(?!\d)|^([0-3])(?:\.0)?$"
    if number := re.search(zero, said(text)):
        return int(number[1] or number[2])
    return 0 if re.search(r"\bnot?[ _]shard", text.lower()) else _first(STAGES, "sharding", text)


def hybrid_ranks(text: str, in_node: int) -> int:
    """The ranks of a shard of HSDP: the number in `text`, or `in_node`; 0 if it is no HSDP."""
    if size := re.search(r"(?:hsdp[ -]?|zero1=)(\d+)|fsdp\s*(\d+)\s*x\s*dp", text):
        return int(size[1] or size[2])
    return in_node if in_node > 1 and re.search("hsdp|hybrid[ _]shard", text) else 0


def degree(row: Row, column: str) -> int:
    """The degree in a column; 1 if the column is blank or says that there is none."""
    return 1 if row[column].strip() in ("0", "0.0") else whole(row, column, 1)


def number(row: Row, column: str) -> float:
    """The number above 0 in a column; `Skip` if there is none."""
    if not row[column].strip():
        raise Skip(f"{column} was not published")
    value = number_of(row[column])
    if not 0 < value < float("inf"):
        raise Skip(f"{column} = {row[column]!r} is no number above 0")
    return value


THOUSANDS = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?"
"""A pattern of a number with commas between its thousands."""
K = 1024
"""How many a "k" is, as in a sequence of "4k" tokens."""


def number_of(text: str) -> float:
    """The number that a text says, such as "1,024" or "4k"; not a number if it says none."""
    word = text.strip().lower()
    if re.fullmatch(THOUSANDS, word):
        word = word.replace(",", "")
    times = K if word.endswith("k") else 1
    try:
        return times * float(word.removesuffix("k"))
    except ValueError:
        return float("nan")


MOST = {"layers": 2_000, "gpus_per_node": 1_000, "pp": 2_000, "vpp": 200, "global_batch": 1_000_000}
"""{column: the largest number that is read}; that of the others is `MOST_OF_OTHERS`. Larger ones are
errors of typing, and a prediction of them takes minutes."""
MOST_OF_OTHERS = 100_000_000


def whole(row: Row, column: str, default: int | None = None) -> int:
    """The whole number above 0 in a column; `default` if it is blank, `Skip` if it is another
    text, or larger than `MOST`."""
    text = row[column].strip()
    if not text and default is not None:
        return default
    value = number_of(text)
    if not value.is_integer() or value < 1:
        raise Skip(f"{column} = {row[column]!r} is no whole number above 0")
    if value > (most := MOST.get(column, MOST_OF_OTHERS)):
        raise Skip(f"{column} = {row[column]!r} is more than {most:,}, which is not predicted")
    return int(value)
