"""What each event counts as, rule by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_traces import event, gloo, launched, op, run_of

from overlaplab.events import Trace, activity, rule_of
from overlaplab.vocabulary import Rule


def trace_of(folder: Path, events: list[dict[str, Any]], backend: str = "gloo") -> Trace:
    return run_of(folder, events, backend=backend).traces[0]


def counted(folder: Path, events: list[dict[str, Any]]) -> dict[str, list[list[int]]]:
    found = activity(trace_of(folder, events))
    sets = {"compute": found.compute, "communication": found.communication, "memory": found.memory}
    return {name: (times // 1000).tolist() for name, times in sets.items() if len(times)}


COMMUNICATION = [
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",  # NCCL 2.19 and up
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",  # NCCL 2.10
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs)",  # NCCL 2.27, symmetric memory
    "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)",  # RCCL's name on MI300
    "rcclGenericKernel(ncclDevKernelArgsStorage)",
    "void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*, vllm::RankSignals)",
    "void sglang::cross_device_reduce_2stage<float, 4>(sglang::RankData*)",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 2>(tensorrt_llm::kernels::AllReduceParams)",
    "void tensorrt_llm::kernels::ar_fusion::moe::moereduce_allreduce_fusion_kernel_oneshot_lamport<>()",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<>()",
    "void tensorrt_llm::kernels::lamport_style_one_shot_all_reduce_norm_kernel<__half, 4>()",
    "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16>()",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half>>()",  # vLLM, ROCm
    "mscclKernel_Sum_half_LL_false(ncclDevComm*, mscclAlgo*)",  # RCCL
    "multimem_all_reduce_kernel_bf16",  # torch symmetric memory
    "void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<__nv_bfloat16, 16, 2>()",
    "nvshmemi_transfer_rma_nbi(void*)",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
    "void moe::ep::combine<4>(int4*)",
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<2>(int)",  # Transformer Engine
    "userbuffers_pushrecv",
]
COMPUTE = [
    "ampere_sgemm_128x64_tn",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()",
    "triton_red_fused_native_layer_norm_0",
    "flash_fwd_kernel",
    "void cub::DeviceReduceKernel<>()",
]


@pytest.mark.parametrize("name", COMMUNICATION)
def test_communication_kernels(tmp_path: Path, name: str) -> None:
    assert counted(tmp_path, launched(name, 0, 5, 9, correlation=1)) == {"communication": [[5, 9]]}


@pytest.mark.parametrize("name", COMPUTE)
def test_compute_kernels(tmp_path: Path, name: str) -> None:
    assert counted(tmp_path, launched(name, 0, 5, 9, correlation=1)) == {"compute": [[5, 9]]}


@pytest.mark.parametrize(
    ("name", "cat", "kind"),
    [
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy", "memory"),
        ("Memset (Device)", "gpu_memset", "memory"),
        ("Memcpy PtoP (Device -> Device)", "gpu_memcpy", "communication"),
        ("ampere_sgemm", "Kernel", "compute"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy", "memory"),
    ],
)
def test_copies_and_the_spellings_of_2021(tmp_path: Path, name: str, cat: str, kind: str) -> None:
    assert counted(tmp_path, launched(name, 0, 5, 9, correlation=1, cat=cat)) == {kind: [[5, 9]]}


@pytest.mark.parametrize(
    ("name", "cat"),
    [
        ("ncclDevKernel_AllReduce", "gpu_user_annotation"),
        ("nccl:all_reduce", "user_annotation"),
        ("Stream Wait Event", "cuda_sync"),
        ("Stream Wait Event", "kernel"),
        ("Event Sync", "kernel"),
        ("aten::mm", "cpu_op"),
    ],
)
def test_annotations_and_waits_count_as_nothing_on_a_gpu(tmp_path: Path, name: str, cat: str) -> None:
    events = [*launched("gemm", 0, 1, 2, correlation=1), event(name, 5, 9, cat=cat, stream=7, correlation=2)]
    assert counted(tmp_path, events) == {"compute": [[1, 2]]}


def test_what_an_engine_comm_range_launches_is_communication(tmp_path: Path) -> None:
    label = event("engine::comm seq=0 kind=all_gather dtype=float32 bytes=8 group=0", 10, 20)
    inside = launched("Memcpy DtoD (Device -> Device)", 12, 40, 50, correlation=1, cat="gpu_memcpy", tid=2)
    after = launched("gemm", 21, 50, 60, correlation=2)
    assert counted(tmp_path, [label, *inside, *after]) == {"communication": [[40, 50]], "compute": [[50, 60]]}


def test_a_label_mirrored_on_the_gpu_says_nothing(tmp_path: Path) -> None:
    mirror = event("engine::comm seq=0", 10, 30, cat="gpu_user_annotation", tid=7, stream=7)
    assert counted(tmp_path, [mirror, *launched("gemm", 21, 50, 60, correlation=2)]) == {"compute": [[50, 60]]}


def test_the_stream_decides_nothing(tmp_path: Path) -> None:
    events = [
        *launched("ncclDevKernel_X", 0, 5, 9, stream=7, correlation=1),
        *launched("gemm", 2, 9, 11, correlation=2),
    ]
    assert counted(tmp_path, events) == {"communication": [[5, 9]], "compute": [[9, 11]]}


def test_cpu_operators_compute_and_gloo_communicates(tmp_path: Path) -> None:
    events = [op("linear", 0, 10), op("addmm", 2, 8), gloo(5, 20), op("add", 30, 31, tid=2)]
    assert counted(tmp_path, events) == {"compute": [[0, 10], [30, 31]], "communication": [[5, 20]]}


def test_operators_on_a_communication_thread_do_not_compute(tmp_path: Path) -> None:
    events = [
        event("engine::comm seq=0", 0, 10, tid=7),
        op("add_", 2, 4, tid=7),
        op("add_", 12, 14, tid=7),
        gloo(1, 9, 8),
    ]
    assert counted(tmp_path, events) == {"communication": [[0, 10]]}


def test_wrappers_do_not_compute_and_launches_do_not_communicate(tmp_path: Path) -> None:
    """A blocking all-reduce in a hook runs inside autograd's ranges; it is hidden by nothing."""
    events = [
        event("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0, 100),
        event("torch::autograd::AccumulateGrad", 1, 99),
        event("AddmmBackward0", 1, 99),
        event("engine::bucket_launch bucket=0", 1, 99),
        event("c10d::allreduce_", 10, 90),
        event("Optimizer.step#AdamW.step", 0, 100, cat="user_annotation"),
        gloo(12, 88),
    ]
    assert counted(tmp_path, events) == {"communication": [[12, 88]]}


@pytest.mark.parametrize(
    "name", ["c10d::allreduce_", "_c10d_functional::wait_tensor", "c10d_functional::wait_tensor", "engine::wait"]
)
def test_waiting_inside_an_operator_is_cut_out(tmp_path: Path, name: str) -> None:
    events = [op("outer", 0, 100), event(name, 10, 90), op("elsewhere", 20, 30, tid=2)]
    assert counted(tmp_path, events) == {"compute": [[0, 10], [20, 30], [90, 100]]}


def test_of_other_namespaces_the_leaves_count(tmp_path: Path) -> None:
    events = [
        event("mylib::layer", 0, 50),
        event("mylib::kernel", 10, 20),
        event("mylib::outer", 60, 90),
        op("mm", 61, 62),
        event("profiler::_record_function_enter_new", 95, 96),
    ]
    assert counted(tmp_path, events) == {"compute": [[10, 20], [61, 62]]}


def test_which_rule_applies(tmp_path: Path) -> None:
    gpu = launched("gemm", 0, 5, 9, correlation=1)
    assert rule_of(trace_of(tmp_path / "gpu", [*gpu, op("mm", 0, 1)])) is Rule.GPU
    assert rule_of(trace_of(tmp_path / "calls", [gpu[0], op("mm", 0, 1)])) is Rule.UNRECORDED
    assert rule_of(trace_of(tmp_path / "nccl", [op("mm", 0, 1)], backend="nccl")) is Rule.UNRECORDED
    assert rule_of(trace_of(tmp_path / "cpu", [op("mm", 0, 1)])) is Rule.CPU
    assert rule_of(trace_of(tmp_path / "empty", [])) is Rule.CPU


def test_nothing_is_counted_where_the_device_was_not_recorded(tmp_path: Path) -> None:
    assert counted(tmp_path, [op("mm", 0, 9), event("cudaLaunchKernel", 1, 2, cat="cuda_runtime")]) == {}
