"""The operations of a unit as an allocator sees them: bytes on a rank."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from simlab.layer.operation import Cut, Operation, OperationKind, Tensor, Weight
from simlab.layer.parameters import on_rank
from simlab.layer.passes.tensor import gathers, is_partial
from simlab.layer.saved import Share, kept_tensors

AS_ONE = {
    OperationKind.COPY: OperationKind.QKV,
    OperationKind.SCAN: OperationKind.ATTENTION,
    OperationKind.SCORES: OperationKind.ATTENTION,
    OperationKind.SOFTMAX: OperationKind.ATTENTION,
    OperationKind.ATTENTION_DROPOUT: OperationKind.ATTENTION,
    OperationKind.VALUES: OperationKind.ATTENTION,
    OperationKind.TRANSPOSE: OperationKind.ATTENTION,
    OperationKind.SHARED_UP: OperationKind.UP,
    OperationKind.SHARED_DOWN: OperationKind.DOWN,
}
"""{kind of operation: the kind of those with which it is walked as one}: what leads from a norm's result to
queries, keys and values; all between these and attention's or a scan's result; and shared experts, whose
tensors and weights are added to those of routed ones."""
NORMS = (OperationKind.NORM, OperationKind.LAST_NORM)
ALONE = (OperationKind.NORM, OperationKind.RESIDUAL)
"""Kinds of which a layer has several, each a step of its own."""
COLUMNS = (
    OperationKind.QKV,
    OperationKind.TO_EXPERTS,
    OperationKind.UP,
    OperationKind.FROM_EXPERTS,
    OperationKind.HEAD,
    OperationKind.PROJECTION,
)
"""Products whose input sequence parallelism gathers, or that ranks have whole."""
PRODUCTS = (*COLUMNS, OperationKind.ROUTER, OperationKind.OUTPUT, OperationKind.DOWN)
"""Steps that read what they save for the gradients of weights. A product of any other kind leads to queries,
keys and values, or to what a scan reads."""


class Rank(NamedTuple):
    """What the bytes of a unit's tensors on a rank follow from."""

    share: Share
    number: float
    """Bytes of a number."""
    ep: int
    spreads_experts: bool
    products_joined: bool
    """Whether q, k and v, and gate and up, are one product each."""
    frees_gathered: bool
    """Whether what sequence parallelism gathers goes after the product that reads it."""
    rings: bool
    """Whether keys and values go round a ring."""
    gates_have_parts: bool
    """Whether a gated activation is two ops, so that autograd saves the activation of the gate beside
    gate, up and their product."""
    autocast: bool

    def size(self, tensor: Tensor) -> float:
        """Bytes of what the rank has of a tensor."""
        return self.share.size_bytes(tensor, self.number)

    def whole_size(self, tensor: Tensor) -> float:
        """Bytes of a tensor of which ranks have some of the tokens each, of all tokens."""
        return self.size(tensor._replace(cut=Cut.WHOLE) if tensor.cut is Cut.TOKENS else tensor)

    def cast(self, numbers: float) -> float:
        """Bytes of the 16-bit copy of a weight of so many numbers; 0 without autocast."""
        return numbers * self.number if self.autocast else 0.0


class Step:
    """An operation of a unit, or several that are walked as one: bytes on a rank."""

    def __init__(self, kind: OperationKind, unit: "Unit") -> None:
        self.kind, self.unit, self.rank = kind, unit, unit.rank
        self.operations: list[Operation] = []
        self.owned: list[Tensor] = []
        """What is saved here, and by none before it in the forward."""

    def _sum(self, tensors: Iterable[Tensor]) -> float:
        return sum(map(self.rank.size, tensors))

    # tensors
    # -------------------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """{name: what it reads and others make}"""
        own = {made.name for its in self.operations for made in its.makes}
        return {n.name: n for its in self.operations for n in its.reads if n.name not in own}

    @cached_property
    def results(self) -> list[Tensor]:
        """What it makes and others read, in the order in which they do; nothing of a router's."""
        if self.kind is OperationKind.ROUTER:
            return []
        made = {its.name: its for each in self.operations for its in each.makes}
        return [made[name] for name in self.unit.read if name in made]

    @cached_property
    def reads(self) -> float:
        """Of what it reads; of a product that gathers its input, of all tokens."""
        if self.kind not in COLUMNS:
            return self._sum(self.inputs.values())
        first = self.operations[0]
        size = self.rank.whole_size if first in self.unit.gathering else self.rank.size
        return size(first.reads[0])

    @cached_property
    def makes(self) -> tuple[float, ...]:
        """Of each of its results; of products those of each, or of all where their matrices are one
        parameter."""
        sizes = [self.rank.size(made) for made in self.results]
        if self.kind not in (*COLUMNS, OperationKind.ACTIVATION):
            return tuple(sizes)
        return tuple(sum(sizes[at :: self.products]) for at in range(self.products))

    @cached_property
    def inside(self) -> float:
        """Of what it keeps and neither reads nor makes for others."""
        names = {*self.inputs, *(made.name for made in self.results)}
        return self._sum(its for its in self.owned if its.name not in names)

    @property
    def is_routed(self) -> bool:
        """Whether it is a product whose results are copies of tokens, which go back to these."""
        return self.results[0].cut is Cut.COPIES

    @cached_property
    def row_product(self) -> float:
        """Of a row-parallel product's result: of all tokens, where ranks sum it up, and of experts copies
        of tokens, if these are more."""
        size = self.rank.whole_size if self.is_whole else self.rank.size
        return max(self.makes[0], size(self.results[0]._replace(cut=Cut.TOKENS)))

    @cached_property
    def travelling(self) -> float:
        """Of keys and values that a ring receives while attention computes with those that are here."""
        rings = self.rank.rings and self.kind is OperationKind.ATTENTION
        return self._sum([*self.inputs.values()][1:]) if rings else 0.0

    @cached_property
    def score_gradients(self) -> float:
        """Of the gradients of softmax's result and of the scores, where attention stores them."""
        scores = [its for its in self.operations if its.kind is OperationKind.SCORES]
        return 2 * sum(self._sum(its.makes) for its in scores)

    @cached_property
    def gate_part(self) -> float:
        """Of what a gated activation of two ops keeps besides: see `Rank`."""
        gates = self.kind is OperationKind.ACTIVATION and self.rank.gates_have_parts
        return sum(self.makes) if gates else 0.0

    # what is kept
    # -------------------------------------------------------------------------------------------

    @cached_property
    def saved(self) -> float:
        """Of what it is the first to save."""
        return self._sum(self.owned)

    @cached_property
    def shared(self) -> float:
        """Of what it saves where both a product and another operation do."""
        own = {kept for its in self.operations for kept in its.saves}
        return self._sum(own & self.unit.saved_twice)

    @cached_property
    def cast(self) -> tuple[float, float]:
        """Of the forms in which its results are kept beside that in which they are made; and of those
        of which only other forms are kept."""
        made = {its.name: its._replace(group="") for its in self.results}
        forms = {
            form
            for name, its in made.items()
            for form in self.unit.forms.get(name, ())
            if form.numbers == its.numbers
        }
        names = {its.name for its in forms}
        gone = (its for its in made.values() if its not in forms and its.name in names)
        return self._sum(forms.difference(made.values())), self._sum(gone)

    @cached_property
    def kept_input(self) -> float:
        """Of a tensor that none in the unit makes, and of which it is the first reader: of all forms in
        which it is kept; 0 of any other step. Where no norm is before attention or the MLP, they
        read the skipped path itself."""
        if self.kind not in (OperationKind.QKV, OperationKind.ROUTER, OperationKind.UP):
            return 0.0
        name = self.operations[0].reads[0].name
        return 0.0 if name in self.unit.made else self._sum(self.unit.forms.get(name, ()))

    # weights
    # -------------------------------------------------------------------------------------------

    @cached_property
    def products(self) -> int:
        """How many products it has: 1 where their matrices are one parameter, or where it has none."""
        joined = self.rank.products_joined or any(its.joined for its in self.operations)
        return 1 if joined or self.kind not in COLUMNS else len(self.operations[0].makes)

    @cached_property
    def weights(self) -> tuple[tuple[float, float], ...]:
        """(numbers of a matrix, of its bias) for each product; of a norm those of scale and shift."""
        pairs: list[tuple[float, float]] = []
        for its in self.operations:
            if its.is_product or self.kind in NORMS:
                own = [self._numbers(weight) for weight in its.weights]
                each = len(own) // len(its.makes)
                pairs += [(own[n], sum(own[n + 1 : n + each])) for n in range(0, len(own), each)]
        parts = [pairs[at :: self.products] for at in range(self.products)]
        return tuple((sum(n for n, _ in its), sum(n for _, n in its)) for its in parts)

    @cached_property
    def vectors(self) -> float:
        """The numbers of all weights that are no product's: of norms between products, and of sinks."""
        of_norm = self.kind in NORMS
        others = [n for n in self.operations if not (n.is_product or of_norm)]
        return sum(self._numbers(weight) for its in others for weight in its.weights)

    def _numbers(self, weight: Weight) -> float:
        share = self.rank.share
        return on_rank(weight, share.tp, share.etp, self.rank.ep).numbers

    # tensor parallelism, and autocast
    # -------------------------------------------------------------------------------------------

    @cached_property
    def gathered(self) -> float:
        """Of what sequence parallelism gathers for it, and frees after it."""
        if self.kind not in COLUMNS or not self.rank.frees_gathered:
            return 0.0
        ours = [*self.operations]
        if self.kind is OperationKind.UP:  # one gather serves a router and all experts
            ours += [
                n for its in self.unit if its.kind is OperationKind.ROUTER for n in its.operations
            ]
        read = {n for its in self.unit.gathering if its in ours for n in its.reads}
        return sum(self.rank.whole_size(its) for its in read if its.cut is Cut.TOKENS)

    @cached_property
    def is_whole(self) -> bool:
        """Whether tensor-parallel ranks gather its result, or the tokens that are copied, or what it reads
        of the skipped path, or sum up its result."""
        spreads = self.rank.spreads_experts
        if any(is_partial(its, spreads_experts=spreads) for its in self.operations):
            return True
        names = {its.name for its in self.results}
        if self.kind is OperationKind.PERMUTE or self.kept_input:
            names.update(self.inputs)
        return not names.isdisjoint(self.unit.gathered)

    @cached_property
    def readers(self) -> list["Step"]:
        """The products that read its result."""
        names = {its.name for its in self.results}
        products = (its for its in self.unit if its.kind in PRODUCTS)
        return [its for its in products if names & {n.name for n in its.operations[0].reads}]

    @cached_property
    def shares_input(self) -> bool:
        """Whether it is a product that reads a norm's result beside one of another branch."""
        branches = (its for its in self.unit if its.kind in (OperationKind.QKV, OperationKind.UP))
        read = [its.inputs.keys() for its in branches]
        return self.kind in COLUMNS and len(read) > 1 and bool(read[0] & read[1])

    @cached_property
    def is_behind(self) -> bool:
        """Whether it is a norm before a sum with the skipped path, behind attention or an MLP."""
        sums = (its for its in self.unit if its.kind is OperationKind.RESIDUAL)
        names = {its.name for its in self.results}
        return self.kind is OperationKind.NORM and any(names & its.inputs.keys() for its in sums)

    @property
    def copies(self) -> float:
        """Under autocast: of the copies of its result in 16 bits, one for each product that reads it,
        and of those of their matrices."""
        return sum(its.copied(self._sum(self.results[:1])) for its in self.readers)

    def copied(self, size: float) -> float:
        """Under autocast: of a copy of `size` for each of its products, and of those of their matrices."""
        return self.products * size + self.rank.cast(sum(n for n, _ in self.weights))


@lru_cache(1024)  # plans of a search that have the same part of the model hold the same
def unit_of(operations: tuple[Operation, ...], rank: Rank) -> "Unit":
    """The `Unit` of operations, with what they save on a rank."""
    return Unit(operations, rank)


class Unit:
    """A unit's operations as `Step`s, in the order of a forward."""

    def __init__(self, operations: Sequence[Operation], rank: Rank) -> None:
        self.rank, self.steps = rank, list[Step]()
        saved: dict[bool, set[Tensor]] = {False: set(), True: set()}
        for its, owned in zip(operations, kept_tensors(operations)):
            step = self._step_of(its)
            step.operations.append(its)
            step.owned += owned
            saved[step.kind in PRODUCTS].update(its.saves)
        self.saved_twice = saved[False] & saved[True]
        self.forms: dict[str, set[Tensor]] = {}
        for kept in saved[False] | saved[True]:
            self.forms.setdefault(kept.name, set()).add(kept._replace(group=""))
        self.made = {made.name for its in operations for made in its.makes}
        spreads = rank.spreads_experts
        self.gathering = [
            its for its in operations if its.weights and gathers(its, spreads_experts=spreads)
        ]
        self.gathered = {read.name for its in self.gathering for read in its.reads}
        self.side_by_side = any(
            len(its.reads) > 2 for its in operations if its.kind is OperationKind.RESIDUAL
        )

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @cached_property
    def read(self) -> dict[str, None]:
        """The names of what steps make for each other, in the order in which they are read."""
        return dict.fromkeys(name for step in self.steps for name in step.inputs)

    def _step_of(self, operation: Operation) -> Step:
        """The step that an operation is a part of, a new one if need be."""
        kind, steps = AS_ONE.get(operation.kind, operation.kind), self.steps
        if operation.is_product and kind not in PRODUCTS:
            kind = OperationKind.QKV
        if kind is OperationKind.NORM and steps and steps[-1].kind is OperationKind.QKV:
            kind = OperationKind.QKV  # of latents, or of queries and keys
        for step in steps:
            if step.kind is kind and kind not in ALONE:
                return step
        steps.append(Step(kind, self))
        return steps[-1]
