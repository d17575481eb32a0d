"""Checkpoints of two and four processes: cut in other ways when loaded, refused when damaged,
unharmed by a kill, no pickle in them."""

import json
import os
import pickle
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from realrun.checkpoint import save as checkpoint
from realrun.checkpoint.errors import CheckpointError
from realrun.checkpoint.files import write_manifest
from realrun.checkpoint.policy import Checkpoints
from simlab.spec.plan import Plan
from tests.support.patience import PATIENCE_S
from tests.support.realrun_processes import go_on

LAYERS = 2
EXTRA = {"scale": 65536.0, "plan": {"tp": 2, "zero": 0}, "position": [3, 17], "note": "ü"}


@pytest.fixture(scope="module")
def two(ranks):
    return ranks(2)


@pytest.fixture(scope="module")
def four(ranks):
    return ranks(4)


def whole(name):
    """The tensor of that name, uncut: numbers that no other name has."""
    import torch

    shape, dtype = {
        "up": ((12, 4), torch.float32), "down": ((4, 12), torch.bfloat16), "uneven": ((5,), torch.float64), "norm": ((4,), torch.float32),
        "count": ((), torch.int64), "mask": ((3, 2), torch.bool), "none": ((0, 4), torch.float32),
    }[name.split(".")[-1]]  # fmt: skip
    values = torch.randn(
        shape, generator=torch.Generator().manual_seed(sum(map(ord, name))), dtype=torch.float64
    )
    return (values * 100).to(dtype)


def state(tp, stages, world, fill=True):
    """{name: tensor} of this rank's stage, where `stages` x dp x `tp` ranks make up the world;
    without `fill`, zeros."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(
        "cpu", (stages, world // stages // tp, tp), mesh_dim_names=("pp", "dp", "tp")
    )
    tensors = {}
    for layer in range(LAYERS):
        if layer * stages // LAYERS == dist.get_rank() // (world // stages):
            for part, placement in {
                "up": Shard(0),
                "down": Shard(1),
                "uneven": Shard(0),
                "norm": Replicate(),
            }.items():
                value = whole(f"layers.{layer}.{part}") * fill
                tensors[f"layers.{layer}.{part}"] = distribute_tensor(
                    value, mesh["dp", "tp"], [Replicate(), placement]
                )
            tensors |= plain([f"layers.{layer}.{part}" for part in ("count", "mask", "none")], fill)
    return tensors


def plain(names, fill=True):
    return {name: whole(name) if fill else whole(name).zero_() for name in names}


def names():
    return [
        f"layers.{layer}.{part}"
        for layer in range(LAYERS)
        for part in ("up", "down", "uneven", "norm", "count", "mask", "none")
    ]


def save(rank, folder, step, tp, stages, world, keep=None):
    return str(checkpoint.save(folder, step, state(tp, stages, world), EXTRA, keep=keep))


def load(rank, path, tp, stages, world):
    """([names whose values are not those that were saved], extra, number of names)."""
    tensors = state(tp, stages, world, fill=False)
    extra = checkpoint.load(path, tensors)
    return different(tensors), extra, len(tensors)


def different(tensors):
    gathered = {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        for name, tensor in tensors.items()
    }
    return [name for name, tensor in gathered.items() if not tensor.equal(whole(name))]


def refusal(rank, call, *arguments):
    """What a function says when it refuses."""
    try:
        call(rank, *arguments)
    except CheckpointError as error:
        return str(error)


def saved(ranks, folder, step=10, tp=2, stages=1, keep=None):
    """The path of a checkpoint that `ranks` made."""
    (path,) = set(ranks(save, str(folder), step, tp, stages, ranks.count, keep))
    return Path(path)


# what is saved is what is loaded
# --------------------------------------------------------------------------


@pytest.mark.parametrize("tp,stages", [(1, 1), (2, 1), (4, 1), (2, 2), (1, 2)])
def test_what_four_ranks_saved_is_loaded_by_any_other_cut(two, four, tmp_path, tp, stages):
    path = saved(four, tmp_path, tp=tp, stages=stages)
    for loading, layouts in (
        (four, [(1, 1), (2, 1), (4, 1), (2, 2)]),
        (two, [(1, 1), (2, 1), (1, 2)]),
    ):
        for layout in layouts:
            for wrong, extra, count in loading(load, str(path), *layout, loading.count):
                assert (wrong, extra, count) == ([], EXTRA, len(names()) // layout[1]), layout


@pytest.mark.parametrize("tp", [1, 2])
def test_what_two_ranks_saved_is_loaded_by_four_and_by_one_process_without_a_group(
    two, four, tmp_path, tp
):
    path = saved(two, tmp_path, tp=tp)
    assert all(wrong == [] for wrong, _, _ in four(load, str(path), 4, 1, 4))
    tensors = plain(names(), fill=False)
    assert checkpoint.load(path, tensors) == EXTRA and different(tensors) == []


def test_replicated_tensors_are_written_once_and_by_all_ranks_in_turn(four, tmp_path):
    path = saved(four, tmp_path, tp=1)
    manifest = json.loads((path / "manifest.json").read_text())
    parts = [part["file"] for tensor in manifest["tensors"].values() for part in tensor["parts"]]
    assert len(parts) == len(names()) and len(set(parts)) == 4


# refused, by name, on all ranks
# ---------------------------------------------------------------------------


def one_refusal(ranks, path, tp=2, stages=1):
    (text,) = set(ranks(refusal, load, str(path), tp, stages, ranks.count))
    with pytest.raises(CheckpointError) as refused:
        checkpoint.verify(path)
    assert str(refused.value) == text
    return text


def load_other(rank, path, change):
    """Load with rank 1's tensors changed: the other rank must hear of it."""
    import torch

    tensors = state(2, 1, 2, fill=False)
    if change == "without":
        del tensors["layers.0.up"], tensors["layers.1.mask"]
    elif rank == 1:
        tensors["layers.7.up"] = torch.zeros(2)
    checkpoint.load(path, tensors)


def test_other_names_are_refused(two, tmp_path):
    path = str(saved(two, tmp_path))
    expected = {
        "more": f"{path!r} does not hold 'layers.7.up'",
        "without": f"{path!r} holds 'layers.0.up', 'layers.1.mask', which no rank has",
    }
    for change, text in expected.items():
        assert two(refusal, load_other, path, change) == [text] * 2


def save_bad(rank, folder, change):
    import torch

    tensors = state(2, 1, 2)
    if rank == 1:
        complex64 = torch.zeros(2, dtype=torch.complex64)
        other = {"dtype": {"x": complex64}, "shape": {"layers.0.norm": torch.zeros(3)}}
        tensors |= other.get(change, {})
        if change == "disk":
            from realrun.checkpoint import storage as checkpoint_storage

            checkpoint_storage.write_safetensors = full_disk
    try:
        checkpoint.save(folder, 20, tensors, {})
    finally:
        if change == "disk" and rank == 1:
            from realrun.checkpoint.files import write_safetensors

            checkpoint_storage.write_safetensors = write_safetensors


def full_disk(*arguments):
    raise OSError(28, "No space left on device")


def test_what_one_rank_cannot_save_is_told_on_all_and_leaves_no_checkpoint(two, tmp_path):
    expected = {
        "dtype": "'x' is torch.complex64; a checkpoint can hold F64, ",
        "shape": "'layers.0.norm' is a shard of F32 [4] on rank 0, a tensor of F32 [3] on rank 1",
        "disk": "step-000020' failed on rank 1: [Errno 28] No space left on device",
    }
    saved(two, tmp_path)
    for change, text in expected.items():
        for told in two(refusal, save_bad, str(tmp_path), change):
            assert text in told, change
        assert checkpoint.complete(tmp_path) == [10]
    saved(two, tmp_path, step=30)
    assert sorted(os.listdir(tmp_path)) == ["step-000010", "step-000030"]


# killed
# ---------------------------------------------------------------------------------------------------


def save_and_die(rank, folder, moment, victims):
    """Save step 20 keeping one; the victims kill themselves at that moment."""
    from realrun.checkpoint import files as checkpoint_files

    def die(*arguments, **options):
        os.kill(os.getpid(), signal.SIGKILL)

    written = []

    def die_at_the_second(tensor, tensor_bytes=checkpoint_files._bytes):
        written.append(tensor)
        return tensor_bytes(tensor) if len(written) < 2 else die()

    if rank in victims:
        place, name, replacement = {
            "half a file": (checkpoint_files, "_bytes", die_at_the_second), "no manifest": (checkpoint_files, "write_manifest", die),
            "no rename": (Path, "rename", die), "deletion": (shutil, "rmtree", die),
        }[moment]  # fmt: skip
        setattr(place, name, replacement)
    return refusal(rank, save, folder, 20, 2, 1, 2, 1)


@pytest.mark.parametrize(
    "moment,victims",
    [("half a file", [1]), ("half a file", [0, 1]), ("no manifest", [0]), ("no rename", [0])],
)
def test_a_kill_during_a_save_leaves_the_older_checkpoint_and_the_next_save_cleans_up(
    two, tmp_path, moment, victims
):
    saved(two, tmp_path)
    with pytest.raises((EOFError, ConnectionResetError)):
        two(save_and_die, str(tmp_path), moment, victims)
    assert checkpoint.complete(tmp_path) == [10]
    left = list(tmp_path.glob("*.tmp-*"))
    # a rank that survives begins to remove it, and may get to the end
    assert len(left) == 1 or (len(left) == 0 and len(victims) == 1)
    assert moment == "no rename" or not any((one / "manifest.json").exists() for one in left)
    path = checkpoint.latest(tmp_path)
    assert all(wrong == [] for wrong, _, _ in two(load, str(path), 2, 1, 2))
    assert saved(two, tmp_path, step=20) == checkpoint.latest(tmp_path) == tmp_path / "step-000020"
    assert sorted(os.listdir(tmp_path)) == ["step-000010", "step-000020"]


def test_a_kill_while_an_old_checkpoint_is_deleted_leaves_the_new_one_and_no_half(two, tmp_path):
    saved(two, tmp_path)
    with pytest.raises((EOFError, ConnectionResetError)):
        two(save_and_die, str(tmp_path), "deletion", [0])
    assert checkpoint.complete(tmp_path) == [20] and len(os.listdir(tmp_path)) == 2
    checkpoint.verify(checkpoint.latest(tmp_path))
    saved(two, tmp_path, step=30)
    assert sorted(os.listdir(tmp_path)) == ["step-000020", "step-000030"]


def test_the_ranks_that_survive_a_kill_are_told(two, tmp_path):
    saved(two, tmp_path)
    go_on(two._processes)
    for pipe in two._pipes:
        pipe.send((save_and_die, (str(tmp_path), "half a file", [1])))
    assert two._pipes[0].poll(PATIENCE_S), "rank 0 waits for ever"
    assert "step-000020' failed" in two._pipes[0].recv()["value"]
    two.close()


# while training goes on
# -----------------------------------------------------------------------------------


def save_while_training(rank, folder):
    """(whether the save was still going on after the collectives, whether it was done after `wait`,
    sum of the collectives)."""
    import threading

    import torch
    import torch.distributed as dist

    from realrun.checkpoint import storage as checkpoint_storage

    go_on, write = threading.Event(), checkpoint_storage.write_safetensors
    checkpoint_storage.write_safetensors = lambda *arguments: go_on.wait() and write(*arguments)
    tensors, extra, total = state(2, 1, 2), {"losses": [1.0]}, torch.zeros(1000)
    saving = checkpoint.begin_save(folder, 10, tensors, extra)
    for _ in range(200):
        dist.all_reduce(part := torch.ones(1000))
        total += part
        for tensor in tensors.values():
            tensor.zero_()
    extra["losses"].append(2.0)
    going_on = not saving.done()
    go_on.set()
    path, checkpoint_storage.write_safetensors = saving.wait(), write
    done, tensors = saving.done(), state(2, 1, 2, fill=False)
    extra = checkpoint.load(path, tensors)
    return going_on, done, total.sum().item(), different(tensors), extra


def test_a_save_in_the_background_keeps_what_there_was_while_collectives_run_and_tensors_change(
    two, tmp_path
):
    assert (
        two(save_while_training, str(tmp_path))
        == [(True, True, 400_000.0, [], {"losses": [1.0]})] * 2
    )


# no pickle
# ------------------------------------------------------------------------------------------------


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def forged(path, change):
    """Change the manifest and give it the checksum that fits."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    (path / "manifest.json").unlink()
    change(manifest)
    write_manifest(path, manifest)


class Counter:
    """A training whose state is one number."""

    scaler = None

    def __init__(self):
        import torch

        self.state, self.values = self, {"count": torch.zeros(())}

    def unobserved(self):
        return nullcontext()

    def tensors(self):
        return self.values

    def take(self, tensors):
        self.values = tensors


def resumed(rank, folders):
    """(steps that are done, the number in the state, what was said) where this rank looks into its
    own of `folders`."""
    job = SimpleNamespace(
        name="count", resume=True, checkpoint_every=1, checkpoint_folder=Path(folders[rank]),
        sizes={}, batch=1, warmup=0, steps=9, executed=Plan(),
    )  # fmt: skip
    training = Counter()
    try:
        done = Checkpoints(job, training, rank, lambda text: None).resume()
    except CheckpointError as error:
        return str(error)
    return done, training.values["count"].item()


def counted(folder, *steps):
    """A folder with checkpoints of these steps."""
    import torch

    for step in steps:
        extra = {"steps": step, "training": {"sizes": {}, "sequences in a step": 1}}
        checkpoint.save(folder, step, {"count": torch.tensor(float(step))}, extra)
    return str(folder)


def test_rank_0_says_from_which_checkpoint_all_ranks_go_on(two, tmp_path):
    """A network file system may show a checkpoint to one host before the other."""
    first, second = counted(tmp_path / "a", 3), counted(tmp_path / "b", 3, 5)
    assert two(resumed, [first, second]) == [(3, 3.0)] * 2
    missing, none = two(resumed, [second, first])
    assert missing == none and "step-000005': manifest.json is missing" in missing
    empty = counted(tmp_path / "empty")
    assert two(resumed, [empty, second]) == [(0, 0.0)] * 2
    manifest = Path(first) / "step-000003" / "manifest.json"
    manifest.write_text("{}")
    assert all("is not a checkpoint's manifest" in said for said in two(resumed, [first, second]))


def test_nothing_in_a_folder_is_unpickled_even_if_the_manifest_is_forged(two, tmp_path):
    import hashlib

    path, mark = saved(two, tmp_path), tmp_path / "executed"
    bomb, file = pickle.dumps(Bomb(mark)), path / "rank-00000.safetensors"
    pickle.loads(bomb).close()
    assert mark.exists()  # it works
    mark.unlink()

    (path / ".metadata").write_bytes(bomb)  # what DCP's own reader unpickles
    assert all(wrong == [] for wrong, _, _ in two(load, str(path), 2, 1, 2))
    good, manifest = file.read_bytes(), (path / "manifest.json").read_bytes()
    (path / "manifest.json").write_bytes(bomb)
    assert "manifest.json' is not a checkpoint's manifest" in one_refusal(two, path)
    (path / "manifest.json").write_bytes(manifest)
    file.write_bytes(bomb)
    assert "is truncated" in one_refusal(two, path)
    file.write_bytes(bomb + bytes(len(good) - len(bomb)))
    assert "is corrupt" in one_refusal(two, path)

    def entry(data):
        return {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    forged(path, lambda manifest: manifest["files"].update({file.name: entry(file.read_bytes())}))
    checkpoint.verify(path)
    assert any(wrong for wrong, _, _ in two(load, str(path), 2, 1, 2))  # other numbers, no more
    file.write_bytes(bomb)
    forged(path, lambda manifest: manifest["files"].update({file.name: entry(bomb)}))
    assert all("is not within its file" in text for text in two(refusal, load, str(path), 2, 1, 2))
    assert not mark.exists()
