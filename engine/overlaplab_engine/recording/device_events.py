"""Whether the profiler saw what ran on the GPU; if it did not, why.

[Note: a process that asks why]
Kineto reports CUPTI's errors only on stderr, as warnings (level 2 of KINETO_LOG_LEVEL), and at that level every
recording also writes its stages there. So recordings keep Kineto quiet, and where one saw nothing, a process of its own
profiles one small operation and lets Kineto speak. It meets the same driver, permissions and other profilers.

This file is that process's script, too, so it imports torch only there.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Probe", "cause", "holds_device_events", "nothing_seen", "probe"]

_DEVICE_EVENT = re.compile(rb'"cat": ?"(?:kernel|gpu_memcpy|gpu_memset)"')
_ERROR = re.compile(r"failed with error (CUPTI_ERROR_\w+)")
_CAUSES = {
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES": "the driver lets only administrators profile ({error}); load the "
    "nvidia module with NVreg_RestrictProfilingToAdminUsers=0, or give the container CAP_SYS_ADMIN",
    "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": "another profiler holds CUPTI ({error}); record without nsys, "
    "ncu, DCGM's profiling and CUDA_INJECTION64_PATH",
}
"""What Kineto says where CUPTI refuses, and what that means."""
ANSWER = "probed: "
"""What the process's answer begins with; libraries may print, too."""
TIMEOUT_S = 120.0
"""How long the process may take: torch and CUDA start in it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What became of profiling one small operation on a device, in a process of its own."""

    seen: bool
    """Whether the profiler saw it run on the device."""
    supported: bool
    """Whether this build of torch can profile GPUs at all."""
    said: str
    """What the process wrote to stderr, Kineto's warnings among it."""
    failure: str | None = None
    """Why the process came to no result; None if it did."""


def holds_device_events(lines: Iterable[bytes]) -> bool:
    """Whether a trace, as torch.profiler writes it, holds kernels, copies or memsets of a device."""
    return any(_DEVICE_EVENT.search(line) for line in lines)


def nothing_seen(device: str) -> str:
    """That the profiler saw nothing on the device, why, and what to do about it; takes some seconds to find out."""
    return f"the profiler saw nothing run on {device}: {cause(probe(device))}"


def cause(found: Probe) -> str:
    """Why a recording saw nothing run on the device, by what became of the probe, and what to do about it."""
    if found.seen:
        return (
            "one operation in a process of its own is seen, so either nothing ran there in the recorded steps, "
            "or another profiler was at work in the recording process"
        )
    error = _ERROR.search(found.said)
    if error is not None:
        known = _CAUSES.get(error[1], "CUPTI reports {error}; see that no other CUDA's libcupti is in LD_LIBRARY_PATH")
        return known.format(error=error[1])
    if not found.supported:
        return (
            "this build of torch cannot profile GPUs (torch.profiler.supported_activities() has no CUDA); "
            "install one with CUDA and CUPTI, see https://pytorch.org/get-started/locally"
        )
    why = f" (asking for it failed: {found.failure})" if found.failure else ""
    return f"the reason is unknown{why}; `overlaplab doctor` checks this machine"


def probe(device: str) -> Probe:
    """Profile one small operation on the device, such as `cuda:0`, in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__, device],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            env={**os.environ, "KINETO_LOG_LEVEL": "2"},
        )
    except subprocess.TimeoutExpired:
        return _failed(f"no answer within {TIMEOUT_S:g} s")
    except OSError as error:
        return _failed(f"the process cannot be started: {error}")
    if done.returncode != 0:
        return _failed(_raised(done.stderr) or f"exit code {done.returncode}", done.stderr)
    found = json.loads(done.stdout.rpartition(ANSWER)[2].partition("\n")[0])
    return Probe(seen=found["seen"], supported=found["supported"], said=done.stderr)


def _failed(why: str, said: str = "") -> Probe:
    return Probe(seen=False, supported=True, said=said, failure=why)


def _raised(stderr: str) -> str | None:
    """The line that names the error at the end of a traceback; more may follow it, such as CUDA's hints."""
    named = re.findall(r"^[\w.]+(?:Error|Exception)\b.*", stderr, re.MULTILINE)
    return named[-1].strip() if named else None


def _look(device: str) -> dict[str, bool]:
    """What `probe` asks, in the process that it starts: the profiler begins after CUDA, as in a recording."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

    numbers = torch.ones(64, device=device)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
        ) as profiler:
            for _ in range(2):
                numbers.add_(1).sum().item()
                profiler.step()
        with trace.open("rb") as lines:
            seen = holds_device_events(lines)
    return {"seen": seen, "supported": ProfilerActivity.CUDA in supported_activities()}  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    print(ANSWER + json.dumps(_look(sys.argv[1])))
