"""The layers of torchtitan's pipeline stages, by its options.

Read in torchtitan 0.2, torchtitan/distributed/pipeline_parallel.py (pipeline_llm,
generate_llm_fqn_per_model_part).
"""

import re
from math import ceil
from typing import Any

from simlab.errors import InputError, near, shortened
from simlab.planner.formats.options import Options, Settings
from simlab.schedules import SCHEDULES
from simlab.spec.plan import Plan
from simlab.spec.stage_layers import layers_of_stages

PARALLELISM = "parallelism."
LESS_LAYERS = (
    "pipeline_parallel_first_stage_less_layers",
    "pipeline_parallel_last_stage_less_layers",
)
"""How many layers less the ends of a pipeline have than the other stages: 1, where it is not said."""
EACH = PARALLELISM + "pipeline_parallel_layers_per_stage"
MODULES = "module_fqns_per_model_part"
POINTS = PARALLELISM + "pipeline_parallel_split_points"


def read_stages(
    options: Options, fields: Settings, layers: int | None, *, early: bool, other: bool
) -> None:
    """The chunks, and the layers of each stage, into `fields`, which has pp and the schedule.

    layers: those of the model, where the file says it. early: whether it is of before March 2025, when
    stages were even. other: whether the file has another schedule, which no plan says.
    """
    pp, own = fields["pp"], SCHEDULES[fields["schedule"]]
    less = [options.whole(PARALLELISM + option, 1, 0) or 0 for option in LESS_LAYERS]
    each = options.whole(EACH)
    modules, points = options.take(PARALLELISM + MODULES), options.take(POINTS)
    if pp == 1:
        return
    if other and (modules or points or each):
        options.unsaid.append("which layers a stage of that schedule has")
        return
    stages, counts, said = pp * own.chunks, None, fields["schedule"]
    if modules:
        counts, said = _of_modules(modules), PARALLELISM + MODULES
        stages = len(counts)
    elif points:
        starts, said = _of_points(points), POINTS
        stages = len(starts)
        if layers is None:
            options.unsaid.append(f"{_unknown(POINTS, points)} stage_layers")
        else:
            counts = [end - start for start, end in zip(starts, [*starts[1:], layers])]
    elif each and layers:
        stages, said = ceil((layers + sum(less)) / each), f"{EACH} = {each} of {layers} layers"
    elif each and own.chunked:
        options.unsaid.append(f"{_unknown(EACH, each)} chunks")
    chunks, over = divmod(stages, pp)
    if over or (chunks < 2 if own.chunked else chunks != own.chunks):
        wanted = f"a multiple of {pp}, at least {2 * pp}" if own.chunked else pp * own.chunks
        raise InputError(
            f"{said}: {stages} stages, but {fields['schedule']} on {pp} ranks has {wanted}"
        )
    if own.chunked:
        fields["chunks"] = chunks
    if counts is None and layers and not early:
        counts = _divided(stages, layers, *less)
    if counts is not None:
        fields["stage_layers"] = _rule(counts)
    elif any(less) and not (early or points):
        options.unsaid.append(
            f"the first and the last stage have {less[0]} and {less[1]} layers less: even stages are taken; "
            "give the plan stage_layers"
        )


def _unknown(option: str, value: Any) -> str:
    return (
        f"{option} = {shortened(value)}: the file does not say how many layers the model has; give "
        "the plan"
    )


def _rule(counts: list[int]) -> str | tuple[int, ...]:
    """'auto' where it gives these layers, else the layers themselves."""
    try:
        same = layers_of_stages("auto", sum(counts), len(counts)) == counts
    except InputError:
        same = False
    return "auto" if same else tuple(counts)


def _divided(stages: int, layers: int, first: int, last: int) -> list[int]:
    """[layers of each stage], the ends with so many less; what is over goes to the first stages."""
    each, over = divmod(layers + first + last, stages)
    if max(first, last) > each or stages > layers + first + last:
        raise InputError(
            f"{' and '.join(LESS_LAYERS)} = {first} and {last}: {stages} stages of {layers} layers have "
            f"{each}; give less; {near(stages, layers)}"
        )
    counts = [each + (stage < over) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return counts


def _of_modules(modules: Any) -> list[int]:
    """The layers among the modules of each stage."""
    if not isinstance(modules, list) or not all(isinstance(part, list) for part in modules):
        raise InputError(
            f"{PARALLELISM + MODULES} = {shortened(modules)}: give a list of modules for each stage"
        )
    return [sum("layers." in str(name) for name in part) for part in modules]


def _of_points(points: Any) -> list[int]:
    """The first layer of each stage."""
    names = points.split(",") if isinstance(points, str) else points
    found = [re.fullmatch(r"layers\.(\d+)", str(name).strip()) for name in names]
    starts = [0, *(int(its[1]) for its in found if its)]
    if len(starts) <= len(found) or sorted({*starts}) != starts:
        raise InputError(
            f"{POINTS} = {shortened(points)}: give layers with which stages begin, such as layers.2, layers.4"
        )
    return starts


def written_stages(plan: Plan, layers: int | None) -> Settings:
    """The options of a plan's stages. The modules of each are written where torchtitan would make
    others; without the model's layers that cannot be."""
    options: Settings = dict.fromkeys(LESS_LAYERS, 0)
    if isinstance(plan.stage_layers, tuple):
        layers = sum(plan.stage_layers)
    if layers is None:
        return options
    counts, own = plan.layers_of_stages(layers), SCHEDULES[plan.schedule]
    if len({*counts}) == 1 and plan.chunks == own.chunks:
        return options
    names, parts = iter(range(layers)), []
    for count in counts:
        parts.append([f"layers.{next(names)}" for _ in range(count)])
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return options | {MODULES: parts}
