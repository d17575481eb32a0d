"""When a training writes checkpoints and from where it goes on, with a training of one number in one
process."""

import re
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from realrun.checkpoint import save as checkpoint
from realrun.checkpoint.errors import CheckpointError
from realrun.checkpoint.files import read_manifest
from realrun.checkpoint.policy import Checkpoints, look_closely
from realrun.checkpoint.whole import last_whole
from realrun.parallel.precision import LossScaler
from simlab.errors import InputError
from simlab.spec.plan import Plan


class Counter:
    """A training that counts its steps. What is asked of it must be asked where nobody counts."""

    def __init__(self, scaler=None):
        self.scaler, self.state, self.count, self.alone = scaler, self, torch.zeros(()), False

    @contextmanager
    def unobserved(self):
        """Nobody counts inside."""
        self.alone = True
        yield
        self.alone = False

    def tensors(self):
        assert self.alone
        return {"count": self.count.clone()}

    def take(self, tensors):
        assert self.alone
        self.count = tensors["count"]


def job_in(folder, **fields):
    return SimpleNamespace(**{
        "name": "count", "sizes": {"layers": 2}, "batch": 6, "plan": {"dp": 3}, "warmup": 1,
        "steps": 9, "resume": False, "skip_damaged": False, "keep": 2,
        "executed": Plan(precision="fp32"), "checkpoint_every": 3, "checkpoint_folder": folder,
    } | fields)  # fmt: skip


def run(job, training, say=lambda text: None, end=None):
    """The step at which it began: train up to `end`, as a session does."""
    checkpoints = Checkpoints(job, training, 0, say)
    first = checkpoints.resume()
    for number in range(first, end or job.warmup + job.steps):
        training.count += 1
        if checkpoints.is_time(number + 1):
            checkpoints.begin(number + 1)
    checkpoints.finish()
    return first


def test_every_third_step_is_saved_and_the_newest_two_are_kept(tmp_path):
    assert run(job_in(tmp_path), Counter()) == 0
    assert checkpoint.complete(tmp_path) == [6, 9]
    for step in (6, 9):
        into = {"count": torch.zeros(())}
        assert checkpoint.load(tmp_path / f"step-{step:06d}", into) == {
            "steps": step, "plan": {"dp": 3}, "scaler": None,
            "training": {
                "sizes": {"layers": 2}, "sequences in a step": 6, "precision": "fp32",
            },
        }  # fmt: skip
        assert into["count"].item() == step


def test_a_training_goes_on_from_the_newest_and_says_so(tmp_path):
    run(job_in(tmp_path), Counter(), end=7)
    said, again = [], Counter()
    assert run(job_in(tmp_path, resume=True), again, said.append) == 6
    assert again.count.item() == 10
    assert said == [f"count: goes on from {tmp_path / 'step-000006'}"]


def test_a_training_without_a_checkpoint_to_go_on_from_says_so(tmp_path):
    """One that writes checkpoints begins: a job's script says --resume the first time, too. One that
    only reads them was told a wrong folder."""
    said = []
    assert run(job_in(tmp_path / "new", resume=True), Counter(), said.append, end=2) == 0
    assert said == [f"count: no checkpoint in {tmp_path / 'new'} yet: begins at step 0"]
    with pytest.raises(InputError, match="other' has no complete checkpoint to go on from"):
        run(job_in(tmp_path / "other", resume=True, checkpoint_every=None), Counter())
    assert not (tmp_path / "other").exists()


def test_nobody_looks_for_checkpoints_where_none_is_asked_for(tmp_path):
    run(job_in(tmp_path), Counter())
    assert run(job_in(tmp_path, checkpoint_every=None), Counter()) == 0
    assert checkpoint.complete(tmp_path) == [6, 9]


def test_the_loss_scale_goes_on_too(tmp_path):
    scaler = LossScaler(scale=8.0, interval=5)
    scaler.state = 4.0, 3
    run(job_in(tmp_path), Counter(scaler), end=3)
    assert read_manifest(tmp_path / "step-000003")["extra"]["scaler"] == [4.0, 3]
    other = LossScaler(scale=2.0)
    run(job_in(tmp_path, resume=True), Counter(other), end=3)
    assert other.state == [4.0, 3]
    run(job_in(tmp_path, resume=True), Counter(), end=3)  # as fp32 does, which has none
    without = tmp_path / "without"
    run(job_in(without), Counter(), end=3)
    kept = LossScaler(scale=2.0)
    run(job_in(without, resume=True), Counter(kept), end=3)
    assert kept.state == [2.0, 0]


@pytest.mark.parametrize(
    "fields, says",
    [({"resume": False}, "has checkpoints up to step-000009: resume, or give another folder"),
     ({"sizes": {"layers": 4}}, "with layers = 2, not layers = 4: the losses would not go on"),
     ({"executed": Plan(precision="bf16")}, "with precision = fp32, not bf16: the losses would"),
     ({"batch": 12}, "with sequences in a step = 6, not 12: the losses would not go on"),
     ({"sizes": {"layers": 2, "routed_parts": 2, "capacity": 8}}, "the tokens of 1 parts of a sequence .*, not of 2: .* give the same cp"),
     ({"steps": 8}, r"is of step 9, and 9 are asked for .* nothing is left to do")],
)  # fmt: skip
def test_what_cannot_go_on_is_refused_and_changes_nothing(tmp_path, fields, says):
    run(job_in(tmp_path), Counter())
    training = Counter()
    with pytest.raises(InputError, match=says):
        run(job_in(tmp_path, **({"resume": True} | fields)), training)
    assert training.count.item() == 0 and checkpoint.complete(tmp_path) == [6, 9]


def test_one_save_at_a_time_and_the_last_is_waited_for(tmp_path, monkeypatch):
    waited, begun = [], []

    def begin(folder, step, tensors, extra, keep):
        begun.append((step, keep, list(waited)))
        return SimpleNamespace(wait=lambda: waited.append(step))

    monkeypatch.setattr(checkpoint, "begin_save", begin)
    checkpoints = Checkpoints(job_in(tmp_path, keep=5), Counter(), 0, print)
    for steps in filter(checkpoints.is_time, range(1, 8)):
        checkpoints.begin(steps)
    assert begun == [(3, 5, []), (6, 5, [3])] and waited == [3]
    checkpoints.finish()
    checkpoints.finish()
    assert waited == [3, 6]


def test_another_rank_goes_on_from_what_rank_0_sees(tmp_path, monkeypatch):
    """It looks at nothing itself: its own folder has later steps."""
    run(job_in(tmp_path), Counter())
    seen = ["step-000003", {"steps": 3, "training": {}}, None]

    def broadcast(told, src):
        assert told == [None] * 3 and src == 0
        told[:] = seen

    def load(path, tensors):
        assert path == tmp_path / "step-000003"
        return seen[1]

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    monkeypatch.setattr(checkpoint, "load", load)
    assert Checkpoints(job_in(tmp_path, resume=True), Counter(), 1, print).resume() == 3
    seen = [None, None, None]
    assert Checkpoints(job_in(tmp_path, resume=True), Counter(), 1, print).resume() == 0
    seen = [None, None, "what rank 0 says"]
    with pytest.raises(CheckpointError, match="what rank 0 says"):
        Checkpoints(job_in(tmp_path, resume=True), Counter(), 1, print).resume()


def test_the_last_whole_one_is_offered_for_one_that_is_damaged_and_taken_when_asked_for(tmp_path):
    run(job_in(tmp_path), Counter())
    damaged = tmp_path / "step-000009" / "rank-00000.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    whole = tmp_path / "step-000006"
    assert last_whole(tmp_path) == whole
    offered = f"the last whole one is {str(whole)!r}, and --skip-damaged goes on from that"
    with pytest.raises(CheckpointError, match=re.escape(offered)):
        run(job_in(tmp_path, resume=True), Counter())
    job, said, training = job_in(tmp_path, resume=True, skip_damaged=True), [], Counter()
    look_closely(job, said.append)
    assert [line.split(" is damaged")[0] for line in said] == [str(damaged.parent)]
    assert run(job, training, end=7) == 6 and training.count.item() == 7


def test_what_is_saved_now_is_what_was_done_and_is_not_saved_twice(tmp_path):
    training = Counter()
    checkpoints = Checkpoints(job_in(tmp_path), training, 0, print)
    checkpoints.resume()
    training.count += 3
    checkpoints.begin(3)
    saving = checkpoints.saving
    assert checkpoints.save_now(3) == tmp_path / "step-000003" and saving.waited
    training.count += 2
    assert checkpoints.save_now(5) == tmp_path / "step-000005"
    assert checkpoint.complete(tmp_path) == [3, 5] and checkpoints.saving is None
