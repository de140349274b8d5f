"""The NVIDIA driver and its GPUs, found without torch, since torch may be a build that sees none."""

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

_KERNEL_MODULE = Path("/proc/driver/nvidia")
_QUERY = "name,memory.total,compute_cap,driver_version"
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; None for values that the driver does not report."""

    name: str
    memory_mib: int | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True)
class Nvidia:
    """The driver and its GPUs."""

    driver: str | None = None
    """Its version, such as `580.65.06`; None if there is no driver or its version is unknown."""
    gpus: list[Gpu] = field(default_factory=list)
    error: str | None = None
    """The error of nvidia-smi; None if it succeeded or is not installed."""


def nvidia() -> Nvidia:
    """Driver and GPUs according to nvidia-smi, else according to the driver's files in /proc."""
    reported = _from_nvidia_smi()
    if reported is not None and reported.gpus:
        return reported
    return Nvidia(_module_version(), _gpus_in_proc(), reported.error if reported else None)


def _from_nvidia_smi() -> Nvidia | None:
    """Driver and GPUs according to nvidia-smi; None if it is not installed."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Nvidia(error=" ".join(str(error).split()))
    if done.returncode != 0:
        message = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
        return Nvidia(error=" ".join(message.split()))
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    rows = [row for row in rows if len(row) == len(_QUERY.split(","))]
    gpus = [
        Gpu(name, int(memory) if memory.isdigit() else None, capability if capability[:1].isdigit() else None)
        for name, memory, capability, _ in rows
    ]
    return Nvidia(rows[0][-1] if rows else None, gpus)


def _module_version() -> str | None:
    try:
        text = (_KERNEL_MODULE / "version").read_text()
    except OSError:
        return None
    version = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s", text)
    return version[1] if version else None


def _gpus_in_proc() -> list[Gpu]:
    """The GPUs that the kernel module lists in /proc."""
    gpus = []
    for file in sorted(_KERNEL_MODULE.glob("gpus/*/information")):
        try:
            model = re.search(r"^Model:\s*(.+)$", file.read_text(), re.MULTILINE)
        except OSError:
            model = None
        gpus.append(Gpu(model[1].strip() if model else "NVIDIA GPU"))
    return gpus
