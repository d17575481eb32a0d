"""It reads what spans of the first JSON format of a trace say only in their labels.

Nothing else reads meaning from a label. The recordings of the lessons are in this format.
"""

import re
from typing import Any

_LABEL = re.compile(
    r"(?:(\d{1,9})([FBIW])(\d{1,9})\b)?\s*(?:(embedding|layer \d+|head)\b)?(.*)", re.DOTALL
)
"""A label: the op, the unit, and what is done. Each part may be missing."""
_COMMUNICATIONS = {
    "ring": "ring",
    "gather": "all_gather",
    "scatter": "reduce_scatter",
    "reduce": "all_reduce",
}
"""{a word of a label: the kind of communication that it means}."""
_STREAMS = {"send": "message", "optimizer": "optimizer"}
"""{a stream: the kind of all its spans}."""


def label_fields(stream: str, label: str) -> dict[str, Any]:
    """The fields kind, stage, unit, microbatch and op_kind of a span, by their names.

    stream: the stream of the span, such as 'compute' or 'tp'.
    label:  its label, such as '2F0 layer 3 gather'.
    """
    match = _LABEL.fullmatch(label)
    assert match is not None  # Every text matches, because each part may be missing.
    stage, op_kind, microbatch, unit, rest = match.groups()
    kinds = _STREAMS | {"compute": op_kind or ""}
    words = (_COMMUNICATIONS[word] for word in reversed(rest.split()) if word in _COMMUNICATIONS)
    return {
        "kind": kinds[stream] if stream in kinds else next(words, ""),
        "stage": -1 if stage is None else int(stage),
        "unit": unit or "",
        "microbatch": -1 if microbatch is None else int(microbatch),
        "op_kind": op_kind or "",
    }
