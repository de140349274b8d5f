"""`overlaplab doctor`: the verdict on each fact, and the command on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from overlaplab.cli.checks import Check, Verdict, checks
from overlaplab.cli.doctor import _bind, _can_write

OK, WARNING, PROBLEM = Verdict
H200 = {"name": "NVIDIA H200", "memory_mib": 143771, "compute_capability": "9.0"}
T4 = {"name": "Tesla T4", "memory_mib": None, "compute_capability": None}
CPU_TORCH: dict[str, Any] = {
    "version": "2.13.0+cpu",
    "cuda": None,
    "hip": None,
    "gpus": 0,
    "no_gpu": {"why": "this machine has no GPU", "remedy": None},
    "gloo": True,
    "nccl": None,
    "cupti": None,
}
GPU_TORCH = CPU_TORCH | {
    "version": "2.11.0",
    "cuda": "13.0",
    "gpus": 2,
    "no_gpu": None,
    "nccl": "2.27.7",
    "cupti": {"seen": True, "cause": None},
}
NO_NVIDIA = {"driver": None, "gpus": [], "error": None}
TWO_H200 = {"driver": "580.65.06", "gpus": [H200, H200], "error": None}


def facts(torch: dict[str, Any] | None = CPU_TORCH, nvidia: dict[str, Any] = NO_NVIDIA, **own: Any) -> dict[str, Any]:
    """The facts of a machine without any problem."""
    return {
        "python": "3.12.1",
        "overlaplab": "0.1.0",
        "engine": {"nvidia": nvidia, "torch": torch},
        "cores": 8,
        "load": 0.4,
        "loopback_error": None,
        "dashboard": {"port": 8501, "free": True},
        "missing_extras": [],
        "folder": "/data",
        "free_bytes": 82_200_000_000,
        "cache": {"folder": "/home/me/.cache/overlaplab", "writable": True, "off": False},
    } | own


def line(found: dict[str, Any], name: str) -> tuple[Verdict, str, str | None]:
    (check,) = [check for check in checks(found) if check.name == name]
    return check.verdict, check.fact, check.remedy


def test_all_is_well_without_a_gpu() -> None:
    assert checks(facts()) == [
        Check("overlaplab", OK, "0.1.0, Python 3.12.1"),
        Check("torch", OK, "2.13.0+cpu, a CPU build"),
        Check("GPUs", OK, "none from NVIDIA; recordings run on the CPU"),
        Check("CUPTI", OK, "not applicable: torch has no GPU to profile"),
        Check("NCCL", OK, "not applicable: torch has no GPU to communicate with"),
        Check("gloo", OK, "available"),
        Check("cores", OK, "8 cores usable, load 0.4"),
        Check("ports", OK, "ranks can meet on 127.0.0.1"),
        Check("dashboard", OK, "port 8501 is free"),
        Check("extras", OK, "all installed"),
        Check("disk", OK, "82.2 GB free in /data"),
        Check("cache", OK, "/home/me/.cache/overlaplab"),
    ]


def test_all_is_well_on_gpus() -> None:
    found = facts(GPU_TORCH, TWO_H200)
    assert {check.verdict for check in checks(found)} == {OK}
    assert line(found, "torch") == (OK, "2.11.0, built for CUDA 13.0", None)
    assert line(found, "GPUs")[1] == "2 × NVIDIA H200 (140 GiB, compute capability 9.0); driver 580.65.06"
    assert line(found, "CUPTI")[1] == "the profiler sees kernels"
    assert line(found, "NCCL")[1] == "2.27.7"
    mixed = facts(GPU_TORCH, {"driver": None, "gpus": [H200, T4], "error": None})
    assert line(mixed, "GPUs")[1] == "1 × NVIDIA H200 (140 GiB, compute capability 9.0), 1 × Tesla T4"
    amd = facts(GPU_TORCH | {"hip": "6.4", "cuda": None})
    assert line(amd, "torch")[1] == "2.11.0, built for ROCm 6.4"
    assert line(amd, "GPUs") == (OK, "2 GPUs", None)


NO_CUDA = {"why": "torch 2.13.0+cpu is a CPU build and cannot use this machine's GPU", "remedy": "install a CUDA build"}
REFUSED = "the driver lets only administrators profile (X); load the nvidia module with Y=0"


@pytest.mark.parametrize(
    ("found", "name", "expected"),
    [
        (facts(None), "torch", (PROBLEM, "not installed", "pip install 'overlaplab[engine]'")),
        (
            facts({"error": "OSError: libcudnn.so.9: cannot open shared object file"}, TWO_H200),
            "torch",
            (PROBLEM, "cannot be loaded: OSError: libcudnn.so.9: cannot open shared object file", "Reinstall torch."),
        ),
        (
            facts(engine={"failure": "no answer within 300 s"}),
            "torch",
            (PROBLEM, "asking torch failed: no answer within 300 s", "Reinstall torch."),
        ),
        (
            facts(CPU_TORCH | {"no_gpu": NO_CUDA}, TWO_H200),
            "GPUs",
            (
                PROBLEM,
                "2 × NVIDIA H200 (140 GiB, compute capability 9.0); driver 580.65.06: torch 2.13.0+cpu is a CPU build "
                "and cannot use this machine's GPU",
                "install a CUDA build",
            ),
        ),
        (
            facts(None, TWO_H200),
            "GPUs",
            (OK, "2 × NVIDIA H200 (140 GiB, compute capability 9.0); driver 580.65.06", None),
        ),
        (
            facts(CPU_TORCH, NO_NVIDIA | {"error": "couldn't communicate with the NVIDIA driver"}),
            "GPUs",
            (
                WARNING,
                "nvidia-smi gives no answer: couldn't communicate with the NVIDIA driver",
                "Install the driver anew, or restart the machine after an update of it.",
            ),
        ),
        (
            facts(GPU_TORCH | {"cupti": {"seen": False, "cause": REFUSED}}, TWO_H200),
            "CUPTI",
            (
                PROBLEM,
                "the profiler sees no kernels: the driver lets only administrators profile (X)",
                "load the nvidia module with Y=0",
            ),
        ),
        (
            facts(GPU_TORCH | {"nccl": None}, TWO_H200),
            "NCCL",
            (PROBLEM, "missing: GPUs cannot communicate", "Install a torch that has it (Linux)."),
        ),
        (
            facts(CPU_TORCH | {"gloo": False}),
            "gloo",
            (PROBLEM, "missing: CPU processes cannot communicate", "Install a torch that has it."),
        ),
        (
            facts(GPU_TORCH | {"gloo": False}, TWO_H200),
            "gloo",
            (WARNING, "missing: CPU processes cannot communicate", "Install a torch that has it."),
        ),
        (
            facts(cores=1, load=None),
            "cores",
            (WARNING, "1 core usable", "CPU ranks take turns on one core, so nothing overlaps: use two."),
        ),
        (
            facts(cores=2, load=2.0),
            "cores",
            (
                WARNING,
                "2 cores usable, load 2.0",
                "Other programs take time from the ranks: record when they are done.",
            ),
        ),
        (
            facts(loopback_error="Operation not permitted"),
            "ports",
            (
                PROBLEM,
                "127.0.0.1 cannot be used: Operation not permitted",
                "Allow sockets on the loopback interface.",
            ),
        ),
        (
            facts(dashboard={"port": 8501, "free": False}),
            "dashboard",
            (WARNING, "port 8501 is taken", "overlaplab app --port 8502"),
        ),
        (
            facts(missing_extras=["app", "hta"]),
            "extras",
            (WARNING, "not installed: app, hta", "pip install 'overlaplab[app,hta]'"),
        ),
        (
            facts(free_bytes=1_900_000_000),
            "disk",
            (WARNING, "1.9 GB free in /data", "Record to another disk with --out, or make room."),
        ),
        (
            facts(free_bytes=90_000_000),
            "disk",
            (PROBLEM, "0.1 GB free in /data", "Record to another disk with --out, or make room."),
        ),
        (
            facts(cache={"folder": "/ro/x", "writable": False, "off": False}),
            "cache",
            (
                WARNING,
                "/ro/x cannot be written",
                "Set OVERLAPLAB_CACHE_DIR to a folder that you may write; until then traces are read anew each time.",
            ),
        ),
        (
            facts(cache={"folder": "/ro/x", "writable": False, "off": True}),
            "cache",
            (OK, "switched off by OVERLAPLAB_NO_CACHE", None),
        ),
    ],
)
def test_each_situation(found: dict[str, Any], name: str, expected: tuple[Verdict, str, str | None]) -> None:
    assert line(found, name) == expected


def test_without_torch_all_other_checks_still_run() -> None:
    wanted = ["overlaplab", "torch", "GPUs", "cores", "ports", "dashboard", "extras", "disk", "cache"]
    assert [check.name for check in checks(facts(None))] == wanted
    failed = facts(engine={"failure": "exit code 1"})
    assert [check.name for check in checks(failed)] == [name for name in wanted if name != "GPUs"]


def test_a_port_that_is_taken() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert _bind(port) == "Address already in use"
    assert _bind(port) is None


def test_a_folder_that_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert _can_write(tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists()
    assert not _can_write(tmp_path / "file")
    assert not _can_write(tmp_path / "file" / "below")


def doctor(folder: Path, *options: str, torch: str | None = None, smi: str | None = None) -> tuple[int, str, str]:
    """The command; `torch` is the text of a module in its place, `smi` what an nvidia-smi prints."""
    environment = {**os.environ, "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""}
    if torch is not None:
        (folder / "torch.py").write_text(torch)
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment.get("PYTHONPATH", "")])
    if smi is not None:
        program = folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho '{smi}'\n")
        program.chmod(0o755)
        environment["PATH"] = os.pathsep.join([str(folder), environment["PATH"]])
    command = [sys.executable, "-m", "overlaplab", "doctor", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a CPU build of torch")
def test_the_command_with_the_torch_that_is_here(tmp_path: Path) -> None:
    code, out, err = doctor(tmp_path)
    assert (code, err) == (0, "")
    assert f"{torch.__version__}, a CPU build" in out
    assert out.splitlines()[-1] == "Nothing here would keep a recording from working."
    assert all(row.split()[0] in ("ok", "warning", "→") or row.startswith(" ") for row in out.splitlines()[:-1])


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a CPU build of torch")
def test_a_cpu_build_beside_a_gpu_as_json(tmp_path: Path) -> None:
    code, out, err = doctor(tmp_path, "--json", smi="NVIDIA H200, 143771, 9.0, 580.65.06")
    assert (code, err) == (1, "")
    document = json.loads(out)
    assert sorted(document) == ["checks", "facts", "ok", "schema_version"]
    assert document["ok"] is False
    (problem,) = [check for check in document["checks"] if check["verdict"] == "problem"]
    assert problem["name"] == "GPUs"
    assert (
        f"torch {torch.__version__} is a CPU build and cannot use this machine's GPU (NVIDIA H200)" in problem["found"]
    )
    assert problem["remedy"].startswith("install a CUDA build: pip install ")
    assert document["facts"]["engine"]["nvidia"]["driver"] == "580.65.06"


def test_control_characters_from_other_programs_do_not_reach_the_terminal(tmp_path: Path) -> None:
    _, out, _ = doctor(tmp_path, torch="raise OSError('\x1b[31mred')", smi="\x1b]0;owned\x07GPU, 1024, 9.0, 580.1")
    assert "\x1b" not in out
    assert "\N{REPLACEMENT CHARACTER}[31mred" in out
    assert "\N{REPLACEMENT CHARACTER}]0;owned\N{REPLACEMENT CHARACTER}GPU" in out


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')", "not installed"),
        ("raise OSError('libcudnn.so.9: cannot open')", "cannot be loaded: OSError: libcudnn.so.9: cannot open"),
        ("raise SystemExit('broken beyond words')", "asking torch failed: broken beyond words"),
        ("import os; os._exit(3)", "asking torch failed: it ended with exit code 3"),
    ],
)
def test_a_torch_that_cannot_be_used(tmp_path: Path, module: str, said: str) -> None:
    code, out, err = doctor(tmp_path, torch=module)
    assert (code, err) == (1, "")
    assert said in out
    assert "ranks can meet on 127.0.0.1" in out
    assert out.splitlines()[-1] == "1 problem, which would keep a recording from working."
