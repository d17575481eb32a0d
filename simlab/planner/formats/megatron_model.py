"""The model that Megatron-LM's flags say (megatron/training/arguments.py)."""

import re
from typing import Any

from simlab.errors import InputError, shortened
from simlab.planner.formats.options import Options, Settings

NEEDED = ("--num-layers", "--hidden-size", "--num-attention-heads")
HYBRID = ("--hybrid-attention-ratio", "--hybrid-mlp-ratio", "--hybrid-override-pattern",
          "--hybrid-layer-pattern", "--is-hybrid-model")  # fmt: skip
"""With one of these, some layers are state-space ones, or have attention or an MLP only, which no
`Model` says."""
GPT2_TOKENS = 50_257
"""The vocabulary of GPT2BPETokenizer."""
PADDED_TO = 128
"""The default of --make-vocab-size-divisible-by, which counts on each tensor-parallel rank."""
MOST_PATTERN = 10_000
LATENT = (
    "--kv-lora-rank",
    "--q-lora-rank",
    "--qk-head-dim",
    "--qk-pos-emb-head-dim",
    "--v-head-dim",
)


def read_model(options: Options, fields: Settings) -> Settings | None:
    """{field of `Model`: value}; None where the flags do not say a model."""
    take, whole, switch = options.take, options.whole, options.switch
    hybrid = any(options.given(name) for name in HYBRID)
    vocab = _vocabulary(options, fields["tp"])
    layers, hidden, heads = (whole(flag) for flag in NEEDED)
    rope = switch("--use-rotary-position-embeddings")
    learned = not switch("--no-position-embedding")
    kind = take("--position-embedding-type", "rope" if rope else "learned_absolute")
    gated = switch("--swiglu")
    shifted = str(take("--normalization", "LayerNorm")).lower() == "layernorm"
    gated |= switch("--quick-geglu")
    biased, of_queries = not switch("--disable-bias-linear"), switch("--add-qkv-bias")
    grouped, groups = switch("--group-query-attention"), whole("--num-query-groups", 1)
    positions = whole("--max-position-embeddings")
    options.drop("--vocab-size", "--padded-vocab-size")
    sizes: Settings = {
        "kv_heads": groups if grouped else None,
        "head_size": whole("--kv-channels"),
        "ffn": whole("--ffn-hidden-size"),
        "gated_mlp": gated,
        "tied_head": not switch("--untie-embeddings-and-output-weights"),
        "bias": biased and shifted,
        "positions": (positions or 0) if learned and kind == "learned_absolute" else 0,
        "rotary": learned or kind != "learned_absolute",
        "seq": fields["seq"] or positions,
        "qk_norm": switch("--qk-layernorm"),
        "clamped": take("--activation-func-clamp-value") is not None,
        "sinks": take("--softmax-type", "vanilla") == "learnable",
        "window": _window(options),
        **_experts(options, layers),
        **_latent(options),
    }
    rotated = options.take("--rotary-percent", 1.0)
    modules = whole("--mtp-num-layers", 0, 0)
    sizes["mtp_layers"] = modules
    if modules and (vocab is None or layers is None):
        options.unsaid.append(
            f"--mtp-num-layers = {modules}: a plan does not say it; give the model mtp_layers = {modules}"
        )
    if layers is None or hidden is None or heads is None or hybrid:
        return None
    if not sizes["bias"]:
        parts = ("qkv", "output", "mlp") if biased else ("qkv",) * of_queries
        sizes["biases"] = parts + ("norm",) * shifted
    if sizes["ffn"] is None and gated:
        sizes["ffn"] = int(4 * hidden * 2 / 3 / 64) * 64
    if rotated != 1.0 and not sizes.get("kv_rank"):
        sizes["rope_size"] = int((sizes["head_size"] or hidden // heads) * float(rotated))
    if kind == "none":
        sizes["rotary"] = False
    if kind == "yarn" and not sizes.get("kv_rank"):
        sizes["scaled_rotary"] = True
    if vocab is None:
        options.unsaid.append(
            "--num-layers and the other sizes: the flags do not say the size of the vocabulary: give "
            "--set=--vocab-size=N to have the model, too"
        )
        return None
    sizes |= {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab}
    return {name: value for name, value in sizes.items() if value is not None}


def _vocabulary(options: Options, tp: int) -> int | None:
    """The rows of the embedding, padded as Megatron-LM pads them; None where no flag says it."""
    multiple = (options.whole("--make-vocab-size-divisible-by", PADDED_TO) or 1) * tp
    padded = options.look("--padded-vocab-size")
    tokens = options.look("--vocab-size")
    if padded is not None:
        return Options({"--padded-vocab-size": padded}).whole("--padded-vocab-size")
    merged = options.given("--merge-file") and not options.given("--tokenizer-type")
    if tokens is not None:
        tokens = Options({"--vocab-size": tokens}).whole("--vocab-size")
    elif merged or options.look("--tokenizer-type") == "GPT2BPETokenizer":
        tokens = GPT2_TOKENS
    return None if tokens is None else -(-tokens // multiple) * multiple


def _window(options: Options) -> int:
    given = options.take("--window-size")
    first = re.match(r"\(?(\d+)", str(given[0] if isinstance(given, list) else given))
    return int(first[1]) + 1 if first else 0


def _experts(options: Options, layers: int | None) -> Settings:
    """The experts of a layer, and which layers have them."""
    experts = options.whole("--num-experts", 0, 0) or 0
    width = options.whole("--moe-ffn-hidden-size")
    per_token = options.whole("--moe-router-topk", 2)
    shared = options.whole("--moe-shared-expert-intermediate-size", 0, 0) or 0
    groups = options.whole("--moe-router-num-groups", 0, 0)
    of_groups = options.whole("--moe-router-group-topk", 0, 0)
    pattern = _pattern(options.take("--moe-layer-freq", 1), layers)
    if experts < 2:
        return {}
    width = width or options.look("--ffn-hidden-size")
    if shared and (not width or shared % width):
        options.unsaid.append(
            f"--moe-shared-expert-intermediate-size = {shared}: no multiple of an expert's width {width}"
        )
        shared = 0
    fields: Settings = {
        "experts": experts,
        "experts_per_token": per_token,
        "expert_ffn": width or 0,
        "shared_experts": shared // width if shared and width else 0,
        "expert_groups": groups,
        "groups_per_token": of_groups,
    }
    dense = pattern.index(1) if 1 in pattern else 0
    if all(pattern[dense:]):
        return fields | {"dense_layers": dense}
    return fields | {"pattern": tuple("layer" if one else "dense layer" for one in pattern)}


def _pattern(given: Any, layers: int | None) -> list[int]:
    """[1 for a layer of experts, 0 for a dense one], of --moe-layer-freq: every N-th layer from the
    first, or a list such as ([0]*1+[1]*26)."""
    if isinstance(given, int):
        return [int(number % given == 0) for number in range(layers or 1)] if given else []
    text = " ".join(map(str, given)) if isinstance(given, list) else str(given)
    words = re.findall(r"\[[01, ]*\]|\d+|\S", text.strip("\"'"))
    try:
        found = _sum(words)
    except (IndexError, ValueError, RecursionError):
        found = []
    if words or not found or len(found) > MOST_PATTERN:
        raise InputError(
            f"--moe-layer-freq = {shortened(given)}: give a whole number, or a list of 0 and 1 as in "
            "([0]*1+[1]*26)"
        )
    return found


def _sum(words: list[str]) -> list[int]:
    """A sum of lists, of the first of `words`, which are taken."""
    total = _product(words)
    while words[:1] == ["+"]:
        words.pop(0)
        total = (total + _product(words))[: MOST_PATTERN + 1]
    return total


def _product(words: list[str]) -> list[int]:
    word = words.pop(0)
    if word == "(":
        its = _sum(words)
        word = words.pop(0)
        if word != ")":
            raise ValueError(word)
    elif word.startswith("["):
        its = [int(one) for one in re.findall(r"[01]", word)]
    else:
        raise ValueError(word)
    while words[:1] == ["*"]:
        words.pop(0)
        its = its * min(int(words.pop(0)), MOST_PATTERN)
        its = its[: MOST_PATTERN + 1]
    return its


def _latent(options: Options) -> Settings:
    """The widths of latent attention."""
    kv, query, head, rope, value = (
        options.whole(flag, default) for flag, default in zip(LATENT, (32, None, 128, 64, 128))
    )
    if not options.switch("--multi-latent-attention"):
        return {}
    return {
        "kv_rank": kv, "q_rank": query or 0, "head_size": (head or 0) + (rope or 0), "rope_size": rope,
        "value_size": value, "kv_heads": None,
    }  # fmt: skip
