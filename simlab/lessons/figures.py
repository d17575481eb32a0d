"""The figures that a lesson stands on, each with its tolerance, and the check that a cell calls."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A figure that a cell must show.

    value:     the figure, in the unit that its name ends with.
    tolerance: the largest relative difference; absolute where the figure is 0.
    measured:  a clock measures it, or (a prediction in a box) what the machine adds to each
               instruction: where something else runs too it is told, and nothing fails.
    """

    value: float
    tolerance: float = 0.01
    measured: bool = False

    def holds(self, found: float) -> bool:
        """Whether `found` is the figure, within its tolerance."""
        return abs(found - self.value) <= self.tolerance * (abs(self.value) or 1.0)
