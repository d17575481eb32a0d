"""What the first notebook asks, before any question: how long a step is on four ranks."""

from simlab.lessons.prediction import Number, Prediction

PREDICTIONS = [Prediction("start", {"step": Number("ms")})]
