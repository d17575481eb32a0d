"""The walk over a unit's operations, on plans drawn at random: what its forward keeps is what its
backward reads, each tensor goes with the last operation that reads it, and every weight gets a gradient."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from plan_oracles import plan_of

import simlab as sl
from simlab.errors import InputError
from simlab.layer.operation import OperationKind
from simlab.layer.parameters import unit_parameters
from simlab.layer.saved import saved_bytes
from simlab.lowering.zero import autocasts
from simlab.memory.activations import keeping_operations, layer_activations_bytes
from simlab.memory.schemes import NumberBytes, Resident
from simlab.memory.units.backward import BACKWARD, UnitBackward
from simlab.memory.units.forward import forward_phase
from simlab.memory.units.sizes import UnitSizes

GPT = sl.Model(layers=4, hidden=64, heads=8, vocab=512, positions=128, seq=128)
LLAMA = replace(GPT, kv_heads=2, ffn=160, gated_mlp=True, bias=False, positions=0)
MOE = replace(LLAMA, experts=4, experts_per_token=2)
MIXED = replace(MOE, expert_ffn=96, shared_experts=1, qk_norm=True)
LATENT = replace(MIXED, kv_heads=8, qk_norm=False, kv_rank=16, q_rank=24, head_size=12, rope_size=4, value_size=8)  # fmt: skip
SANDWICH = replace(LLAMA, norms="both", biases=("qkv", "output"), rope_size=4)
BEHIND = replace(LLAMA, norms="behind", qk_norm="whole")
SINKS = replace(MOE, sinks=True, biases=("qkv", "output", "router", "mlp"), norms="both")
MODELS = (GPT, LLAMA, MOE, MIXED, LATENT, SANDWICH, BEHIND, SINKS)
CHOICES = {
    "tp": [1, 2],
    "cp": [1, 2],
    "cp_kind": ["ring", "all-gather", "all-to-all"],
    "dp": [1, 2],
    "ep": [1, 2],
    "library": ["megatron", "torch", "fsdp1", "nanotron"],
    "precision": ["fp32", "bf16", "fp8"],
    "attention": ["flash", "unfused"],
    "sequence_parallel": [False, True],
    "dropout": [False, True],
    "fused": [False, True],
    "compiled_loss": [False, True],
    "recompute": ["none", "selective", "outputs", "per-op", "full"],
}
PLANS = st.fixed_dictionaries({name: st.sampled_from(its) for name, its in CHOICES.items()})
ENDS = ("embedding", "head", "loss")
INNER = ("latents", "qk norm inputs")


def drawn(model, given_fields, **fixed):
    """(`Plan` of the fields that go together, the `UnitSizes` of the model under it)"""
    try:
        plan = plan_of(**given_fields | fixed)
        plan.check(model)
    except InputError:
        assume(False)
    return plan, UnitSizes(model, plan, plan.element_bytes, 4)


def ends(of, kinds, part):
    """{category: bytes that these ops of a part leave}; "F" and kinds of backwards."""
    phases = [forward_phase(of, part)] if "F" in kinds else []
    scheme = Resident(NumberBytes(*[4.0] * 5))
    phases += [UnitBackward(of=of, scheme=scheme, kind=k).phase(part) for k in kinds if k != "F"]
    return {name: sum(its.end[name] for its in phases) for name in ("activations", "temporaries")}


@pytest.mark.parametrize("kinds", ["FB", "FIW"])
@given(st.sampled_from(MODELS), PLANS)
def test_a_backward_frees_what_its_forward_has_kept(kinds, model, fields):
    _, of = drawn(model, fields)
    assert ends(of, kinds, "layer") == {"activations": 0, "temporaries": 0}
    of_ends = [ends(of, kinds, part) for part in ENDS]
    assert sum(its["activations"] for its in of_ends) == 0
    assert sum(its["temporaries"] for its in of_ends) == 0


def statistics(of, steps):
    """What norms and gates keep besides what their operations save."""
    norms = sum(its.kind is OperationKind.NORM for its in steps)
    gates = sum(its.gate_part for its in steps)
    return norms * (of.norm_statistics + of.norm_parts) + gates


@given(st.sampled_from(MODELS), PLANS)
def test_a_forward_keeps_the_tensors_that_operations_save(model, fields):
    plan, of = drawn(model, fields, recompute="none")
    assume(not autocasts(plan))
    saved = layer_activations_bytes(model, plan, "none")
    more = statistics(of, of.steps("layer"))
    assert ends(of, "F", "layer")["activations"] == pytest.approx(saved + more, rel=1e-12)


@given(st.sampled_from(MODELS), PLANS)
def test_a_tensor_goes_with_the_last_operation_of_the_backward_that_reads_it(model, fields):
    """Masks are taken to go with attention."""
    plan, of = drawn(model, fields, recompute="none", dropout=False)
    assume(not autocasts(plan))
    kept = forward_phase(of, "layer").end["activations"]
    walk = UnitBackward(of=of, scheme=Resident(NumberBytes(*[4.0] * 5)), kind="B")
    steps = [*of.steps("layer")]
    while steps:
        step = steps.pop()
        BACKWARD.get(step.kind, UnitBackward.made)(walk, step)
        left = sum(its.saved for its in steps) + statistics(of, steps)
        assert kept + walk.ledger.held["activations"] == pytest.approx(left, rel=1e-12)


@given(st.sampled_from(MODELS), PLANS)
def test_from_i_to_w_stay_what_products_read_and_the_gradients_of_their_results(model, fields):
    """Latents, and what the norms of queries and keys have read, are taken to stay with the products
    around them. The result of a row-parallel product has the gradient of the skipped path."""
    plan, of = drawn(model, fields, recompute="none")
    assume(not autocasts(plan))
    operations = keeping_operations(model, plan, "none")
    inner = [its for its in operations if its.saves and its.saves[0].group in INNER]
    products = [its for its in operations if its.is_product or its in inner]
    read = sum(saved_bytes(products, of.rank.share, plan.element_bytes).values())
    columns = OperationKind.QKV, OperationKind.UP
    gradients = sum(sum(its.makes) for its in of.steps("layer") if its.kind in columns)
    between = ends(of, "FI", "layer")["activations"]
    assert between == pytest.approx(read + gradients + 2 * of.hidden, rel=1e-12)


@given(st.sampled_from(MODELS), PLANS)
def test_every_weight_of_a_unit_gets_a_gradient(model, fields):
    """Data parallelism reduces as many numbers as the weights of its operations have."""
    plan, of = drawn(model, fields)
    for unit in ("embedding", "layer", "head"):
        for kinds in ("B", "IW"):
            made = Made(NumberBytes(*[1.0] * 5))
            for kind in kinds:
                UnitBackward(of=of, scheme=made, kind=kind).phase(unit)
            assert made.numbers == pytest.approx(unit_parameters(model, plan, unit), rel=1e-12)


class Made(Resident):
    """Counts the numbers of the gradients that are made."""

    numbers = 0.0

    def accumulate(self, ledger, size, first):
        self.numbers += size
        super().accumulate(ledger, size, first)
