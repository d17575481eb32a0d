"""What attacks on commands share: however many inputs there are, and how a command must end."""

import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PATIENCE_S = 120.0
"""Of computing: what takes so long takes a second elsewhere, or has no end."""
LONGEST_LINE = 2000


class Ends:
    """Runs commands, of which each ends soon, without a traceback and with short lines; counts how."""

    def __init__(self, main, capsys):
        self.main, self.capsys, self.counts = main, capsys, Counter()

    def __call__(self, argv):
        """(exit status, stdout, stderr)"""
        started_s = time.process_time()  # others may keep this machine busy
        try:
            status = self.main(argv)
        except SystemExit as left:
            status = left.code
        out, err = self.capsys.readouterr()
        took_s = time.process_time() - started_s
        assert took_s < PATIENCE_S, f"{took_s:.0f} s: {argv}"
        assert "Traceback" not in err and "Traceback" not in out, (argv, err)
        assert all(len(line) <= LONGEST_LINE for line in err.splitlines()), (argv, err[:300])
        self.counts[status] += 1
        return status, out, err

    def tell(self):
        """Print how many commands ended with which status; None: it would have run."""
        told = ", ".join(f"{number} with status {status}" for status, number in self.counts.items())
        print(f"\ntried {self.counts.total()}, hung 0, tracebacks 0: {told}")


def said(err):
    """The lines that say why a command ended."""
    return [line for line in err.splitlines() if line.startswith(("error: ", "failed: "))]


def attacked(each, few, *strategies):
    """A test of `each` inputs, which is marked, and of `few`."""

    def decorate(test):
        def body(count, answer, tmp_path):
            options = settings(
                max_examples=count,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )

            @options
            @given(st.tuples(*strategies))
            def one(values):
                test(answer, tmp_path, *values)

            one()

        body.__doc__ = test.__doc__
        counts = [few, pytest.param(each, marks=pytest.mark.attack)]
        return pytest.mark.parametrize("count", counts, ids=["few", "all"])(body)

    return decorate
