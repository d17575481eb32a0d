"""What a rank launches: matrix products, attention, kernels that the memory bounds, and
communications."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

from simlab.layer.operation import OperationKind

Role = Literal["forward", "input", "weight"]
"""Of a kernel: 'forward', or which gradient it makes: that of the 'input' or of the 'weight'."""

Carries = Literal["", "input", "result", "input again", "result gradient", "input gradient"]
"""What a communication brings to or from a matrix product.

'input again' is the input that a column-parallel product gathers once more, for its weight's
gradient. 'result gradient' is gathered for a row-parallel product's backward, and 'input gradient'
is what a column-parallel product's backward sums or scatters.
"""


class Place(NamedTuple):
    """Which kernel of a unit: there is one matrix product, or one attention, of each operation and
    role."""

    operation: OperationKind
    role: Role = "forward"


@dataclass(frozen=True)
class Matmul:
    """`batch` products of an m x k matrix by a k x n matrix."""

    name: str
    """A label for people."""
    m: int
    n: int
    k: int
    batch: int = 1
    role: Role = "forward"
    """The operands of the three roles lie differently in memory, so their efficiencies differ."""
    operation: OperationKind = OperationKind.OTHER
    fresh: bool = False
    """Of a weight gradient: whether it is written as any other result is, and not added to
    what earlier microbatches made."""
    sum_bytes: int = 4
    """Otherwise the bytes of a number of that sum."""

    @property
    def place(self) -> Place:
        """Which kernel of its unit it is."""
        return Place(self.operation, self.role)

    @property
    def flops(self) -> float:
        """Floating-point operations: two for each pair of a multiplication and an addition."""
        return 2 * self.m * self.n * self.k * self.batch


@dataclass(frozen=True)
class GroupedMatmul(Matmul):
    """The products of tokens with the weights of their own experts, in one kernel or in one for each.

    The tokens, `m` of them (`k` where the role is 'weight'), are divided among the experts, each of
    which has weights of its own. Every expert's weights are read, and every expert's weight
    gradient is written.
    """

    tokens: tuple[int, ...] = ()
    """The tokens of each expert that has any. They add up to all tokens."""
    apart: bool = False
    """Whether each expert's product is launched by itself."""

    @property
    def products(self) -> list[Matmul]:
        """The product of each expert, as a kernel of its own."""
        own = Matmul(
            *(self.name, self.m, self.n, self.k),
            role=self.role,
            fresh=self.fresh,
            sum_bytes=self.sum_bytes,
        )
        if self.role == "weight":
            return [replace(own, k=its) for its in self.tokens]
        return [replace(own, m=its) for its in self.tokens]


@dataclass(frozen=True)
class Attention:
    """Scores, softmax and their product with the values in one kernel that stores no scores (Dao et
    al. 2022)."""

    name: str
    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    """The width of a query and of a key."""
    backward: bool = False
    generation: str = "flash"
    """The kernel: 'flash' is the best that the GPU has, 'flash-fp8' the best in 8 bits, 'flash-1' and
    'flash-2' are those of FlashAttention's papers."""
    share: float = 1.0
    """Which share of the scores that the causal mask leaves this rank computes, over the mean of
    the context-parallel ranks."""
    shares: tuple[float, ...] = ()
    """`share` of each context-parallel rank, where windows make it another than the mask does."""
    between: tuple[int, int] | None = field(default=None, compare=False)
    """In a ring: the context-parallel rank whose queries these are, and the one whose keys."""
    value_size: int | None = None
    """The width of a value; None stands for `head_size`."""
    within: int = 0
    """Where windows of `keys` slide: the tokens of the sequence. Otherwise 0."""
    operation: ClassVar[OperationKind] = OperationKind.ATTENTION

    @property
    def place(self) -> Place:
        """Which kernel of its unit it is."""
        return Place(self.operation, "input" if self.backward else "forward")

    @property
    def flops(self) -> float:
        """Floating-point operations of the mean context-parallel rank; this one's are `share` times
        that.

        They are counted in full, as all published figures count them, though a causal kernel does
        half. Forward has two products of 2 q k d each for a head, so 4 q k d; the backward has
        five, 2.5 times as many (Dao et al. 2022, appendix B). Of each two one, and of the five
        two, are with the width of a value in the stead of d: those of the values, and those that
        make the gradients of the values and of what softmax made.
        """
        d, value = self.head_size, self.value_size or self.head_size
        widths = 3 * d + 2 * value if self.backward else d + value
        return 2 * self.batch * self.heads * self.queries * self.keys * widths


@dataclass(frozen=True)
class Memory:
    """A kernel that the memory bounds: norms, activation functions, dropout, softmax, additions."""

    name: str
    """A label for people."""
    size_bytes: float
    """What it reads and writes."""
    operation: OperationKind = OperationKind.OTHER
    grad_bytes: float | None = None
    """What its backward reads and writes; None: what `BACKWARD_BYTES` says of its operation,
    or as much as the forward."""
    flops: ClassVar[float] = 0


@dataclass(frozen=True)
class Communication:
    """A collective of a tensor- or context-parallel group."""

    name: str
    """A label for people."""
    kind: str
    """'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', or 'ring', in which each rank
    sends `size_bytes` to the next one in each step."""
    dimension: str
    """The group that communicates: 'tp', 'cp' or 'ep'."""
    size_bytes: float
    """The size of the whole buffer; of an all-to-all, that of a rank's buffer."""
    beside: Place | None = None
    """The kernel that may run at the same time; None where there is none."""
    steps: int = 1
    """How many steps a 'ring' has, one after the other."""
    operation: OperationKind = OperationKind.OTHER
    carries: Carries = ""
    tensor: str = ""
    """With context parallelism: the tensor that is communicated, as a label: 'q', 'keys'."""
    flops: ClassVar[float] = 0


Kernel = Matmul | Attention | Memory
"""What one GPU computes."""
Launched = Kernel | Communication


class LayerKernels(NamedTuple):
    """What a unit, such as a layer, launches for a microbatch on one rank."""

    forward: list[Launched]
    input_grad: list[Launched]
    """What makes the gradient of the unit's input."""
    weight_grad: list[Kernel]
    """What makes the gradients of its parameters."""
    recompute: list[Launched]
    """What is computed again before the backward."""
