"""What each optimizer keeps, moves and computes, against torch's own optimizers."""

import weakref
from dataclasses import replace

import pytest

import simlab as sl
from simlab.cost.optimizer import CLIPPING_BYTES
from simlab.cost.roofline import efficiencies_of
from simlab.layer.parameters import stage_matrices, stage_parameters
from simlab.lowering.build import program_of
from simlab.lowering.instructions import rank_instructions
from simlab.lowering.zero import dealt
from simlab.memory.model_states import model_states, states_of
from simlab.optimizers import ADAM, OPTIMIZERS, Matrix

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402  (it needs torch)
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

MODEL = sl.Model(
    name="m", layers=2, hidden=64, heads=4, kv_heads=2, ffn=160, vocab=320, seq=32, gated_mlp=True,
    tied_head=False, bias=False,
)  # fmt: skip
A100 = replace(sl.load_cluster("dgx-a100"), host_op_s=0.0)
TORCHS = {
    "adam": lambda its: torch.optim.AdamW(its, foreach=True),
    "sgd": lambda its: torch.optim.SGD(its, momentum=0.9, weight_decay=0.1, foreach=True),
    "adafactor": lambda its: torch.optim.Adafactor(its, weight_decay=0.1, foreach=True),
    "muon": torch.optim.Muon,
}
"""{name: torch's own}, of those that torch has"""
SIDE = 512


def predicted(model, plan):
    """The prediction on one node of as many GPUs as the plan takes."""
    return sl.predict(model, plan, replace(A100, gpus_per_node=plan.gpus))


def llama(model):
    """{where: [parameters]} of torch's own tensors of a model."""
    h, d = model.hidden, model.head_size
    shapes = [(h,), (model.heads * d, h), (model.kv_heads * d, h), (model.kv_heads * d, h), (h, h)]
    shapes += [(h,), (model.ffn, h), (model.ffn, h), (h, model.ffn)]
    ends = [(model.vocab, h), (h,), (model.vocab, h)]
    made = {"layers": shapes * model.layers, "ends": ends}
    return {
        where: [torch.nn.Parameter(torch.randn(its)) for its in all_]
        for where, all_ in made.items()
    }


def stepped(make, parameters):
    """One of torch's optimizers after a step."""
    for its in parameters:
        its.grad = torch.randn_like(its)
    optimizer = make(parameters)
    optimizer.step()
    return optimizer


def kept_bytes(optimizer):
    """Bytes of an optimizer's states, without the counts of steps."""
    states = [
        its for state in optimizer.state.values() for key, its in state.items() if key != "step"
    ]
    return sum(its.nbytes for its in states)


@pytest.mark.parametrize("name", TORCHS)
def test_a_prediction_holds_the_states_that_torchs_own_optimizer_makes(name):
    tensors = llama(MODEL)
    every = tensors["layers"] + tensors["ends"]
    if name == "muon":
        muons = [its for its in tensors["layers"] if its.ndim == 2]
        others = [its for its in every if not any(its is other for other in muons)]
        found = kept_bytes(stepped(TORCHS["muon"], muons))
        found += kept_bytes(stepped(TORCHS["adam"], others))
    else:
        found = kept_bytes(stepped(TORCHS[name], every))
    plan = sl.Plan(library="torch", optimizer=name)
    assert predicted(MODEL, plan).memory_bytes["optimizer"] == found
    matrices, parameters = stage_matrices(MODEL, plan, 2, first=True, last=True).shared, 0
    for matrix, count in matrices.items():
        parameters += count * matrix.numbers
    assert parameters == sum(its.numel() for its in every) == MODEL.parameters
    assert found / 4 / parameters == pytest.approx(states_of(name, MODEL))


class Moved(TorchDispatchMode):
    """Counts the bytes that ops read and write, each tensor once, but for products and views. An op
    whose name ends in '_' writes its first argument, any other one its result. `ops` are those that
    compute; `peak` is the most that all have allocated and not freed."""

    bytes = ops = live = peak = 0

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        result = op(*arguments, **(options or {}))
        name = op._schema.name
        if op.is_view or name.startswith("profiler") or "lift_fresh" in name:
            return result
        self.ops += 1
        for made in [] if name.endswith("_") else listed(result):
            self.hold(made.untyped_storage(), made.nbytes)
        if name in ("aten::mm", "aten::addmm") and arguments[-1].size(0) > 1:
            return result  # a product, priced as such
        first = arguments[0] if name.endswith("_") else result
        read = {id(its): its for argument in arguments for its in listed(argument)}
        tensors = [*read.values(), *listed(first)]
        self.bytes += sum(its.nbytes for its in tensors if its.numel() >= SIDE**2)
        return result

    def hold(self, storage, nbytes):
        """Count a storage until it is freed."""
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.free, nbytes)

    def free(self, nbytes):
        self.live -= nbytes


def listed(value):
    """The tensors of an argument."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [its for its in values if isinstance(its, torch.Tensor)]


def moved(name):
    """What the second step of torch's optimizer over two matrices reads, writes and launches."""
    parameters = [torch.nn.Parameter(torch.randn(SIDE, SIDE)) for _ in range(2)]
    optimizer = stepped(TORCHS[name], parameters)
    for its in parameters:
        its.grad = torch.randn_like(its)
    with Moved() as found:
        optimizer.step()
    return found


@pytest.mark.parametrize("name", TORCHS)
def test_a_step_moves_and_allocates_what_torchs_ops_do(name):
    found = moved(name)
    its = OPTIMIZERS[name]
    assert found.bytes / (2 * SIDE**2) == its.listed_bytes
    if its.launches > 1:
        assert found.ops / 2 == its.launches
    at_once = 1 if its.launches > 1 else 2
    assert found.peak / (at_once * SIDE**2) == pytest.approx(its.scratch_bytes, rel=1e-3)
    if (
        its.fused_bytes is not None
    ):  # gradient, weight and states read, all but the gradient written
        each = its.states(Matrix(1))
        assert its.fused_bytes == 4 * (2 + each) + 4 * (1 + each)


@pytest.mark.parametrize("shape", [(48, 48), (48, 128), (128, 48)])
def test_newton_schulz_multiplies_as_often_as_torchs(shape):
    parameter = [torch.nn.Parameter(torch.randn(shape))]
    with FlopCounterMode(display=False) as counted:
        stepped(torch.optim.Muon, parameter)
    products = OPTIMIZERS["muon"].products(Matrix(*shape, hidden=True))
    a, b = sorted(shape)
    assert sum(2 * m * n * k for m, n, k in products) == counted.get_total_flops()
    assert counted.get_total_flops() == 5 * (4 * a**2 * b + 2 * a**3)


@pytest.mark.parametrize(("name", "tokens", "least", "most"), [
    ("gpt2", 524_288, 0.004, 0.0074), ("llama-3-405b", 16e6, 0.003, 0.0052),
])  # fmt: skip
def test_muon_computes_as_little_more_as_its_authors_say(name, tokens, least, most):
    """At most T m / B of a step of B tokens, for T iterations and m columns: .7% of NanoGPT's and .5% of
    Llama 405B's (Jordan et al. 2024, "Runtime analysis")."""
    model = sl.load_model(name)
    both = stage_matrices(model, sl.Plan(), model.layer_kinds, first=True, last=True)
    hidden = {its: count for its, count in both.shared.items() if its.hidden}
    flops = sum(
        count * 2 * m * n * k
        for its, count in hidden.items()
        for m, n, k in OPTIMIZERS["muon"].products(its)
    )
    trained = 6 * tokens * sum(count * its.numbers for its, count in hidden.items())
    assert least < flops / trained < most == pytest.approx(5 * model.hidden / tokens, rel=0.02)


def per_parameter_s(plan, model):
    """Seconds of a step of the optimizer, and the parameters of a rank."""
    layers = plan.layers_of_stages(model.layers)
    return predicted(model, plan).optimizer_s, stage_parameters(
        model, plan, layers[0], first=True, last=True
    )


def test_an_update_takes_what_it_moves_at_the_memorys_speed_and_muon_its_products_besides():
    big = replace(
        MODEL, hidden=4096, head_size=128, heads=32, kv_heads=32, ffn=16384, vocab=32000, layers=4
    )
    bandwidth = A100.gpu.memory_bandwidth_bytes_per_s * efficiencies_of(A100.gpu).memory
    taken = {}
    for name in OPTIMIZERS:
        taken[name], parameters = per_parameter_s(sl.Plan(library="torch", optimizer=name), big)
        if not OPTIMIZERS[name].products(Matrix(2, 2, hidden=True)):
            each = OPTIMIZERS[name].listed_bytes + CLIPPING_BYTES
            assert taken[name] == pytest.approx(each * parameters / bandwidth, rel=2e-3)
    h, flops = 4096, 0
    for a, b, count in ((h, h, 4), (h, 16384, 3)):
        flops += big.layers * count * 5 * (4 * a**2 * b + 2 * a**3)
    ends = 2 * 32000 * h
    bytes_ = (54 + 12) * (parameters - ends) + (80 + 12) * ends
    products_s = taken["muon"] - bytes_ / bandwidth
    peak = A100.gpu.peak_flops["bf16"]
    assert 0.5 * peak < flops / products_s < 0.85 * peak


def test_whole_matrices_are_dealt_out_as_megatron_lm_deals_them():
    """The example in `shard_params` of its layer_wise_optimizer.py: 4 ranks and 10 parameters give
    [[p0, p7, p8], [p1, p6, p9], [p2, p5], [p3, p4]]."""
    ten = [Matrix(10 - n) for n in range(10)]
    parts = [sorted(10 - its.rows for its in own) for own in dealt(dict.fromkeys(ten, 1), 4)]
    assert parts == [[0, 7, 8], [1, 6, 9], [2, 5], [3, 4]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 100])
def test_of_several_alike_each_goes_where_it_would_by_itself(ranks):
    counts = {Matrix(7, 3): 5, Matrix(4): 11, Matrix(9, 9): 2}
    each = sorted(
        (its for its, n in counts.items() for _ in range(n)), key=lambda its: -its.numbers
    )
    order = [*range(ranks), *reversed(range(ranks))]
    hands = [{} for _ in range(ranks)]
    for place, its in enumerate(each):
        hand = hands[order[place % len(order)]]
        hand[its] = hand.get(its, 0) + 1
    assert [hand for hand in hands if hand] == list(dealt(counts, ranks))


def test_muon_with_zero_1_holds_whole_matrices_reduces_to_all_and_gathers_what_is_updated():
    plan = sl.Plan(dp=4, zero=1, optimizer="muon", microbatches=2)
    step = predicted(MODEL, plan)
    whole = predicted(MODEL, replace(plan, zero=0)).memory_bytes["optimizer"]
    held = step.memory_bytes["optimizer"]
    assert whole / 4 < held < whole / 4 + (4 + 8) * MODEL.vocab * MODEL.hidden
    items = rank_instructions(MODEL, plan, program_of(plan))
    kinds = {its.kind for its in items if its.dimension == "dp" and its.unit}
    assert kinds == {"all_reduce", "all_gather"}
    adams = rank_instructions(MODEL, replace(plan, optimizer="adam"), program_of(plan))
    assert {its.kind for its in adams if its.dimension == "dp" and its.unit} == {
        "reduce_scatter", "all_gather"
    }  # fmt: skip


def test_experts_are_dealt_out_among_the_ranks_that_hold_the_same():
    model = replace(MODEL, experts=4, experts_per_token=2)
    alone = predicted(model, sl.Plan(optimizer="muon")).memory_bytes["optimizer"]
    plan = sl.Plan(dp=4, ep=4, zero=1, optimizer="muon")
    held = predicted(model, plan).memory_bytes["optimizer"]
    own = model.layers * 3 * 64 * 160 * (4 + 4)  # a rank's expert, which no other has
    assert held >= own and held < alone / 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"optimizer": "muon", "library": "nanotron"}, "library = 'nanotron', which has none: give library = 'megatron' or 'torch'"),
        ({"optimizer": "sgd", "zero": 1}, "zero = 1: its distributed optimizer is Adam's only; give zero = 0"),
        ({"optimizer": "adafactor", "library": "torch", "zero": 3}, "zero = 3: .*FSDP2 cuts their rows; give zero = 0"),
        ({"optimizer": "muon", "zero": 2}, "zero = 2: .*give zero = 0 or 1"),
        ({"optimizer": "muon", "precision": "fp16"}, "precision = 'fp16': no library has both"),
        ({"optimizer": "muon", "zero": 1, "moment_bytes": 2}, "moment_bytes = 2: no library has both"),
        ({"optimizer": "muon", "offload": "optimizer"}, "offload = 'optimizer': no library has both"),
        ({"optimizer": "muon", "dp": 4, "zero": 1, "hybrid": 2}, "hybrid = 2: which rank has which matrix"),
        ({"optimizer": "adan"}, "optimizer = 'adan': give one of adam, sgd, adafactor, muon"),
    ],
)  # fmt: skip
def test_what_no_library_has_with_an_optimizer_is_refused(fields, said):
    with pytest.raises(sl.InputError, match=said):
        sl.Plan(**fields)


def test_zeros_curves_count_the_states_of_an_optimizer():
    sgd = model_states(1e9, 8, zero=1, recipe="megatron", states=states_of("sgd"))
    adam = model_states(1e9, 8, zero=1, recipe="megatron")
    assert adam.optimizer - sgd.optimizer == 4e9 / 8
    assert states_of("adam") == ADAM.states(Matrix(1)) == 2
    with pytest.raises(sl.InputError, match=r"adafactor.*shapes.*give a model"):
        states_of("adafactor")
