"""The command memory: bytes of model states per rank, under ZeRO."""

import argparse
from typing import Annotated, TypedDict

import simlab as sl
from simlab.cli.options import add_json_options
from simlab.cli.output import print_json, print_text
from simlab.errors import InputError
from simlab.memory.model_states import RECIPES, STAGES, ModelStates, model_states, parameter_count


class Answer(TypedDict):
    """The bytes of model states on one rank."""

    parameters: float
    dp: int
    zero: Annotated[int, tuple(STAGES)]
    recipe: str
    bytes: Annotated[dict[str, float], ModelStates]
    total_bytes: float
    bytes_per_parameter: float


def memory(arguments: argparse.Namespace) -> int:
    """Model states per rank (parameters, gradients, optimizer) under ZeRO."""
    if (arguments.params is None) == (arguments.model is None):
        raise InputError(
            f"--params {arguments.params} and --model {arguments.model}: give one of the two"
        )
    count = (
        float(sl.load_model(arguments.model).parameters)
        if arguments.model is not None
        else parameter_count(arguments.params)
    )
    largest = parameter_count(arguments.largest_layer) if arguments.largest_layer is not None else 0
    if largest and (arguments.recipe != "deepspeed" or largest > count):
        raise InputError(
            f"--largest-layer {arguments.largest_layer}: only for --recipe deepspeed, and no more than all {count:g} parameters"
        )
    zero = RECIPES[arguments.recipe].stages[0] if arguments.zero is None else arguments.zero
    states = model_states(
        count, arguments.dp, zero=zero, recipe=arguments.recipe, largest_layer=largest
    )
    result: Answer = {
        "parameters": count,
        "dp": arguments.dp,
        "zero": zero,
        "recipe": arguments.recipe,
        "bytes": states._asdict(),
        "total_bytes": states.total,
        "bytes_per_parameter": states.total / count,
    }
    if arguments.json:
        print_json(result)
        return 0
    print_text(f"{arguments.recipe}: {RECIPES[arguments.recipe].text}")
    print_text(
        f"{count:g} parameters on {arguments.dp} data-parallel ranks, GB = 1e9 bytes on each; activations not included"
    )
    for stage in RECIPES[arguments.recipe].stages:
        states = model_states(
            count, arguments.dp, zero=stage, recipe=arguments.recipe, largest_layer=largest
        )
        parts = ", ".join(
            f"{name} {value / 1e9:.4g}" for name, value in states._asdict().items() if value
        )
        print_text(
            f"{'>' if stage == zero else ' '} ZeRO-{stage} ({STAGES[stage]}): {states.total / 1e9:.4g} GB = {parts}"
        )
    return 0


def add_memory(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `memory`."""
    command.add_argument("--params", metavar="N", help="parameters of the model: 7.5e9, 7.5B, 350M")
    command.add_argument(
        "--model",
        metavar="NAME",
        help="or a model of the catalogue, or the path of a Hugging Face config.json",
    )
    command.add_argument(
        "--dp", type=int, default=1, metavar="N", help="data-parallel ranks (default 1)"
    )
    command.add_argument(
        "--zero",
        type=int,
        choices=STAGES,
        help="ZeRO stage (default 0, plain data parallelism; 2 for deepspeed)",
    )
    command.add_argument(
        "--recipe",
        default="zero",
        choices=RECIPES,
        help="bytes per parameter are counted as who does (default zero)",
    )
    command.add_argument(
        "--largest-layer",
        metavar="N",
        help="parameters of the largest layer, for deepspeed's ZeRO-3",
    )
    add_json_options(command, Answer)
