"""It exports what is known of a model: its sizes, what follows from them, and the catalogue."""

from simlab.spec.model.catalogue import catalogue, load_model
from simlab.spec.model.model import MFU_ATTENTION, MFU_CONVENTION, Model

__all__ = ["MFU_ATTENTION", "MFU_CONVENTION", "Model", "catalogue", "load_model"]
