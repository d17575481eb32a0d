"""Measured training runs that others published, predicted: how far off, suite by suite, beside the simplest prediction there is."""

import csv
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from math import ceil, gcd
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from simlab.cluster import cluster_of_gpu, load_cluster
from simlab.errors import InputError
from simlab.model import Model
from simlab.plan import Plan
from simlab.training import predict
from simlab.units import GIB

COLUMNS = (
    "id", "suite", "step_s", "n_gpus", "gpus_per_node", "gpu", "layers", "hidden", "heads", "kv_heads", "ffn", "gated_mlp", "vocab", "seq",
    "tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch", "global_batch", "recompute", "seq_parallel", "sharding", "overlap", "precision",
    "mem_gib",
)  # fmt: skip
"""Columns that are read; others may be there. A blank field was not published: it gets the most common choice (see `_plan`)."""

NEEDED = ("step_s", "n_gpus", "gpu", "layers", "hidden", "heads", "vocab", "seq", "global_batch", "micro_batch")


class Skip(Exception):
    """Why a row is not predicted."""


class Kept(NamedTuple):
    """What a `Result` keeps of a `Prediction`: all that is printed, and no trace, so that a file may have thousands of rows."""

    plan: object
    step_s: float
    mfu: float
    hfu: float
    memory_bytes: dict
    fits: bool
    waterfall_s: object
    """None where nobody asked for it: it costs a second simulation of the pipeline."""


@dataclass(frozen=True)
class Result:
    """A row and what became of it."""

    id: str
    suite: str
    measured_s: float | None = None
    prediction: Kept | None = None
    memory_gib: float | None = None
    """Measured."""
    skipped: str = ""
    """Why, if it was not predicted."""

    @property
    def error(self):
        """(predicted - measured) / measured step time."""
        return self.prediction.step_s / self.measured_s - 1

    @property
    def memory_error(self):
        """The same, of the peak memory; None where it was not published."""
        if self.memory_gib is None:
            return None
        return sum(self.prediction.memory_bytes.values()) / GIB / self.memory_gib - 1


def read_runs(path):
    """[{column: text}] of the CSV file at `path`; `InputError` if it cannot be read or lacks a column."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    missing = [column for column in COLUMNS if not rows or column not in rows[0]]
    if missing:
        raise InputError(f"{path}: no rows with column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    return rows


def validate_runs(rows, *, waterfall=False):
    """[`Result`] of each of `rows` (as `read_runs` gives them); `waterfall`: with what each step's time is spent on."""
    return [result_of(row, waterfall=waterfall) for row in rows]


def result_of(row, *, waterfall=False):
    """The `Result` of one row."""
    name, suite = row["id"] or "?", row["suite"] or "?"
    try:
        measured_s = _number(row, "step_s")
        its = _predicted(row, *described(row))
        spent = its.waterfall_s if waterfall else None
        kept = Kept(its.plan, its.step_s, its.mfu, its.hfu, its.memory_bytes, its.fits, spent)
        return Result(name, suite, measured_s, kept, _memory_gib(row))
    except (Skip, InputError) as why:
        return Result(name, suite, skipped=str(why))


def _memory_gib(row):
    """None where it was not published as a number: "OOM", "~80"."""
    try:
        return _number(row, "mem_gib")
    except Skip:
        return None


def _predicted(row, model, plan, cluster):
    """The `Prediction`; where the row does not say what is computed again, with the least that makes it fit."""
    for recompute in [plan.recompute] if row["recompute"].strip() else ["none", "selective", "per-op", "full"]:
        prediction = predict(model, replace(plan, recompute=recompute), cluster)
        if prediction.fits:
            break
    return prediction


def suites(results):
    """{suite: {rows, skipped, mape, max, bias, constant_mape, memory_mape}}, errors in percent of the measured value.

    constant_mape: of the best constant utilisation: one number for the whole suite, fitted to these very rows: hardware FLOPs over it
    and the GPUs' peak. A simulator that cannot beat it has shown nothing.
    """
    by_suite = defaultdict(list)
    for result in results:
        by_suite[result.suite].append(result)
    return {suite: _errors(its) for suite, its in sorted(by_suite.items())}


def _errors(results):
    done = [result for result in results if result.prediction]
    skipped = [{"id": result.id, "reason": result.skipped} for result in results if not result.prediction]
    facts = {"rows": len(done), "skipped": skipped, "mape": None, "max": None, "bias": None, "constant_mape": None, "memory_mape": None}
    if not done:
        return facts
    errors = [100 * result.error for result in done]
    memory = [100 * abs(result.memory_error) for result in done if result.memory_gib]
    return facts | {
        "mape": mean(map(abs, errors)), "max": max(map(abs, errors)), "bias": mean(errors), "constant_mape": constant_mape(done),
        "memory_mape": mean(memory) if memory else None,
    }  # fmt: skip


def constant_mape(results):
    """Mean absolute error, percent, of the constant utilisation that is best for these results' measured step times."""
    ideal_s = [r.prediction.hfu * r.prediction.step_s for r in results]  # at a utilisation of 1
    measured_s = [r.measured_s for r in results]
    candidates = [
        ideal / measured for ideal, measured in zip(ideal_s, measured_s)
    ]  # the best is at one of the rows' own: piecewise linear in 1/u

    def error(utilisation):
        return mean(abs(ideal / utilisation / measured - 1) for ideal, measured in zip(ideal_s, measured_s))

    return 100 * min(map(error, {*candidates, median(candidates)}))


# a row → model, plan, cluster ---------------------------------------------------------------------------------


def described(row):
    """(`Model`, `Plan`, `Cluster`) of a row; `Skip` with the reason if it does not say enough, or what is not simulated."""
    if not row["micro_batch"].strip() and _whole(row, "pp", 1) > 1:
        row = row | {"micro_batch": "1"}
    for column in NEEDED:
        if not row[column].strip():
            raise Skip(f"{column} was not published")
    if _degree(row, "ep") > 1:
        raise Skip(f"expert parallelism (ep = {row['ep']}) is not simulated")
    if re.search(EXPERTS, (row.get("model") or "").lower()):
        raise Skip(f"the model {row['model']!r} is not simulated: its experts have no column")
    name = _machine(row)
    if name is None:
        raise Skip(f"no cluster in the catalogue has the GPU {row['gpu']!r}")
    model, plan, in_node = _model(row), _plan(row), _in_node(row)
    return model, plan, replace(load_cluster(name), gpus_per_node=in_node, nodes=_whole(row, "n_gpus") // in_node)


EXPERTS = r"mixtral|grok|moe|deepseek[\s_-]*v[23]|\d\s*x\s*\d+(?:\.\d+)?b\b"
"""In the name of a model that has experts."""

MACHINES = {("via-research/vtrain", "dgx-a100"): "vtrain-a100"}
"""{(how a row's source begins, what its GPU usually sits in): its machine}, where that is another one."""


def _machine(row):
    """The catalogue's name of the machine that a row ran on, or None."""
    usual, source = cluster_of_gpu(row["gpu"]), (row.get("source") or "").lower()
    return next((name for (begin, of), name in MACHINES.items() if of == usual and source.startswith(begin)), usual)


def _in_node(row):
    """GPUs of a node that the run has: equally many of each node, where it has no whole nodes."""
    gpus = _whole(row, "n_gpus")
    return gcd(gpus, min(gpus, _whole(row, "gpus_per_node", 8)))


def _model(row):
    heads, hidden = _whole(row, "heads"), _whole(row, "hidden")
    gated = _yes(row["gated_mlp"])
    grouped = _whole(row, "kv_heads", heads) != heads
    llama = gated or grouped
    return Model(
        name=row.get("model", ""), layers=_whole(row, "layers"), hidden=hidden, heads=heads, kv_heads=_whole(row, "kv_heads", heads),
        ffn=_whole(row, "ffn", 4 * hidden), gated_mlp=gated, vocab=_whole(row, "vocab"), seq=_whole(row, "seq"),
        positions=0 if llama else _whole(row, "seq"), bias=not llama, tied_head=not llama,
    )  # fmt: skip


def _plan(row):
    """What a row does not say is what its kind of library does:

    - Fused attention: Megatron-LM's and NeMo's in bf16 and fp8 is the card's best kernel, FSDP2's is torch's (FlashAttention-2), FSDP1's
      of before 2.0 FlashAttention-1's; Megatron-LM's fp16 runs are from before it had any (but for context parallelism, which needs it).
    - What is sharded by FSDP is torch's own, but for JAX's; norms and activations are fused but in torch's without torch.compile.
      torchtitan's comparisons of tensor parallelism are all compiled.
    - What shards overlaps its communication; DeepSpeed's ZeRO-3 of 2021 gathers tensor by tensor. Plain data parallelism reduces after
      the last backward, and tensor parallelism waits, unless the row says otherwise.
    - NeMo's recipes overlap tensor parallelism, where they do not say (all that do, do).
    - Sequence parallelism goes with tensor parallelism in all but fp16 runs, which are older than it.
    - A pipeline's microbatch is one sequence, where nobody says; an interleaved one has two stages on each rank (torchtitan's default).
    - FSDP2's pipeline whose microbatch is all of a replica's batch cuts it into as many as there are stages (torchtitan's local batch),
      or the next number that divides it.
    - A batch that is no whole number of microbatches is cut into as many as it takes, all of equal size, rounded up.
    - HSDP shards over a node's data-parallel ranks, where it does not say how many.

    Left out: that torch's pipelines keep FSDP2's gathered parameters and whole gradients from a step's first microbatch to its last
    (torch/distributed/pipelining/stage.py), so that their memory is more than is predicted and their step shorter; and float8's extra
    pass for each tensor's largest value.
    """
    tp, pp, cp = _whole(row, "tp", 1), _whole(row, "pp", 1), _degree(row, "cp")
    dp = _whole(row, "dp", max(1, _whole(row, "n_gpus") // (tp * pp * cp)))
    sharding, overlap, precision = _said(row["sharding"]), row["overlap"].lower(), _precision(row["precision"])
    zero, hybrid = _stage(row["sharding"]), _hybrid(sharding, _in_node(row) // tp)
    fsdp, library = bool(re.search(FSDP, sharding)), _library(sharding)
    chunks = 2 if pp > 1 and not row["vpp"].strip() and "interleaved" in _said(overlap) else _degree(row, "vpp")
    microbatches, size = _microbatches(row, dp)
    if library == "torch" and pp > 1 and microbatches == 1:
        microbatches = min((n for n in range(pp * chunks, size + 1) if size % n == 0), default=size)
        size //= microbatches
    return Plan(
        dp=dp, tp=tp, pp=pp, cp=cp, zero=zero, hybrid=hybrid if hybrid and dp * cp % hybrid == 0 else 0,
        microbatch_size=size, microbatches=microbatches, seq=_whole(row, "seq"), chunks=chunks if chunks > 1 else None,
        schedule="interleaved-1f1b" if chunks > 1 else "1f1b", recompute=_recompute(row["recompute"], fsdp), precision=precision,
        sequence_parallel=_yes(row["seq_parallel"].strip() or ("0" if precision == "fp16" else "1")),
        attention=_attention(library, precision, cp), library=library, fused=library == "megatron" or _compiled(library, overlap),
        prefetch=int(fsdp), dp_overlap=_dp_overlap(overlap, zero), tp_overlap=_tp_overlap(overlap), uneven=True,
    )  # fmt: skip


def _microbatches(row, dp):
    """(microbatches of a replica, sequences of each)"""
    batch = _whole(row, "global_batch")
    if batch < dp:
        raise Skip(f"a global batch of {batch} is less than a sequence for each of {dp} replicas")
    count = ceil(batch / (dp * _whole(row, "micro_batch")))
    return count, ceil(batch / (dp * count))


FSDP1 = r"fsdp1(?!\d)|(?:full|hybrid|no)_shard|shard_grad_op"
"""In what FSDP of torch 1 and 2.0 calls its sharding, lower case."""
FSDP = rf"fsdp|hsdp|(?:full|hybrid) shard|fully[ _-]sharded|{FSDP1}"


def _library(sharding):
    if re.search(r"fsdp2(?!\d)", sharding):
        return "torch"
    return "fsdp1" if re.search(FSDP1, sharding) else "megatron"


def _attention(library, precision, cp):
    if library != "megatron":
        return "flash-2" if library == "torch" else "flash-1"
    return "unfused" if precision == "fp16" and cp == 1 else "flash"


ASYNC_TP = r"async[ _-]?tp\b"


def _compiled(library, overlap):
    words = rf"compile|{ASYNC_TP}" + (r"|\btp\b" if library == "torch" else "")
    return bool(re.search(words, _said(overlap)))


def _said(text):
    """`text` in lower case without what it says is not so ("no fp8", "non-interleaved")."""
    return re.sub(r"\b(?:no|not|non|without)[ -](?!shard|stated|published)[\w-]+(?: optimizer)?", "", text.lower()).strip()


def _yes(text):
    return text.strip().lower() in ("1", "1.0", "true", "yes", "y", "on")


PRECISIONS = {"fp8": "fp8|float8", "bf16": "bf16|bfloat16", "fp16": r"fp16|float16|half|\b16\b", "fp32": r"fp32|tf32|float32|\b32\b"}
"""{precision: what says it}; the first one that does."""


def _precision(text):
    if not _said(text):
        return "bf16"
    return _first(PRECISIONS, "precision", text)


def _first(patterns, column, text):
    """The first key of {key: pattern} whose pattern is in what `text` says."""
    for key, pattern in patterns.items():
        if re.search(pattern, _said(text)):
            return key
    raise Skip(f"{column} = {text!r} is not known")


def _recompute(text, fsdp):
    if _yes(text):
        return "full"
    kinds = {
        "full": "full|block|uniform", "per-op" if fsdp else "selective": r"selective|per-op|\b(?:op|sac)\b|core_attn",
        "none": r"^$|^(?:none|no|false|0)\b",
    }  # fmt: skip
    return _first(kinds, "recompute", text)


STAGES = {
    2: "shard_grad_op", 3: FSDP, 1: "dist(?:ributed)?[ _-]?(?:opt|fused[ _-]?adam)|sharded[ _-]optimizer",
    0: "ddp|data[ _-]?parallel|^(?:none|-)?$",
}  # fmt: skip
"""{ZeRO stage: what says it}; the first one that does."""


def _stage(text):
    """The ZeRO stage."""
    if number := re.search(r"(?:zero|stage)[ _-]*(?:stage[ _-]*)?([0-3])(?!\d)", _said(text)):
        return int(number[1])
    return 0 if re.search(r"\bnot?[ _]shard", text.lower()) else _first(STAGES, "sharding", text)


def _hybrid(text, in_node):
    """Ranks of a shard, where it is not all: as many as are said, or those in a node."""
    if size := re.search(r"hsdp[ -]?(\d+)|fsdp\s*(\d+)\s*x\s*dp", text):
        return int(size[1] or size[2])
    return in_node if in_node > 1 and re.search("hsdp|hybrid[ _]shard", text) else 0


def _dp_overlap(text, zero):
    if "no dp overlap" in text or text.startswith("none"):
        return False
    return zero > 0 or ("dp" in text and "overlap" in text) or "dp=grad" in text


def _tp_overlap(text):
    if "tp=1" in text or "tp= " in text or re.search(ASYNC_TP, _said(text)):
        return "pipelined"
    return "weight-grad" if "tp bwd" in text or "tp=0" in text else "none"


def _degree(row, column):
    """The same as `_whole`, of what may be said not to be there."""
    return 1 if row[column].strip().lower() in ("", "0", "none", "-", "n/a") else _whole(row, column)


def _number(row, column):
    try:
        value = float(row[column])
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise Skip(f"{column} = {row[column]!r} is no number above 0")
    return value


def _whole(row, column, default=None):
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
