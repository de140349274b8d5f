"""The NVIDIA driver and its GPUs, as the machine tells them without torch: which may be a build that sees none."""

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Gpu", "Nvidia", "nvidia"]

_KERNEL_MODULE = Path("/proc/driver/nvidia")
_QUERY = "name,memory.total,compute_cap,driver_version"
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; None for what the driver does not tell."""

    name: str
    memory_mib: int | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True)
class Nvidia:
    """The driver, and the GPUs that it has."""

    driver: str | None = None
    """Its version, such as `580.65.06`; None where there is no driver, or nothing tells."""
    gpus: list[Gpu] = field(default_factory=list)
    error: str | None = None
    """What nvidia-smi says in place of an answer; None where it answers, or is not installed."""


def nvidia() -> Nvidia:
    """What `nvidia-smi` says, else the driver's files in /proc; without GPUs where there is no sign of any."""
    asked = _asked()
    if asked is not None and asked.gpus:
        return asked
    return Nvidia(_loaded_version(), _listed(), asked.error if asked else None)


def _asked() -> Nvidia | None:
    """What nvidia-smi says; None where it is not installed."""
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
        said = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
        return Nvidia(error=" ".join(said.split()))
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    rows = [row for row in rows if len(row) == len(_QUERY.split(","))]
    gpus = [
        Gpu(name, int(memory) if memory.isdigit() else None, capability if capability[:1].isdigit() else None)
        for name, memory, capability, _ in rows
    ]
    return Nvidia(rows[0][-1] if rows else None, gpus)


def _loaded_version() -> str | None:
    """The version of the kernel module that is loaded."""
    try:
        text = (_KERNEL_MODULE / "version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s", text)
    return found[1] if found else None


def _listed() -> list[Gpu]:
    """The GPUs that the kernel module has."""
    found = []
    for file in sorted(_KERNEL_MODULE.glob("gpus/*/information")):
        try:
            model = re.search(r"^Model:\s*(.+)$", file.read_text(), re.MULTILINE)
        except OSError:
            model = None
        found.append(Gpu(model[1].strip() if model else "NVIDIA GPU"))
    return found
