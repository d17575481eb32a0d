"""What a rank ended of, where torchrun looks for it."""

import json
import os
import time


def note_error(text: str) -> None:
    """Write `text` where torchrun looks for what a rank died of, if it asked for that."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        facts = {"py_callstack": text, "timestamp": str(int(time.time()))}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": text, "extraInfo": facts}}, file)
