"""The command memory: bytes of model states per rank, under ZeRO, or a layer's operations."""

import argparse
from collections.abc import Sequence
from typing import Annotated, TypedDict

import simlab as sl
from simlab.cli.options import add_json_options, refuse_given
from simlab.cli.output import print_json, print_text
from simlab.cli.plan_options import (
    FIELDS,
    add_plan_options,
    given_values,
    model_given,
    plan_part,
)
from simlab.display import facts_of
from simlab.errors import InputError
from simlab.lowering.kernels import Communication
from simlab.memory.model_states import (
    ADAMS,
    RECIPES,
    STAGES,
    ModelStates,
    model_states,
    parameter_count,
    states_of,
)
from simlab.optimizers import ADAM, OPTIMIZERS

OF_BOTH = ("dp", "zero", "optimizer")
OF_STATES = ("params", "recipe", "largest_layer")
OF_A_PLAN = "is of a plan: --explain shows its layer, and `simlab simulate` what its step holds on a cluster"
OF_PLANS = ("plan", *(name for name in FIELDS if name not in OF_BOTH))


class Sent(TypedDict):
    """A communication. `size_bytes` is the size of the whole buffer."""

    name: str
    kind: str
    dimension: str
    size_bytes: float


class OperationFacts(TypedDict):
    """An operation of a layer's forward on one rank, for one microbatch."""

    operation: str
    shape: str
    parameters: float
    flops: float
    kept_bytes: float
    sent: list[Sent]
    sent_back: list[Sent]
    again: bool


class LayerAnswer(TypedDict):
    """A layer's operations on one rank, in order, and their sums."""

    operations: list[OperationFacts]
    parameters: float
    flops: float
    kept_bytes: float


class StatesAnswer(TypedDict):
    """The bytes of model states on one rank."""

    parameters: float
    dp: int
    zero: Annotated[int, tuple(STAGES)]
    recipe: str
    optimizer: str
    bytes: Annotated[dict[str, float], ModelStates]
    total_bytes: float
    bytes_per_parameter: float


Answer = StatesAnswer | LayerAnswer


def memory(arguments: argparse.Namespace) -> int:
    """Model states per rank (parameters, gradients, optimizer) under ZeRO. With --explain what a rank
    computes, keeps and sends in a layer, operation by operation."""
    if arguments.explain:
        return _explain(arguments)
    refuse_given(arguments, OF_PLANS, OF_A_PLAN)
    dp, recipe = 1 if arguments.dp is None else arguments.dp, arguments.recipe or "zero"
    if (arguments.params is None) == (arguments.model is None):
        raise InputError(
            f"--params {arguments.params} and --model {arguments.model}: give one of the two"
        )
    model = None if arguments.model is None else sl.load_model(model_given(arguments.model))
    count = parameter_count(arguments.params) if model is None else float(model.parameters)
    largest = parameter_count(arguments.largest_layer) if arguments.largest_layer is not None else 0
    if largest and (recipe != "deepspeed" or largest > count):
        raise InputError(
            f"--largest-layer {arguments.largest_layer}: only for --recipe deepspeed, and no more than all {count:g} parameters"
        )
    optimizer = arguments.optimizer or ADAM.name
    kept = states_of(optimizer, model)
    zero = RECIPES[recipe].stages[0] if arguments.zero is None else arguments.zero

    def held(stage: int) -> ModelStates:
        return model_states(
            count, dp, zero=stage, recipe=recipe, largest_layer=largest, states=kept
        )

    states = held(zero)
    result: StatesAnswer = {
        "parameters": count,
        "dp": dp,
        "zero": zero,
        "recipe": recipe,
        "optimizer": optimizer,
        "bytes": states._asdict(),
        "total_bytes": states.total,
        "bytes_per_parameter": states.total / count,
    }
    if arguments.json:
        print_json(result)
        return 0
    print_text(f"{recipe}: {RECIPES[recipe].text}")
    if optimizer != ADAM.name:
        print_text(f"{optimizer}, not Adam: {4 * kept:.4g} bytes per parameter, not {4 * ADAMS:g}")
    print_text(
        f"{count:g} parameters on {dp} data-parallel ranks, GB = 1e9 bytes on each; activations not included"
    )
    for stage in RECIPES[recipe].stages:
        states = held(stage)
        parts = ", ".join(
            f"{name} {value / 1e9:.4g}" for name, value in states._asdict().items() if value
        )
        print_text(
            f"{'>' if stage == zero else ' '} ZeRO-{stage} ({STAGES[stage]}): {states.total / 1e9:.4g} GB = {parts}"
        )
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    """Print the table of a layer."""
    refuse_given(arguments, OF_STATES, "is of model states: leave out --explain")
    given = given_values(arguments)
    if "model" not in given:
        raise InputError("--explain: give --model, whose layer it shows")
    model, plan = sl.load_model(given["model"]), sl.Plan(**plan_part(given))
    table = sl.layer_table(model, plan)
    if arguments.json:
        rows = [
            facts_of(row, OperationFacts, sent=_facts(row.sent), sent_back=_facts(row.sent_back))
            for row in table.rows
        ]
        print_json(facts_of(table, LayerAnswer, operations=rows))
    elif len(model.counts) == 1:
        print(table)
    else:
        for kind, count in model.counts.items():
            print(f"{count} of {model.layers}: {kind}")
            print(sl.layer_table(model, plan, kind))
    return 0


def _facts(sent: Sequence[Communication]) -> list[Sent]:
    return [facts_of(each, Sent) for each in sent]


def add_memory(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `memory`."""
    command.add_argument("--params", metavar="N", help="parameters of the model: 7.5e9, 7.5B, 350M")
    command.add_argument(
        "--model",
        metavar="NAME",
        help="or a model of the catalogue, or the path of a Hugging Face config.json",
    )
    command.add_argument("--dp", type=int, metavar="N", help="data-parallel ranks (default 1)")
    command.add_argument(
        "--zero",
        type=int,
        choices=STAGES,
        help="ZeRO stage (default 0, plain data parallelism; 2 for deepspeed)",
    )
    command.add_argument(
        "--recipe",
        choices=RECIPES,
        help="bytes per parameter are counted as who does (default zero)",
    )
    command.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        help="whose states are counted in fp32, in place of Adam's two moments (default adam)",
    )
    command.add_argument(
        "--largest-layer",
        metavar="N",
        help="parameters of the largest layer, for deepspeed's ZeRO-3",
    )
    command.add_argument(
        "--explain",
        action="store_true",
        help="show a layer instead: each operation's shape on a rank of the plan, its FLOPs, what it keeps, what is sent",
    )
    plan = command.add_argument_group("with --explain, the plan")
    add_plan_options(plan, skip=OF_BOTH)
    add_json_options(command, Answer)
