"""Warm processes for a file, and commands that leave nothing behind."""

import signal
from functools import cache

import pytest
from realrun_processes import CommandLine, RestingPool
from realrun_ranks import Ranks


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard():
    """A shell without job control starts what runs in the background with SIGINT ignored, and every
    process started from it inherits that. A handler of our own is reset to the default in them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def one_of_each(kind):
    """count -> a `kind` of so many, shared by the tests of a file. A test that breaks one brings its
    own."""
    warm = []

    @cache
    def of(count):
        warm.append(kind(count))
        return warm[-1]

    yield of
    for one in warm:
        one.close()


@pytest.fixture(scope="module")
def pools():
    """ranks -> a warm `Pool` of so many."""
    yield from one_of_each(RestingPool)


@pytest.fixture(scope="module")
def ranks():
    """ranks -> `Ranks`, which carry out one function after another."""
    yield from one_of_each(Ranks)


@pytest.fixture
def command(tmp_path, tmp_path_factory):
    """Start command lines in `tmp_path`. When the test is over, those that still run are ended, and
    those that have ended may have left no process."""
    started = []

    def start(*arguments, **options):
        temporary = tmp_path_factory.mktemp("t")  # a short name: sockets are made in it
        started.append(
            CommandLine(
                *arguments, cwd=options.pop("cwd", tmp_path), temporary=temporary, **options
            )
        )
        return started[-1]

    yield start
    over = [one for one in started if one.process.poll() is not None]
    left = [one.processes() for one in over if not one.gone()]
    for one in started:
        one.kill()
    assert not left, f"processes outlived their run: {left}"
