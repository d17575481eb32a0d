"""Which words of a Chinese text are English words, and not names, units or abbreviations."""

import re

import pytest

from simlab.schedules import SCHEDULES
from simlab.spec.cluster import clusters
from simlab.spec.model import catalogue
from simlab.views.still.wording import chinese_font

needs_chinese_font = pytest.mark.skipif(
    chinese_font() is None,
    reason="no font with Chinese characters. On Debian: apt-get install fonts-noto-cjk",
)

NAMES = {
    *("1F1B", "ZB-V", "ZeRO", "ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3", "DDP", "FSDP", "HSDP"),
    *("DeepSpeed", "Megatron-LM", "NCCL", "NVLink", "LL", "LL128", "Simple", "PyTorch", "Python"),
    *(
        "JupyterLab",
        "JupyterLite",
        "Pyodide",
        "simlab",
        "GitHub",
        "English",
        "zigzag",
        "Transformer",
    ),
    *("DeepSeek", "DeepSeek-V3", "DualPipe", "NVIDIA", "GPT-3", "Mixtral", "gpt-oss"),
    *("RTX", "MI300X", "A10G", "PCIe", "Adam"),
    *("torch", "numpy", "H100", "A100", "V100", "matplotlib", "Notebook", "SimPy", "wheel"),
}
CODE = re.compile(r"`[^`]*`|\b(?:dp|tp|pp|cp|zero)\d+\b|\b[a-z][a-z0-9]*(?:_\w+)+\b|\bseq(?= = )")
"""Code, degrees of a plan as the planner writes them, such as tp8, and names with underlines: fields that an
error names, such as cp_kind (and seq), and suites of published runs."""
# names of the field, of algorithms and protocols, of recipes' parts, and of a plan's own values
LOANS = {
    *(
        "GPipe",
        "AFAB",
        "block",
        "box",
        "loss",
        "DP",
        "TP",
        "PP",
        "star",
        "NVLS",
        "nvls",
        "lg",
    ),
    *(
        "hierarchical",
        "reduce",
        "broadcast",
        "NVMe",
        "full",
        "selective",
        "Gbit",
        "MB",
        "kB",
    ),
    *(
        "Amdahl",
        "Gustafson",
        "TFLOP",
        "GPT-2",
        "XL",
        "DDP",
        "Llama-3",
        "gpt2-xl",
        "zb-auto",
    ),
    *(
        "cap",
        "zigzag",
        "norm",
        "SGD",
        "send",
        "gloo",
        "FSDP2",
        "inf",
        "nan",
        "NaN",
        "scaler",
        "scale",
    ),
    *("logits", "float64", "float32", "flash", "lse", "kill", "gather", "Young", "Daly", "2CM"),
    *("tokens", "normalization"),
    *("TF32", "GLOO", "ALGO", "Ring", "Tree", "True", "False"),  # variables and their values
}
UNITS = {
    "ms",
    "s",
    "us",
    "µs",
    "min",
    "h",
    "B",
    "KiB",
    "MiB",
    "GiB",
    "TiB",
    "GB",
    "TB",
    "k",
    "M",
    "e",
}
ABBREVIATIONS = {
    *(
        "GPU",
        "CPU",
        "MFU",
        "HFU",
        "FLOPs",
        "QKV",
        "KV",
        "MLP",
        "fp32",
        "bf16",
        "fp16",
        "fp8",
        "CDN",
    ),
    *("dp", "tp", "pp", "cp", "ep", "edp", "rank", "token", "batch", "Shift", "Enter", "Escape"),
}
TERMS = {
    *("micro-batch", "stage", "chunk", "op", "per-op", "kernel", "embedding", "offload", "trace"),
    *("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "ring", "tree"),
    *("halving-doubling", "checkpoint", "hang", "attention", "Attention", "Ring", "global"),
}
"""Terms of the glossary that engineers say in English."""
API = {"zero", "zero1", "zero2", "ddp", "fsdp", "megatron"}  # values that one gives in Python
"""Terms that Chinese texts of the field use as they are."""
ALLOWED = {*NAMES, *UNITS, *ABBREVIATIONS, *TERMS, *API, *SCHEDULES}
WORD = re.compile(r"[A-Za-zµ0-9][A-Za-zµ0-9.\-]*")


def english_words(text, allowed=()):
    """[each word of `text` that no Chinese page should have]."""
    named = {*ALLOWED, *catalogue(), *clusters(), *allowed}
    found = [word.strip(".-") for word in WORD.findall(text)]
    return [word for word in found if not _fine(word, named)]


def _fine(word, named):
    parts = [word, *word.split("-")]
    one_letter = (
        len(re.sub(r"[^A-Za-zµ]", "", word)) <= 1
    )  # 0F3, W, p, 1M, gradients' names f and g
    return one_letter or word in named or all(part in named for part in parts[1:])
