"""What Megatron-LM does by ops of torch where a rotary embedding has a factor, held against these ops."""

from dataclasses import replace

import pytest

from simlab.errors import InputError
from simlab.lowering.kernels import Memory, layer_kernels
from simlab.lowering.kernels.host import SCALED_ROTARY_OPS, runtime_ops
from simlab.spec.model import Model, load_model
from simlab.spec.model.hugging_face import sizes_of
from simlab.spec.plan import Plan

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_bytes import MovedBytes, meta  # noqa: E402  (it needs torch)

SEQ, HEADS, KV_HEADS, SIZE = 64, 8, 4, 32
PLAIN = Model(
    layers=2, hidden=256, heads=HEADS, kv_heads=KV_HEADS, ffn=512, vocab=1024, seq=SEQ,
    gated_mlp=True, bias=False,
)  # fmt: skip
SCALED = replace(PLAIN, scaled_rotary=True)
PLAN = Plan(dropout=False)


def rotated(states, angles, factor=1.3):
    """Megatron-LM's _apply_rotary_pos_emb_bshd (core/models/common/embeddings/rope_utils.py)."""
    width = angles.shape[-1]
    turned, left = states[..., :width], states[..., width:]
    cosines = (torch.cos(angles) * factor).to(turned.dtype)
    sines = (torch.sin(angles) * factor).to(turned.dtype)
    first, second = torch.chunk(turned, 2, dim=-1)
    half_turned = torch.cat((-second, first), dim=-1)
    return torch.cat(((turned * cosines) + (half_turned * sines), left), dim=-1)


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        self.names.append(op.overloadpacket.__name__)
        return op(*arguments, **(options or {}))


def of_both(kind):
    """[`kind` of the forward, of the backward] of queries and of keys."""
    found = []
    for heads in (HEADS, KV_HEADS):
        angles = meta(SEQ, 1, 1, SIZE, dtype=torch.float32)
        states = meta(SEQ, 1, heads, SIZE).requires_grad_()
        with kind() as forward:
            made = rotated(states, angles)
        grad = torch.empty_like(made)
        with kind() as backward:
            made.backward(grad)
        found.append((forward, backward))
    return list(zip(*found))


def test_a_rotary_embedding_with_a_factor_moves_what_ops_of_torch_move():
    forward, backward = (
        sum(its.bytes for its in both)
        for both in of_both(lambda: MovedBytes(least=SEQ * KV_HEADS * SIZE // 2))
    )
    kernels = layer_kernels(SCALED, PLAN)
    (its,) = [k for k in kernels.forward if k.name == "rotary"]
    (grad,) = [k for k in kernels.input_grad if k.name == "rotary grad"]
    assert (its.size_bytes, grad.size_bytes) == (forward, backward)


def test_the_host_dispatches_these_ops():
    forward, backward = (
        sum(name != "detach" for its in both for name in its.names) for both in of_both(Names)
    )
    assert (forward, backward, 0) == SCALED_ROTARY_OPS
    more = [a - b for a, b in zip(runtime_ops(SCALED, PLAN), runtime_ops(PLAIN, PLAN))]
    assert tuple(more) == SCALED_ROTARY_OPS


@pytest.mark.parametrize("plan", [replace(PLAN, library="torch"), replace(PLAN, fused=False)])
def test_only_megatron_lm_has_no_kernel_for_it(plan):
    found = [
        [k.size_bytes for k in layer_kernels(model, plan).forward if isinstance(k, Memory) and k.name == "rotary"]
        for model in (PLAIN, SCALED)
    ]  # fmt: skip
    assert (found[0] == found[1]) is (plan.library == "torch")


YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("rope", "scaled"),
    [
        (YARN, True),
        ({"type": "yarn", "factor": 4.0}, True),
        (YARN | {"attention_factor": 1}, False),
        (YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, False),
        ({"rope_type": "llama3", "factor": 8.0}, False),
        (None, False),
    ],
)
def test_a_config_says_whether_it_has_a_factor(rope, scaled):
    config = {
        "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 8,
        "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1024,
        "max_position_embeddings": 512, "rope_scaling": rope,
    }  # fmt: skip
    assert sizes_of(config).get("scaled_rotary", False) is scaled


def test_gpt_oss_has_one_and_latent_attention_has_none():
    assert load_model("gpt-oss-120b").scaled_rotary and load_model("gpt-oss-20b").scaled_rotary
    assert not load_model("deepseek-v3").scaled_rotary
    with pytest.raises(InputError, match="scaled_rotary without a rotary embedding"):
        replace(PLAIN, rotary=False, scaled_rotary=True)
