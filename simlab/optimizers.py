"""How parameters are updated: a record of each optimizer.

What a step of one keeps, reads, writes and computes stands here only. Memory, times, lists and the
checks of a `Plan` ask the record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Matrix(NamedTuple):
    """A parameter of one rank, before ZeRO."""

    rows: float
    columns: float = 1
    """1 of a vector."""
    hidden: bool = False
    """Whether it is a matrix of a layer: neither a vector nor of the embedding or the head."""

    @property
    def numbers(self) -> float:
        """Its numbers."""
        return self.rows * self.columns


ONE = Matrix(1)
"""A single number, which stands for each number of what is updated number by number."""

Product = tuple[int, int, int]
"""(m, n, k): a product of an m x k matrix by a k x n matrix."""
NARROW: dict[str, tuple[Any, ...]] = {"moment_bytes": (2,), "fp8_param_gather": (True,)}
"""What Megatron-LM has with Adam only."""
ON_HOST: dict[str, tuple[Any, ...]] = {"offload": ("optimizer", "parameters")}


@dataclass(frozen=True, kw_only=True, eq=False)
class Optimizer:
    """What an optimizer keeps, moves and computes of each parameter in a step."""

    name: str
    libraries: Mapping[str, int] | None = None
    """{library that has it: its last ZeRO stage there}; None: every one has it, with all of ZeRO."""
    because: str = ""
    """Why no library has it with more of ZeRO."""
    states: Callable[[Matrix], float]
    """How many numbers it keeps of a parameter, besides an fp32 copy of one in 16 bits."""
    fused_bytes: float | None = None
    """Read and written for each number in fp32 by the one kernel of a library that has one: the
    gradient, the weight and the states read, and all but the gradient written."""
    listed_bytes: float
    """The same of torch's ops, which read and write each by itself."""
    scratch_bytes: float = 4
    """What torch's ops allocate meanwhile, for each number of what they update at once."""
    whole: bool = False
    """Whether a step needs whole matrices: ZeRO then gives each to one rank, and cuts none."""
    others: "Optimizer | None" = None
    """The one that updates vectors, the embedding and the head in its stead; None: it does so itself."""
    products: Callable[[Matrix], list[Product]] = field(default=lambda matrix: [])
    """The products of matrices, in 16 bits, of the step of one matrix."""
    launches: int = 1
    """Ops that the host dispatches for each matrix; 1 is what calls that take lists come to."""
    without: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: NARROW)
    """{field of a plan: values with which no library has it}"""

    def most_zero(self, library: str) -> int:
        """The last ZeRO stage with which a library has it, as far as it is the optimizer that decides."""
        return 3 if self.libraries is None else self.libraries.get(library, 3)

    def of(self, matrix: Matrix) -> "Optimizer":
        """The optimizer that updates a parameter."""
        return self if self.others is None or matrix.hidden else self.others

    def kept(self, matrix: Matrix) -> float:
        """How many numbers are kept of a parameter."""
        return self.of(matrix).states(matrix)

    def moved_bytes(self, *, fused: bool) -> float:
        """Read and written for each number."""
        return self.fused_bytes if fused and self.fused_bytes is not None else self.listed_bytes

    def scratch(self, *, fused: bool) -> float:
        """Bytes that a step allocates for each number that it updates at once."""
        return 0.0 if fused and self.fused_bytes is not None else self.scratch_bytes


def one_for_each(matrix: Matrix) -> float:
    """A moment: as many numbers as the parameter has."""
    return matrix.numbers


def two_for_each(matrix: Matrix) -> float:
    """Two moments."""
    return 2 * matrix.numbers


def rows_and_columns(matrix: Matrix) -> float:
    """A mean over each row and over each column, whose outer product stands for all (Shazeer and
    Stern 2018, section 3); of a vector as many as it has."""
    return matrix.rows + (matrix.columns if matrix.columns > 1 else 0)


NEWTON_SCHULZ_STEPS = 5


def newton_schulz(matrix: Matrix) -> list[Product]:
    """The products that make a matrix nearly orthogonal (Jordan et al. 2024, Muon).

    X is turned so that it has a rows and b >= a columns. Each of five steps makes X X^T of a x a x b,
    its square of a x a x a, and the product of a polynomial of both with X of a x b x a: 4 a^2 b +
    2 a^3 operations. Leaves out that X X^T and its square are symmetric, so that a kernel made for it
    computes half of them.
    """
    a, b = sorted((int(matrix.rows), int(matrix.columns)))
    return [(a, a, b), (a, a, a), (a, b, a)] * NEWTON_SCHULZ_STEPS


ADAM = Optimizer(
    name="adam",
    states=two_for_each,
    fused_bytes=28,
    # torch/optim/adam.py, _multi_tensor_adam: weight decay 8, first moment 12, second 8 and 12, root
    # 8, its correction 8, epsilon 8, update 16
    listed_bytes=80,
    # the root of all variances
    scratch_bytes=4,
    without={},
)
"""Kingma and Ba 2015, with decoupled weight decay (Loshchilov and Hutter 2019)."""

SGD = Optimizer(
    name="sgd",
    libraries={"megatron": 0, "torch": 3, "fsdp1": 3},
    # DistributedOptimizer in megatron/core/optimizer/distrib_optimizer.py asserts it; nanotron's SGD
    # has no momentum
    because="its distributed optimizer is Adam's only",
    states=one_for_each,
    fused_bytes=20,
    # torch/optim/sgd.py, _multi_tensor_sgd: weight decay 12, momentum 8 and 12, update 12
    listed_bytes=44,
    # the gradients with their weight decay
    scratch_bytes=4,
)
"""Gradient descent with momentum."""

ADAFACTOR = Optimizer(
    name="adafactor",
    libraries={"torch": 0},
    # torch/optim/_adafactor.py squares the means over a column in place, which DTensor refuses of
    # rows that ranks have cut (seen with torch 2.13)
    because="torch's takes whole matrices, and FSDP2 cuts their rows",
    states=rows_and_columns,
    # _multi_tensor_adafactor: norm of weights 4, weight decay 8, means over rows and columns 4 each,
    # their outer product 4, its scale 8, epsilon 8, root 8, update 12, its norm 4, its scale 8, and 12
    listed_bytes=84,
    # the updates
    scratch_bytes=4,
    whole=True,
    without=ON_HOST | NARROW,
)
"""Shazeer and Stern 2018 (arXiv 1804.04235), without a first moment, as `torch.optim.Adafactor`."""

MUON = Optimizer(
    name="muon",
    libraries={"megatron": 1, "torch": 0},
    because="a matrix is one rank's then, which is what --optimizer dist_muon of Megatron-LM does with zero = 1",
    states=one_for_each,
    # torch/optim/_muon.py: momentum 12, Nesterov's 12, cast 6, norm 2, scale 4, weight decay 8, update
    # 10; the products' own are not in it
    listed_bytes=54,
    # of one matrix, if it is square: its update in fp32, and in 16 bits two forms of it, its square and
    # what is added to that
    scratch_bytes=12,
    whole=True,
    others=ADAM,
    products=newton_schulz,
    launches=8 + 3 * NEWTON_SCHULZ_STEPS,
    # get_megatron_muon_optimizer in megatron/core/optimizer/muon.py refuses fp16
    without=ON_HOST | NARROW | {"precision": ("fp16",)},
)
"""Jordan et al. 2024 (kellerjordan.github.io/posts/muon), distributed as by Liu et al. 2025, "Muon is
scalable" (arXiv 2502.16982): matrices of layers have a momentum, from which Newton and Schulz's
iteration makes the update; vectors, the embedding and the head are Adam's.

A rank makes its part of a matrix orthogonal that tensor parallelism cuts (Megatron-LM's
--muon-tp-mode blockwise, the default), and queries, keys, values, a gate and each expert are
matrices of their own; Megatron-LM has a gate and its product up in one. Liu et al. cut momenta by
elements and gather them for the iteration; Megatron-LM gives each matrix to one rank."""

OPTIMIZERS = {its.name: its for its in (ADAM, SGD, ADAFACTOR, MUON)}
"""{name: `Optimizer`}"""
