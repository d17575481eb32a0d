"""The simulated memory pool: PyTorch's documented rules, and what holds for any use of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlab as sl
from simlab.studies.caching_allocator import CachingAllocator, pool_steps

MIB = 2**20


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
    ],
)
def test_a_tensor_takes_what_pytorch_documents(size, allocated, reserved):
    """The table of sizes in c10/cuda/CUDACachingAllocator.cpp: 512 B, 2 MiB, 20 MiB, 2 MiB. (Of 12
    MiB at most 1 MiB is left over and stays with the tensor.)"""
    pool = CachingAllocator()
    pool.allocate(size)
    assert (pool.allocated_bytes, pool.reserved_bytes) == (allocated, reserved)


def test_the_smallest_free_block_is_taken_and_neighbours_are_joined():
    pool = CachingAllocator()
    large, small = pool.allocate(64 * MIB), pool.allocate(16 * MIB)
    pool.free(large)
    pool.free(small)
    first, second = pool.allocate(14 * MIB), pool.allocate(30 * MIB)
    assert pool.reserved_bytes == 80 * MIB and pool.device_calls == 2
    pool.free(first)
    pool.free(second)
    assert pool.allocate(64 * MIB) and pool.reserved_bytes == 80 * MIB


def test_free_segments_go_back_before_the_pool_is_out_of_memory():
    pool = CachingAllocator(100 * MIB)
    pool.free(pool.allocate(60 * MIB))
    pool.allocate(80 * MIB)
    assert pool.reserved_bytes == 80 * MIB
    with pytest.raises(sl.InputError, match=r"40\.0 MiB asked for, 80\.0 MiB in"):
        pool.allocate(40 * MIB)
    with pytest.raises(sl.InputError, match="no live tensor 99"):
        pool.free(99)


def test_live_tensors_that_pin_parts_of_segments_make_the_pool_fail_with_enough_room_in_sum():
    """Four of them share a segment, so no segment is free as a whole; pages of a segment that can
    grow are free one by one."""
    for expandable in (False, True):
        pool = CachingAllocator(800 * MIB, expandable=expandable)
        for whole in [pool.allocate(80 * MIB) for _ in range(10)]:
            pool.free(whole)
        for tensor in [pool.allocate(20 * MIB) for _ in range(40)][::2]:
            pool.free(tensor)
        assert pool.reserved_bytes - pool.allocated_bytes == 400 * MIB
        if expandable:
            assert pool.allocate(200 * MIB) and pool.reserved_bytes == 600 * MIB
        else:
            with pytest.raises(sl.InputError, match=r"400\.0 MiB reserved and unused"):
                pool.allocate(200 * MIB)


def test_pages_that_were_returned_from_the_middle_are_not_given_out_again():
    pool = CachingAllocator(40 * MIB, expandable=True)
    first, second, third = (pool.allocate(10 * MIB) for _ in range(3))
    pool.free(second)
    fourth = pool.allocate(
        20 * MIB
    )  # the ten that are free are returned, and twenty come at the end
    assert pool.reserved_bytes == 40 * MIB == pool.allocated_bytes
    for tensor in (first, third, fourth):
        pool.free(tensor)
    assert pool.allocated_bytes == 0 and pool.allocate(30 * MIB) and pool.reserved_bytes <= 40 * MIB


@given(
    st.lists(st.tuples(st.integers(1, 64 * MIB), st.booleans()), max_size=40),
    st.booleans(),
    st.sampled_from([1e12, 600 * MIB]),
)
def test_what_is_reserved_covers_what_is_allocated_and_blocks_fill_their_segments(
    uses, expandable, capacity
):
    pool, live = CachingAllocator(capacity, expandable=expandable), []
    for size, frees in uses:
        try:
            live.append((pool.allocate(size), size))
        except sl.InputError:
            continue
        assert pool.reserved_bytes <= capacity
        if frees:
            pool.free(live.pop(len(live) // 2)[0])
        assert sum(size for _, size in live) <= pool.allocated_bytes <= pool.reserved_bytes
    blocks = [b for segments in pool.pools.values() for one in segments for b in one]
    assert sum(block.size for block in blocks if block.mapped) == pool.reserved_bytes
    for number, _ in live:
        pool.free(number)
    assert pool.allocated_bytes == 0
    joined = [one for segments in pool.pools.values() for one in segments]
    assert all(len(one) == 1 for one in joined)


def test_a_step_allocates_what_the_layers_keep_and_a_second_one_asks_the_device_for_nothing():
    model = sl.load_model("llama-7b")
    first, second = pool_steps(model, [4096, 4096])
    kept = model.layers * sum(model.layer_activations(1, 4096, flash=True).values())
    assert kept <= first.allocated_bytes <= 1.01 * kept
    assert first.device_calls > 0 and second.device_calls == 0
    assert first.requests == second.requests == model.layers * 10 + 1
    with pytest.raises(sl.InputError, match="no lengths"):
        pool_steps(model, [])
