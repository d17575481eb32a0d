"""What lesson 13 asks about mixtures of experts."""

from simlab.lessons.subjects.experts import routing, running

__all__ = ["EXERCISES", "FIGURES", "PREDICTIONS"]

PREDICTIONS = routing.PREDICTIONS + running.PREDICTIONS
EXERCISES = routing.EXERCISES + running.EXERCISES
FIGURES = routing.FIGURES | running.FIGURES
