"""Questions of one's own, in a notebook of one's own."""

from simlab.own.questions import exercise, prediction

__all__ = ["exercise", "prediction"]
