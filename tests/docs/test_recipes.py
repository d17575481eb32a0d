"""The recipes of docs/adding.md, followed by the letter to their end."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import simlab as sl
from simlab.cli.main import main as simlab_main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")


def recipe(title):
    """The text under a title, and its first block of Python."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return text, re.search(r"^```python\n(.*?)^```$", text, re.M | re.S)[1]


KNOWN = """
import simlab as sl
from simlab.planner import Space, search
from simlab.schedules import SCHEDULES

model, cluster = sl.load_model("gpt2"), sl.load_cluster("dgx-a100")
sl.validate(sl.generate("two-waves", 4, 8))
plan = sl.Plan(pp=4, dp=2, microbatches=64, schedule="two-waves")
whole = sl.predict(model, plan, cluster)
fixed = {"tp": 1, "cp": 1, "pp": 4, "zero": 0, "recompute": "none", "microbatch_size": 1, "stage_layers": "auto"}
space = Space(model=model, cluster=cluster, global_batch=128, fixed={"schedule": "two-waves", **fixed})
(found,) = search(space, kept=1, layered=0).plans
assert found.plan == plan and found.step_s == whole.step_s
assert found.memory_bytes == sum(whole.memory_bytes.values())
"""
COMMANDS = (
    "plan --model gpt2 --cluster dgx-a100 --global-batch 32 --tp 1 --cp 1 --pp 4 --schedule two-waves",
    "simulate --schedule two-waves --pp 4 --microbatches 8 --forward-ms 20 --backward-ms 40",
    "simulate --model gpt2 --cluster dgx-a100 --pp 4 --dp 2 --microbatches 8 --schedule two-waves",
    "schedules --pp 4 --microbatches 8 --forward-ms 20 --backward-ms 40",
    "simulate --help",
    "schedule --help",
)


class Copy(NamedTuple):
    """A copy of simlab in a folder, where Python runs."""

    folder: Path

    def __call__(self, *arguments):
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env={"PYTHONPATH": str(self.folder)},
            capture_output=True, text=True, timeout=300, check=True,
        ).stdout  # fmt: skip


def copied(folder, *packages):
    """A `Copy` of simlab, or of some packages."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in packages or ("simlab",):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return Copy(folder)


@pytest.fixture(scope="module")
def with_waves(tmp_path_factory):
    """A copy of simlab to which the page's schedule was added, and a function that runs Python there."""
    run = copied(tmp_path_factory.mktemp("copy"))
    folder = run.folder
    text, code = recipe("A schedule")
    (file,) = re.findall(r"`(\w+\.py)` in `simlab/schedules/`", text)
    (record,) = re.findall(r"^(\w+) = Schedule\(", code, re.M)
    (folder / "simlab" / "schedules" / file).write_text(code, encoding="utf-8")
    entered = folder / "simlab" / "schedules" / "__init__.py"
    old = entered.read_text(encoding="utf-8")
    new = f"from simlab.schedules.{file[:-3]} import {record}\n{old}"
    entered.write_text(new.replace("for each in (\n", f"for each in (\n        {record},\n"))
    return run


def test_a_schedule_that_is_added_as_the_page_says_is_generated_predicted_and_searched(with_waves):
    with_waves("-c", KNOWN)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_know_a_schedule_that_is_added_as_the_page_says(with_waves, command):
    assert "two-waves" in with_waves("-m", "simlab", *command.split())


@pytest.fixture(scope="module")
def with_flat(tmp_path_factory):
    """A copy of simlab to which the page's library was added, and a function that runs Python there."""
    text, code = recipe("A library")
    run = copied(tmp_path_factory.mktemp("copy"))
    (file,) = re.findall(r"`(\w+\.py)` there", text)
    (record,) = re.findall(r"^(\w+) = Library\(", code, re.M)
    folder = run.folder / "simlab" / "libraries"
    (folder / file).write_text(code, encoding="utf-8")
    entered = folder / "__init__.py"
    old = entered.read_text(encoding="utf-8")
    new = f"from simlab.libraries.{file[:-3]} import {record}\n{old}".replace(
        " in (MEGATRON", f" in ({record}, MEGATRON"
    )
    entered.write_text(new, encoding="utf-8")
    return run


FLAT = """
import simlab as sl

model, cluster = sl.load_model("llama-3-8b"), sl.load_cluster("dgx-h100")
of = {}
for name in ("flat", "megatron", "torch"):
    plan = sl.Plan(tp=8, sequence_parallel=True, library=name)
    of[name] = sl.predict(model, plan, cluster)
for states in ("parameters", "gradients", "optimizer"):  # 2 + 4 + 12 bytes of a parameter
    assert of["flat"].memory_bytes[states] == of["megatron"].memory_bytes[states]
assert of["flat"].optimizer_s == of["megatron"].optimizer_s < of["torch"].optimizer_s
# what sequence parallelism gathers is kept, as DTensor does
assert of["flat"].memory_bytes["activations"] > of["megatron"].memory_bytes["activations"]
for wrong, said in (({"zero": 3}, "it has ZeRO-2 at most"), ({"precision": "fp8"}, "give bf16, fp16 or fp32")):
    try:
        sl.Plan(library="flat", **wrong)
    except sl.InputError as error:
        assert said in str(error), error
    else:
        raise AssertionError(wrong)
"""


def test_a_library_that_is_added_as_the_page_says_is_predicted(with_flat):
    with_flat("-c", FLAT)
    command = "simulate --model gpt2 --cluster dgx-a100 --dp 8 --zero 2 --library flat --json"
    assert json.loads(with_flat("-m", "simlab", *command.split()))["plan"]["library"] == "flat"


@pytest.fixture(scope="module")
def with_lion(tmp_path_factory):
    """A copy of simlab to which the page's optimizer was added, and a function that runs Python there."""
    text, code = recipe("An optimizer")
    code = code.split("\n\n", 1)[1]  # without its import
    (file,) = set(re.findall(r"`simlab/(\w+\.py)`", text))
    (record,) = re.findall(r"^(\w+) = Optimizer\(", code, re.M)
    run = copied(tmp_path_factory.mktemp("copy"))
    entered = run.folder / "simlab" / file
    before, after = entered.read_text(encoding="utf-8").split("\nOPTIMIZERS = ")
    after = after.replace(" in (ADAM, ", f" in (ADAM, {record}, ", 1)
    entered.write_text(f"{before}\n{code}\nOPTIMIZERS = {after}", encoding="utf-8")
    return run


LION = """
import simlab as sl

model, cluster = sl.load_model("gpt2"), sl.load_cluster("dgx-a100")
for zero, library in ((0, "megatron"), (1, "megatron"), (3, "torch")):
    lion, adam = (
        sl.predict(model, sl.Plan(dp=8, zero=zero, library=library, optimizer=name), cluster)
        for name in ("lion", "adam")
    )
    less = adam.memory_bytes["optimizer"] - lion.memory_bytes["optimizer"]
    ranks = 8 if zero else 1
    assert abs(less * ranks / (4 * model.parameters) - 1) < 1e-3, less
    assert lion.optimizer_s < adam.optimizer_s or zero  # of parts the host decides
try:
    sl.Plan(library="nanotron", optimizer="lion")
except sl.InputError as error:
    assert "library = 'nanotron', which has none: give library = 'megatron' or 'torch'" in str(error)
try:
    sl.Plan(dp=8, zero=1, optimizer="lion", moment_bytes=2)
except sl.InputError:
    pass
else:
    raise AssertionError("Megatron-LM has moments of two bytes with Adam only")
"""


def test_an_optimizer_that_is_added_as_the_page_says_is_predicted(with_lion):
    with_lion("-c", LION)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("plan --model gpt2 --cluster dgx-a100 --global-batch 32 --tp 1 --cp 1 --pp 1 --optimizer lion", "dp8 zero"),
        ("simulate --model gpt2 --cluster dgx-a100 --dp 8 --zero 1 --optimizer lion", "step"),
        ("memory --params 1e9 --optimizer lion", "= parameters 2, gradients 2, optimizer 8\n"),
        ("simulate --help", "lion"),
    ],
)  # fmt: skip
def test_the_commands_know_an_optimizer_that_is_added_as_the_page_says(with_lion, command, said):
    assert said in with_lion("-m", "simlab", *command.split())


@pytest.fixture(scope="module")
def with_activations(tmp_path_factory):
    """A copy of simlab to which the page's recomputation was added, and a function that runs Python
    there."""
    text, code = recipe("A recomputation")
    (file,) = re.findall(r"^`(simlab/[\w/]+\.py)`", text, re.M)
    code = code.split("\n\n", 1)[1]  # without its imports
    (name,) = re.findall(r"^def (\w+)", code, re.M)
    run = copied(tmp_path_factory.mktemp("copy"))
    entered = run.folder / file
    old = entered.read_text(encoding="utf-8")
    new = old.replace('RECOMPUTE = ("none", ', f'RECOMPUTE = ("none", "{name}", ', 1)
    line = f'    if recompute == "{name}":\n        return [*{name}(operations)]\n'
    new = new.replace('    if recompute == "full":\n', f'{line}    if recompute == "full":\n', 1)
    entered.write_text(f"{new}\n\n{code}", encoding="utf-8")
    return run


ACTIVATIONS = """
import simlab as sl

model, cluster = sl.load_model("llama-3-8b"), sl.load_cluster("dgx-h100")
none, again = (
    sl.predict(model, sl.Plan(tp=8, sequence_parallel=True, recompute=name), cluster)
    for name in ("none", "activations")
)
tokens, width = model.seq, model.ffn // 8
less = none.memory_bytes["activations"] - again.memory_bytes["activations"]
assert less / (2 * tokens * width) > model.layers - 2, less  # all but the one that is made again
assert again.step_s > none.step_s and abs(again.hfu * again.step_s / none.hfu / none.step_s - 1) < 1e-9
"""


def test_a_recomputation_that_is_added_as_the_page_says_saves_memory_and_takes_time(
    with_activations,
):
    with_activations("-c", ACTIVATIONS)
    command = "memory --model llama-3-8b --tp 8 --recompute activations --explain"
    assert "activation" in with_activations("-m", "simlab", *command.split())


@pytest.fixture(scope="module")
def with_gated(tmp_path_factory):
    """A copy of simlab and realrun to which the page's kind of attention was added, and a function that runs
    Python there."""
    text = PAGE.split("\n## A kind of attention or of MLP\n")[1].split("\n## ")[0]
    field, kinds, function, call, executed = re.findall(r"^```py\n(.*?)^```$", text, re.M | re.S)
    run = copied(tmp_path_factory.mktemp("copy"), "simlab", "realrun")
    names = re.findall(r"^    (\w+) = ", kinds, re.M)
    listed = "".join(f"    OperationKind.{name},\n" for name in names)
    for file, before, added in (
        ("simlab/spec/model/sizes.py", "    experts: int = documented(", field),
        ("simlab/layer/operation.py", "    OUTPUT = ", kinds),
        ("simlab/layer/attention.py", '    bias = model.has_bias("output")', call),
        ("simlab/layer/attention.py", "def _norm_of_heads(", f"{function}\n\n"),
        ("realrun/model/sizes.py", "    OperationKind.OUTPUT,", listed),
        ("realrun/model/layer.py", "    OperationKind.RESIDUAL: ", executed),
    ):
        entered = run.folder / file
        old = entered.read_text(encoding="utf-8")
        assert f"`{file}`" in text and old.count(before) == 1, file
        entered.write_text(old.replace(before, added + before), encoding="utf-8")
    return run


GATED = """
from dataclasses import replace
import simlab as sl
from simlab.lowering.kernels import layer_kernels
from simlab.memory.schemes import NumberBytes, Resident
from simlab.memory.units.backward import UnitBackward
from simlab.memory.units.forward import forward_phase
from simlab.memory.units.sizes import UnitSizes

model, cluster = sl.load_model("llama-3-8b"), sl.load_cluster("dgx-h100")
gated = replace(model, gated_heads=True)
h, inner, tokens = model.hidden, model.heads * model.head_size, model.seq
assert gated.parameters - model.parameters == model.layers * h * inner
assert gated.flops_per_token() - model.flops_per_token() == 3 * 2 * model.layers * h * inner
for plan in (
    sl.Plan(tp=2),
    sl.Plan(tp=2, sequence_parallel=True),
    sl.Plan(tp=2, sequence_parallel=True, library="torch"),
    sl.Plan(library="fsdp1", precision="bf16"),
    sl.Plan(precision="fp8"),
    sl.Plan(recompute="per-op", library="torch"),
):
    more = sl.layer_table(gated, plan).kept_bytes - sl.layer_table(model, plan).kept_bytes
    width = 2 * inner // plan.tp * tokens
    if plan.recompute == "none":  # the gate and the gated result, of which a product in 8 bits keeps a cast
        wanted = width + width / (2 if plan.precision == "fp8" else 1)
        # where attention's result was kept in both forms there is one less
        assert more == wanted - (width / 2 if plan.precision == "fp8" else 0), (plan, more, width)
    of = UnitSizes(gated, plan, plan.element_bytes, 4)
    for kinds in ("B", "IW"):
        phases = [forward_phase(of, "layer")]
        for kind in kinds:
            walk = UnitBackward(of=of, scheme=Resident(NumberBytes(*[4.0] * 5)), kind=kind)
            phases.append(walk.phase("layer"))
        for held in ("activations", "temporaries"):
            assert abs(sum(its.end[held] for its in phases)) < 1, (plan, kinds, held)
    many = replace(plan, dp=8 // plan.tp)
    assert sl.predict(gated, many, cluster).step_s > sl.predict(model, many, cluster).step_s

def sent(its, kind, **fields):
    forward, back, *_ = layer_kernels(its, sl.Plan(tp=2, **fields))
    return sum(getattr(kernel, "kind", "") == kind for kernel in (*forward, *back))

# the gradient of what the gate is made of is summed; with sequence parallelism that is gathered before
assert sent(gated, "all_reduce") == sent(model, "all_reduce") + 1
for kind, more in (("all_gather", 2), ("reduce_scatter", 1)):
    found = [sent(its, kind, sequence_parallel=True) for its in (model, gated)]
    assert found[1] - found[0] == more, (kind, found)
"""
EXECUTED = """
import torch
import simlab as sl
from dataclasses import replace
from realrun.model.gpt import Block
from realrun.model.sizes import model_of, refusal, sizes_like
from realrun.record.activations import SavedActivations

model = replace(sl.load_model("llama-3-8b"), gated_heads=True)
its = model_of(sizes_like(model, {"layers": 2, "seq": 64, "hidden": 64}))
assert refusal(its) is None and its.gated_heads
block = Block(its.hidden, its.heads, None, its)
assert sum(p.numel() for p in block.parameters()) == sum(its.layer_parameters.values())
saved = SavedActivations(block.parameters())
with saved.saving((0, 0)):
    made = block(torch.randn(2, 64, 64, requires_grad=True))
plan = sl.Plan(precision="fp32", microbatch_size=2, seq=64, dropout=False)
statistics = 2 * 4 * 2 * 64  # of two norms, for each token
assert saved.bytes == sl.layer_table(its, plan).kept_bytes + statistics
made.sum().backward()
assert all(p.grad is not None for p in block.parameters())
"""


@pytest.mark.parametrize("program", [GATED, EXECUTED])
def test_a_kind_of_attention_that_is_added_as_the_page_says_is_predicted_and_executed(
    with_gated, program
):
    with_gated("-c", program)


def test_processes_execute_a_kind_of_attention_that_is_added_as_the_page_says(with_gated):
    model = sl.load_model("llama-3-8b").to_dict() | {"gated_heads": True, "name": "gated"}
    (with_gated.folder / "gated.json").write_text(json.dumps(model))
    asked = "--model gated.json --hidden 64 --layers 2 --tp 2 --sequence-parallel yes --steps 1 --warmup 0"
    found = json.loads(with_gated("-m", "realrun", *asked.split(), "--json"))
    assert found["ok"] and found["runs"][0]["gradient_error"] < 1e-12


def test_a_gpu_that_is_added_as_the_page_says_is_predicted_and_searched_and_said_to_be_assumed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    said = "no kernels of my-gpu were measured"
    runpy.run_path(_file(tmp_path, recipe("A cluster or a GPU")[1]))
    assert capsys.readouterr().out.count(said) == 1
    command = (
        "plan --model llama-3-8b --cluster my-cluster.json --nodes 1 --global-batch 8 --cp 1 --tp 8"
    )
    assert simlab_main(command.split()) == 0
    assert capsys.readouterr().out.count(said) == 1
    assert simlab_main([*command.split(), "--json"]) == 0
    (assumed,) = json.loads(capsys.readouterr().out)["assumptions"]
    assert said in assumed and "h200-nvl" in assumed
    facts = json.loads(Path("my-cluster.json").read_text())
    for given, status in (("ampere", 0), ("a100-pcie-80gb", 0), ("amper", 2)):
        Path("my-cluster.json").write_text(
            json.dumps(facts | {"gpu": facts["gpu"] | {"efficiency": given}})
        )
        assert simlab_main(command.split()) == status
        out, error = capsys.readouterr()
        assert said not in out and ("did you mean 'ampere'?" in error) == bool(status)


def _file(folder, text):
    path = folder / "recipe.py"
    path.write_text(text, encoding="utf-8")
    return str(path)
