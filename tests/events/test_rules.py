"""The two tables of rules, each rule with names that exist: as traces show them, or as the library's
source at the cited file declares the kernel.
"""

from __future__ import annotations

import pytest

from overlaplab.events.rules import (
    DEVICE_RULES,
    HOST_RULES,
    Part,
    WorkKind,
    device_work,
    host_rule,
    reads_like_communication,
)
from overlaplab.vocabulary import collective_kind

COMMUNICATION = [
    # NCCL, src/device/generate.py and, since 2.27, src/device/symmetric/generate.py
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs4K)",
    # RCCL, src/device/generate.py: a trace of an MI300X has no other name
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    # RCCL, src/include/msccl/msccl_kernel.h; MSCCL++, src/include/execution_kernel.hpp
    "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    "void mscclpp::executionKernel<__half, mscclpp::LL16Packet, false>(int, __half*, __half*)",
    # vLLM, csrc/custom_all_reduce.cuh; SGLang, sgl-kernel/csrc/allreduce; aiter, csrc/include/custom_all_reduce.cuh
    "void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*, vllm::RankSignals)",
    "void sglang::cross_device_reduce_2stage<float, 4>(sglang::RankData*)",
    "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8, false>(aiter::RankData*)",
    "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)",
    # vLLM, csrc/custom_quickreduce.cu
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half,4>, true>, __half>()",
    # TensorRT-LLM, cpp/tensorrt_llm/kernels/customAllReduceKernels.cu
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 2>(tensorrt_llm::kernels::AllReduceParams)",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 2>(tensorrt_llm::kernels::AllReduceParams)",
    # torch, torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)",
    "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
    "void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*)",
    # TensorRT-LLM, communicationKernels/allReduceFusionKernels.cu; FlashInfer, include/flashinfer/comm
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<__half, 4>()",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16, 8>()",
    "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, __nv_bfloat16>()",
    "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport_fusion<__nv_bfloat16>()",
    # TensorRT-LLM, communicationKernels/moeAlltoAllKernels.cu
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8, false>(int const*)",
    # NVSHMEM, src/device/… reduce on a stream
    "void nvshmemi_reduce_kernel<int, (rdxn_ops_t)4>(int, int, int, int*, int const*)",
    # DeepEP, csrc/kernels/{intranode,internode,internode_ll}.cu; UCCL, ep/src
    "void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4*, float*, float*)",
    "void deep_ep::internode::notify_dispatch<false, 4>(int const*, int*, int)",
    "void deep_ep::internode_ll::combine<(bool)1, (int)7168>(void*, void*)",
    "void uccl::ep::internode_ll::dispatch<false, false, 7168>(void*, void*)",
    # torchao, prototype/moe_training; Triton kernels between experts, and over torch's symmetric memory
    "_mxfp8_all_to_all_expert_major_kernel",
    "_combine_all_to_all_kernel",
    "_on_device_all_to_all_v_kernel",
    # Transformer Engine, common/comm_gemm_overlap/userbuffers/userbuffers.cu
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<2>(int)",
    "kuserbuffers_pushrecv(int, int, int, int, int*, int*, int)",
    # oneCCL, src/coll/algorithms: all-reduce on an XPU; HCCL on Ascend and Gaudi; CNCL on MLU
    "oneccl_reduce_base<float, 2, 16, 1, 1, 2>",
    "hcom_allReduce__901_0_1",
    "void hcclKernel_AllGather<float>()",
    "cnclKernel_AllReduce_Sum",
    # engine/overlaplab_engine/network/device_clock.py
    "emulated_link_begin",
    "emulated_link_wait",
]

COMPUTE = [
    "ampere_sgemm_128x64_tn",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()",
    "void at::native::elementwise_kernel<128, 2, at::native::broadcast_gradient_args()>(int)",
    "void cub::DeviceReduceKernel<>()",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 3>()",
    "void split_with_sizes_copy_out_contiguous_no_cast_kernel()",  # FSDP2's copy out of the gathered buffer
    "triton_red_fused_native_layer_norm_0",
    "triton_poi_fused_all_to_all_single_clone_permute_view_0",  # Inductor names by the operators around
    "triton_poi_fused_add_all_reduce_4",
    "triton_red_fused__to_copy_add_one_shot_all_reduce_mean_2",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*, int*, int*, bool*, int, int, int, int)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::truncClampKernel>()",  # n-c-c-l within a word
    "flash_fwd_kernel",
]


@pytest.mark.parametrize("name", COMMUNICATION)
def test_communication_kernels(name: str) -> None:
    assert device_work("kernel", name) is WorkKind.COMMUNICATION
    assert device_work("gpu_user_annotation", name) is WorkKind.NOTHING
    assert device_work("user_annotation", name) is WorkKind.NOTHING


@pytest.mark.parametrize("name", COMPUTE)
def test_compute_kernels(name: str) -> None:
    assert device_work("kernel", name) is WorkKind.COMPUTE


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("void mine::ring_all_gather<float>(float*, int)", "ring_all_gather"),
        ("_push_reduce_scatter_kernel", "_push_reduce_scatter_kernel"),
        ("void tile::a2a_combine<8>()", "a2a_combine"),
        ("p2p_copy", "p2p_copy"),
        ("mlp_send_kernel", "mlp_send_kernel"),
        ("rdma_" + "x" * 90, "rdma_" + "x" * 35),
        ("void blockAllReduce<float>()", None),  # within a block of one GPU's threads
        ("softmax_warp_all_reduce", None),
        ("_attn_fwd_0d1a2a3", None),  # a hash
        ("descend", None),
        ("triton_poi_fused_all_gather_into_tensor_2", None),  # known: Inductor's
        ("ncclDevKernel_AllGather_RING_LL", None),  # known: communication
        *((name, None) for name in COMPUTE),
    ],
)
def test_unknown_names_that_read_like_communication(name: str, word: str | None) -> None:
    assert reads_like_communication(name) == word


@pytest.mark.parametrize(
    "name",
    [
        "void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4*, float*, float*)",
        "void deep_ep::internode::notify_dispatch<false, 4>(int const*, int*, int)",
        "void deep_ep::internode::cached_notify<false, 4>(int)",
        "void deep_ep::internode_ll::combine<(bool)1, (int)7168>(void*, void*)",
        "void uccl::ep::internode_ll::dispatch<false, false, 7168>(void*, void*)",
        "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8, false>(int const*)",
        "_combine_all_to_all_kernel",
    ],
)
def test_what_moves_tokens_between_experts_is_an_all_to_all(name: str) -> None:
    assert collective_kind(name) == "all_to_all"


def test_a_kernel_that_serves_several_collectives_names_none() -> None:
    assert collective_kind("oneccl_reduce_base<float, 2, 16, 1, 1, 2>") is None
    assert collective_kind("ncclDevKernel_Reduce_Sum_f32_RING_LL") == "reduce"


@pytest.mark.parametrize(
    ("category", "name", "counts_as"),
    [
        ("kernel", "void Mine::Ring_Send<4>()", WorkKind.COMMUNICATION),
        ("gpu_memcpy", "Memcpy DtoD (ring_send)", WorkKind.COMMUNICATION),
        ("kernel", "triton_poi_fused_ring_send_3", WorkKind.COMMUNICATION),
        ("kernel", "gemm", WorkKind.COMPUTE),
        ("kernel", "Stream Wait Event ring_send", WorkKind.NOTHING),
        ("cpu_op", "ring_send", WorkKind.NOTHING),
    ],
)
def test_a_rule_of_ones_own(category: str, name: str, counts_as: WorkKind) -> None:
    assert device_work(category, name, "ring_send|other") is counts_as


@pytest.mark.parametrize(
    ("category", "name", "counts_as"),
    [
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", WorkKind.MEMORY),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", WorkKind.MEMORY),
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", WorkKind.COMMUNICATION),
        ("gpu_memcpy", "hipMemcpyAsync", WorkKind.MEMORY),
        ("gpu_memcpy", "ncclCopyEngine", WorkKind.MEMORY),  # a rule of kernels is none of copies
        ("gpu_memset", "Memset (Device)", WorkKind.MEMORY),
        ("Memcpy", "Memcpy P2P", WorkKind.COMMUNICATION),  # as of 2021
        ("Kernel", "ampere_sgemm", WorkKind.COMPUTE),
        ("kernel", "Stream Wait Event", WorkKind.NOTHING),
        ("kernel", "Event Sync", WorkKind.NOTHING),
        ("kernel", "Context Sync", WorkKind.NOTHING),
        ("gpu_memcpy", "Stream Synchronize", WorkKind.NOTHING),
        ("kernel", "Device Synchronize", WorkKind.NOTHING),
        ("cuda_sync", "Stream Wait Event", WorkKind.NOTHING),
        ("cuda_runtime", "hipMemcpyAsync", WorkKind.NOTHING),
        ("cuda_runtime", "cudaLaunchKernel", WorkKind.NOTHING),
        ("gpu_user_annotation", "nccl:all_reduce", WorkKind.NOTHING),
        ("gpu_user_annotation", "ProfilerStep#3", WorkKind.NOTHING),
        ("cpu_op", "aten::mm", WorkKind.NOTHING),
    ],
)
def test_copies_waits_and_what_is_no_device_event(category: str, name: str, counts_as: WorkKind) -> None:
    assert device_work(category, name) is counts_as


def test_every_rule_of_devices_decides_for_some_name() -> None:
    """So that no rule is dead, and none can be removed unnoticed."""
    seen = [("kernel", name) for name in (*COMMUNICATION, *COMPUTE, "Event Sync")]
    seen += [("gpu_memcpy", name) for name in ("Memcpy PtoP (Device -> Device)", "Memcpy DtoD (Device -> Device)")]
    for rule in DEVICE_RULES:
        others = [other for other in DEVICE_RULES if other is not rule]
        without = [
            next((o.counts_as for o in others if c in o.categories and o.names.search(n)), None) for c, n in seen
        ]
        assert without != [device_work(*event) for event in seen], rule.names.pattern
        assert rule.reason


@pytest.mark.parametrize(
    ("name", "counts_as", "part", "owns"),
    [
        ("gloo:all_reduce", WorkKind.COMMUNICATION, Part.WHOLE, True),
        ("gloo:_all_gather_base", WorkKind.COMMUNICATION, Part.WHOLE, True),
        ("gloo:send", WorkKind.COMMUNICATION, Part.WHOLE, False),
        ("gloo:recv", WorkKind.COMMUNICATION, Part.WHOLE, False),
        ("gloo:recvAnySource", WorkKind.COMMUNICATION, Part.WHOLE, False),
        ("engine::comm seq=0 kind=all_reduce", WorkKind.COMMUNICATION, Part.WHOLE, True),
        ("aten::_foreach_addcdiv_", WorkKind.COMPUTE, Part.WHOLE, False),
        ("c10d::allreduce_", WorkKind.NOTHING, Part.CUT, False),
        ("_c10d_functional::wait_tensor", WorkKind.NOTHING, Part.CUT, False),
        ("c10d_functional::all_reduce", WorkKind.NOTHING, Part.CUT, False),
        ("engine::wait", WorkKind.NOTHING, Part.CUT, False),
        ("engine::gather_wait unit=a", WorkKind.NOTHING, Part.CUT, False),
        ("engine::param_gather_wait bucket=0", WorkKind.NOTHING, Part.CUT, False),
        ("engine::backward microbatch=0 sync=1", WorkKind.NOTHING, Part.NONE, False),
        ("autograd::engine::evaluate_function: AddmmBackward0", WorkKind.NOTHING, Part.NONE, False),
        ("torch::autograd::AccumulateGrad", WorkKind.NOTHING, Part.NONE, False),
        ("profiler::_record_function_enter_new", WorkKind.NOTHING, Part.NONE, False),
        ("FSDP::post_backward_reshard (layers.0)", WorkKind.NOTHING, Part.NONE, False),
        ("fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function", WorkKind.COMPUTE, Part.LEAF, False),
        ("torch_sparse::spmm", WorkKind.COMPUTE, Part.LEAF, False),
        ("## Call CompiledFxGraph fg5orq5fdyfag2f ##", WorkKind.COMPUTE, Part.WHOLE, False),
    ],
)
def test_hosts_ranges(name: str, counts_as: WorkKind, part: Part, owns: bool) -> None:
    rule = host_rule(name)
    assert rule is not None
    assert (rule.counts_as, rule.part, rule.owns_thread) == (counts_as, part, owns)


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#3",
        "Optimizer.step#AdamW.step",
        "DistributedDataParallel.forward",
        "FullyShardedDataParallel._pre_forward",
        "AddmmBackward0",
        "record_param_comms",
        "Torch-Compiled Region: 0/0",
        "",
    ],
)
def test_names_that_are_not_operators_follow_no_rule(name: str) -> None:
    assert host_rule(name) is None


def test_every_host_rule_has_a_reason() -> None:
    assert all(rule.reason for rule in HOST_RULES)
    assert HOST_RULES[-1].prefixes == ("",)
