"""Profiles of GPUs in the forms of several versions and libraries, each small and counted by hand."""

import json

import pytest

from simlab.cli.main import main
from simlab.diagnosis import diagnose, profile_graph, read
from simlab.diagnosis.kernels import KINDS, communication_of

MS = 1000
"""Profiles are in microseconds."""


def slice_(name, start_ms, end_ms, category="kernel", tid=7, **arguments):
    return {
        "ph": "X", "name": name, "cat": category, "pid": 0, "tid": tid, "ts": start_ms * MS,
        "dur": (end_ms - start_ms) * MS, "args": arguments,
    }  # fmt: skip


def step(number, start_ms, end_ms, category="user_annotation"):
    return slice_(f"ProfilerStep#{number}", start_ms, end_ms, category, tid=1)


def found(*events, **more):
    return diagnose(profile_graph([{"traceEvents": list(events)} | more]))


def shares(diagnosis):
    """(compute, exposed communication) as fractions of the step."""
    spent = diagnosis.spent
    return spent.compute / diagnosis.step_s, sum(spent.exposed.values()) / diagnosis.step_s


def test_a_step_is_as_long_as_the_gpu_says():
    """The host is done with a step in 10 ms, and the GPU in 40."""
    steps = [step(n, 10 * n, 10 * n + 10) for n in range(5)]
    kernels = [slice_("gemm", 40 * n, 40 * n + 40) for n in range(5)]
    diagnosis = found(*steps, *kernels)
    assert (diagnosis.steps, diagnosis.step_s) == (5, pytest.approx(0.040))
    assert shares(diagnosis) == pytest.approx((1, 0))


def test_what_was_launched_before_the_steps_is_not_theirs():
    """The GPU is 30 ms behind: it ends a kernel of before at 30 ms, and the two steps' at 70."""
    launches = [
        slice_("cudaLaunchKernel", at, at + 1, "cuda_runtime", 1, correlation=number)
        for number, at in enumerate((-20, 1, 11, 25))
    ]
    kernels = [
        slice_("gemm", at, at + 20, correlation=number)
        for number, at in enumerate((10, 30, 50, 70))
    ]
    diagnosis = found(step(1, 0, 10), step(2, 10, 20), *launches, *kernels)
    assert diagnosis.step_s == pytest.approx(0.020)


def test_a_host_that_is_slower_than_its_gpu_is_the_step():
    steps = [step(n, 10 * n, 10 * n + 10) for n in range(4)]
    kernels = [slice_("gemm", 10 * n + 2, 10 * n + 5) for n in range(4)]
    assert found(*steps, *kernels).step_s == pytest.approx(0.010)


def test_the_kernel_the_operator_and_the_annotation_before_a_pause_are_named():
    """The GPU does nothing from 6 to 18 ms of the second step, inside of 'my_checkpoint'."""
    kernels = [slice_(f"gemm_{n}", 20 * n + 1, 20 * n + 6) for n in range(2)]
    kernels += [slice_("adam", 10, 20), slice_("adam", 38, 40)]
    host = [
        slice_("aten::addmm", 20.5, 21, "cpu_op", 1), slice_("aten::linear", 20.4, 21.5, "cpu_op", 1),
        slice_("my_checkpoint", 22, 38, "user_annotation", 1),
        slice_("forward", 20, 22, "user_annotation", 1),
    ]  # fmt: skip
    pause = found(step(0, 0, 20), step(1, 20, 40), *kernels, *host).pause
    assert (pause.rank, pause.seconds) == (0, pytest.approx(0.012))
    assert pause.before == "work 'gemm_1', operator 'aten::linear', annotation 'my_checkpoint'"


def test_a_stub_of_a_step_at_an_edge_is_no_step():
    steps = [step(0, -1, 0), *(step(n + 1, 10 * n, 10 * n + 10) for n in range(3)), step(4, 30, 31)]
    kernels = [slice_("gemm", 10 * n + at, 10 * n + at + 2) for n in range(3) for at in (0, 3, 6)]
    diagnosis = found(*steps, *kernels)
    assert (diagnosis.steps, diagnosis.step_s) == (3, pytest.approx(0.010))
    assert "Steps that were not recorded whole are left out: 2." in diagnosis.notes


def test_a_step_that_ends_after_the_recording_is_no_step():
    recording = slice_("PyTorch Profiler (0)", 0, 25, "Trace", "Traces")
    steps = [step(n, 10 * n, 10 * n + 10) for n in range(3)]
    diagnosis = found(recording, *steps, *(slice_("gemm", 10 * n, 10 * n + 9) for n in range(3)))
    assert diagnosis.steps == 2
    assert (
        "Whole steps in the profile: 2. A mean of so few may be far from others." in diagnosis.notes
    )


@pytest.mark.parametrize(
    ("of_step", "of_kernel"),
    [("Operator", "Kernel"), ("user_annotation", "kernel"), ("user_annotation", "my_gpu_kernel")],
)
def test_categories_of_all_versions_are_read(of_step, of_kernel):
    kernel = slice_("gemm", 0, 95, of_kernel, stream=7, device=0)
    assert shares(found(step(1, 0, 100, of_step), kernel)) == pytest.approx((0.95, 0))


def test_an_unknown_category_is_said_and_is_not_the_hosts(tmp_path, capsys):
    diagnosis = found(step(1, 0, 100), slice_("gemm", 0, 50), slice_("x", 50, 100, "tpu_work"))
    assert any("'tpu_work'" in note for note in diagnosis.notes)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [slice_("x", 0, 1, "tpu_work")]}))
    assert main(["why", str(path)]) == 2
    assert "no slice of a category that torch.profiler writes, but of" in capsys.readouterr().err


def test_processes_of_the_old_profiler_are_read():
    old = [
        {"ph": "X", "name": "aten::mm", "pid": "CPU functions", "tid": "1", "ts": 0, "dur": 10},
        {"ph": "X", "name": "gemm", "pid": "CUDA functions", "tid": "0", "ts": 0, "dur": 9},
    ]
    assert shares(found(*old)) == pytest.approx((0.9, 0))


def test_the_list_form_is_read(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([step(1, 0, 100), slice_("gemm", 0, 95)]))
    (one,) = read([path])
    assert shares(diagnose(profile_graph([one.content]))) == pytest.approx((0.95, 0))


NAMES = {
    "void deep_ep::intranode::dispatch<(int)8, (int)768, (int)8192>(int4 *)": ("ep", "all_to_all"),
    "void deep_ep::internode_ll::combine<true>(void*)": ("ep", "all_to_all"),
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": ("", "all_gather"),
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": ("", "all_reduce"),
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": ("", "send_recv"),
    "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)": ("", None),
    "void nvshmemi_transfer_rma_nbi<1>": ("", None),
    "void c10d::one_shot_all_reduce_kernel<c10::BFloat16, 16>(...)": ("", "all_reduce"),
    "multimem_all_gather_kernel": ("", "all_gather"),
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>": ("", "all_reduce"),
    "kuserbuffers_pushrecv": ("tp", "send_recv"),
    "mscclpp::allreduce<float>": ("", "all_reduce"),
    "Memcpy PtoP (Device -> Device)": ("", "copy"),
    "ucc_ec_cuda_executor_kernel": ("", None),
}


@pytest.mark.parametrize("name", NAMES)
def test_communication_is_known_by_its_name(name):
    dimension, kind = communication_of(name)
    assert (dimension, kind) in (NAMES[name], (NAMES[name][0], name))


@pytest.mark.parametrize(
    "name",
    ["sm90_xmma_gemm_bf16", "Memcpy DtoD (Device -> Device)", "Memcpy HtoD", "Memset (Device)",
     "void at::native::reduce_kernel<512>", "flash_fwd_kernel", "moe_permute_kernel"],
)  # fmt: skip
def test_other_work_is_no_communication(name):
    assert communication_of(name) is None


def test_each_kind_has_a_source():
    assert all("/" in kind.source for kind in KINDS)


def test_a_dispatch_between_products_is_exposed():
    product, dispatch = "gemm", "void deep_ep::internode::dispatch<false, 4>(int4*)"
    diagnosis = found(
        step(1, 0, 100), slice_(product, 0, 40), slice_(dispatch, 40, 90, tid=20),
        slice_(product, 90, 100),
    )  # fmt: skip
    assert shares(diagnosis) == pytest.approx((0.5, 0.5))
    assert "ep all_to_all" in str(diagnosis)


@pytest.mark.parametrize("second_ms", [60, 50, 20])
def test_communication_that_follows_or_overlaps_another_is_exposed(second_ms):
    """Two collectives between products, on streams of their own, from 10 to 70 ms."""
    diagnosis = found(
        step(1, 0, 100), slice_("gemm", 0, 10), slice_("gemm", 70, 100),
        slice_("ncclDevKernel_AllGather_RING_LL", 10, 60, tid=20),
        slice_("ncclDevKernel_ReduceScatter_Sum", second_ms, 70, tid=21),
    )  # fmt: skip
    assert shares(diagnosis) == pytest.approx((0.4, 0.6))
    assert diagnosis.spent.host == pytest.approx(0)
    assert second_ms < 60 or "critical path: communication 60.0%, compute 40.0%" in str(diagnosis)


def test_the_host_is_what_is_left_between_collectives():
    diagnosis = found(
        step(1, 0, 100), slice_("gemm", 0, 10), slice_("gemm", 70, 100),
        slice_("ncclDevKernel_AllGather_RING_LL", 20, 40, tid=20),
        slice_("ncclDevKernel_ReduceScatter_Sum", 45, 60, tid=21),
    )  # fmt: skip
    assert shares(diagnosis) == pytest.approx((0.4, 0.35))
    assert diagnosis.spent.host == pytest.approx(0.025)


def test_a_kernel_is_communication_by_the_operator_that_launched_it():
    """Its name says nothing; record_param_comms has the id of the operator."""
    said = {"External id": 5, "Collective name": "allreduce", "Process Group Description": "dp"}
    begun = slice_("record_param_comms", 0, 1, "cpu_op", 1, **said)
    kernel = slice_("fancy_kernel", 50, 100, **{"External id": 5})
    diagnosis = found(step(1, 0, 100), begun, slice_("gemm", 0, 50), kernel)
    assert diagnosis.spent.exposed == {"dp": pytest.approx(0.05)}


def test_a_profile_without_a_gpu_or_without_steps_says_so():
    diagnosis = found(slice_("aten::mm", 0, 100, "cpu_op", 1))
    assert any("ProfilerActivity.CUDA" in note for note in diagnosis.notes)
    assert any("its window is 100.0 ms" in note for note in diagnosis.notes)
    with_both = found(step(1, 0, 100), slice_("gemm", 0, 95))
    assert not any("ProfilerActivity" in note or "window" in note for note in with_both.notes)
