"""The layers of Megatron-LM's pipeline stages, by its flags.

Read in megatron/core/transformer/transformer_block.py (get_num_layers_to_build) and
pipeline_parallel_layer_layout.py.
"""

import re
from typing import Any

from simlab.errors import InputError, shortened
from simlab.planner.formats.options import Options, Settings
from simlab.spec.plan import Plan

ENDS = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
UNEVEN = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
LAYOUT = "--pipeline-model-parallel-layout"
MOST_TEXT = 10_000
"""The longest layout that is read, in letters, its repetitions written out."""


def read_stages(options: Options, fields: Settings) -> None:
    """The chunks, and the layers of each stage, into `fields`, which has pp."""
    chunks = options.whole("--num-virtual-stages-per-pipeline-rank")
    layers = _layers(options)
    each = options.whole("--num-layers-per-virtual-pipeline-stage")
    pp = fields["pp"]
    if each is not None:
        if layers is None or layers % (pp * each):
            raise InputError(
                f"--num-layers-per-virtual-pipeline-stage {each}: give --num-layers, a multiple of "
                f"{pp} pipeline ranks x {each}"
            )
        chunks = layers // (pp * each)
    layout = options.take(LAYOUT)
    stages = _of_layout(layout) if layout is not None else None
    if stages is not None:
        chunks, left = divmod(len(stages), pp)
        if left:
            raise InputError(f"{LAYOUT}: {len(stages)} stages are no multiple of {pp} ranks")
    if chunks is not None and chunks > 1:
        fields |= {"schedule": "interleaved-1f1b", "chunks": chunks}
    if stages is None:
        stages = _uneven(options, pp, chunks or 1, layers)
    if stages is not None:
        fields["stage_layers"] = tuple(stages)
        return
    ends = [options.switch(flag) for flag in ENDS]
    if all(ends):
        fields["stage_layers"] = "ends-count-as-layers"
    elif any(ends) and pp > 1:
        fields["stage_layers"] = _one_end(ends, pp, chunks or 1, layers)


def _layers(options: Options) -> int | None:
    """--num-layers, which stays there for the model."""
    given = options.look("--num-layers")
    return given if given is None else Options({"--num-layers": given}).whole("--num-layers")


def _uneven(options: Options, pp: int, chunks: int, layers: int | None) -> list[int] | None:
    first, last = (options.whole(flag, None, 0) for flag in UNEVEN)
    if (first is None and last is None) or pp == 1:
        return None
    if layers is None:
        raise InputError(f"{UNEVEN[first is None]}: give --num-layers, too")
    ranks: list[int | None] = [first, *[None] * (pp - 2), last]
    left = layers - (first or 0) - (last or 0)
    each, over = divmod(left, max(1, ranks.count(None)))
    if each < 0 or over or (left and None not in ranks):
        raise InputError(
            f"{' and '.join(UNEVEN)} = {first} and {last} leave {left} layers for the other "
            f"{ranks.count(None)} pipeline ranks: give numbers that leave a multiple of them"
        )
    counts = [each if count is None else count for count in ranks]
    if any(count % chunks for count in counts):
        raise InputError(
            f"{counts} layers on the pipeline ranks are no multiples of {chunks} chunks"
        )
    return [count // chunks for _ in range(chunks) for count in counts]


def _one_end(ends: list[bool], pp: int, chunks: int, layers: int | None) -> tuple[int, ...]:
    """The layers of stages where only the embedding, or only the loss, counts as a layer."""
    flag = ENDS[ends.index(True)]
    each, over = divmod((layers or 0) + 1, pp * chunks)
    if layers is None or over:
        raise InputError(
            f"{flag}: give --num-layers, one less than a multiple of {pp * chunks} stages"
        )
    stages = [each] * (pp * chunks)
    stages[0 if ends[0] else -1] -= 1
    return tuple(stages)


def _of_layout(layout: Any) -> list[int]:
    """The layers of each stage, as a text such as 'Et*3|(tt|)*29,m|L' has them."""
    text = str(layout).replace(",", "").replace(" ", "").strip("\"'")
    group = re.compile(r"\(([^()]*)\)(?:\*(\d+))?|([EtmL])\*(\d+)")
    while group.search(text) and len(text) <= MOST_TEXT:
        text = group.sub(lambda found: _repeated(found), text, count=1)
    if len(text) > MOST_TEXT or re.search(r"[^EtmL|]", text):
        raise InputError(
            f"{LAYOUT} = {shortened(layout)}: give stages of E, t, m and L, with | between them"
        )
    return [stage.count("t") for stage in text.split("|")]


def _repeated(found: "re.Match[str]") -> str:
    part, times = found[1] or found[3] or "", int(found[2] or found[4] or 1)
    return part * min(times, MOST_TEXT // max(1, len(part)) + 1)


def written_stages(plan: Plan) -> Settings:
    """The flags of a plan's stages."""
    chunked = plan.schedule == "interleaved-1f1b" and plan.chunks > 1
    if plan.stage_layers == "ends-count-as-layers":
        flags: Settings = dict.fromkeys(ENDS, True)
    elif isinstance(plan.stage_layers, tuple) and plan.chunks == (plan.chunks if chunked else 1):
        stages = ["t" * count for count in plan.stage_layers]
        stages[0] = f"E{stages[0]}"
        stages[-1] += "L"
        return {LAYOUT: "|".join(stages)}
    else:
        flags = {}
    if chunked:
        flags["--num-virtual-stages-per-pipeline-rank"] = plan.chunks
    return flags
