"""Three models on a whiteboard: Llama-3 405B, DeepSeek-V3, and 70B parameters at a million tokens."""

from functools import lru_cache
from random import Random

from simlab.lessons.drill.boards.board import NEAR_ALL, ROUGHER, Board, Drawn, Stage
from simlab.lowering.traffic import traffic
from simlab.spec.named import model_of
from simlab.spec.plan import Plan
from simlab.training import predict
from simlab.training.prediction import Prediction

GB = 1e9
LLAMA, DEEPSEEK, LONG = "llama-3-405b", "deepseek-v3", "llama-3-70b"
STATES = ("parameters", "gradients", "optimizer")


predicted = lru_cache(64)(predict)
"""`predict`, which remembers: each stage of a case, and many draws, have the same plan."""
sent = lru_cache(64)(traffic)


def _held_gb(prediction: Prediction, rank: int, *categories: str) -> float:
    return sum(prediction.held[rank][name] for name in categories) / GB


def _llama3(random: Random) -> Drawn:
    tp, pp = 8, random.choice((8, 16))
    chunks, microbatches = random.choice((2, 4)), pp * random.choice((1, 2))
    again = random.choice(("none", "full"))
    plan = Plan(
        tp=tp,
        pp=pp,
        dp=16384 // (tp * pp),
        microbatches=microbatches,
        seq=8192,
        zero=1,
        sequence_parallel=True,
        schedule="interleaved-1f1b",
        chunks=chunks,
        recompute=again,
        stage_layers="ends-count-as-layers",
    )
    found, bytes_sent = predicted(LLAMA, plan, "dgx-h100"), sent(LLAMA, plan)[1]
    return Drawn(
        given={
            "pp": pp,
            "dp": plan.dp,
            "chunks": chunks,
            "microbatches": microbatches,
            "recompute": again,
            "kept": 2 if again == "full" else 32,
            "forwards": 2 if again == "full" else 1,
        },
        expected={
            "states": _held_gb(found, 1, *STATES),
            "activations": _held_gb(found, 1, "activations"),
            "tp_sent": bytes_sent.tp / GB,
            "dp_sent": bytes_sent.dp / GB,
            "step": found.step_s,
            "mfu": 100 * found.mfu,
        },
    )


LLAMA3 = Board(
    "llama3",
    (
        Stage("states", "405.9 / (8 * pp) * (2 + 4 + 12 / dp)", "GB"),
        Stage(
            "activations",
            "kept * 8192 * 16384 / 8 * 128 / (pp * chunks)"
            " * min(microbatches * chunks, pp * (chunks + 1) - 3) / 1e9",
            "GB",
        ),
        Stage(
            "tp_sent",
            "128 / pp * microbatches * (4 * forwards + 6) * 2 * 8192 * 16384 * 7 / 8 / 1e9",
            "GB",
        ),
        Stage("dp_sent", "405.9 / (8 * pp) * (4 + 2)", "GB"),
        Stage(
            "step",
            "(6 * 405.9e9 * 1.08 * (forwards + 2) / 3 * dp * microbatches * 8192 / (16384 * 989e12 * 0.65)"
            " + tp_sent / 400) * (1 + (pp - 1) / (chunks * microbatches))",
            "s",
            ROUGHER,
        ),
        Stage(
            "mfu",
            "100 * 6 * 405.9e9 * 1.08 * dp * microbatches * 8192 / (step * 16384 * 989e12)",
            "%",
        ),
    ),
    _llama3,
)


def _deepseek(random: Random) -> Drawn:
    microbatches, pp = random.choice((32, 64)), 16
    again, seq = random.choice((("full", 4096), ("full", 8192), ("outputs", 4096)))  # which fit
    once = random.choice((True, False))
    plan = Plan(
        dp=2048 // pp,
        pp=pp,
        ep=64,
        zero=1,
        seq=seq,
        microbatches=microbatches,
        recompute=again,
        stage_layers="uneven",
        dispatcher="once-a-node" if once else "all-to-all",
    )
    model, found = model_of(DEEPSEEK), predicted(DEEPSEEK, plan, "h800")
    return Drawn(
        given={
            "microbatches": microbatches,
            "seq": seq,
            "pp": pp,
            "dp": plan.dp,
            "layers": plan.layers_of_stages(model.layers)[3],
            "recompute": again,
            "dispatcher": plan.dispatcher,
            "forwards": 2 if again == "full" else 1,
            "copies": 7.3 if once else 8,
            "nodes": 4 if once else 8,
        },
        expected={
            "active": model.flops_per_token(seq) / 1e9,
            "states": _held_gb(found, 3, *STATES),
            "sent": sent(DEEPSEEK, plan)[3].ep / GB,
            "all_to_alls": found.waterfall_s.ep,
            "step": found.step_s,
            "mfu": 100 * found.mfu,
        },
    )


DEEPSEEK_V3 = Board(
    "deepseek",
    (
        Stage("active", "6 * 36.6 + 6 * 61 * 128 * seq * (192 + 128) / 1e9", "GFLOP"),
        Stage(
            "states",
            "layers * (4 * 0.044 * (6 + 12 * 64 / dp) + 0.233 * (6 + 12 / dp))",
            "GB",
        ),
        Stage(
            "sent",
            "layers * 2 * (forwards + 1) * microbatches * seq * 7168 * copies * 2 / 1e9",
            "GB",
        ),
        Stage("all_to_alls", "sent * nodes / copies * 7 / 8 / (0.75 * 50)", "s", ROUGHER),
        Stage(
            "step",
            "(active * 1e9 * (forwards + 2) / 3 * dp * microbatches * seq / (2048 * 989e12 * 0.6)"
            " + all_to_alls) * (1 + (pp - 1) / microbatches)",
            "s",
            ROUGHER,
        ),
        Stage("mfu", "100 * active * 1e9 * dp * microbatches * seq / (step * 2048 * 989e12)", "%"),
    ),
    _deepseek,
)


def _million(random: Random) -> Drawn:
    cp, dp = random.choice((16, 32, 64)), random.choice((1, 2, 4))
    microbatches = random.choice((1, 2, 4))
    seq = 2**20
    plan = Plan(
        tp=8,
        cp=cp,
        dp=dp,
        microbatches=microbatches,
        seq=seq,
        zero=1,
        sequence_parallel=True,
        recompute="full",
    )
    found = predicted(LONG, plan, "dgx-h100")
    model = model_of(LONG)
    attention = 1 - 6 * (model.parameters - model.vocab * model.hidden) / model.flops_per_token(seq)
    return Drawn(
        given={
            "cp": cp,
            "dp": dp,
            "microbatches": microbatches,
            "gpus": plan.gpus,
            "sequences": dp * microbatches,
        },
        expected={
            "attention": 100 * attention,
            "states": _held_gb(found, 0, *STATES),
            "activations": _held_gb(found, 0, "activations"),
            "ring": sent(LONG, plan)[0].cp / GB,
            "step": found.step_s,
            "mfu": 100 * found.mfu,
        },
    )


MILLION = Board(
    "million",
    (
        Stage(
            "attention",
            "100 * 12 * 80 * 8192 * 2**20 / (12 * 80 * 8192 * 2**20 + 6 * 70.6e9)",
            "%",
            NEAR_ALL,
        ),
        Stage("states", "70.6 / 8 * (2 + 4 + 12 / (dp * cp))", "GB"),
        Stage(
            "activations",
            "(80 * 2 * 2**20 / cp * 8192 / 8 + 2**20 / cp * 128256 / 8 * 6) / 1e9",
            "GB",
        ),
        Stage(
            "ring",
            "microbatches * 80 * (cp - 1) * 2**20 / cp * 2 * 128 * 2 * (1 + 1 + 2) / 1e9",
            "GB",
        ),
        Stage(
            "step",
            "sequences * 2**20 * (8 * 70.6e9 / 0.75 + 2 * 80 * 8192 * 2**20 * (2 / 0.5 + 2.5 / 0.35))"
            " / (gpus * 989e12)",
            "s",
            ROUGHER,
        ),
        Stage(
            "mfu",
            "100 * (6 * 70.6e9 + 12 * 80 * 8192 * 2**20) * sequences * 2**20 / (step * gpus * 989e12)",
            "%",
        ),
    ),
    _million,
)
