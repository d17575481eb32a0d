"""It shows the memory of a rank: ZeRO's curves over the number of ranks, and each moment of a step."""

from simlab.analysis import Stack, memory_stack
from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State
from simlab.explorers.zero_grid import STAGES
from simlab.memory import SHARDING, data_parallel_memory
from simlab.memory.model_states import EVERY, RECIPES, zero_curves
from simlab.spec.cluster import clusters, load_cluster
from simlab.spec.model import catalogue, load_model
from simlab.units import GIB
from simlab.views.chart import Chart, Dots, Words
from simlab.views.charts.amounts import stack_chart, stage_words, zero_chart
from simlab.views.scene import CATEGORY_WORDS

RANKS = [2**n for n in range(11)]
MODELS = [name for name, model in catalogue().items() if model.positions and not model.gated_mlp]
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
    here, name = curves[stage][RANKS.index(dp)], stage_words(stage)
    chosen = Dots(
        [dp],
        [here / GIB],
        "ink",
        Words("chosen", "所选"),
        "diamond",
        7,
        tips=[
            Words(
                f"chosen: {name.en}, dp = {dp}: {_gib(here)}",
                f"所选：{name.zh}，dp = {dp}：{_gib(here)}",
            )
        ],
    )
    title = Words("Model states on a rank, without activations", "每个 rank 的模型状态（不含激活）")
    return zero_chart(
        RANKS, curves, title=title, capacity_bytes=capacity_bytes, more=[chosen], height=210
    )


def _step(stack: Stack, capacity_bytes: float, sharding: Words, dp: int) -> Chart:
    title = Words(
        f"One step with {sharding.en} over {dp} {'ranks' if dp > 1 else 'rank'}",
        f"{dp} 个 rank、{sharding.zh} 的一步",
    )
    return stack_chart(stack, title, max(*stack.totals, capacity_bytes), 230)


EXPLORER = Explorer("memory", Words("Memory and ZeRO", "显存与 ZeRO"), _controls(), answer)
