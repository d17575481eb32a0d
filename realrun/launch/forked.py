"""What the fork server imports once for all ranks, and how it ends: at once. It has nothing to clean
up, and taking torch's modules apart takes a second, in which a pipe of its launcher's stays open."""

import atexit
import os

import torch._dynamo  # noqa: F401  any torch optimizer imports it: a second on each rank

import realrun.run.session  # noqa: F401

atexit.register(os._exit, 0)
