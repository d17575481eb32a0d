"""The clock offset between ranks: on one machine it is known."""

import time

import pytest
from realrun_ranks import on_ranks

MARGIN_S = 1e-4


def measured(rank, world, shifts_s):
    from realrun.comm import clock

    clock.now = lambda: time.perf_counter() + shifts_s[rank]
    begun_s = time.perf_counter()
    return *clock.offset_from_rank_0(rank, world), time.perf_counter() - begun_s


@pytest.mark.parametrize("shifts_s", [(0.0, 0.0, 0.0), (0.0, 5.0, -0.25), (2.0, 0.0, 2.0)])
def test_offsets_are_right_within_their_stated_uncertainty(shifts_s):
    """Processes of one machine read one clock, so what was added to it here is the whole truth."""
    from realrun.comm.clock import ROUNDS

    found = on_ranks(3, measured, 3, shifts_s)
    assert found[0][:2] == (0.0, 0.0)
    for (offset_s, uncertainty_s, took_s), shift_s in zip(found[1:], shifts_s[1:]):
        assert abs(offset_s - (shifts_s[0] - shift_s)) <= uncertainty_s + MARGIN_S
        assert 0 < uncertainty_s <= took_s / ROUNDS / 2  # half of the shortest round


def measured_over_a_lopsided_line(rank, delay_s):
    from types import SimpleNamespace

    import torch.distributed as dist

    from realrun.comm import clock

    def late(tensor, source):
        dist.recv(tensor, source)
        time.sleep(delay_s * rank)

    clock.dist = SimpleNamespace(send=dist.send, recv=late)
    return clock.offset_from_rank_0(rank, 2)


def test_an_answer_that_takes_longer_than_the_question_is_within_the_uncertainty():
    """The one thing Cristian's method cannot see. Half of the delay goes into the offset, so the
    uncertainty must cover that."""
    offset_s, uncertainty_s = on_ranks(2, measured_over_a_lopsided_line, 0.04)[1]
    assert abs(offset_s) <= uncertainty_s
    assert abs(offset_s + 0.02) <= uncertainty_s - 0.02 + MARGIN_S  # what the rest of the trip took


def test_a_rank_alone_is_its_own_clock():
    from realrun.comm.clock import offset_from_rank_0

    assert offset_from_rank_0(0, 1) == (0.0, 0.0)
