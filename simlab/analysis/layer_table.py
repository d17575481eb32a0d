"""A layer, operation by operation: what one rank holds, computes, keeps and sends."""

from collections.abc import Sequence
from typing import NamedTuple

from simlab.layer.microbatch import plan_operations, share_of
from simlab.layer.operation import Cut, Operation, Tensor
from simlab.layer.parameters import on_rank
from simlab.layer.saved import Share, kept_tensors
from simlab.lowering.kernels import Attention, Communication, Matmul, launched_by, layer_kernels
from simlab.lowering.kernels.kernel import Launched
from simlab.memory.activations import keeping_operations
from simlab.spec.model import Model
from simlab.spec.named import AnyModel, model_of
from simlab.spec.plan import Plan
from simlab.units import bytes_text


class Held(NamedTuple):
    """What a rank has of the tensors that an operation makes, or, where ranks add up what it makes,
    of the one that it reads."""

    cut: Cut
    """How they are cut; a cut into one part leaves them whole."""
    width: float
    """The numbers that the rank has for a token, or for a copy of a token."""
    whole_width: float
    """The numbers that all tensor-parallel ranks have for it together."""
    tokens: float
    """The part of the microbatch's tokens, or of their copies for experts, for which it has them."""


class LayerRow(NamedTuple):
    """One operation of a layer's forward, on one rank and for one microbatch."""

    operation: str
    shape: str
    """Of a product (rows x inputs) x (inputs x outputs), of another operation rows x numbers of
    what it makes first."""
    parameters: float
    flops: float
    """Floating-point operations of the forward."""
    kept_bytes: float
    """What its backward reads and no operation before it has kept already."""
    sent: tuple[Communication, ...]
    """What is communicated before it, and after what is computed before it. A sum over
    tensor-parallel ranks comes before the operation that reads it."""
    sent_back: tuple[Communication, ...]
    """What the backward communicates at that place."""
    again: bool
    """Whether it runs a second time before the backward, at least in part."""
    held: Held


class LayerTable(NamedTuple):
    """The `LayerRow` of each operation of a layer, in order. It prints itself as a table, and
    `simlab.layer_picture` draws it."""

    model: Model
    plan: Plan
    rows: tuple[LayerRow, ...]

    @property
    def parameters(self) -> float:
        """Those of the layer on the rank."""
        return sum(its.parameters for its in self.rows)

    @property
    def flops(self) -> float:
        """Floating-point operations of the layer's forward on the rank."""
        return sum(its.flops for its in self.rows)

    @property
    def kept_bytes(self) -> float:
        """What the layer keeps of a microbatch for its backward."""
        return sum(its.kept_bytes for its in self.rows)

    def __str__(self) -> str:
        lines = [
            ("operation", "shape on this rank", "parameters", "FLOPs", "kept", "sent before it")
        ]
        for its in self.rows:
            sent = ", ".join(f"{n.name} {bytes_text(n.size_bytes)}" for n in its.sent)
            name = its.operation + " (again)" * its.again
            lines.append((name, its.shape, *_figures(*its[2:5]), sent))
        lines.append(("sum", "", *_figures(self.parameters, self.flops, self.kept_bytes), ""))
        widths = [max(map(len, column)) for column in zip(*lines)]
        return "\n".join(
            "  ".join(
                text.rjust(width) if 2 <= at < 5 else text.ljust(width)
                for at, (text, width) in enumerate(zip(line, widths))
            ).rstrip()
            for line in lines
        )


def _figures(parameters: float, flops: float, kept_bytes: float) -> tuple[str, str, str]:
    return (
        f"{parameters:,.0f}" if parameters else "",
        f"{flops:.3g}" if flops else "",
        bytes_text(kept_bytes) if kept_bytes else "",
    )


def layer_table(model: AnyModel, plan: Plan, kind: str = "layer") -> LayerTable:
    """What each operation of a layer is on a rank of `plan`, for one microbatch. kind: one of
    `model.layer_kinds`, of a model whose layers are of several; 'layer' is one that is as the model says.

    Parameters add up to those of a layer, kept bytes to what it keeps (without the statistics of
    norms), and what is sent is what the rank's list has. Raises `InputError` if the plan does not
    fit the model. Leaves out casts of weights, and what ZeRO gathers and copies.
    """
    model = model_of(model)
    plan.check(model)
    model = model.of_kind(kind)
    operations, share = plan_operations(model, plan), share_of(model, plan)
    launched = launched_by(operations, model, plan, share)
    sent = _sent(launched)
    back = _sent_back(operations, sent, layer_kernels(model, plan).input_grad)
    keeping = keeping_operations(model, plan, plan.recompute)
    tokens = plan.microbatch_size * (plan.seq or model.seq)
    rows = []
    for at, (its, kept) in enumerate(zip(keeping, kept_tensors(keeping))):
        weights = (on_rank(weight, plan.tp, plan.etp, plan.ep) for weight in its.weights)
        rows.append(
            LayerRow(
                its.label,
                _shape(its, launched[at], share),
                sum(weight.numbers for weight in weights),
                sum(kernel.flops for kernel in launched[at]),
                sum(_bytes(tensor, share, plan) for tensor in kept),
                tuple(sent[at]),
                tuple(back[at]),
                bool(its.again),
                _held(its, share, tokens, model.experts_per_token),
            )
        )
    return LayerTable(model, plan, tuple(rows))


def _held(operation: Operation, share: Share, tokens: int, copies: int) -> Held:
    """tokens: of the microbatch; copies: of each, for experts."""
    reads = any(weight.by_columns for weight in operation.weights)
    its = operation.reads[:1] if reads else operation.makes
    if not operation.weights:
        its = its[:1]  # the others are masks and statistics
    cut, width, whole = its[0].cut, sum(map(share.width, its)), sum(each.numbers for each in its)
    of_experts = cut in (Cut.COPIES, Cut.EXPERTS)
    rows = share.numbers(its[0]) / share.width(its[0])
    part = min(1.0, rows / (tokens * copies if of_experts else tokens))
    is_whole = not of_experts and (width, part) == (whole, 1)
    return Held(Cut.WHOLE if is_whole else cut, width, whole, part)


def _sent(launched: Sequence[Sequence[Launched]]) -> list[list[Communication]]:
    """[what is communicated before each operation]; what comes after an operation's own kernel, before
    the next one."""
    found: list[list[Communication]] = [[] for _ in launched]
    for at, kernels in enumerate(launched):
        place = at
        for its in kernels:
            if isinstance(its, Communication):
                found[place].append(its)
            else:
                place = at + 1
    return found


def _sent_back(
    operations: Sequence[Operation],
    sent: Sequence[Sequence[Communication]],
    backward: Sequence[Launched],
) -> list[list[Communication]]:
    """[what the backward communicates before each operation, seen from the forward]. Tensor parallelism
    brings the gradient of a result to where the forward brings the result; the other dimensions
    undo each communication of the forward, the last one first."""
    found: list[list[Communication]] = [[] for _ in sent]
    places = [(at, each) for at, its in enumerate(sent) for each in its]
    others = [at for at, its in places if its.dimension != "tp"]
    results = {its.operation: at for at, its in places if its.carries == "result"}
    products = {its.kind: at for at, its in reversed([*enumerate(operations)])}
    products |= {its.operation: at for at, its in places if its.carries == "input"}
    for its in backward:
        if isinstance(its, Communication):
            of_tp = results if its.carries == "result gradient" else products
            found[of_tp[its.operation] if its.dimension == "tp" else others.pop()].append(its)
    return found


def _bytes(tensor: Tensor, share: Share, plan: Plan) -> float:
    return (tensor.number_bytes or plan.element_bytes) * share.numbers(tensor)


def _shape(operation: Operation, kernels: Sequence[Launched], share: Share) -> str:
    for its in kernels:
        if isinstance(its, Matmul):
            times = f"{its.batch} x " if its.batch > 1 else ""
            return f"{times}({its.m} x {its.k}) x ({its.k} x {its.n})"
        if isinstance(its, Attention):
            return f"{its.heads} heads, {its.queries} queries x {its.keys} keys"
    made = operation.makes[0]
    width = share.width(made)
    return f"{share.numbers(made) / width:g} x {width:g}"
