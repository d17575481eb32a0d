"""What a run would go on from is looked at before any process is started: a damaged newest checkpoint
is told with the last whole one, and put aside on request; a training that is done is no failure."""

import json
import os
import re
import sys
from hashlib import sha256

import pytest
import torch
from realrun_processes import one_object

from realrun import Job
from realrun.checkpoint import save as checkpoint
from realrun.checkpoint.errors import CheckpointError, NothingLeft
from realrun.checkpoint.files import write_manifest
from realrun.checkpoint.resuming import look
from realrun.checkpoint.whole import last_whole, put_damaged_aside
from realrun.cli.jobs import jobs, values
from realrun.cli.main import parser
from realrun.cli.resumed import completed
from simlab.errors import InputError

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def saved(folder, *steps, **facts):
    job = Job(plan={"dp": 2}, out=str(folder))
    training = {"sizes": job.sizes, "sequences in a step": 2, "precision": "fp32"} | facts
    for step in steps:
        extra = {"steps": step, "training": training, "plan": {"dp": 2, "zero": 1}}
        checkpoint.save(folder, step, {"x": torch.full((64,), float(step))}, extra)


def flipped(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def removed(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def forged(change):
    """A damage: the manifest with a change, and the checksum that fits."""

    def damage(path):
        manifest = json.loads(path.read_bytes())
        del manifest["sha256"]
        path.unlink()
        write_manifest(path.parent, change(manifest) or manifest)

    return damage


def linked_to_zeros(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def a_pipe(path):
    """Whoever opens one to read waits for whoever writes into it."""
    path.unlink()
    os.mkfifo(path)


def emptied(path):
    """A file with no number in it, and a manifest that says so, with checksums that fit."""
    path = path.with_name("rank-00000.safetensors")
    path.write_bytes(b"")
    of_nothing = {"size_bytes": 0, "sha256": sha256().hexdigest()}
    forged(lambda manifest: manifest["files"].update({path.name: of_nothing}))(
        path.with_name("manifest.json")
    )


MANIFESTS = {
    "a pipe": a_pipe,
    "of a file that has fewer numbers": emptied,
    "of tensors without parts": forged(lambda manifest: manifest.update(tensors={"x": {}})),
    "of tensors that are none": forged(lambda manifest: manifest.update(tensors=[1])),
    "of another kind": lambda path: path.write_text("[" * 100_000),
    "without an end": linked_to_zeros,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "of no files": forged(lambda manifest: manifest.pop("files") and None),
    "of files that are none": forged(lambda manifest: manifest.update(files=None)),
    "of a list of files": forged(lambda manifest: manifest.update(files=["x"])),
    "of a file that is a number": forged(lambda manifest: manifest["files"].update(x=5)),
    "of a file without a size": forged(lambda manifest: manifest["files"].update(x={})),
    "of a file of no name": forged(
        lambda manifest: manifest["files"].update({"a\0": {"size_bytes": 1, "sha256": ""}})
    ),
    "of no tensors": forged(lambda manifest: manifest.pop("tensors") and None),
    "of nothing besides": forged(lambda manifest: manifest.pop("extra") and None),
}


@pytest.mark.parametrize("damage", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_no_save_wrote_is_refused_and_can_be_put_aside(tmp_path, job, damage):
    saved(tmp_path, 3, 6)
    damage(tmp_path / "step-000006" / "manifest.json")
    with pytest.raises(CheckpointError, match=r"the last whole one is .*step-000003"):
        look(job, print)
    job.skip_damaged = True
    look(job, print)
    assert last_whole(tmp_path) == tmp_path / "step-000003"


@pytest.mark.parametrize("says, change", [
    ("names '../x', which is not in this folder", lambda its: its["files"].update({"../x": {}})),
    ("'/etc/passwd', which is not a file of this", lambda its: its["tensors"]["x"]["parts"][0].update(file="/etc/passwd")),
    ("the file 'more' is {'more': 1}", lambda its: its["files"].update(more={"more": 1})),
    ("KeyError('parts')", lambda its: its["tensors"]["x"].pop("parts") and None),
    ("KeyError('pickle')", lambda its: its["tensors"]["x"].update(dtype="pickle")),
])  # fmt: skip
def test_what_no_save_writes_into_a_manifest_is_told(tmp_path, says, change):
    saved(tmp_path, 3)
    forged(change)(tmp_path / "step-000003" / "manifest.json")
    with pytest.raises(CheckpointError, match=re.escape(says)):
        checkpoint.verify(tmp_path / "step-000003")


@pytest.mark.parametrize(
    "extra",
    [
        {"steps": "6"},
        {"steps": None},
        {"steps": [6]},
        {"training": ["sizes"]},
        {"training": "sizes"},
        {"scaler": "big"},
        {"scaler": [1.0]},
    ],
)
def test_a_checkpoint_that_says_nonsense_of_its_training_is_none_of_one(tmp_path, job, extra):
    saved(tmp_path, 6)
    forged(lambda manifest: manifest["extra"].update(extra))(
        tmp_path / "step-000006" / "manifest.json"
    )
    with pytest.raises(InputError, match="is no checkpoint of a training by realrun"):
        look(job, print)


def test_a_checkpoint_whose_folder_is_renamed_is_not_gone_on_from(tmp_path, job):
    saved(tmp_path, 3)
    (tmp_path / "step-000003").rename(tmp_path / "step-999999")
    with pytest.raises(
        InputError, match="is of step 3, and named for another: rename it to step-000003"
    ):
        look(job, print)


def asked(folder, text):
    """What `text` of a command line, with --resume, asks for: the job, and the lines that were said."""
    said = []
    arguments = parser().parse_args([*text.split(), "--resume", "--checkpoints", str(folder)])
    (job,) = jobs(completed(values(arguments), said.append))
    return job, said


def test_what_a_checkpoint_knows_need_not_be_said_again(tmp_path):
    sizes = {"layers": 3, "hidden": 24, "heads": 2, "seq": 16}
    saved(tmp_path, 3, sizes=sizes, precision="bf16")
    job, said = asked(tmp_path, "--steps 9")
    assert job.sizes == sizes and job.executed.precision == "bf16"
    assert (job.given.dp, job.given.zero, job.batch) == (2, 1, 2)
    assert len(said) == 1 and said[0].startswith(f"as in {tmp_path / 'step-000003'}: ")
    assert all(f" --{name} {value}" in said[0] for name, value in sizes.items())
    look(job, print)


def test_another_plan_goes_on_with_the_sizes_and_the_batch(tmp_path):
    saved(tmp_path, 3, **{"sequences in a step": 8})
    job, _ = asked(tmp_path, "--tp 2 --microbatch-size 2 --layers 4")
    assert (job.given.dp, job.given.tp, job.given.zero, job.given.microbatches) == (1, 2, 0, 4)
    with pytest.raises(InputError, match="is of a training with layers = 2, not layers = 4"):
        look(job, print)
    job, _ = asked(tmp_path, "--tp 2 --microbatches 3")
    with pytest.raises(InputError, match="sequences in a step = 8, not 3"):
        look(job, print)


def test_layers_of_a_named_model_go_on_without_its_name(tmp_path):
    arguments = parser().parse_args(["--model", "llama-3-8b", "--hidden", "64", "--layers", "2"])
    (job,) = jobs(values(arguments))
    saved(tmp_path, 3, sizes=job.sizes, **{"sequences in a step": job.batch})
    again, said = asked(tmp_path, "--dp 1")
    assert again.sizes == job.sizes and "layer " not in said[0]
    look(again, print)
    other, _ = asked(tmp_path, "--dp 1 --model gpt2")
    with pytest.raises(InputError, match="is of a training with layer = "):
        look(other, print)


@pytest.fixture
def job(tmp_path):
    return Job(plan={"dp": 2}, steps=99, resume=True, checkpoints=str(tmp_path), out=str(tmp_path))


@pytest.mark.parametrize("damage", [flipped, removed, cut, a_pipe])
def test_the_last_whole_checkpoint_is_found_and_damaged_ones_are_put_aside(tmp_path, job, damage):
    saved(tmp_path, 3, 6, 9)
    for step in ("step-000006", "step-000009"):
        damage(tmp_path / step / "rank-00000.safetensors")
    assert last_whole(tmp_path) == tmp_path / "step-000003"
    said = []
    job.skip_damaged = True
    look(job, said.append)
    assert checkpoint.complete(tmp_path) == [3]
    assert [text.split(" is damaged")[0] for text in said] == [
        str(tmp_path / "step-000009"), str(tmp_path / "step-000006"),
    ]  # fmt: skip
    assert len(list(tmp_path.glob("step-*.damaged-*/manifest.json"))) == 2  # nothing is deleted


def test_a_damaged_manifest_is_told_with_the_last_whole_checkpoint(tmp_path, job):
    saved(tmp_path, 3, 6)
    (tmp_path / "step-000006" / "manifest.json").write_text("{}")
    whole = str(tmp_path / "step-000003")
    with pytest.raises(CheckpointError) as told:
        look(job, print)
    assert str(told.value).endswith(
        f"; the last whole one is {whole!r}, and --skip-damaged goes on from that"
    )
    (tmp_path / "step-000003" / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"; no checkpoint in .* is whole$"):
        look(job, print)
    with pytest.raises(CheckpointError, match=r"^no checkpoint in .* is whole$"):
        put_damaged_aside(tmp_path, print)
    assert checkpoint.complete(tmp_path) == [3, 6]


def test_what_is_refused_is_refused_before_anything_is_written(tmp_path, job):
    saved(tmp_path, 3)
    job.executed.__dict__["precision"] = "bf16"
    with pytest.raises(InputError, match="precision = fp32, not bf16: the losses would not go on"):
        look(job, print)
    done = Job(plan={"dp": 2}, steps=2, resume=True, checkpoints=str(tmp_path))
    with pytest.raises(NothingLeft, match="is of step 3, and 3 are asked for"):
        look(done, print)


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(None, id="local"),
        pytest.param(TORCHRUN, id="torchrun", marks=pytest.mark.attack),
    ],
)
def test_on_the_command_line(command, tmp_path, launcher):
    def run(*arguments):
        started = ("--dp", 2, "--json", "--checkpoint-every", 2, *arguments)
        if launcher is None:
            return command(*started).end()
        before = ("--standalone", "--nproc-per-node", 2, "-m", "realrun")
        return command(*before, *started, command=launcher).end()

    status, out, err = run("--steps", 3)
    assert status == 0, err
    status, out, err = run("--steps", 3, "--resume")
    assert status == 0 and "nothing is left to do" in err, err
    assert one_object(out) == {
        "ok": True, "failed": [], "out": "out", "calibrations": [], "runs": [],
    }  # fmt: skip
    assert (tmp_path / "out" / "dp2" / "measured.json").exists()  # what there was is still there
    flipped(tmp_path / "out" / "checkpoints" / "step-000004" / "rank-00000.safetensors")
    status, out, err = run("--steps", 5, "--resume")
    offered = "the last whole one is 'out/checkpoints/step-000002', and --skip-damaged goes on from"
    assert status != 0 and offered in err, err
    assert launcher or "Traceback" not in err  # torchrun adds its own
    status, out, err = run("--steps", 5, "--resume", "--skip-damaged")
    assert status == 0 and one_object(out)["runs"][0]["first_step"] == 2, err
    assert "goes on from out/checkpoints/step-000002" in err
