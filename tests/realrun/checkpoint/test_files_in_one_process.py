"""Checkpoints of more files than there are processes, written by hand and loaded by one."""

import hashlib
import json
import struct
from types import SimpleNamespace

import pytest
import torch

from realrun.checkpoint import save as checkpoint
from realrun.checkpoint.errors import CheckpointError
from realrun.checkpoint.files import check_file, write_manifest, write_safetensors
from realrun.checkpoint.policy import Checkpoints
from simlab.errors import InputError
from simlab.spec.plan import Plan

FILES = 5
ROWS = torch.arange(FILES * 6.0).view(FILES * 2, 3)


@pytest.fixture
def path(tmp_path):
    """A checkpoint whose one tensor of ten rows lies in five files, with a whole one in the last."""
    folder = tmp_path / "step-000007"
    folder.mkdir()
    files, parts = {}, []
    for number in range(FILES):
        name = f"rank-{number:05d}.safetensors"
        tensors = [ROWS[2 * number : 2 * number + 2]] + [torch.ones(2)] * (number == FILES - 1)
        starts, files[name] = write_safetensors(
            folder / name, ["rows", "ones"][: len(tensors)], tensors
        )
        parts.append(
            {"offsets": [2 * number, 0], "shape": [2, 3], "file": name, "start_byte": starts[0]}
        )
    ones = {"offsets": [0], "shape": [2], "file": name, "start_byte": starts[1]}
    manifest = {
        "format": 1,
        "step": 7,
        "extra": {"steps": 7},
        "files": files,
        "tensors": {
            "rows": {"shape": [FILES * 2, 3], "dtype": "F32", "parts": parts},
            "ones": {"shape": [2], "dtype": "F32", "parts": [ones]},
        },
    }
    write_manifest(folder, manifest)
    return folder


def loaded(path):
    tensors = {"rows": torch.zeros(FILES * 2, 3), "ones": torch.zeros(2)}
    extra = checkpoint.load(path, tensors)
    return extra, tensors


def test_one_process_loads_all_files(path):
    extra, tensors = loaded(path)
    assert extra == {"steps": 7}
    assert tensors["rows"].equal(ROWS) and tensors["ones"].equal(torch.ones(2))
    assert checkpoint.complete(path.parent) == [7] and checkpoint.latest(path.parent) == path


@pytest.mark.parametrize("number", range(FILES))
@pytest.mark.parametrize("where", ["first number", "last number", "header"])
def test_one_changed_bit_in_any_of_them_is_found_before_anything_is_loaded(path, number, where):
    file = path / f"rank-{number:05d}.safetensors"
    data = bytearray(file.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    data[{"first number": 8 + length, "last number": -1, "header": 9}[where]] ^= 1
    file.write_bytes(data)
    for refuse in (loaded, checkpoint.verify):
        with pytest.raises(CheckpointError, match=f"{file.name}' is corrupt: checksum"):
            refuse(path)


class Gathered:
    """torch.distributed of one of several ranks, whose others have found nothing wrong."""

    def __init__(self, monkeypatch, rank, ranks):
        import torch.distributed as dist

        self.ranks = ranks
        monkeypatch.setattr(dist, "get_rank", lambda group: rank if group is self else None)
        monkeypatch.setattr(dist, "get_world_size", lambda group: ranks if group is self else 99)
        monkeypatch.setattr(dist, "all_gather_object", self.gather)

    def gather(self, told, own, group):
        assert group is self and len(told) == self.ranks
        told[:] = [own] * len(told)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7])
def test_each_of_some_ranks_checks_its_share_and_all_files_are_in_one(path, ranks, monkeypatch):
    """A share is at most one file more than another: nobody reads what others have read."""
    checked = []
    monkeypatch.setattr(checkpoint, "check_file", lambda file, **its: checked[-1].append(file.name))
    for rank in range(ranks):
        checked.append([])
        checkpoint._verified_together(
            path,
            {"rows": torch.zeros(FILES * 2, 3), "ones": torch.zeros(2)},
            Gathered(monkeypatch, rank, ranks),
        )
    names = [f"rank-{number:05d}.safetensors" for number in range(FILES)]
    assert sorted(name for share in checked for name in share) == names
    counts = [len(share) for share in checked]
    assert max(counts) - min(counts) <= 1


def test_the_sizes_and_sums_of_files_are_those_that_the_disk_has(path):
    files = json.loads((path / "manifest.json").read_text())["files"]
    for name, its in files.items():
        data = (path / name).read_bytes()
        assert its == {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        check_file(path / name, **its)


def test_a_name_that_leads_out_of_the_folder_is_never_opened(tmp_path):
    for name in ("../other.safetensors", "/etc/passwd", "in/here"):
        folder = tmp_path / f"step-{len(name):06d}"
        folder.mkdir()
        its = {"size_bytes": 0, "sha256": ""}
        write_manifest(folder, {"format": 1, "files": {name: its}, "tensors": {}})
        with pytest.raises(CheckpointError, match="which is not in this folder"):
            checkpoint.verify(folder)


def test_numbers_begin_at_a_multiple_of_their_width(tmp_path):
    """Wide ones first: so the file can be mapped, whatever lies before."""
    tensors = {
        "bytes": torch.ones(3, dtype=torch.uint8),
        "wide": torch.ones(3, dtype=torch.float64),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "single": torch.ones(3),
    }
    path = checkpoint.save(tmp_path, 1, tensors, {})
    manifest = json.loads((path / "manifest.json").read_text())
    starts = {name: its["parts"][0]["start_byte"] for name, its in manifest["tensors"].items()}
    assert all(starts[name] % tensor.itemsize == 0 for name, tensor in tensors.items())
    assert sorted(starts, key=starts.get) == ["wide", "single", "half", "bytes"]


# steps and what is kept
# ------------------------------------------------------------------------------------------


def test_the_newest_so_many_up_to_the_saved_step_are_kept(tmp_path):
    """A step that is saved again after going back leaves the later ones, which it did not make."""
    for step in (1, 2, 3, 10):
        checkpoint.save(tmp_path, step, {"x": torch.ones(1)}, {})
    checkpoint.save(tmp_path, 4, {"x": torch.ones(1)}, {}, keep=2)
    assert checkpoint.complete(tmp_path) == [3, 4, 10]
    checkpoint.save(tmp_path, 11, {"x": torch.ones(1)}, {}, keep=1)
    assert checkpoint.complete(tmp_path) == [11]


def test_a_step_saved_again_has_the_new_numbers_and_nothing_is_left_over(tmp_path):
    for value in (1.0, 2.0):
        checkpoint.save(tmp_path, 1_234_567, {"x": torch.full((1,), value)}, {"value": value})
    into = {"x": torch.zeros(1)}
    assert checkpoint.load(checkpoint.latest(tmp_path), into) == {"value": 2.0}
    assert into["x"].item() == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["step-1234567"]


def test_what_a_killed_save_left_is_removed_by_the_next_and_never_loaded(tmp_path):
    left = tmp_path / "step-000002.tmp-0badf00d"
    left.mkdir()
    (left / "manifest.json").write_text("{}")
    assert checkpoint.latest(tmp_path) is None
    checkpoint.save(tmp_path, 1, {"x": torch.ones(1)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_tensors_are_copied_when_a_save_begins(tmp_path):
    value = torch.ones(4)
    saving = checkpoint.begin_save(tmp_path, 1, {"x": value[1:3]}, {})
    value.zero_()
    into = {"x": torch.zeros(2)}
    checkpoint.load(saving.wait(), into)
    assert saving.done() and into["x"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "step, keep, says",
    [(-1, None, "step = -1: give a whole number, at least 0"), (True, None, "step = True"),
     (1.0, None, "step = 1.0"), (1, 0, "keep = 0: give a whole number, at least 1")],
)  # fmt: skip
def test_a_step_that_is_none_is_refused(tmp_path, step, keep, says):
    with pytest.raises(InputError, match=says):
        checkpoint.save(tmp_path, step, {"x": torch.ones(1)}, {}, keep=keep)
    assert not list(tmp_path.iterdir())


# what is said
# ------------------------------------------------------------------------------------------


def test_of_many_names_five_are_said_and_the_rest_counted(tmp_path):
    saved = {f"layer {number}": torch.ones(1) for number in range(8)}
    path = checkpoint.save(tmp_path, 1, saved, {})
    with pytest.raises(CheckpointError, match=r"'layer 4' and 3 more, which no rank has"):
        checkpoint.load(path, {})
    with pytest.raises(CheckpointError, match=r"does not hold 'other 0', .* 'other 4' and 1 more$"):
        checkpoint.load(path, {f"other {number}": torch.ones(1) for number in range(6)})


def test_a_file_is_one_that_the_safetensors_form_describes(tmp_path):
    tensors = [torch.arange(6.0).view(2, 3), torch.ones(4, dtype=torch.bool)]
    write_safetensors(tmp_path / "x", ["a", "b"], tensors)
    data = (tmp_path / "x").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0 and len(data) == 8 + length + 24 + 4
    assert json.loads(data[8 : 8 + length]) == {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BOOL", "shape": [4], "data_offsets": [24, 28]},
    }
    with pytest.raises(CheckpointError, match=f"is truncated: size {len(data)} bytes"):
        check_file(tmp_path / "x", len(data) + 1, "")
    with pytest.raises(CheckpointError, match=f"is too long: size {len(data)} bytes"):
        check_file(tmp_path / "x", len(data) - 1, "")
    with pytest.raises(CheckpointError, match=r"y' is missing$"):
        check_file(tmp_path / "y", 1, "")


def test_a_save_that_failed_tells_whoever_waits_for_it_and_the_next_one_works(
    tmp_path, monkeypatch
):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("realrun.checkpoint.storage.write_safetensors", full)
        failed = checkpoint.begin_save(tmp_path, 1, {"x": torch.ones(1)}, {})
        for _ in range(2):
            with pytest.raises(
                CheckpointError, match=r"step-000001' failed.*No space left on device"
            ):
                failed.wait()
    assert list(tmp_path.iterdir()) == []  # what is half written would keep the disk full
    assert checkpoint.save(tmp_path, 2, {"x": torch.ones(1)}, {}).name == "step-000002"


def test_a_checkpoint_of_something_else_is_no_training_to_go_on_with(tmp_path):
    job = SimpleNamespace(
        resume=True,
        checkpoint_every=None,
        checkpoint_folder=tmp_path,
        sizes={},
        batch=1,
        executed=Plan(),
    )
    for extra in ({"value": 1}, [1]):
        checkpoint.save(tmp_path, 1, {"x": torch.ones(1)}, extra)
        with pytest.raises(InputError, match="step-000001 is no checkpoint of a training"):
            Checkpoints(job, None, 0, print).resume()
