"""The sizes that a transformer is given by, and which of them go together."""

from dataclasses import dataclass, fields
from typing import Any

from simlab.display import plain
from simlab.errors import InputError, require_whole, shortened
from simlab.spec.fields import documented, short_repr, with_field_docs
from simlab.spec.model.size_checks import (
    MIXERS,
    NORMS,
    PARALLEL,
    QK_NORMS,
    Kinds,
    check_groups,
    check_kinds,
    check_words,
    own_kinds,
    own_pattern,
)

MOST_LAYERS = 10_000
"""The most layers of a model: each of them is walked, and no model has a tenth of them."""


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
    biases: tuple[str, ...] = documented(
        """With `bias` False, what has a bias all the same: 'qkv', 'output', 'mlp' (of experts, too),
        'router', 'norm' or 'head'. Qwen2 has those of queries, keys and values only.""",
        default=(),
    )
    norms: str = documented(
        """Where norms are: 'before' attention and MLP, 'both' before and behind, as in Gemma 2, or
        'behind' only, as in OLMo 2.""",
        choices=NORMS,
        default="before",
    )
    parallel: bool | str = documented(
        """Whether attention and MLP read the same input and are added to it together, as in GPT-J: by one
        norm, or by 'two norms', one for each, as in GPT-NeoX.""",
        choices=PARALLEL,
        default=False,
    )
    window: int = documented(
        """How many keys a query meets at most, its own and those before it (sliding window). 0 stands
        for all.""",
        default=0,
    )
    window_slides: bool = documented(
        """Whether each query has a window of its own. False stands for windows side by side, as in
        Llama 4: a query meets the keys of its window that are before it.""",
        default=True,
    )
    sinks: bool = documented(
        """Whether each head has a score of its own that takes a part of the softmax, as in gpt-oss.""",
        default=False,
    )
    clamped: bool = documented(
        """Whether gate and up are limited to a range before the activation function, as in gpt-oss
        (`swiglu_limit`).""",
        default=False,
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
        """The part of `head_size` that has the rotary embedding. 0 stands for all of it. With
        `kv_rank`, keys have this part in common for all heads.""",
        default=0,
    )
    rotary: bool = documented(
        """Whether there is a rotary embedding where there are no `positions`. Some layers of Llama 4
        have none.""",
        default=True,
    )
    scaled_rotary: bool = documented(
        """Whether the rotary embedding multiplies queries and keys by a factor, too, as YaRN does (Peng et
        al. 2023, arXiv 2309.00071) and with it gpt-oss.""",
        default=False,
    )
    qk_norm: bool | str = documented(
        """Whether each head's query and key go through an RMSNorm, as in Qwen3. 'whole' stands for one of
        all heads together, as in OLMo 2, and 'weightless' for one without weights, as in Llama 4.""",
        default=False,
        choices=QK_NORMS,
    )
    mixer: str = documented(
        """What brings the tokens of a sequence together: 'attention', 'mamba' (a state space, Dao and Gu
        2024, arXiv 2405.21060) with the sizes that begin with `state`, or 'none' in a layer that is an MLP
        only.""",
        choices=MIXERS,
        default="attention",
    )
    has_mlp: bool = documented(
        "Whether there is an MLP, or experts. In Nemotron 3 a layer has one part only.",
        default=True,
    )
    state_heads: int = documented(
        "With `mixer` 'mamba', the number of heads, each of which has a state.", default=0
    )
    state_head_size: int = documented("The width of such a head.", default=0)
    state_groups: int = documented(
        "In how many groups these heads are; those of a group read and write states alike.",
        default=0,
    )
    state_size: int = documented("The numbers of a state for each of a head's width, n.", default=0)
    conv_size: int = documented(
        "How many tokens, its own and those before it, each token is convolved of first.", default=4
    )
    expert_rank: int = documented(
        """The width of the latents that routed experts compute in the stead of hidden states, so that
        fewer bytes travel to them (Nemotron 3 Super). 0 stands for hidden states.""",
        default=0,
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
    mtp_layers: int = documented(
        """The number of modules that predict one more token each (multi-token prediction, DeepSeek-AI
        2024, arXiv 2412.19437, section 2.2) and are trained: a layer as the last one, a projection of
        2 h to h, three norms, and the model's own embedding and head once more. They are on the last
        stage. If the last layer has one part only, attention or an MLP, theirs is as the model says.""",
        default=0,
    )
    seq: int = documented(
        "The sequence length, s, that the model is usually trained with.", default=2048
    )
    source: str = documented("Where the sizes are from.", default="")
    ignored: tuple[str, ...] = documented(
        """The settings of its config.json from which nothing is computed, such as 'vision_config =
        ...'.""",
        default=(),
    )

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for its in fields(self):
            value, what = getattr(self, its.name), f"{self.name or 'model'}: {its.name}"
            if its.type is int and (value is not None or its.default is not None):
                require_whole(what, value, int(its.default != 0))
            elif its.type is bool and not isinstance(value, bool):
                raise InputError(f"{what} = {value!r}: give True or False")
        if self.layers > MOST_LAYERS:
            raise InputError(
                f"{self.name or 'model'}: layers = {shortened(self.layers)}: give at most {MOST_LAYERS:,}"
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
        check_words(self)
        object.__setattr__(self, "kinds", own_kinds(self))
        object.__setattr__(self, "pattern", own_pattern(self))
        if self.heads % self.kv_heads:
            raise InputError(
                f"{self.name or 'model'}: heads = {self.heads} is not divisible by kv_heads = {self.kv_heads}"
            )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise InputError(
                f"{self.name or 'model'}: {self.experts_per_token} of {self.experts} experts per token: give 1 to {self.experts}"
            )
        check_groups(self)
        check_kinds(self)

    @property
    def is_module(self) -> bool:
        """Whether its layers belong to modules that predict one more token: see `mtp_layers`."""
        return False

    def has_bias(self, what: str) -> bool:
        """Whether 'qkv', 'output', 'mlp', 'router', 'norm' or 'head' has a bias."""
        return what in self.biases or (self.bias and what not in ("router", "head"))

    def keys_met(self, seq: int) -> int:
        """How many keys each query of a sequence meets at most, of which a causal mask leaves a part."""
        return min(seq, self.window or seq)

    def to_dict(self) -> dict[str, Any]:
        """{field: value} in the types that JSON knows; `Model(**values)` makes the model again."""
        return plain(self)

    @property
    def expert_width(self) -> int:
        """The width of an expert: `expert_ffn`, or `ffn` where that is not given."""
        return self.expert_ffn or self.ffn

    @property
    def state_inner(self) -> int:
        """The width of all heads of a state space."""
        return self.state_heads * self.state_head_size

    @property
    def state_channels(self) -> int:
        """The width of what a state space convolves: x of all heads, B and C of all groups."""
        return self.state_inner + 2 * self.state_groups * self.state_size

    @property
    def part_count(self) -> int:
        """How many parts a layer has, of two: what brings tokens together, and an MLP."""
        return (self.mixer != "none") + self.has_mlp

    @property
    def value_width(self) -> int:
        """The width of a head's value: `value_size`, or `head_size` where that is not given."""
        return self.value_size or self.head_size
