"""Every phase of a run has a limit of its own: a load or a reference longer than the timeout of a step
ends no healthy run, and one without an end is told."""

import sys
import time

import pytest

from realrun import Job, Pool, RunError
from realrun.run.life import Doing


def test_a_phase_is_over_its_limit_only_after_it(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    doing = Doing()
    doing.enter("loading", 30.0)
    now[0] += 29
    assert doing.over() is None
    now[0] += 2
    assert doing.over() == 30.0 and doing() == "loading"
    doing.enter("loading", 30.0)  # anew
    assert doing.over() is None


SLOW = """
import os
import realrun.checkpoint.save as checkpoint
import realrun.run.session as session
from tests.support.slow_phase import be_slow
load, training = checkpoint.load, session.single_training
def slow_load(*arguments, **options):
    if os.environ["RANK"] == "1":
        be_slow()
    return load(*arguments, **options)
def slow_training(*arguments, **options):
    be_slow()
    return training(*arguments, **options)
checkpoint.load, session.single_training = slow_load, slow_training
from realrun.cli.main import main
raise SystemExit(main())
"""


def test_a_load_and_a_reference_longer_than_the_timeout_end_no_run(command, tmp_path):
    """Nor does a load that takes so much longer on one rank. Under torchrun: only there the ranks run a
    script that is slow on purpose."""
    torchrun = (sys.executable, "-m", "torch.distributed.run")
    (tmp_path / "slow.py").write_text(SLOW)
    start = ("--standalone", "--nproc-per-node", 2, "slow.py", "--dp", 2, "--timeout", 2)
    saving = ("--checkpoints", "saved", "--checkpoint-every", 2)
    first = command(*start, "--steps", 3, *saving, "--reference", command=torchrun)
    status, _, err = first.end()
    assert status == 0, err
    status, _, err = command(*start, "--steps", 5, *saving, "--resume", command=torchrun).end()
    assert status == 0 and "goes on from saved/step-000004" in err, err


def test_a_phase_without_an_end_names_the_rank_and_where_it_is(tmp_path, monkeypatch):
    """The launcher is told so by a rank's thread; here by a message as that one sends it."""
    with Pool(1) as pool:
        read = pool._processes.read
        late = {"where": "line 7 of load", "doing": "loading a checkpoint", "over": 3600.0}
        monkeypatch.setattr(pool._processes, "read", lambda: [*read(), (0, late)])
        with pytest.raises(RunError) as ended:
            pool.run(Job(plan={"dp": 1}, out=str(tmp_path)))
    assert str(ended.value) == (
        "rank 0 has been loading a checkpoint for 3600 s, which is too long: "
        "rank 0 is at line 7 of load"
    )
