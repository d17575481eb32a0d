"""It reads the cells of a program as text, in the "compute_only" form of torch's CSV."""

import re

from simlab.errors import InputError
from simlab.program.op import Op

_COMMUNICATION_TEXT = re.compile(r"\d+(SEND_|RECV_|UNSHARD|RESHARD)")
# An empty cell is idle time. REDUCE_GRAD marks where data parallelism would reduce gradients.
_NO_OP_TEXT = re.compile(r"(\d+REDUCE_GRAD)?")
_PAIR_TEXT = re.compile(r"\((.*);(.*)\)OVERLAP_F_B")


def ops_of_cell(cell: str, rank: int, at: int) -> list[Op]:
    """The ops in `cell`: none if it is empty, one op, or the forward and the backward of a pair.

    rank, at: where the cell stands in its file, for messages; `at` counts from 0.

    Raises `InputError`, which names the rank and the cell, if the text is none of these.
    """
    if _NO_OP_TEXT.fullmatch(cell):
        return []
    if _COMMUNICATION_TEXT.match(cell):
        raise InputError(
            f"rank {rank}, cell {at + 1}: {cell[:40]!r} is a communication op; give the compute-only form "
            "(F B I W), from which sends and receives are derived"
        )
    pair = _PAIR_TEXT.fullmatch(cell)
    try:
        ops = [Op.parse(text) for text in (pair.groups() if pair else (cell,))]
        if pair and (ops[0].kind != "F" or ops[1].kind not in "BI"):
            raise InputError(
                f"{cell[:60]!r} is not a pair: OVERLAP_F_B is for a forward and a backward, as in (0F1;3B0)OVERLAP_F_B"
            )
        return ops
    except InputError as error:
        raise InputError(f"rank {rank}, cell {at + 1}: {error}") from error
