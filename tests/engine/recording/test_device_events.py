"""Whether a trace holds what ran on a GPU, and why it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from overlaplab_engine.recording import device_events
from overlaplab_engine.recording.device_events import Probe, cause, holds_device_events, nothing_seen_message, probe

KINETO = (
    "WARNING:2025-11-11 08:00:00 7:7 CuptiCallbackApi.cpp:{line}] function {call} failed with error {error} ({code})\n"
)
NOTICES = "STAGE:2025-11-11 08:00:01 7:7 SyncActivityProfilerHandler.cpp:65] Completed Stage: Post Processing\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('    "ph": "X", "cat": "kernel", "name": "ampere_sgemm", "pid": 0, "tid": 7,', True),
        ('    "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "pid": 0, "tid": 7,', True),
        ('    "ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "tid": 7,', True),
        ('    "cat": "kernel",', True),
        ('    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9,', False),
        ('    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9,', False),
        ('    "ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#2", "pid": 0, "tid": 7,', False),
        ('    "ph": "X", "cat": "user_annotation", "name": "kernel", "pid": 9, "tid": 9,', False),
    ],
)
def test_what_runs_on_a_device(line: str, expected: bool) -> None:
    assert holds_device_events([b"{", line.encode(), b"}"]) is expected


def refused(error: str, call: str = "cbapi_->getCuptiStatus()") -> Probe:
    said = KINETO.format(line=1, call=call, error=error, code=1) + NOTICES
    return Probe(seen=False, supported=True, stderr=said)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            refused("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
            "the driver lets only administrators profile (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES); load the nvidia module "
            "with NVreg_RestrictProfilingToAdminUsers=0, or give the container CAP_SYS_ADMIN",
        ),
        (
            refused("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "cuptiSubscribe(&subscriber_)"),
            "another profiler holds CUPTI (CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED); record without nsys, ncu, "
            "DCGM's profiling and CUDA_INJECTION64_PATH",
        ),
        (
            refused("CUPTI_ERROR_NOT_INITIALIZED"),
            "CUPTI reports CUPTI_ERROR_NOT_INITIALIZED; check that LD_LIBRARY_PATH has no other CUDA's libcupti",
        ),
        (
            Probe(seen=False, supported=False, stderr=NOTICES),
            "this build of torch cannot profile GPUs (torch.profiler.supported_activities() has no CUDA); install one "
            "with CUDA and CUPTI, see https://pytorch.org/get-started/locally",
        ),
        (
            Probe(seen=True, supported=True, stderr=NOTICES),
            "an operation in a separate process is seen, so either nothing ran there in the recorded steps, or "
            "another profiler was active in the recording process",
        ),
        (
            Probe(seen=False, supported=True, stderr=NOTICES),
            "the reason is unknown; `overlaplab doctor` checks this machine",
        ),
        (
            Probe(seen=False, supported=True, stderr="", failure="torch.OutOfMemoryError: CUDA out of memory."),
            "the reason is unknown (looking for it failed: torch.OutOfMemoryError: CUDA out of memory.); "
            "`overlaplab doctor` checks this machine",
        ),
    ],
)
def test_why_nothing_was_seen(found: Probe, expected: str) -> None:
    assert cause(found) == expected
    assert len(expected) < 240  # with what stands before it, a line that pages show whole


def test_a_process_of_its_own_profiles_one_operation() -> None:
    """Where there is no GPU it sees nothing on the CPU, and Kineto speaks."""
    found = probe("cpu")
    gpu = torch.cuda.is_available()
    assert (found.seen, found.supported, found.failure) == (False, gpu, None)
    assert "Completed Stage: Collection" in found.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_cannot_be_used_is_told_in_its_own_words() -> None:
    found = probe("cuda:0")
    assert found.failure is not None
    assert re.search("CUDA|NVIDIA", found.failure)
    assert "\n" not in found.failure


def test_an_error_is_told_without_what_follows_it() -> None:
    said = """Traceback (most recent call last):
  File "device_events.py", line 1, in _look
torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
    wanted = "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"
    assert device_events._error_line(said) == wanted
    assert device_events._error_line("Killed\n") is None


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_events, "TIMEOUT_S", 0.01)
    assert nothing_seen_message("cuda:3") == (
        "the profiler saw nothing run on cuda:3: the reason is unknown (looking for it failed: no answer within "
        "0.01 s); `overlaplab doctor` checks this machine"
    )


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert "the process cannot be started: [Errno 2]" in nothing_seen_message("cuda:0")


@pytest.mark.slow
def test_the_process_needs_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by its path, wherever a user's script runs, and whatever lies beside that."""
    (tmp_path / "engine.py").write_text("raise SystemExit('the wrong engine')")
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    assert probe("cpu").failure is None
