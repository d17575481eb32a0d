"""What lesson 10 tells people to say holds over a sweep of what it depends on."""

import re

import pytest

import simlab as sl
from simlab.lessons.words import LANGUAGES, entry
from simlab.operations import failures
from simlab.operations.checkpoints import Checkpoints
from simlab.operations.fleet import Fleet
from simlab.operations.goodput import at_interval, mean_goodput
from simlab.operations.long_run import LongRun

LLAMA_3_S = 54 * 24 * 3600 / 419  # between failures on 16,384 GPUs


@pytest.mark.parametrize("gpus", [90_000, 100_000, 110_000])
def test_at_a_hundred_thousand_gpus_nearly_half_of_the_time_is_lost(gpus):
    costs = {"checkpoint_s": 60.0, "mtbf_s": LLAMA_3_S * 16_384 / gpus}
    interval_s = failures.daly_interval_s(**costs)
    lost = 1 - failures.expected_goodput(interval_s=interval_s, restart_s=600.0, **costs)
    assert 0.4 < lost < 0.5 and interval_s < 10 * 60 and 25 * 60 < costs["mtbf_s"] < 35 * 60
    # the restart costs more than all checkpoints: it decides
    quick = 1 - failures.expected_goodput(interval_s=interval_s, restart_s=0.0, **costs)
    free = failures.daly_interval_s(3.0, costs["mtbf_s"])
    cheap = 1 - failures.expected_goodput(
        interval_s=free, restart_s=600.0, checkpoint_s=3.0, mtbf_s=costs["mtbf_s"]
    )
    assert quick < cheap < lost


@pytest.mark.parametrize("tongue", LANGUAGES)
def test_where_6_n_is_right_for_llama_3_depends_on_how_attention_is_counted(tongue):
    """The two lengths that the answer names, and the share of attention at the third."""
    text = entry("b14.follow_ups.1.answer", tongue=tongue)
    lengths = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]{3,}", text)]
    model = sl.load_model("llama-3-8b")
    embedding = 6 * model.vocab * model.hidden
    for part, length in zip((1.0, 0.5), lengths, strict=False):
        attention = part * 3 * model.layers * 4 * length * model.hidden
        assert attention == pytest.approx(embedding, rel=0.05), length
        longest = part * 3 * model.layers * 4 * lengths[2] * model.hidden
        assert longest > 6 * model.parameters - embedding, "most of the work"
    assert len(lengths) == 3


@pytest.mark.parametrize("replicas", [16, 32, 64])
def test_a_batch_that_replicas_divide_is_hardly_ever_divided_by_one_replica_less(replicas):
    batches = range(4 * replicas, 64 * replicas, replicas)
    divided = [batch for batch in batches if batch % (replicas - 1) == 0]
    assert len(divided) < 0.1 * len(batches)


@pytest.mark.parametrize("nodes", [512, 2048])
@pytest.mark.parametrize("write_s", [600.0, 1200.0])
def test_a_checkpoint_is_not_worth_beginning_before_the_last_one_is_complete(nodes, write_s):
    """C is the standstill alone, so sqrt(2CM) asks for intervals shorter than the writing takes."""
    checkpoints = Checkpoints(stall_s=2.0, write_s=write_s)
    run = LongRun(work_s=30 * 86400.0, fleet=Fleet(nodes=nodes, spares=8), checkpoints=checkpoints)
    young_s = failures.young_interval_s(checkpoints.stall_s, run.mtbf_s)
    assert young_s < write_s
    found = {each: mean_goodput(at_interval(run, each), seeds=2)[0] for each in (young_s, write_s)}
    assert found[write_s] > 1.05 * found[young_s]


@pytest.mark.parametrize("tokens", [[8, 8, 8, 8], [2, 4, 8, 18], [1, 1, 1, 29]])
def test_a_mean_over_dp_and_cp_ranks_is_right_only_with_equally_many_valid_tokens(tokens):
    """Each rank has a sum of its tokens' gradients; all of them weigh alike in the loss."""
    sums = [count * (1.0 + rank) for rank, count in enumerate(tokens)]
    right = sum(sums) / sum(tokens)
    averaged = sum(total / count for total, count in zip(sums, tokens)) / len(tokens)
    assert (averaged == pytest.approx(right)) == (len({*tokens}) == 1)
