"""The table of a layer that `memory --explain` prints, and what goes with it."""

import pytest
from simlab_commands import one_object, run

import simlab as sl

LAYER = "memory --model llama-3-8b --tp 8 --sequence-parallel yes --explain"


def test_it_prints_the_table_of_a_layer_of_the_plan(capsys):
    status, out, err = run(capsys, LAYER)
    table = sl.layer_table(sl.load_model("llama-3-8b"), sl.Plan(tp=8, sequence_parallel=True))
    assert (status, out, err) == (0, f"{table}\n", "")


def test_of_a_model_with_several_kinds_of_layers_it_prints_each(capsys):
    status, out, _ = run(capsys, "memory --model llama-4-maverick --tp 8 --explain")
    heads = [line for line in out.splitlines() if " of 48: " in line]
    assert (status, heads) == (
        0,
        ["24 of 48: dense layer", "12 of 48: layer", "12 of 48: full layer"],
    )
    assert [part.count("rotary") for part in out.split(" of 48: ")[1:]] == [1, 1, 0]
    assert [part.count("router") for part in out.split(" of 48: ")[1:]] == [0, 1, 1]


def test_its_data_add_up_to_its_sums(capsys):
    answer = one_object(run(capsys, f"{LAYER} --json")[1])
    for column in ("parameters", "flops", "kept_bytes"):
        parts = sum(its[column] for its in answer["operations"])
        assert parts == pytest.approx(answer[column]) and parts > 0
    assert [each["kind"] for its in answer["operations"] for each in its["sent"]] == [
        "all_gather",
        "reduce_scatter",
    ] * 2


def test_the_states_of_another_optimizer_are_counted(capsys):
    """Adam's two moments are 8 bytes of a parameter's 16 in fp32, momentum is 4."""
    each = {}
    for name in ("adam", "sgd", "adafactor", "muon"):
        answer = one_object(
            run(capsys, f"memory --model llama-3-8b --recipe fp32 --optimizer {name} --json")[1]
        )
        each[name] = answer["bytes_per_parameter"]
    assert (each["adam"], each["sgd"]) == (16, 12)
    assert 8 < each["adafactor"] < 8.01
    ends = 2 * 128256 * 4096 / 8030261248  # of the embedding and the head, which are Adam's
    assert each["muon"] == pytest.approx(12 + 4 * ends, rel=1e-4)
    out = run(capsys, "memory --params 1e9 --optimizer sgd")[1]
    assert "sgd, not Adam: 4 bytes per parameter, not 8" in out


@pytest.mark.parametrize("arguments, words", [
    ("--params 7e9 --optimizer muon", "depends on the shapes of matrices; give a model"),
    ("--params 7e9 --tp 2", "--tp 2 is of a plan"), ("--explain --tp 2", "give --model"),
    ("--explain --model gpt2 --recipe zero", "--recipe zero is of model states"),
    ("--params 7e9 --dp 0", "0"), ("--explain --model gpt2 --tp 7", "7"),
])  # fmt: skip
def test_what_does_not_go_with_it_is_refused(capsys, arguments, words):
    status, out, err = run(capsys, f"memory {arguments}")
    assert (status, out) == (2, "") and words in err and err.count("\n") == 1
