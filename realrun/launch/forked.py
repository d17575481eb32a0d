"""What the fork server imports once for all ranks, and how it ends: at once, with its launcher. It has
nothing to clean up, and taking torch's modules apart takes a second, in which a pipe of its launcher's
stays open."""

import atexit
import os
from importlib import import_module

from realrun.run.life import end_with_parent

end_with_parent()  # before what takes seconds
atexit.register(os._exit, 0)
# any torch optimizer imports dynamo: a second on each rank
for name in ("torch._dynamo", "realrun.run.session"):
    import_module(name)
