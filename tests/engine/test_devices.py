"""What the machine tells of its GPUs without torch, and why torch cannot use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from overlaplab_engine import nvidia as told
from overlaplab_engine.cli import main
from overlaplab_engine.devices import NoGpu, no_gpu
from overlaplab_engine.nvidia import Gpu, Nvidia, nvidia

H200 = Nvidia("580.65.06", [Gpu("NVIDIA H200", 143771, "9.0")])
OLD = Nvidia("535.104.05", [Gpu("Tesla T4", 15360, "7.5")])
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
PIP = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the driver's files would be in /proc; nvidia-smi is not installed."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(told, "_KERNEL_MODULE", tmp_path / "proc")
    return tmp_path / "proc"


def install_nvidia_smi(folder: Path, script: str) -> None:
    (folder / "bin").mkdir()
    program = folder / "bin" / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def load_driver(proc: Path, *models: str) -> None:
    for number, model in enumerate(models):
        gpu = proc / "gpus" / f"0000:0{number}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 16\n")
    (proc / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (builder@host)\n"
        "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
    )


@pytest.mark.usefixtures("driver")
def test_nvidia_smi_is_asked(tmp_path: Path) -> None:
    rows = "NVIDIA H200, 143771, 9.0, 580.65.06\nNVIDIA GB10, [N/A], 12.1, 580.65.06"
    wanted = "--query-gpu=name,memory.total,compute_cap,driver_version --format=csv,noheader,nounits"
    install_nvidia_smi(tmp_path, f'[ "$*" = "{wanted}" ] && echo "{rows}"')
    assert nvidia() == Nvidia("580.65.06", [Gpu("NVIDIA H200", 143771, "9.0"), Gpu("NVIDIA GB10", None, "12.1")])


def test_without_nvidia_smi_the_drivers_files_tell(driver: Path) -> None:
    assert nvidia() == Nvidia()
    load_driver(driver, "NVIDIA A100-SXM4-80GB", "Tesla T4")
    assert nvidia() == Nvidia("550.54.14", [Gpu("NVIDIA A100-SXM4-80GB"), Gpu("Tesla T4")])
    (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\n")
    assert nvidia().driver == "535.104.05"


def test_an_nvidia_smi_that_fails_is_quoted(driver: Path, tmp_path: Path) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    install_nvidia_smi(tmp_path, f'echo "{said}"; echo "NVML library version: 550.54"; exit 18')
    assert nvidia() == Nvidia(error=f"{said} NVML library version: 550.54")
    load_driver(driver, "Tesla T4")
    assert nvidia() == Nvidia("550.54.14", [Gpu("Tesla T4")], f"{said} NVML library version: 550.54")


@pytest.mark.parametrize(
    ("machine", "built_for", "error", "visible", "expected"),
    [
        (Nvidia(), None, "Torch not compiled with CUDA enabled", None, NoGpu("this machine has no GPU", None)),
        (Nvidia(), "13.0", "Found no NVIDIA driver on your system.", None, NoGpu("this machine has no GPU", None)),
        (
            Nvidia(error="NVML: mismatch"),
            "13.0",
            "no driver",
            None,
            NoGpu("this machine has no GPU that answers (nvidia-smi: NVML: mismatch)", None),
        ),
        (
            H200,
            None,
            "Torch not compiled with CUDA enabled",
            None,
            NoGpu(
                "torch 2.13.0 is a CPU build and cannot use this machine's GPU (NVIDIA H200)",
                f"install a CUDA build: {PIP}/cu130",
            ),
        ),
        (
            OLD,
            None,
            "Torch not compiled with CUDA enabled",
            None,
            NoGpu(
                "torch 2.13.0 is a CPU build and cannot use this machine's GPU (Tesla T4)",
                f"install a CUDA build: {PIP}/cu126",
            ),
        ),
        (
            OLD,
            "13.0",
            TOO_OLD,
            None,
            NoGpu(
                "the driver 535.104.05 (CUDA 12.2) is too old for torch's CUDA 13.0",
                f"update the driver, or install a build for an older CUDA: {PIP}/cu126",
            ),
        ),
        (
            H200,
            "13.0",
            "No CUDA GPUs are available",
            "",
            NoGpu("CUDA_VISIBLE_DEVICES= hides this machine's GPU (NVIDIA H200)", "unset it"),
        ),
        (
            H200,
            "13.0",
            "Found no NVIDIA driver on your system. Please check",
            None,
            NoGpu(
                "torch finds no driver for this machine's GPU (NVIDIA H200)",
                "in a container, start it with its GPUs (--gpus all)",
            ),
        ),
        (
            H200,
            "13.0",
            "CUDA unknown error",
            "0",
            NoGpu(
                "torch cannot use this machine's GPU (NVIDIA H200): CUDA unknown error",
                "check that nvidia-smi lists it",
            ),
        ),
    ],
)
def test_why_torch_has_no_gpu(
    machine: Nvidia, built_for: str | None, error: str | None, visible: str | None, expected: NoGpu
) -> None:
    found = no_gpu(machine, torch_version="2.13.0", built_for=built_for, error=error, visible=visible)
    assert found == expected


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a CPU build of torch")
@pytest.mark.usefixtures("driver")
def test_recording_on_a_gpu_that_torch_cannot_see(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    install_nvidia_smi(tmp_path, 'echo "NVIDIA H200, 143771, 9.0, 580.65.06"')
    assert main(["--strategy", "naive", "--device", "cuda", "--out", str(tmp_path / "run")]) == 2
    assert capfd.readouterr().err == (
        f"overlaplab record: --device cuda: torch {torch.__version__} is a CPU build and cannot use this machine's GPU "
        f"(NVIDIA H200); use --device cpu, or install a CUDA build: {PIP}/cu130\n"
    )


def test_the_doctors_facts() -> None:
    """The real torch of this machine, in a process of its own."""
    line = [sys.executable, "-m", "overlaplab_engine.doctor"]
    done = subprocess.run(
        line, capture_output=True, text=True, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    )
    found = json.loads(done.stdout)["torch"]
    assert (found["version"], found["cuda"]) == (torch.__version__, torch.version.cuda)
    assert (found["gpus"], found["cupti"]) == (0, None)
    assert found["gloo"] is True
    assert found["no_gpu"]["why"]
