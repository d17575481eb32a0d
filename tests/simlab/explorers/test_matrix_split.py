"""The split of a layer's matrices: what a rank's boxes add up to, its heads, and what is sent."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.explorers import explorer
from simlab.lowering.kernels import Matmul, layer_kernels

SPLIT = explorer("matrix_split")
CASES = [(model, tp, kv) for model in ("llama-3-8b", "megatron-7.5b") for tp in (2, 8) for kv in (1, 4, 32)]  # fmt: skip


def area(mark, at):
    return (mark.x1[at] - mark.x0[at]) * (mark.y1[at] - mark.y0[at])


@pytest.mark.parametrize(("name", "tp", "kv"), CASES)
def test_a_ranks_rows_and_columns_are_the_matrices_that_it_multiplies_with(name, tp, kv):
    chart = SPLIT.answer(SPLIT.start(model=name, tp=tp, kv_heads=kv)).pictures[0]
    held = [0.0] * tp
    for mark in chart.marks:
        for at, label in enumerate(mark.labels):
            first, last = (int(rank) for rank in (label.split("–") * 2)[:2])
            for rank in range(first, last + 1):
                held[rank] += area(mark, at)
    model = replace(sl.load_model(name), kv_heads=kv)
    kernels = layer_kernels(model, sl.Plan(tp=tp)).forward
    own = sum(kernel.n * kernel.k for kernel in kernels if isinstance(kernel, Matmul))
    assert held == pytest.approx([own] * tp)
    drawn = sum(area(mark, at) for mark in chart.marks for at in range(len(mark.x0)))
    parts = model.layer_parameters  # with biases, where the model has them
    biases = model.bias * ((model.heads + 2 * kv) * model.head_size + model.ffn + 2 * model.hidden)
    assert drawn == pytest.approx(parts["attention"] + parts["mlp"] - biases)


@pytest.mark.parametrize(("tp", "kv"), [(2, 8), (8, 8), (8, 2), (4, 1)])
def test_a_rank_has_the_key_head_of_each_of_its_query_heads(tp, kv):
    """Ainslie et al. 2023: query head q uses key and value head q // (heads / kv heads)."""
    heads, chart = 32, SPLIT.answer(SPLIT.start(tp=tp, kv_heads=kv)).pictures[1]
    every = []
    for mark in chart.marks:
        queries, keys = (
            set(range(int(x0 - left), int(x1 - left)))
            for x0, x1, left in zip(mark.x0, mark.x1, (0, heads + 2))
        )
        said = [label.split("–") for label in mark.labels]
        assert [[int(its[0]), int(its[-1])] for its in said] == [
            [min(its), max(its)] for its in (queries, keys)
        ]
        assert keys == {query // (heads // kv) for query in queries}
        every += queries
    assert sorted(every) == list(range(heads))


def test_two_all_reduces_a_pass_and_with_sequence_parallelism_gathers_and_scatters():
    """Shoeybi et al. 2019, figure 3; Korthikanti et al. 2022, figure 5, whose backward gathers the
    input of both column-parallel products once more."""
    found = []
    for sequence_parallel in (False, True):
        layer = SPLIT.answer(SPLIT.start(tp=4, sequence_parallel=sequence_parallel)).pictures[2]
        sent = {mark.name.en: [*mark.labels] for mark in layer.marks if mark.labels and mark.name}
        found.append({name: [label[0] for label in labels] for name, labels in sent.items()})
        names = {mark.name.en for mark in layer.marks if mark.name}
        outside = "cut along the sequence" if sequence_parallel else "whole on every rank"
        inside = {outside, "cut by heads or columns", "on other ranks", "kept for the backward"}
        assert names == inside | set(sent)
    assert found == [
        {"all-reduce": [*"BFBF"]},
        {"all-gather": [*"FBBFBB"], "reduce-scatter": [*"BFBF"]},
    ]


def test_the_bytes_are_those_of_rings_over_the_hidden_states():
    answer = SPLIT.answer(SPLIT.start(tp=4))
    hidden = 8192 * 4096 * 2  # tokens, width, bytes of Llama 3 8B
    ring = 2 * 2 * 3 / 4 * hidden / 2**20  # two all-reduces
    assert [row.values[0] for row in answer.figures[-2:]] == [f"{ring:.1f} MiB"] * 2


def test_copies_of_key_heads_are_said_where_there_are_any():
    assert "copy" not in SPLIT.answer(SPLIT.start(tp=8, kv_heads=8)).note.en
    answer = SPLIT.answer(SPLIT.start(tp=8, kv_heads=2))
    assert "4 ranks hold a copy" in answer.note.en
    assert [row.values[0] for row in answer.figures[1:3]] == ["4", "1"]
