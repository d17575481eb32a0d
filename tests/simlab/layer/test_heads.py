"""What the numbers of heads of a layer's tensors say."""

from collections.abc import Iterator

import pytest

import simlab as sl
from simlab.layer.microbatch import share_of
from simlab.layer.operation import Cut, Operation, OperationKind, Tensor
from simlab.layer.units import layer_operations
from simlab.lowering.kernels.attention import softmax_is_fused, stored_scores
from simlab.memory.schemes import NumberBytes, Resident
from simlab.memory.stage import sizes_of
from simlab.memory.units.backward import UnitBackward

MODEL = sl.Model(layers=2, hidden=256, heads=8, vocab=1024, seq=64, gated_mlp=True, bias=False)


def cut_by_heads(model: sl.Model) -> Iterator[Tensor]:
    for kind in model.counts:
        for its in layer_operations(model.of_kind(kind)):
            yield from (n for n in (*its.reads, *its.makes) if n.cut is Cut.HEADS and n.least)


@pytest.mark.parametrize("name", sorted(sl.catalogue()))
def test_the_least_that_a_rank_has_of_a_tensor_is_one_head(name):
    """So that it is the width of a head, too: a tensor has `heads` or `kv_heads` of it."""
    model = sl.load_model(name)
    for its in cut_by_heads(model):
        assert its.numbers / its.least in (model.heads, model.kv_heads), its


@pytest.mark.parametrize("tp", [1, 2])
def test_kernels_have_the_heads_of_the_operation(tp):
    """A kind of attention may have more scores than query heads of the model, as differential attention has
    two for each (Ye et al. 2024, arXiv 2410.05258)."""
    plan = sl.Plan(attention="unfused", microbatch_size=3, tp=tp, dropout=False)
    share = share_of(MODEL, plan)
    q, k = (Tensor(name, 2 * 256, Cut.HEADS, least=32) for name in "qk")
    scores = Tensor("scores", 2 * 8 * 64, Cut.HEADS)
    made = Operation(OperationKind.SCORES, (q, k), (scores,))
    values = Operation(OperationKind.VALUES, (scores, k), (q,))
    for its in (made, values):
        (kernel,) = stored_scores(its, MODEL, plan, share)
        assert kernel.batch == 3 * 2 * 8 / tp
    one = Tensor("scores", 64, Cut.HEADS)
    softmax = (Operation(OperationKind.SOFTMAX, (n,), (n,)) for n in (scores, one))
    assert [softmax_is_fused(its, MODEL, sl.Plan(microbatch_size=3)) for its in softmax] == [
        True,
        False,
    ]


def test_what_an_input_gradient_keeps_for_the_weights_gradient_is_counted_once():
    """The gradient of a product's output stays where it is until W; nothing copies it."""
    plan = sl.Plan()
    scheme = Resident(NumberBytes(2, 4, gathered=2, made=0, reduced=4))
    walk = UnitBackward(of=sizes_of(MODEL, plan, 2, 4)["layer"], scheme=scheme, kind="I")
    walk.ledger.op(("temporaries", 100.0))
    walk._linear(40.0, (0.0, 0.0), output=100.0)
    assert (walk.ledger.peak, walk.ledger.held["activations"]) == (140.0, 100.0)
