"""Fewer key and value heads than tensor-parallel ranks: each rank has a whole one, in every place."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.layer.parameters import partial_parameters, stage_parameters, unit_tensors
from simlab.lowering.kernels import Matmul, layer_kernels
from simlab.memory.activations import layer_activations_bytes, layer_tensors

LLAMA = sl.load_model("llama-3-70b")
"""Heads of 128 numbers: 64 of queries, and 8 of keys and of values."""
COPY = 2 * 128 * 8192
"""The weights that make a head's keys and values."""


def products(model, plan):
    kernels = layer_kernels(model, plan).forward
    return sum(its.n * its.k for its in kernels if isinstance(its, Matmul))


@pytest.mark.parametrize("tp", [1, 8, 16, 64])
def test_a_rank_holds_the_weights_that_its_products_read(tp):
    plan = sl.Plan(tp=tp)
    numbers = stage_parameters(LLAMA, plan, 1)
    assert numbers - 2 * 8192 == products(LLAMA, plan)
    assert sum(rows * row for rows, row in unit_tensors(LLAMA, plan, "layer")) == numbers


def test_sixteen_ranks_hold_a_head_each():
    numbers = stage_parameters(LLAMA, sl.Plan(tp=16), 1) - 2 * 8192
    # queries and output, keys and values, and the MLP's three matrices
    assert numbers == 2 * 4 * 128 * 8192 + COPY + 3 * 8192 * 28672 / 16 == 54_525_952


@pytest.mark.parametrize("tp", [8, 16, 64])
def test_keys_and_values_of_a_whole_head_are_kept(tp):
    plan = sl.Plan(tp=tp, seq=1024)
    tensors = layer_tensors(LLAMA, plan, "none")
    assert tensors["k"] == tensors["v"] == 2 * 1024 * 128
    assert tensors["q"] == 2 * 1024 * 128 * 64 / tp
    # per op a layer keeps its input, q, v, attention's result and its statistics, two numbers of
    # the MLP and what two all-reduces left
    kept = 2 * 64 * 128 / tp + 128 + 28672 / tp + 4 * 8192
    per_op = layer_activations_bytes(LLAMA, replace(plan, recompute="per-op"), "per-op")
    assert per_op == 1024 * (2 * kept + 4 * 64 / tp)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_gradients_of_copies_are_summed_up(sequence_parallel):
    """The copies meet the queries of their own ranks only, so that without a sum over them they
    would no longer be copies."""
    for tp, copies in ((8, 0), (16, COPY)):
        plan = sl.Plan(tp=tp, sequence_parallel=sequence_parallel)
        norms = 2 * 8192 * sequence_parallel
        assert partial_parameters(LLAMA, plan, 3) == 3 * (copies + norms)


def test_biases_of_copied_heads_are_copies_too():
    model = sl.Model(layers=1, hidden=64, heads=8, kv_heads=2, vocab=100)
    numbers = {tp: stage_parameters(model, sl.Plan(tp=tp), 1) for tp in (2, 8)}
    # a head of 8: on 8 ranks a query head is left of 4, and of the MLP an eighth of 256 columns
    fewer = 3 * 8 * (64 + 1 + 64) + (128 - 32) * (64 + 1 + 64)
    assert numbers[2] - numbers[8] == fewer
