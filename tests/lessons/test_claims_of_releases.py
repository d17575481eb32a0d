"""What the answers say of a release of torch holds of the one that is installed, and what follows for
offload from faster links and updates."""

from pathlib import Path

import pytest

import simlab as sl
from simlab.lessons import book


def test_the_installed_torch_has_what_the_answers_say_of_it():
    torch = pytest.importorskip("torch")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("the answers name torch 2.13")
    from torch.distributed.fsdp import FSDPModule
    from torch.utils import collect_env

    assert "zero-CTA policy" in FSDPModule.set_symm_mem_for_comm.__doc__
    assert hasattr(FSDPModule, "set_requires_gradient_sync")
    assert "PYTORCH_ALLOC_CONF" in Path(collect_env.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-7b", "llama-2-13b"])
@pytest.mark.parametrize("gpu_s_per_token", [1e-5, 1e-4])
def test_a_faster_link_and_a_faster_update_lower_the_break_even_of_offload(name, gpu_s_per_token):
    tokens = book.exercise("w07").oracle
    case = {"parameters": sl.load_model(name).parameters, "gpu_s_per_token": gpu_s_per_token}
    pcie = tokens(pcie_bytes_per_s=63e9, host_adam_s=2.8e-10, **case)
    assert tokens(pcie_bytes_per_s=450e9, host_adam_s=2.8e-10, **case) < pcie
    assert tokens(pcie_bytes_per_s=450e9, host_adam_s=1e-10, **case) < 0.5 * pcie
