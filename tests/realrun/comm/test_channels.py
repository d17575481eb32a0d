"""Messages between two and three processes: pace, order, names."""

import os
import sys
import time
from types import SimpleNamespace

import pytest
from realrun_processes import both_directions
from realrun_ranks import on_ranks

SHAPE = (1, 8, 16)


def channels(rank, pace=None, offset_s=0.0):
    import torch

    from realrun.comm.channels import Channels

    return Channels(
        rank, torch.device("cpu"), both_directions(), clock_offset_s=offset_s, pace=pace
    )


def numbered(number):
    import torch

    return torch.full(SHAPE, float(number))


def value(tensor):
    """The number that fills `tensor`; all of it must be the same."""
    assert tuple(tensor.shape) == SHAPE and (tensor == tensor.flatten()[0]).all()
    return tensor.flatten()[0].item()


def take_in_another_order(rank):
    import torch

    mine = channels(rank)
    if rank == 0:
        for number in range(6):
            mine.send(numbered(number), 1)
        mine.finish_sending()
        return None
    inbox = mine.inbox(0, [f"m{number}" for number in range(6)], SHAPE, torch.float32)
    return {name: value(inbox.take(name)) for name in ("m3", "m0", "m5", "m1", "m4", "m2")}


def test_an_inbox_hands_out_messages_by_name_in_any_order():
    received = on_ranks(2, take_in_another_order)[1]
    assert received == {f"m{number}": float(number) for number in range(6)}


def facing(rank, count):
    """Both ranks send all they have before either receives."""
    import torch

    mine, peer = channels(rank), 1 - rank
    inbox = mine.inbox(peer, range(count), SHAPE, torch.float32)
    for number in range(count):
        mine.send(numbered(100 * rank + number), peer)
    received = [value(inbox.take(number)) for number in range(count)]
    mine.finish_sending()
    return received


def test_facing_sends_do_not_block_each_other():
    assert on_ranks(2, facing, 20) == [
        [100.0 + n for n in range(20)],
        [float(n) for n in range(20)],
    ]


def ring(rank, pace):
    """Each rank sends to both others; several senders into one receiver are told apart."""
    import torch

    mine = channels(rank, pace)
    mine.connect([(0, 1), (0, 2), (1, 2)])
    others = [other for other in range(3) if other != rank]
    inboxes = {other: mine.inbox(other, range(3), SHAPE, torch.float32) for other in others}
    for number in range(3):
        for other in others:
            mine.send(numbered(100 * rank + 10 * other + number), other)
    received = {
        other: [value(inboxes[other].take(number)) for number in range(3)]
        for other in reversed(others)
    }
    mine.finish_sending()
    return received


@pytest.mark.parametrize("pace", [None, (0.002, 1e6)])
def test_after_connecting_every_rank_hears_every_other_with_and_without_pace(pace):
    for rank, received in enumerate(on_ranks(3, ring, pace)):
        assert received == {
            other: [100.0 * other + 10 * rank + n for n in range(3)]
            for other in range(3)
            if other != rank
        }


def paced(rank, pace, count, offset_s):
    """[when each message was handed over] on rank 0, [when it could be used] on rank 1, both on the
    machine's clock.

    offset_s: what rank 1 believes its clock lacks of rank 0's; its `now` is set back by as much, so
    that this is true.
    """
    import torch
    import torch.distributed as dist

    from realrun.comm import channels as module

    if rank == 1:
        module.now = lambda: time.perf_counter() - offset_s
    mine = channels(rank, pace, offset_s if rank == 1 else 0.0)
    inbox = mine.inbox(0, range(count), SHAPE, torch.float32) if rank == 1 else None
    dist.barrier()
    times = []
    for number in range(count):
        if rank == 0:
            times.append(time.perf_counter())
            mine.send(numbered(number), 1)
        else:
            assert value(inbox.take(number)) == number
            times.append(time.perf_counter())
    mine.finish_sending()
    return times


@pytest.mark.parametrize("offset_s", [0.0, 1000.0, -3.5])
def test_a_message_on_a_paced_link_cannot_be_used_before_its_latency_is_over_whatever_the_clocks_say(
    offset_s,
):
    sent, used = on_ranks(2, paced, (0.15, None), 3, offset_s)
    assert all(late - early >= 0.15 for early, late in zip(sent, used))


def test_messages_on_a_link_of_limited_bandwidth_arrive_one_after_the_other():
    seconds_each = 0.1
    message_bytes = 4 * 8 * 16
    sent, used = on_ranks(2, paced, (0.05, message_bytes / seconds_each), 4, 0.0)
    assert all(when - sent[0] >= (n + 1) * seconds_each + 0.05 for n, when in enumerate(used))


def test_latency_does_not_occupy_a_link_and_links_to_different_ranks_do_not_share_their_bandwidth(
    monkeypatch,
):
    """By a clock that stands still: a message takes 0.5 s of its link, and each is handed over at
    once."""
    import torch

    from realrun.comm import channels as module

    buffers = []

    def isend(buffer, destination, group):
        buffers.append(buffer)
        return SimpleNamespace(is_completed=lambda: False)

    monkeypatch.setattr(module, "now", lambda: 100.0)
    monkeypatch.setattr(module, "dist", SimpleNamespace(isend=isend))
    mine = module.Channels(0, torch.device("cpu"), {1: None}, pace=(0.15, 4 * 8 * 16 / 0.5))
    for destination in (1, 1, 2, 1):
        mine.send(numbered(1), destination)
    arrivals_s = [buffer[: module.STAMP_BYTES].view(torch.float64).item() for buffer in buffers]
    assert arrivals_s == pytest.approx([100.65, 101.15, 100.65, 101.65])


def lent_buffer(rank):
    """A tensor may be reused by its maker as soon as it was sent? No: `send` keeps no copy, but it
    keeps it alive."""
    import gc

    import torch

    mine = channels(rank)
    if rank == 0:
        for number in range(8):
            mine.send(numbered(number), 1)  # nobody else holds the tensor
            gc.collect()
            torch.full(SHAPE, -1.0)  # would land in its memory
        mine.finish_sending()
        return None
    time.sleep(0.3)
    inbox = mine.inbox(0, range(8), SHAPE, torch.float32)
    return [value(inbox.take(number)) for number in range(8)]


def test_what_was_sent_lives_until_it_is_received():
    assert on_ranks(2, lent_buffer)[1] == [float(n) for n in range(8)]


def test_connecting_goes_through_all_pairs_and_both_ways_in_one_order_on_every_rank():
    """NCCL makes a connection when both ends have come to it: in one order for all, nobody waits in
    a circle."""
    import torch

    from realrun.comm.channels import Channels

    def order(rank):
        happened = []

        class Spy(Channels):
            def send(self, tensor, destination):
                happened.append((rank, destination))

            def inbox(self, source, *rest):
                happened.append((source, rank))
                return SimpleNamespace(take=lambda message: None)

        Spy(rank, torch.device("cpu"), groups={}).connect([(0, 1), (0, 2), (1, 2)])
        return happened

    everything = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    for rank in range(3):
        assert order(rank) == [pair for pair in everything if rank in pair]


@pytest.mark.parametrize("given, taken", [(None, "lo"), ("eth7", "eth7")])
def test_sockets_are_kept_on_loopback_unless_the_environment_names_an_interface(
    monkeypatch, given, taken
):
    from realrun.launch.worker import LOOPBACK, use_loopback

    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, given or "")
        if given is None:
            monkeypatch.delenv(name)
    monkeypatch.setattr("realrun.launch.worker.LOOPBACK", "lo")
    use_loopback()
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == (taken, taken)
    assert sys.platform != "linux" or LOOPBACK == "lo"
