"""It shows the memory of a rank: ZeRO's curves over the number of ranks, and each moment of a step."""

from itertools import accumulate

from simlab.analysis import Stack, memory_stack
from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State
from simlab.explorers.zero_grid import STAGES
from simlab.memory import SHARDING, data_parallel_memory
from simlab.memory.model_states import EVERY, RECIPES, zero_curves
from simlab.spec.cluster import clusters, load_cluster
from simlab.spec.model import catalogue, load_model
from simlab.units import GIB
from simlab.views.chart import Area, Axis, Chart, Dots, Line, Mark, Rule, Symbol, Words
from simlab.views.scene import CATEGORY_COLOURS, CATEGORY_WORDS, STAGE_COLOURS, STAGE_NAMES

RANKS = [2**n for n in range(11)]
MODELS = [name for name, model in catalogue().items() if model.positions and not model.gated_mlp]
DASHES: dict[int, tuple[int, ...] | None] = {0: None, 1: (8, 4), 2: (8, 3, 2, 3), 3: (2, 3)}
CAPACITY = Words("the GPU's memory", "GPU 显存")
NAMES = {way: Words(STAGES[stage], STAGES[stage]) for way, stage in SHARDING.items()}
"""{way of sharding: what it is called}."""


def _controls() -> list[Control]:
    recipes = [name for name, recipe in RECIPES.items() if recipe.stages == EVERY]
    return [
        Control("model", Words("model", "模型"), MODELS, "megatron-7.5b"),
        Control("recipe", Words("precision recipe", "精度方案"), recipes, "zero"),
        Control("sharding", Words("sharding", "分片"), [*SHARDING], "fsdp", [*NAMES.values()]),
        Control("cluster", Words("cluster", "集群"), [*clusters()], "dgx-h100"),
        Control("dp", Words("data-parallel ranks dp", "数据并行数 dp"), RANKS, 8),
        Control(
            "microbatch_size",
            Words("sequences in a microbatch", "每个 micro-batch 的序列数"),
            [*range(1, 33)],
            4,
        ),
    ]


def answer(state: State) -> Answer:
    """Both pictures, and where the step's peak is. Raises `InputError` for what cannot be walked."""
    model, dp, recipe = load_model(state["model"]), state["dp"], state["recipe"]
    memory = data_parallel_memory(
        model,
        dp,
        microbatch_size=state["microbatch_size"],
        sharding=state["sharding"],
        recipe=recipe,
    )
    capacity_bytes = load_cluster(state["cluster"]).gpu.memory_bytes
    stack = memory_stack(memory, capacity_bytes=capacity_bytes)
    curves = zero_curves(model.parameters, RANKS, recipe=recipe)
    stage = SHARDING[state["sharding"]]
    return Answer(
        _figures(stack, capacity_bytes),
        (
            _curves(curves, dp, stage, capacity_bytes),
            _step(stack, capacity_bytes, NAMES[state["sharding"]], dp),
        ),
        _note(stack),
    )


def _gib(count: float) -> str:
    return f"{count / GIB:,.1f} GiB"


def _figures(stack: Stack, capacity_bytes: float) -> list[Figure]:
    peak = stack.peak
    most = stack.largest(peak)[0]
    words = CATEGORY_WORDS[most]
    return [
        Figure(Words("peak of the step", "单步峰值"), [_gib(stack.totals[peak])]),
        Figure(Words("memory of the GPU", "GPU 显存"), [_gib(capacity_bytes)]),
        Figure(Words("at the peak runs", "峰值时执行"), [stack.ops[peak]]),
        Figure(
            Words(f"{words.en} at the peak", f"峰值时的{words.zh}"),
            [_gib(stack.held[most][peak])],
        ),
    ]


def _note(stack: Stack) -> Words:
    if stack.breach is None:
        return Words("The step fits.", "这一步放得下。")
    op = stack.at(stack.breach)
    return Words(
        f"The step does not fit: the first too large is {op}.", f"放不下：首次超出是在{op}。"
    )


def _curves(curves: dict[int, list[float]], dp: int, stage: int, capacity_bytes: float) -> Chart:
    lines = [
        Line(
            RANKS,
            [amount / GIB for amount in amounts],
            STAGE_COLOURS[each],
            _stage(each),
            DASHES[each],
            tips=[
                Words(
                    f"{_stage(each).en}, dp = {ranks}: {_gib(amount)}",
                    f"{_stage(each).zh}，dp = {ranks}：{_gib(amount)}",
                )
                for ranks, amount in zip(RANKS, amounts)
            ],
        )
        for each, amounts in curves.items()
    ]
    here = curves[stage][RANKS.index(dp)]
    chosen = Dots(
        [dp],
        [here / GIB],
        "ink",
        Words("chosen", "所选"),
        "diamond",
        7,
        tips=[
            Words(
                f"chosen: {_stage(stage).en}, dp = {dp}: {_gib(here)}",
                f"所选：{_stage(stage).zh}，dp = {dp}：{_gib(here)}",
            )
        ],
    )
    return Chart(
        "curves",
        Words("Model states on a rank, without activations", "每个 rank 的模型状态（不含激活）"),
        Axis(Words("data-parallel ranks", "数据并行 rank 数"), "log2"),
        Axis(Words("GiB on a rank", "每个 rank 的 GiB"), "log2"),
        [*lines, Rule("cap", CAPACITY, y=capacity_bytes / GIB), chosen],
        210,
    )


def _stage(stage: int) -> Words:
    return Words(STAGE_NAMES[stage], "普通数据并行" if stage == 0 else STAGE_NAMES[stage])


def _step(stack: Stack, capacity_bytes: float, sharding: Words, dp: int) -> Chart:
    """What is held, category on category; the peak, and where it first passes the capacity."""
    edges, ops = stack.edges, [*stack.ops, stack.ops[-1]]
    held = {name: [*amounts, amounts[-1]] for name, amounts in stack.held.items()}
    tops = [[amount / GIB for amount in each] for each in accumulate(held.values(), _sums)]
    named = [(name, CATEGORY_WORDS[name]) for name in held]
    areas = [
        Area(
            edges,
            low,
            high,
            CATEGORY_COLOURS[name],
            words,
            tips=[
                Words(f"{op}\n{words.en}: {_gib(amount)}", f"{op}\n{words.zh}：{_gib(amount)}")
                for op, amount in zip(ops, held[name])
            ],
        )
        for (name, words), low, high in zip(named, [[0.0] * len(edges), *tops], tops)
    ]
    marks: list[Mark] = [*areas, Rule("cap", CAPACITY, y=capacity_bytes / GIB)]
    if stack.breach is not None:
        marks.append(
            _point(stack, stack.breach, "cap", "cross", Words("first over it", "首次超出"))
        )
    marks.append(_point(stack, stack.peak, "ink", "triangle", Words("peak", "峰值")))
    return Chart(
        "step",
        Words(
            f"One step with {sharding.en} over {dp} {'ranks' if dp > 1 else 'rank'}",
            f"{dp} 个 rank、{sharding.zh} 的一步",
        ),
        Axis(
            Words("ops of the step, in order", "这一步的 op（按顺序）"),
            least=edges[0],
            most=edges[-1],
            ticks=[edge + 0.5 for edge in edges[:-1]],
            names=stack.ops,
        ),
        Axis(
            Words("GiB on a rank", "每个 rank 的 GiB"),
            least=0,
            most=1.2 * max(*stack.totals, capacity_bytes) / GIB,
        ),
        marks,
        230,
    )


def _sums(one: list[float], other: list[float]) -> list[float]:
    return [a + b for a, b in zip(one, other)]


def _point(stack: Stack, at: int, colour: str, symbol: Symbol, name: Words) -> Dots:
    x = (stack.edges[at] + stack.edges[at + 1]) / 2
    text = f"{stack.ops[at]}: {_gib(stack.totals[at])}"
    tips = [Words(f"{name.en}\n{text}", f"{name.zh}\n{text}")]
    return Dots([x], [stack.totals[at] / GIB], colour, name, symbol, 6, labels=[text], tips=tips)


EXPLORER = Explorer("memory", Words("Memory and ZeRO", "显存与 ZeRO"), _controls(), answer)
