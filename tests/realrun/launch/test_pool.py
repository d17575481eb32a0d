"""The pool of warm processes: what it listens on, what it leaves behind, what it says when one of
them dies."""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from ports import free_port

from realrun import Job, Pool, Run, RunError, execute
from realrun.launch import start
from realrun.launch.pool import START_SILENCE_S
from realrun.launch.processes import Processes
from realrun.record.recorder import RankProgress
from simlab.errors import InputError
from simlab.program import Program
from simlab.schedules import generate
from tests.support.patience import eventually

MODEL = {"hidden": 32, "heads": 2, "seq": 16, "microbatch_size": 1}


def job(folder, ranks=2, **fields):
    text = str(generate("1f1b", ranks, 4))
    return Job(
        programs={"1f1b": text},
        compute="padded",
        out=str(folder),
        **({"forward_s": 0.002, "steps": 1, "sizes": MODEL} | fields),
    )


def children():
    """{pid: number in order of start} of the living ranks of all pools of this process."""
    return {
        process.pid: int(process.name.rpartition("-")[2])
        for process in multiprocessing.active_children()
    }


@pytest.fixture
def fragile():
    """(a pool of two ranks that a test may break, the pids of its ranks in order)."""
    before = children()
    with Pool(2) as pool:
        started = children()
        yield pool, sorted(started.keys() - before, key=started.get)


@contextmanager
def in_a_step(folder, act):
    """Inside, `act()` is called once a step after the warm-up is under way in the run that is there."""
    recorded, over = folder / "1f1b" / "rank0.records", threading.Event()

    def stepping():
        progress = RankProgress.load(recorded)
        return progress and progress.executing and progress.done > 3 * 8

    def wait():
        if eventually(lambda: over.is_set() or stepping()) and not over.is_set():
            act()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def listening(pids):
    """{local address} of the TCP sockets on which `pids` listen, by /proc; hexadecimal, as the
    kernel writes them."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(link).removeprefix("socket:[").rstrip("]"))
            except OSError:
                pass  # closed meanwhile
    rows = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[9] in inodes and row[3] == "0A"}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_while_a_job_runs_no_process_listens_on_anything_but_loopback(tmp_path):
    before, seen = children(), set()
    with Pool(3) as pool:
        watched = [os.getpid(), *(children().keys() - before)]
        runner = threading.Thread(target=pool.run, args=(job(tmp_path, 3),))
        runner.start()
        while runner.is_alive():
            seen |= listening(watched)
            time.sleep(0.05)
        runner.join()
    assert (tmp_path / "1f1b" / "measured-step-0.json").exists()
    assert seen and seen <= LOOPBACK


def test_a_pool_takes_the_port_it_is_given_and_frees_it_and_ends_its_processes_when_closed(
    tmp_path,
):
    port = free_port()
    before = children()
    for _ in range(2):
        with Pool(1, port=port) as pool:
            mine = children().keys() - before
            assert len(mine) == 1
            with pytest.raises(
                InputError,
                match=f"port {port} on 127.0.0.1: Address already in use; give another one, or 0",
            ):
                Pool(1, port=port)
            assert pool.run(job(tmp_path, 1))["runs"][0]["gradient_error"] <= 1e-10
        assert children() == before and not any(Path(f"/proc/{pid}").exists() for pid in mine)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(InputError, match=f"port {port} on 127.0.0.1: there are ports 0 to 65535"):
        Pool(1, port=port)


def test_a_pool_of_no_ranks_is_refused():
    with pytest.raises(InputError, match="0 ranks: give at least 1"):
        Pool(0)


def test_a_job_for_another_number_of_ranks_is_refused_and_the_pool_lives_on(pools, tmp_path):
    with pytest.raises(InputError, match="the job needs 3 ranks, this pool has 2"):
        pools(2).run(job(tmp_path, 3))
    assert pools(2).run(job(tmp_path, 2))["runs"]


@pytest.mark.attack
def test_a_rank_that_is_stopped_before_it_begins_is_named(monkeypatch):
    """The others have begun, and need no two minutes to say who has not."""
    start, begun = Processes.start, []

    def stopping(processes, *arguments):
        start(processes, *arguments)
        begun.append((processes.started[1].pid, time.monotonic()))
        os.kill(begun[0][0], signal.SIGSTOP)

    monkeypatch.setattr(Processes, "start", stopping)
    with pytest.raises(RunError) as ended:
        Pool(3)
    ((pid, started_s),) = begun
    assert f"rank 1 (process {pid}) has not answered for 16 s while starting" in str(ended.value)
    assert time.monotonic() - started_s < 2 * START_SILENCE_S


def test_a_fork_server_that_is_slow_is_not_taken_for_one_that_is_stopped(monkeypatch):
    """Of a machine on which it imports torch for minutes: by its clock more than two have passed."""
    Pool(1).close()
    before, begin = start._fork_server_pid(), multiprocessing.process.BaseProcess.start
    times = iter([0.0, 0.0])
    clock = SimpleNamespace(now_s=lambda: next(times, 130.0))

    def slowly(process):
        time.sleep(1.5)  # in which the guard looks
        begin(process)

    monkeypatch.setattr(start, "OwnTime", lambda: clock)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", slowly)
    with Pool(1):
        assert start._fork_server_pid() == before


def test_an_idle_rank_that_was_killed_is_named_by_the_next_run(fragile, tmp_path):
    pool, pids = fragile
    os.kill(pids[1], signal.SIGKILL)
    assert eventually(lambda: pids[1] not in children())
    with pytest.raises(RunError, match=rf"rank 1 \(process {pids[1]}\) was killed by signal 9"):
        pool.run(job(tmp_path))
    with pytest.raises(RunError, match="this pool is closed: start a new one"):
        pool.run(job(tmp_path))
    assert eventually(lambda: not children().keys() & set(pids))


def test_an_interrupt_ends_the_run_and_all_ranks(fragile, tmp_path):
    pool, pids = fragile
    with (
        in_a_step(tmp_path, lambda: signal.raise_signal(signal.SIGINT)),
        pytest.raises(KeyboardInterrupt),
    ):
        pool.run(job(tmp_path, forward_s=0.02, steps=100))
    assert eventually(lambda: not children().keys() & set(pids))


def test_ranks_do_not_see_an_interrupt_themselves(fragile, tmp_path):
    pool, pids = fragile
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.2)
    assert pool.run(job(tmp_path))["runs"][0]["gradient_error"] <= 1e-10


def test_progress_is_told_in_order(tmp_path):
    said = []
    with Pool(1, say=said.append) as pool:
        pool.run(job(tmp_path, 1))
    assert said == [
        "starting 1 process",
        "calibrating: each op kind and each link alone",
        "1f1b: gradients against one process",
        "1f1b: 1 warm-up and 1 measured steps",
    ]


def unchecked(text, folder, **fields):
    model = MODEL | {"layers": 9}
    return Job(
        programs={"x": text},
        compute="padded",
        forward_s=0.002,
        checked=False,
        sizes=model,
        out=str(folder),
        **fields,
    )


def test_an_op_whose_input_never_comes_ends_an_unchecked_run_at_once(tmp_path):
    with (
        Pool(2) as pool,
        pytest.raises(
            RunError,
            match=r"^rank (1: 1F0 never runs, but 2F0|0: 1B0 never runs, but 0B0) needs it$",
        ),
    ):
        pool.run(unchecked("0F0 0B0\n2F0 2B0", tmp_path))


def test_messages_that_nobody_takes_end_an_unchecked_run_by_the_timeout_saying_whose(tmp_path):
    forwards, backwards = (" ".join(f"0{kind}{n}" for n in range(5)) for kind in "FB")
    last = f"{forwards} {backwards}".replace("0F", "1F").replace("0B", "1B")
    # rank 1 runs rank 0's forwards again: nobody expects them
    text = f"{forwards} {backwards}\n{forwards}\n{last}"
    with Pool(3) as pool, pytest.raises(RunError) as caught:
        pool.run(unchecked(text, tmp_path, timeout_s=3.0))
    assert (
        str(caught.value)
        == "x: no rank has moved for 3 s: rank 1 has run all its ops, but not all that it sent was received"
    )


# execute: what lessons call
# ---------------------------------------------------------------------------------


def test_execute_gives_prediction_measurement_and_report_of_each_program_in_order(pools, tmp_path):
    programs = [
        generate("1f1b", 2, 4),
        generate("gpipe", 2, 4),
        Program.from_text("0F0 0B0\n1F0 1B0", name="mine"),
    ]
    runs = execute(pools(2), programs, forward_s=0.002, steps=1, sizes=MODEL)
    assert [type(run) for run in runs] == [Run] * 3
    for program, run in zip(programs, runs):
        assert (
            Program.from_trace(run.measured).ranks
            == Program.from_trace(run.predicted).ranks
            == program.ranks
        )
        assert run.report["schedule"] == program.name and run.report["gradient_error"] <= 1e-10
        assert run.report["compute"] == "padded"
        assert (run.predicted.metadata["source"], run.measured.metadata["source"]) == (
            "simulated",
            "measured",
        )
        assert run.report["error"] == pytest.approx(run.predicted.step_s / run.measured.step_s - 1)


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe"])
def test_a_program_of_layers_that_its_stages_do_not_divide_runs_and_is_reported(pools, schedule):
    (run,) = execute(
        pools(2), [generate(schedule, 2, 4)], forward_s=0.002, steps=1, sizes=MODEL | {"layers": 3}
    )
    assert run.report["gradient_error"] <= 1e-10
    predicted, measured = (
        [rank["parameters"] for rank in run.report[name]]
        for name in ("memory_bytes_predicted", "memory_bytes")
    )
    assert measured == predicted


def test_execute_refuses_two_programs_of_one_name_rather_than_dropping_one(pools):
    with pytest.raises(InputError, match="two programs called 'gpipe'"):
        execute(pools(2), [generate("gpipe", 2, 2), generate("gpipe", 2, 4)], forward_s=0.002)


def test_execute_keeps_what_it_wrote_only_where_it_was_told_to(pools, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    execute(pools(1), [generate("gpipe", 1, 1)], forward_s=0.001, steps=1, sizes=MODEL)
    assert not list(tmp_path.iterdir())
    execute(
        pools(1),
        [generate("gpipe", 1, 1)],
        forward_s=0.001,
        steps=1,
        sizes=MODEL,
        out=str(tmp_path / "kept"),
    )
    assert (tmp_path / "kept" / "gpipe" / "measured.json").exists()
