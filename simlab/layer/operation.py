"""What a model consists of: operations, with the tensors that they read, make and save, and with their
weights."""

from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import NamedTuple


class OperationKind(StrEnum):
    """What an operation of a model does. A kernel computes a part of it, forward or backward, and a
    communication brings its input, its result or a gradient of these."""

    EMBEDDING = "embedding"
    NORM = "norm"
    QKV = "qkv"
    Q_DOWN = "q down"
    Q_UP = "q up"
    KV_DOWN = "kv down"
    KV_UP = "kv up"
    ROTARY = "rotary"
    ATTENTION = "attention"
    SCORES = "scores"
    CAST = "cast"
    SCALING = "scaling"
    MASK = "mask"
    SOFTMAX = "softmax"
    CAST_BACK = "cast back"
    ATTENTION_DROPOUT = "attention dropout"
    VALUES = "values"
    TRANSPOSE = "transpose"
    IN_PROJECTION = "in projection"
    SCAN = "scan"
    OUTPUT = "output"
    RESIDUAL = "residual"
    JOIN = "join"
    PROJECTION = "projection"
    COLLECT = "collect"
    ROUTER = "router"
    TO_EXPERTS = "to experts"
    PERMUTE = "permute"
    UP = "up"
    ACTIVATION = "activation"
    DOWN = "down"
    FROM_EXPERTS = "from experts"
    SHARED_UP = "shared up"
    SHARED_DOWN = "shared down"
    BIAS = "bias"
    LAST_NORM = "last norm"
    HEAD = "head"
    LOSS = "loss"
    COPY = "copy"
    MESSAGE = "message"
    OTHER = "other"


class Cut(Enum):
    """Which part of a tensor, or of a weight, a rank has."""

    WHOLE = "whole"
    TOKENS = "tokens"
    """With sequence parallelism a tp-th of the tokens, else all."""
    HEADS = "heads"
    """A tp-th of the heads, at least one."""
    COLUMNS = "columns"
    """A tp-th of the columns."""
    COPIES = "copies"
    """Copies of tokens for the rank's experts, whole."""
    EXPERTS = "experts"
    """The rank's experts; where tp ranks cut each expert, an etp-th of its columns."""


class Tensor(NamedTuple):
    """What an operation reads or makes."""

    name: str
    """Operations that name the same tensor mean the same numbers."""
    numbers: float
    """How many a token has on all tensor-parallel ranks together; of COPIES and EXPERTS, how many
    a copy of a token has."""
    cut: Cut
    least: float = 0.0
    """Of HEADS: the numbers of one head, of which a rank has one at least."""
    group: str = ""
    """The label of the tensors that it is counted with."""
    number_bytes: float = 0
    """The bytes of a number, whatever the precision; 0 stands for those of the plan's numbers."""


class Weight(NamedTuple):
    """A matrix; a vector has one column."""

    rows: float
    """Its outputs."""
    columns: float = 1
    """Its inputs."""
    cut: Cut = Cut.WHOLE
    by_columns: bool = False
    """Whether a rank has some of its columns, so that ranks sum up what they make; else rows."""
    least: float = 0.0
    """Of HEADS: the rows of one head."""
    experts: float = 0
    """The experts that have such a matrix each; 0 where it is no expert's."""

    @property
    def numbers(self) -> float:
        """Its parameters."""
        return self.rows * self.columns * (self.experts or 1)


class Operation(NamedTuple):
    """One thing that the forward of a unit does."""

    kind: OperationKind
    reads: tuple[Tensor, ...] = ()
    makes: tuple[Tensor, ...] = ()
    weights: tuple[Weight, ...] = ()
    saves: tuple[Tensor, ...] = ()
    """What its backward reads."""
    name: str = ""
    """A label, where a unit has several operations of a kind."""
    joined: bool = False
    """Whether the matrices of a product are one parameter."""
    again: tuple[Tensor, ...] = ()
    """Of what it makes: what is not kept, and made again before the backward."""
    is_product: bool = False
    """Whether it multiplies what it reads with matrices of weights: see `linear`."""

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.name or self.kind.value


def linear(
    kind: OperationKind,
    read: Tensor,
    makes: Sequence[Tensor],
    *,
    cut: Cut = Cut.WHOLE,
    by_columns: bool = False,
    bias: bool = False,
    experts: int = 0,
    joined: bool = False,
) -> Operation:
    """A product of one tensor with a matrix for each of those that it makes. A bias of a matrix that
    is cut by columns is added to the sum over the ranks, so every rank has it whole."""
    weights = []
    for made in makes:
        matrix = Weight(made.numbers, read.numbers, cut, by_columns, made.least, experts)
        weights.append(matrix)
        if bias:
            whole = Cut.COPIES if experts else Cut.WHOLE
            vector = matrix._replace(columns=1, by_columns=False)
            weights.append(vector._replace(cut=whole) if by_columns else vector)
    product = Operation(kind, (read,), tuple(makes), tuple(weights), saves=(read,), joined=joined)
    return product._replace(is_product=True)


def norm(name: str, read: Tensor, made: Tensor, *, shift: bool = False) -> Operation:
    """A norm, with a scale and perhaps a shift of as many numbers as a token has."""
    weights = (Weight(read.numbers),) * (1 + shift)
    return Operation(OperationKind.NORM, (read,), (made,), weights, saves=(read,), name=name)
