"""Sizes of a transformer, or of a hybrid → parameters, operations by kernel, activation bytes by tensor. GPT and
Llama kinds, dense or with experts, and layers with a state space."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from simlab.errors import require_whole
from simlab.layer.flops import flops_again, layer_flops
from simlab.layer.parts import layer_parameters
from simlab.layer.passes.recomputation import marked
from simlab.layer.saved import Share, saved_bytes
from simlab.layer.units import MODULE, layer_operations
from simlab.spec.fields import with_field_docs
from simlab.spec.model.size_checks import DENSE, OF_EXPERTS
from simlab.spec.model.sizes import ModelSizes

MFU_ATTENTION = "full"
"""How the model FLOPs of an MFU or HFU count attention. 'full' counts all pairs of queries and keys,
as published figures do (Chowdhery et al. 2022, appendix B), though a causal kernel computes half of
them. Where attention has a window, each query counts as many keys as the window has, at most those of the
sequence: what NVIDIA's Megatron-Bridge counts (min(window, sequence) in its flop_utils.py), with its
half for the mask left out here. torchtitan counts the whole sequence for such layers, too."""
MFU_CONVENTION = "attention counted in full"
"""The same in words, which stand beside every MFU that is shown."""


@with_field_docs
@dataclass(frozen=True, kw_only=True, repr=False)
class Model(ModelSizes):
    """The sizes of a decoder-only transformer.

    All fields are checked when a model is made; `InputError` says which value is wrong. A field
    whose default is None is given its value then.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kinds:
            _ = self._of_kinds  # whose sizes are checked, too

    # kinds of layers
    # -------------------------------------------------------------------------------------------

    @cached_property
    def layer_kinds(self) -> tuple[str, ...]:
        """The kind of each layer, in order: 'layer', 'dense layer' or a name of `kinds`; then 'module' for
        each of `mtp_layers`."""
        kinds = self.pattern or ("layer",)
        period, dense = len(kinds), self.dense_layers
        layers = (DENSE if at < dense else kinds[at % period] for at in range(self.layers))
        return (*layers, *(MODULE,) * self.mtp_layers)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """{kind: how many layers of it there are}, in the order in which they first come."""
        return Counter(self.layer_kinds)

    def of_kind(self, kind: str) -> "Model":
        """The same model with all layers of one kind. Raises `KeyError` if there is no such kind."""
        return self if kind == "layer" else self._of_kinds[kind]

    @cached_property
    def _of_kinds(self) -> dict[str, "Model"]:
        others = dict(self.kinds) | ({DENSE: (("experts", 0),)} if self.experts else {})
        found = {kind: self._with(dict(own)) for kind, own in others.items()}
        if self.mtp_layers:  # as the last layer
            last = self._with(dict(others.get(self.layer_kinds[self.layers - 1], ())))
            alike = last if last.part_count == 2 else self._with({})
            found[MODULE] = _Module(**{its.name: getattr(alike, its.name) for its in fields(self)})
        return found

    def _with(self, own: dict[str, Any]) -> "Model":
        """The same model with all layers alike, and with other values of some fields."""
        if own.get("experts") == 0:
            none = ("experts_per_token", "groups_per_token", *OF_EXPERTS)
            own = dict.fromkeys(none, 0) | own
        alike: dict[str, Any] = {"kinds": (), "pattern": (), "dense_layers": 0, "mtp_layers": 0}
        return replace(self, **(alike | own))

    def kinds_of_stages(self, layers: Sequence[int]) -> list[tuple[str, ...]]:
        """[the kinds of each stage's layers, in order], of stages with so many `layers`; the last one has
        the modules, too."""
        ends = accumulate((*layers[:-1], layers[-1] + self.mtp_layers))
        starts = accumulate(layers, initial=0)
        return [self.layer_kinds[start:end] for start, end in zip(starts, ends)]

    def of_layers(self, quantity: Callable[["Model"], float]) -> float:
        """The sum of a quantity of a layer over all layers. quantity: `Model` whose layers are all
        alike → the quantity of one."""
        return sum(count * quantity(self.of_kind(kind)) for kind, count in self.counts.items())

    # parameters
    # -------------------------------------------------------------------------------------------

    @property
    def layer_parameters(self) -> dict[str, int]:
        """{part: parameters} of one layer: attention, mlp (all routed experts), router, norms
        (those of latents, queries and keys included) and, where there are some, a state space, shared
        experts, their latents and a module's projection.

        Of a model whose layers are of several kinds it is one that is as the model says;
        `of_kind(kind).layer_parameters` are another's. A bias that a router adds to choose experts (DeepSeek-V3) has no gradient and is
        not counted.
        """
        return layer_parameters(self)

    @property
    def parameters(self) -> int:
        """All parameters: layers, embeddings, last norm and, unless it is tied, the head, and
        `mtp_layers`."""
        embedding = (self.vocab + self.positions) * self.hidden
        head = 0 if self.tied_head else self.vocab * (self.hidden + self.has_bias("head"))
        return (
            int(self.of_layers(lambda its: sum(its.layer_parameters.values())))
            + embedding
            + self._heads * self.hidden * (1 + self.has_bias("norm"))
            + head
        )

    @property
    def _heads(self) -> int:
        """How many times the head computes: for the next token, and for one more of each module."""
        return 1 + self.mtp_layers

    @property
    def active_parameters(self) -> int:
        """As `parameters`, counting only the experts that compute a token."""
        return self.parameters - int(self.of_layers(Model._idle_parameters))

    def _idle_parameters(self) -> int:
        """Of a layer, those of the experts that do not compute a token."""
        if not self.experts:
            return 0
        one_expert = self.layer_parameters["mlp"] // self.experts
        return one_expert * (self.experts - self.experts_per_token)

    # operations
    # -------------------------------------------------------------------------------------------

    def _tokens(self, seq: int | None) -> int:
        """The tokens of a sequence. None stands for those of the model."""
        if seq is None:
            return self.seq
        require_whole("seq", seq)
        return seq

    def layer_flops(self, seq: int | None = None) -> dict[str, int]:
        """{kernel: floating-point operations} of one layer's forward, per token: two for each
        multiplication and addition.

        The matrix products are 2 x their entries. Scores (Q K^T) and their product with V are 2 s a
        d each, counted in full as all published figures do, though a causal kernel does half of
        that; d is the width of a query, or of a value. With a window s is at most that of the
        window. Of a model whose layers are of several kinds it is one that is as the model says.
        Leaves out norms, softmax, activation functions: they are bound by memory. (Narayanan et al.
        2021, arXiv 2104.04473, appendix: 24 B s h^2 + 4 B s^2 h per layer for the GPT kind.)
        """
        return layer_flops(self, self._tokens(seq))

    @property
    def head_flops(self) -> int:
        """Operations of the output head's forward, per token."""
        return 2 * self.hidden * self.vocab

    def flops_per_token(self, seq: int | None = None) -> int:
        """Model FLOPs of one training step, per token: forward once and backward twice as much; no
        recomputation (as in MFU).

        (Chowdhery et al. 2022, PaLM, appendix B; the same number as Korthikanti et al. 2022, 72 B L
        s h^2 (1 + s/6h + V/12hL).)
        """
        layers = self.of_layers(lambda its: sum(its.layer_flops(seq).values()))
        return 3 * (int(layers) + self._heads * self.head_flops)

    def hardware_flops_per_token(
        self,
        seq: int | None = None,
        recompute: str = "none",
        *,
        flash: bool = False,
        stops_early: bool = False,
    ) -> float:
        """As `flops_per_token`, with what is computed again: 'selective' scores and values,
        'outputs' latent attention's products up, 'per-op' every second product and stored scores, 'full' each layer's forward (as in HFU).

        Computing scores and values a second time adds a third of what they take in a step, so s/6h
        becomes 2s/9h. Korthikanti et al. 2022, whose selective recomputation this is, print s/3h,
        as if they were computed twice as often. With a fused kernel (`flash`), which keeps no
        scores, selective recomputation has nothing to do. stops_early: whether full recomputation
        leaves out each layer's last product, as torch's does.
        """
        tokens = self._tokens(seq)
        again = self.of_layers(
            lambda its: flops_again(its, tokens, recompute, flash=flash, stops_early=stops_early)
        )
        return self.flops_per_token(seq) + again

    # activations
    # ------------------------------------------------------------------------------------------

    def layer_activations(
        self,
        microbatch_size: int,
        seq: int | None = None,
        *,
        tp: int = 1,
        sequence_parallel: bool = False,
        recompute: str = "none",
        flash: bool = False,
        dropout: bool | None = None,
    ) -> dict[str, float]:
        """{tensor: bytes per rank} that one layer's forward keeps for its backward, in 16-bit
        precision (dropout masks: 1 byte).

        For the GPT kind without grouping their sum is s b h (34 + 5 a s / h) bytes (Korthikanti et
        al. 2022, arXiv 2205.05198, section 4 and Table 2). Not twice that: the 2 bytes of a number
        are in it. Tensor parallelism divides what lies between its pairs of matrices by tp; with
        sequence parallelism the rest too. Selective recomputation drops scores, softmax and its
        dropout; 'outputs' the results of norms, of experts' activation functions and of latent
        attention's products up; full, all but the input.

        flash:   scores are never stored; FlashAttention keeps one number per row, 4 bytes, in their
                 stead.
        dropout: None: where the model has biases (GPT kinds).
        Of a model whose layers are of several kinds it is one that is as the model says. Latent attention keeps the
        latents before and after their norms and whole keys of every head; a norm of queries and
        keys keeps its inputs.
        Leaves out temporaries.
        """
        require_whole("microbatch_size", microbatch_size)
        require_whole("tp", tp)
        seq = self._tokens(seq)
        dropout = self.bias if dropout is None else dropout
        tokens = seq * microbatch_size
        share = Share(tokens, tp, sequence_parallel, tokens * self.experts_per_token, tp)
        operations = layer_operations(self, keys=0 if flash else seq, dropout=dropout)
        return saved_bytes(marked(operations, recompute), share, 2)


class _Module(Model):
    """A model all of whose layers are those of modules that predict one more token."""

    @property
    def is_module(self) -> bool:
        """Whether its layers belong to modules: they do."""
        return True
