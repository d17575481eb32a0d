"""What a rank ended of, where torchrun looks for it."""

import json
import os
import time


def note_error(text: str) -> None:
    """Write `text` where torchrun looks for what a rank died of, if it asked for that.

    The file is there whole or not at all: torchrun may end this process meanwhile, and fails itself
    over half a file.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        facts = {"py_callstack": text, "timestamp": str(int(time.time()))}
        beside = f"{path}.{os.getpid()}"
        with open(beside, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": text, "extraInfo": facts}}, file)
        os.replace(beside, path)
