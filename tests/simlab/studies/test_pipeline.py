"""A pipeline step as explorers ask for it: closed forms, chunks, and what is refused."""

import pytest

import simlab as sl
from simlab.studies.pipeline import PipelineCase

CASE = {"stages": 4, "microbatches": 8, "forward_s": 0.01, "backward_s": 0.02}


def test_1f1b_takes_the_time_of_its_closed_form_and_each_latency_of_its_path():
    free = PipelineCase(schedule="1f1b", **CASE).trace()
    assert free.step_s == pytest.approx((8 + 4 - 1) * 0.03)
    late = PipelineCase(schedule="1f1b", **CASE, link_s=0.001).trace()
    assert late.step_s > free.step_s


@pytest.mark.parametrize("chunks", [2, 4])
def test_chunks_divide_the_ranks_share_and_shorten_the_bubble(chunks):
    trace = PipelineCase(schedule="interleaved-1f1b", **CASE, chunks=chunks).trace()
    assert trace.metadata["stages"] == 4 * chunks
    # Narayanan et al. 2021, arXiv 2104.04473, section 2.2: (p - 1) / (v m)
    assert sl.bubble(trace).idle_over_ideal == pytest.approx(3 / (chunks * 8))


def test_the_weight_gradients_share_divides_the_backward():
    trace = PipelineCase(schedule="zb-h1", **CASE, weight_share=0.25).trace()
    lasting = {span.kind: span.end_s - span.start_s for span in trace.compute()}
    assert lasting["I"] == pytest.approx(0.015) and lasting["W"] == pytest.approx(0.005)


def test_a_search_is_told_the_times():
    assert PipelineCase(schedule="zb-auto", **CASE).trace().metadata["name"].startswith("zb-auto")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "1f2b"}, "1f2b"),
        ({"schedule": "1f1b", "chunks": 2}, "chunks = 2: 1f1b has no chunks"),
        ({"schedule": "1f1b", "forward_s": -1.0}, "-1.0"),
        ({"schedule": "1f1b", "stages": 0}, "0 pipeline stages"),
    ],
)
def test_what_cannot_be_is_refused(change, said):
    with pytest.raises(sl.InputError, match=said):
        PipelineCase(**(CASE | change)).trace()
