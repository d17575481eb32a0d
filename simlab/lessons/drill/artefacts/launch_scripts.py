"""A launch script of Megatron-LM with three mistakes, made: the reader of such scripts refuses each of them."""

import shlex
from random import Random
from typing import Any

from simlab.errors import InputError
from simlab.lessons.drill.artefacts.artefact import Artefact
from simlab.lessons.prediction import Number
from simlab.planner.formats import imported

RIGHT = {
    "gpus": "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py",
    "layers": "--num-layers 80",
    "hidden": "--hidden-size 8192 --ffn-hidden-size 28672",
    "heads": "--num-attention-heads 64 --group-query-attention",
    "groups": "--num-query-groups 8",
    "seq": "--seq-length 8192 --max-position-embeddings 8192",
    "vocab": "--padded-vocab-size 128256 --untie-embeddings-and-output-weights",
    "kind": "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope",
    "tp": "--tensor-model-parallel-size 8",
    "pp": "--pipeline-model-parallel-size 4",
    "chunks": "--num-layers-per-virtual-pipeline-stage 5",
    "cp": "--context-parallel-size 1",
    "micro": "--micro-batch-size 1",
    "batch": "--global-batch-size 128",
    "optimizer": "--use-distributed-optimizer --sequence-parallel --bf16",
}
"""{line: its text}, of Llama-3 70B on 64 GPUs."""
WRONG = {
    "gpus": "torchrun --nnodes 6 --nproc-per-node 8 pretrain_gpt.py",
    "layers": "--num-layers 78",
    "groups": "--num-query-groups 6",
    "heads": "--num-attention-heads 60 --group-query-attention",
    "tp": "--tensor-model-parallel-size 6",
    "pp": "--pipeline-model-parallel-size 3",
    "chunks": "--num-layers-per-virtual-pipeline-stage 6",
    "cp": "--context-parallel-size 3",
    "batch": "--global-batch-size 129",
}
"""{line: a text that cannot be, if all others are right}."""
MISTAKES = 3
PLACES = ("first", "second", "third")


def launch_script(random: Random) -> Artefact:
    """A launch script to read."""
    chosen = random.sample([*WRONG], MISTAKES)
    script = RIGHT | {name: WRONG[name] for name in chosen}
    numbers = {name: at for at, name in enumerate(script, 1)}
    wrong = mistakes(script)
    return Artefact(
        rows=[[f"{numbers[name]:2}  {text}"] for name, text in script.items()],
        fields={place: Number() for place in PLACES},
        answer={place: float(numbers[name]) for place, name in zip(PLACES, wrong)},
        faults=wrong,
        any_order=True,
    )


def mistakes(script: dict[str, str]) -> list[str]:
    """The lines that the reader refuses, each beside the right ones of all others."""
    changed = [name for name, text in script.items() if text != RIGHT[name]]
    return [name for name in changed if refusal(RIGHT | {name: script[name]})]


def refusal(script: dict[str, str]) -> str:
    """Why such a script cannot be; "" where it can."""
    try:
        found = imported("megatron", _options(" ".join(script.values())))
        if found.model is not None:
            found.plan.check(found.model)
    except InputError as error:
        return str(error)
    return ""


def _options(command: str) -> dict[str, Any]:
    """{option: its value} of a command; a switch is true."""
    words = shlex.split(command)
    pairs = zip(words, [*words[1:], "--"])
    return {
        word: True if following.startswith("--") else _value(following)
        for word, following in pairs
        if word.startswith("--")
    }


def _value(text: str) -> int | str:
    return int(text) if text.isdecimal() else text
