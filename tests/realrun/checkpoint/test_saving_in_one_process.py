"""Saving and loading by one process, in a process group and without one: what is refused, what is
told when something goes wrong, and what a manifest says."""

import json
import re

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from realrun.checkpoint import save as checkpoint
from realrun.checkpoint.errors import CheckpointError
from realrun.checkpoint.files import check_file, read_manifest, write_manifest

X = torch.arange(6.0).view(2, 3)


@pytest.fixture
def group(tmp_path):
    """torch's default group of this process alone; afterwards no other group is left."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    assert len(dist.distributed_c10d._world.pg_map) == 1
    dist.destroy_process_group()


@pytest.mark.parametrize("given", [False, True])
def test_a_group_of_one_saves_and_loads_in_its_own_group_or_in_one_for_now(group, tmp_path, given):
    path = checkpoint.save(tmp_path, 5, {"x": X}, {"n": [1]}, group=group if given else None)
    assert path == tmp_path / "step-000005"
    into = {"x": torch.zeros(2, 3)}
    assert checkpoint.load(path, into, group=group if given else None) == {"n": [1]}
    assert into["x"].equal(X)
    with pytest.raises(CheckpointError, match="does not hold 'y'"):
        checkpoint.load(path, {"x": X.clone(), "y": X.clone()})
    saving = checkpoint.begin_save(tmp_path, 6, {"x": X}, {})
    assert saving.wait() == saving.wait() == tmp_path / "step-000006" and saving.done()


def test_a_part_of_a_tensor_is_saved_where_it_belongs(group, tmp_path):
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    path = checkpoint.save(tmp_path, 1, {"x": distribute_tensor(X, mesh, [Shard(1)])}, {})
    into = torch.zeros(2, 3)
    checkpoint.load(path, {"x": into})
    assert into.equal(X)
    partial = DTensor.from_local(X, mesh, [Partial()])
    with pytest.raises(CheckpointError, match=r"'x' is placed as .*: reduce what is partial"):
        checkpoint.save(tmp_path, 2, {"x": partial}, {})
    assert checkpoint.complete(tmp_path) == [1]
    for name in list(dist.distributed_c10d._world.pg_map)[1:]:
        dist.destroy_process_group(name)


@pytest.mark.parametrize(
    "tensors, extra, says",
    [({"x": "text"}, {}, "'x' is str 'text', not a name and a tensor"),
     ({3: X}, {}, r"(?s)3 is Tensor tensor\(.*, not a name and a tensor"),
     ({"x": X.to(torch.complex64)}, {}, r"'x' is torch.complex64; a checkpoint can hold F64, F32,"),
     ({"x": X}, {"a": object()}, "extra is not JSON: Object of type object is not JSON"),
     ({"x": X}, {(1, 2): 3}, "extra is not JSON: keys must be str")],
)  # fmt: skip
def test_what_cannot_be_saved_is_told_and_leaves_nothing(tmp_path, tensors, extra, says):
    saving = checkpoint.begin_save(tmp_path / "new", 1, tensors, extra)
    with pytest.raises(CheckpointError, match=says):
        saving.wait()
    assert checkpoint.complete(tmp_path / "new") == [] and not list(tmp_path.rglob("*.json"))


def test_a_manifest_says_its_format_step_and_torch_and_where_each_part_is(tmp_path):
    path = checkpoint.save(tmp_path, 12, {"x": X, "y": torch.ones(3).bfloat16()}, {"a": None})
    manifest = json.loads((path / "manifest.json").read_text())
    assert {key: manifest[key] for key in ("format", "step", "torch", "extra")} == {
        "format": 1, "step": 12, "torch": torch.__version__, "extra": {"a": None},
    }  # fmt: skip
    name = "rank-00000.safetensors"
    assert manifest["tensors"]["x"]["parts"][0].items() >= {
        "offsets": [0, 0], "shape": [2, 3], "file": name,
    }.items()  # fmt: skip
    assert (manifest["tensors"]["y"]["dtype"], manifest["tensors"]["y"]["shape"]) == ("BF16", [3])
    assert list(manifest["files"]) == [name] and manifest.keys() == {
        "format", "step", "torch", "extra", "files", "tensors", "sha256",
    }  # fmt: skip


def test_what_is_saved_is_what_was_when_it_began_and_parts_are_whole(tmp_path):
    """Views, a parameter and numbers without dimensions."""
    wide = torch.arange(12.0).view(3, 4)
    tensors = {"view": wide[:, 1:3].T, "parameter": torch.nn.Parameter(X), "one": torch.tensor(7)}
    path = checkpoint.save(tmp_path, 1, tensors, None)
    starts = [its["parts"][0]["start_byte"] for its in read_manifest(path)["tensors"].values()]
    # of the view, not of its storage
    assert sorted(start - min(starts) for start in starts) == [0, 8, 8 + 6 * 4]
    into = {"view": torch.zeros(2, 3), "parameter": torch.zeros(2, 3), "one": torch.tensor(0)}
    assert checkpoint.load(path, into) is None
    assert into["view"].equal(wide[:, 1:3].T) and into["parameter"].equal(X)
    assert into["one"].item() == 7


@pytest.mark.parametrize(
    "error, says",
    [(OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
     (RuntimeError("two\n  lines"), "two lines"), (KeyError(), "KeyError")],
)  # fmt: skip
def test_whatever_goes_wrong_is_one_line_that_says_what_was_done(
    tmp_path, monkeypatch, error, says
):
    path = checkpoint.save(tmp_path, 1, {"x": X}, {})

    def fails(*arguments, **options):
        raise error

    monkeypatch.setattr("torch.distributed.checkpoint.load", fails)
    monkeypatch.setattr("torch.distributed.checkpoint.save", fails)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path, {"x": X.clone()})
    assert str(caught.value) == f"loading {str(path)!r} failed: {says}"
    with pytest.raises(CheckpointError) as caught:
        checkpoint.save(tmp_path, 2, {"x": X}, {})
    assert str(caught.value) == f"saving {str(tmp_path / 'step-000002')!r} failed: {says}"


def test_of_several_ranks_the_lowest_is_told(tmp_path, monkeypatch):
    from torch.distributed.checkpoint.api import CheckpointException

    def fails(*arguments, **options):
        raise CheckpointException("save", {3: (ValueError("c"), []), 1: (ValueError("a"), [])})

    monkeypatch.setattr("torch.distributed.checkpoint.save", fails)
    with pytest.raises(CheckpointError, match=r"step-000001' failed on rank 1: a$"):
        checkpoint.save(tmp_path, 1, {"x": X}, {})


def test_a_file_that_cannot_be_read_is_not_said_to_be_missing(tmp_path):
    with pytest.raises(CheckpointError, match=r"' is not readable: it is no regular file$"):
        check_file(tmp_path, 1, "")


def test_a_manifest_of_another_format_or_changed_by_hand_is_refused(tmp_path):
    path = checkpoint.save(tmp_path, 1, {"x": X}, {})
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"step": 1', '"step": 2'))
    with pytest.raises(
        CheckpointError, match=r"is corrupt: its checksum is [0-9a-f]{64}, expected"
    ):
        read_manifest(path)
    for changed in ("[]", "{", '{"format": 1}', ""):
        (path / "manifest.json").write_text(changed)
        with pytest.raises(CheckpointError, match="is not a checkpoint's manifest"):
            read_manifest(path)
    (path / "manifest.json").unlink()
    write_manifest(path, {"format": 2, "files": {}, "tensors": {}})
    with pytest.raises(CheckpointError, match="has format 2, this version reads 1"):
        read_manifest(path)
    with pytest.raises(CheckpointError, match=re.escape(f"no checkpoint in {str(tmp_path)!r}")):
        read_manifest(tmp_path)


def test_only_folders_with_a_manifest_and_a_steps_name_are_checkpoints(tmp_path):
    for name in ("step-000007", "step-12", "step-0000071", "step-000008.tmp-1", "other", "step-x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "step-000009").mkdir()  # no manifest
    assert checkpoint.complete(tmp_path) == [7, 71]
    assert checkpoint.complete(str(tmp_path / "none")) == []
    assert checkpoint.latest(tmp_path / "none") is None


@pytest.mark.parametrize(
    "other, says",
    [(torch.zeros(3, 2), r"'x' is F32 \[2, 3\] in .*step-000001', F32 \[3, 2\] here"),
     (X.double(), r"'x' is F32 \[2, 3\] in .*, F64 \[2, 3\] here"),
     (X.to(torch.complex64), r"'x' is F32 \[2, 3\] in .*, torch.complex64 \[2, 3\] here")],
)  # fmt: skip
def test_another_shape_or_type_is_refused(tmp_path, other, says):
    path = checkpoint.save(tmp_path, 1, {"x": X}, {})
    with pytest.raises(CheckpointError, match=says):
        checkpoint.load(path, {"x": other.clone()})


def test_a_group_that_is_given_is_used_and_kept_and_one_for_now_is_ended(
    group, tmp_path, monkeypatch
):
    made, ended = [], []
    new, end = dist.new_group, dist.destroy_process_group
    monkeypatch.setattr(dist, "new_group", lambda **kw: made.append(new(**kw)) or made[-1])
    monkeypatch.setattr(dist, "destroy_process_group", lambda pg: ended.append(pg) or end(pg))
    path = checkpoint.save(tmp_path, 1, {"x": X}, {}, group=group)
    checkpoint.load(path, {"x": X.clone()}, group=group)
    assert not made and not ended
    checkpoint.load(checkpoint.save(tmp_path, 2, {"x": X}, {}), {"x": X.clone()})
    assert len(made) == 2 and ended == made
    with pytest.raises(CheckpointError):
        checkpoint.load(path, {"y": X.clone()})
    assert len(made) == 3 and ended == made
    monkeypatch.undo()


def test_an_old_checkpoint_that_cannot_be_deleted_does_not_fail_the_new_one(tmp_path, monkeypatch):
    """It is none any more; the next save removes what is left of it."""
    checkpoint.save(tmp_path, 1, {"x": X}, {})

    def refuses(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("os.unlink", refuses)
        checkpoint.save(tmp_path, 2, {"x": X}, {}, keep=1)
    assert checkpoint.complete(tmp_path) == [2]
    assert len(list(tmp_path.glob("step-000001.tmp-*"))) == 1
    checkpoint.save(tmp_path, 3, {"x": X}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000003"]


def test_a_save_that_hangs_keeps_no_process_alive_and_nobody_is_warned(tmp_path, recwarn):
    saving = checkpoint.begin_save(tmp_path, 7, {"x": X}, {})
    assert saving._thread.daemon and saving._thread.name == "save step 7"
    checkpoint.load(saving.wait(), {"x": X.clone()})
    assert not recwarn.list
