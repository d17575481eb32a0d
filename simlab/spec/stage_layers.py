"""How many layers each pipeline stage holds: the rules that `Plan.stage_layers` names.

The embedding is on the first stage and the head on the last one, beside the layers there.
"""

from collections.abc import Sequence

from simlab.errors import InputError, did_you_mean, near, require_whole, shortened, whole

RULES = ("auto", "even", "ends-count-as-layers", "uneven")
"""Names of the rules: see `layers_of_stages`."""


def layers_of_stages(
    rule: str | Sequence[int], layers: int, stages: int, said: str = ""
) -> list[int]:
    """[layers of each stage], which add up to `layers`.

    'even' gives each stage equally many. 'ends-count-as-layers' counts the embedding and the head
    as a layer each, so the first and the last stage hold one layer less: Llama 3 405B has 126
    layers on 128 stages, of which the first holds the embedding only and the last the head only
    (Dubey et al. 2024, arXiv 2407.21783, section 3.3.2). 'uneven' gives equally many and one more
    to as many stages as it takes, from the second stage on, which leaves the first and the last one
    room for embedding and head. 'auto' is 'even' where that comes out even, else
    'ends-count-as-layers'. A sequence of numbers is the answer itself. Raises `InputError` if a
    rule does not come out even; said: how its message writes the number of stages.
    """
    require_whole("layers", layers)
    require_whole("stages", stages)
    if not isinstance(rule, str):
        return _given(rule, layers, stages)
    if rule in ("auto", "even") and layers % stages == 0:
        return [layers // stages] * stages
    if rule in ("auto", "ends-count-as-layers") and (layers + 2) % stages == 0:
        each = (layers + 2) // stages
        return [layers] if stages == 1 else [each - 1, *[each] * (stages - 2), each - 1]
    if rule == "uneven" and stages <= layers:
        return [layers // stages + (1 <= stage <= layers % stages) for stage in range(stages)]
    ends = rule == "ends-count-as-layers"
    if stages > layers:
        why = f"are more than the {layers} layers"
    else:
        why = f"do not divide {layers} layers{' and 2 for embedding and head' if ends else ''}"
        why += f" (nor {layers + 2} with embedding and head as one each)" if rule == "auto" else ""
    raise InputError(
        f"{said or stages} stages {why}; {near(stages, layers + 2 * ends)}, "
        "or stage_layers = 'uneven' or the layers of each stage"
    )


def check_stage_layers(value: str | Sequence[int], stages: int) -> str | tuple[int, ...]:
    """`value` as a field of a plan of `stages` stages. Raises `InputError` if it is neither a rule
    nor a number for each stage."""
    if isinstance(value, str):
        if value not in RULES:
            hint = did_you_mean(value, RULES) or ";"
            raise InputError(
                f"stage_layers = {shortened(value)}{hint} give one of {', '.join(RULES)}, or the layers of each stage"
            )
        return value
    if not isinstance(value, (list, tuple)):
        raise InputError(
            f"stage_layers = {shortened(value)}: give one of {', '.join(RULES)}, or the layers of each stage"
        )
    if len(value) != stages:
        raise InputError(
            f"stage_layers has {len(value)} numbers, but pp x chunks = {stages} stages: give one for each"
        )
    for stage, count in enumerate(value):
        least = 0 if stage in (0, stages - 1) and stages > 1 else 1
        if not whole(count, least):
            only = "; only the first and the last stage may hold no layer" if least else ""
            raise InputError(
                f"stage_layers[{stage}] = {shortened(count)}: give a whole number, at least {least}{only}"
            )
    return tuple(value)


def _given(counts: Sequence[int], layers: int, stages: int) -> list[int]:
    if len(counts) != stages or sum(counts) != layers:
        raise InputError(
            f"stage_layers has {sum(counts)} layers on {len(counts)} stages, "
            f"but there are {layers} layers and {stages} stages: give numbers that add up"
        )
    return list(counts)
