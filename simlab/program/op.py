"""It defines `Op`, one forward or backward of one stage for one microbatch, and its text."""

import re
from typing import NamedTuple

from simlab.errors import InputError
from simlab.trace import OP_KINDS, Span

_OP_TEXT = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")


class Op(NamedTuple):
    """One unit of work of one stage on one microbatch, e.g. `Op(2, "F", 0)`, written `2F0`."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def of_span(cls, span: Span) -> "Op":
        """The op that the compute span `span` ran.

        Raises `InputError` if the span does not stand for a whole op.
        """
        op = cls(span.stage, span.op_kind, span.microbatch)
        if span.op_kind in OP_KINDS and span.stage >= 0 and span.microbatch >= 0 and not span.unit:
            return op
        raise InputError(
            f"the span {span.op[:40]!r} is not an op: its kind, stage and microbatch are "
            f"{span.op_kind!r}, {span.stage} and {span.microbatch}, its unit {span.unit!r}; "
            "Span.of_op makes an op's span"
        )

    @classmethod
    def parse(cls, text: str) -> "Op":
        """The op that `text` names, such as '2F0'; `InputError` if it does not name one."""
        match = _OP_TEXT.fullmatch(text.strip())
        if match is None:
            raise InputError(
                f"{text[:40]!r} is not an op: an op reads like 2F0 (stage 2, one of F B I W, microbatch 0)"
            )
        return cls(int(match[1]), match[2], int(match[3]))
