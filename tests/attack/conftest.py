"""Commands that leave nothing behind, as the tests of realrun have them."""

from tests.realrun.conftest import command, interrupts_are_heard  # noqa: F401
