"""The sizes that a transformer is given by, and which of them go together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simlab.display import plain
from simlab.errors import InputError, did_you_mean, require_whole, shortened
from simlab.spec.fields import documented, short_repr, with_field_docs

_LEAST = {
    "layers": 1,
    "hidden": 1,
    "heads": 1,
    "kv_heads": 1,
    "head_size": 1,
    "ffn": 1,
    "vocab": 1,
    "seq": 1,
    "positions": 0,
    "experts": 0,
    "experts_per_token": 0,
    "expert_groups": 0,
    "groups_per_token": 0,
    "expert_ffn": 0,
    "shared_experts": 0,
    "dense_layers": 0,
    "value_size": 0,
    "q_rank": 0,
    "kv_rank": 0,
    "rope_size": 0,
}
OF_EXPERTS = ("expert_ffn", "shared_experts", "dense_layers", "expert_groups")
"""Fields that say something of experts, so that a model without has none of them."""
MOST_LAYERS = 10_000
"""The most layers of a model: each of them is walked, and no model has a tenth of them."""
_FILLED = ("kv_heads", "ffn", "head_size")
"""Fields that have a value of their own where they are None."""
DENSE = "dense layer"
"""The kind of layers without experts where others have them: the one that no model needs to say."""
NO_KINDS = ("layer", DENSE, "embedding", "head", "loss", "root")
"""Names that a model cannot give to a kind of layers of its own."""
OF_ALL_LAYERS = (
    "name", "layers", "hidden", "vocab", "positions", "tied_head", "dense_layers", "kinds", "pattern",
    "seq", "source", "ignored",
)  # fmt: skip
"""Fields that no kind of layers has for itself."""

Kinds = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
"""((name of a kind of layers, ((field, value), ...)), ...)"""


@with_field_docs
@dataclass(frozen=True, kw_only=True, repr=False)
class ModelSizes:
    """The sizes that a `Model` is given.

    All fields are checked when a model is made; `InputError` says which value is wrong. A field
    whose default is None is given its value then.
    """

    name: str = documented("The name under which the model is shown.", default="")
    layers: int = documented("The number of transformer layers, L.")
    hidden: int = documented("The width of a hidden state, h.")
    heads: int = documented("The number of query heads, a.")
    kv_heads: int = documented(
        """The number of key and value heads, fewer than `heads` in grouped-query attention (Ainslie
        et al. 2023). None stands for as many as `heads`.""",
        default=None,
    )
    head_size: int = documented(
        "The width of a head. None stands for hidden / heads.", default=None
    )
    ffn: int = documented("The width of the MLP. None stands for 4 x hidden.", default=None)
    gated_mlp: bool = documented(
        "Whether the MLP has two matrices up, of which one is the gate, as in Llama.", default=False
    )
    vocab: int = documented("The number of tokens in the vocabulary, V.")
    positions: int = documented(
        "The rows of a learned table of positions (GPT). 0 stands for rotary embeddings.", default=0
    )
    tied_head: bool = documented(
        "Whether the output head is the embedding's matrix.", default=False
    )
    bias: bool = documented(
        "Whether linear layers have a bias and norms a shift (LayerNorm instead of RMSNorm).",
        default=True,
    )
    experts: int = documented(
        "The number of experts in a layer. 0 stands for one dense MLP.", default=0
    )
    experts_per_token: int = documented("The number of experts that compute each token.", default=0)
    expert_groups: int = documented(
        """The number of groups, of equally many experts next to each other, of which the router first
        chooses some for each token, so that a token's experts are on few nodes (DeepSeek-AI 2024, arXiv
        2412.19437, section 2.1.2). 0 stands for a choice among all experts.""",
        default=0,
    )
    groups_per_token: int = documented(
        "With `expert_groups`, the number of groups that a token's experts are chosen from.",
        default=0,
    )
    expert_ffn: int = documented(
        "The width of an expert, routed or shared. 0 stands for `ffn`.", default=0
    )
    shared_experts: int = documented(
        "The number of experts beside the routed ones that compute every token.", default=0
    )
    dense_layers: int = documented(
        """The number of first layers that have one dense MLP of width `ffn` although the others
        have experts.""",
        default=0,
    )
    value_size: int = documented(
        "The width of a head's value. 0 stands for `head_size`.", default=0
    )
    kv_rank: int = documented(
        """The width of the latent from which the keys and values of all heads are computed in
        multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1). 0 stands for
        attention without it.""",
        default=0,
    )
    q_rank: int = documented(
        "With `kv_rank`, the width of the queries' latent. 0 stands for queries without one.",
        default=0,
    )
    rope_size: int = documented(
        """With `kv_rank`, the part of `head_size` that has the rotary embedding. Keys have this
        part in common for all heads.""",
        default=0,
    )
    qk_norm: bool = documented(
        "Whether each head's query and key go through an RMSNorm, as in Qwen3.", default=False
    )
    kinds: Kinds = documented(
        """The kinds of layers that differ from the others, {name: {field: value}}: the fields of which
        these layers have another value than the model says, such as {'sliding layer': {'window':
        4096}}.""",
        default=(),
    )
    pattern: tuple[str, ...] = documented(
        """The kinds of the layers from the first one on, over and over: names of `kinds`, 'dense layer'
        for one without experts, 'layer' for one that is as the model says. () stands for layers that
        are all alike, but for `dense_layers`.""",
        default=(),
    )
    seq: int = documented(
        "The sequence length, s, that the model is usually trained with.", default=2048
    )
    source: str = documented("Where the sizes are from.", default="")
    ignored: tuple[str, ...] = documented(
        """The settings of its config.json from which nothing is computed, such as 'sliding_window =
        4096'.""",
        default=(),
    )

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for field, least in _LEAST.items():
            value = getattr(self, field)
            if value is not None or field not in _FILLED:
                require_whole(f"{self.name or 'model'}: {field}", value, least)
        if self.layers > MOST_LAYERS:
            raise InputError(
                f"{self.name or 'model'}: layers = {shortened(self.layers)}: give at most {MOST_LAYERS:,}"
            )
        for field in ("gated_mlp", "tied_head", "bias", "qk_norm"):
            if not isinstance(getattr(self, field), bool):
                raise InputError(
                    f"{self.name or 'model'}: {field} = {getattr(self, field)!r}: give True or False"
                )
        if self.head_size is None and self.hidden % self.heads:
            raise InputError(
                f"{self.name or 'model'}: hidden = {self.hidden} is not divisible by heads = {self.heads}"
            )
        for field, default in (
            ("kv_heads", self.heads),
            ("ffn", 4 * self.hidden),
            ("head_size", self.hidden // self.heads),
        ):
            if getattr(self, field) is None:
                object.__setattr__(self, field, default)
        object.__setattr__(self, "ignored", tuple(self.ignored))  # JSON has lists
        object.__setattr__(self, "kinds", self._own_kinds())
        object.__setattr__(self, "pattern", self._own_pattern())
        if self.heads % self.kv_heads:
            raise InputError(
                f"{self.name or 'model'}: heads = {self.heads} is not divisible by kv_heads = {self.kv_heads}"
            )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise InputError(
                f"{self.name or 'model'}: {self.experts_per_token} of {self.experts} experts per token: give 1 to {self.experts}"
            )
        self._check_groups()
        self._check_kinds()

    def _own_kinds(self) -> Kinds:
        """`kinds` as tuples, which can be hashed. Raises `InputError` if they cannot be."""
        name, kinds = self.name or "model", self.kinds
        if isinstance(kinds, (Mapping, Sequence)) and not isinstance(kinds, str):
            try:
                pairs = {its: dict(fields) for its, fields in dict(kinds).items()}
            except (TypeError, ValueError):
                pairs = None
            known = set(type(self).__dataclass_fields__) - set(OF_ALL_LAYERS)
            if pairs is not None:
                for its, fields in pairs.items():
                    if not isinstance(its, str) or not its or its in NO_KINDS:
                        raise InputError(
                            f"{name}: a kind of layers named {shortened(its)}: give a name that is none of {', '.join(NO_KINDS)}"
                        )
                    for field in fields:
                        if field not in known:
                            near = did_you_mean(field, known) or ";"
                            raise InputError(
                                f"{name}: kind {its!r}: {shortened(field)}{near} give fields of a layer: {', '.join(sorted(known))}"
                            )
                return tuple((its, tuple(fields.items())) for its, fields in pairs.items())
        raise InputError(f"{name}: kinds = {shortened(kinds)}: give {{name: {{field: value}}}}")

    def _own_pattern(self) -> tuple[str, ...]:
        """`pattern` as a tuple. Raises `InputError` if it names no kinds of layers."""
        name, known = self.name or "model", ["layer", *dict(self.kinds)]
        known += [DENSE] * (self.experts > 0)
        if isinstance(self.pattern, str) or not isinstance(self.pattern, Sequence):
            raise InputError(
                f"{name}: pattern = {shortened(self.pattern)}: give a list of kinds of layers"
            )
        for its in self.pattern:
            if its not in known:
                near = did_you_mean(its, known) or ";"
                raise InputError(
                    f"{name}: pattern has {shortened(its)}{near} give one of {', '.join(known)}"
                )
        if unused := set(dict(self.kinds)) - set(self.pattern):
            raise InputError(
                f"{name}: no layer of pattern is a {sorted(unused)[0]!r}: add it there, or leave it out of kinds"
            )
        if self.pattern and self.dense_layers:
            raise InputError(
                f"{name}: dense_layers = {self.dense_layers} beside a pattern: say {DENSE!r} in the pattern"
            )
        return tuple(self.pattern)

    def _check_groups(self) -> None:
        """Raise `InputError` if no token's experts can be chosen from so many groups."""
        groups, taken = self.expert_groups, self.groups_per_token
        if not (groups or taken):
            return
        name = self.name or "model"
        if not groups or self.experts % groups:
            raise InputError(
                f"{name}: expert_groups = {groups} with groups_per_token = {taken} and experts = {self.experts}: give a "
                "number that divides the experts, or leave both out"
            )
        least = -(-self.experts_per_token * groups // self.experts) if self.experts else 1
        if not max(1, least) <= taken <= groups:
            raise InputError(
                f"{name}: groups_per_token = {taken} of {groups} groups, for {self.experts_per_token} of {self.experts} "
                f"experts: give {max(1, least)} to {groups}"
            )

    def _check_kinds(self) -> None:
        """Raise `InputError` if fields that belong to experts or to latent attention contradict
        each other."""
        name = self.name or "model"
        if not self.experts:
            for field in OF_EXPERTS:
                if value := getattr(self, field):
                    raise InputError(
                        f"{name}: {field} = {value} without experts: give experts, or leave it out"
                    )
        if self.shared_experts and self.bias:
            raise InputError(f"{name}: shared_experts with bias = True: give bias = False")
        if self.dense_layers >= self.layers:
            raise InputError(
                f"{name}: dense_layers = {self.dense_layers} of {self.layers} layers: give fewer"
            )
        if (self.q_rank or self.rope_size) and not self.kv_rank:
            raise InputError(
                f"{name}: q_rank = {self.q_rank} and rope_size = {self.rope_size} without latent "
                "attention: give kv_rank, or leave them out"
            )
        if self.value_size and not self.kv_rank:
            raise InputError(
                f"{name}: value_size = {self.value_size} without latent attention: give kv_rank, or "
                "leave it out"
            )
        if self.kv_rank and (self.bias or self.positions or self.kv_heads != self.heads):
            raise InputError(
                f"{name}: latent attention has bias = False, positions = 0 and as many kv_heads as "
                f"heads; give those, not bias = {self.bias}, positions = {self.positions} and "
                f"kv_heads = {self.kv_heads} beside heads = {self.heads}"
            )
        if self.kv_rank and not self.rope_size < self.head_size:
            raise InputError(
                f"{name}: rope_size = {self.rope_size}: give less than head_size = {self.head_size}"
            )

    def to_dict(self) -> dict[str, Any]:
        """{field: value} in the types that JSON knows; `Model(**values)` makes the model again."""
        return plain(self)

    @property
    def expert_width(self) -> int:
        """The width of an expert: `expert_ffn`, or `ffn` where that is not given."""
        return self.expert_ffn or self.ffn

    @property
    def value_width(self) -> int:
        """The width of a head's value: `value_size`, or `head_size` where that is not given."""
        return self.value_size or self.head_size

    @property
    def active_ffn(self) -> int:
        """The width of all MLPs of a layer that compute one token, together: of the routed experts
        and the shared ones, or of the dense one."""
        if not self.experts:
            return self.ffn
        return self.expert_width * (self.experts_per_token + self.shared_experts)
