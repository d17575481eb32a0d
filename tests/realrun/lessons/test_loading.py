"""What ranks wait for their batches, with four threads as the ranks: in one of several trials, for what
else a machine does makes sleeps longer."""

from threading import Barrier, Thread

import pytest

from realrun.lessons.demonstrations.loading import loaded
from tests.support.patience import eventually

COMPUTE_S, QUICK_S = 0.1, 0.01


class Ranks(dict):
    """The mesh of a rank whose all-reduce waits for the others."""

    def __init__(self, rank, barrier):
        super().__init__(dp=self)
        self.rank, self.barrier = rank, barrier

    def all_reduce(self, tensor):
        self.barrier.wait()
        return self

    def wait(self):
        pass


def on_all(load_s, readers):
    """[what each rank answers]"""
    barrier, answers = Barrier(len(load_s)), [None] * len(load_s)

    def run(rank):
        answers[rank] = loaded(Ranks(rank, barrier), load_s, COMPUTE_S, readers)

    threads = [Thread(target=run, args=(rank,)) for rank in range(len(load_s))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.parametrize("slow_s", [0.05, 0.08])
def test_the_rank_that_loads_slowly_waits_for_data_and_the_others_for_it(slow_s):
    def seen():
        late = on_all([QUICK_S, QUICK_S, slow_s, QUICK_S], readers=0)
        assert late[0]["step"] >= slow_s + COMPUTE_S
        waits_for_data = max(range(4), key=lambda rank: late[rank]["data"])
        return waits_for_data == 2 == min(range(4), key=lambda rank: late[rank]["others"])

    assert eventually(seen)


def test_loading_ahead_hides_what_is_loaded_faster_than_a_step_computes():
    def seen():
        late, ahead = (on_all([QUICK_S, QUICK_S, 0.08, QUICK_S], readers) for readers in (0, 1))
        return ahead[2]["data"] < late[2]["data"] / 2 and ahead[0]["step"] < late[0]["step"] - 0.04

    assert eventually(seen)


def test_where_all_wait_for_data_more_readers_help():
    def seen():
        one, four = (on_all([0.3] * 4, readers) for readers in (1, 4))
        assert min(rank["data"] for rank in one) > 0.1
        return max(rank["data"] for rank in four) < 0.1 and one[0]["step"] > 2 * four[0]["step"]

    assert eventually(seen)
