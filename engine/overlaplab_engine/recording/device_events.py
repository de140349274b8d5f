"""Whether the profiler saw what ran on the GPU and, if not, why.

[Note: probing in a separate process]
Kineto reports CUPTI's errors only on stderr, as warnings (level 2 of KINETO_LOG_LEVEL), and at that level it also
prints the stages of every recording. So recordings keep Kineto quiet. If one saw nothing, a separate process profiles
one small operation with Kineto's warnings on. It meets the same driver, permissions and other profilers.

This file is also that process's script, so it imports torch only there.
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

_DEVICE_EVENT = re.compile(rb'"cat": ?"(?:kernel|gpu_memcpy|gpu_memset)"')
_ERROR = re.compile(r"failed with error (CUPTI_ERROR_\w+)")
_CAUSES = {
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES": "the driver lets only administrators profile ({error}); load the "
    "nvidia module with NVreg_RestrictProfilingToAdminUsers=0, or give the container CAP_SYS_ADMIN",
    "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": "another profiler holds CUPTI ({error}); record without nsys, "
    "ncu, DCGM's profiling and CUDA_INJECTION64_PATH",
}
"""CUPTI's errors as Kineto prints them, and what they mean."""
ANSWER = "probed: "
"""The prefix of the process's answer, since libraries may print too."""
TIMEOUT_S = 120.0
"""How long the process may take; it has to start torch and CUDA."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of profiling one small operation on a device, in a separate process."""

    seen: bool = False
    """Whether the profiler saw it run on the device."""
    supported: bool = True
    """Whether this build of torch can profile GPUs at all."""
    stderr: str = ""
    """What the process printed, with Kineto's warnings."""
    failure: str | None = None
    """Why the process had no result; None if it had one."""


def holds_device_events(lines: Iterable[bytes]) -> bool:
    """Whether a trace written by torch.profiler contains kernels, copies or memsets of a device."""
    return any(_DEVICE_EVENT.search(line) for line in lines)


def nothing_seen_message(device: str) -> str:
    """A message that the profiler saw nothing on the device, with cause and remedy; takes some seconds."""
    return f"the profiler saw nothing run on {device}: {cause(probe(device))}"


def cause(result: Probe) -> str:
    """Why a recording saw nothing run on the device and, after "; ", what to do about it, by the probe's result."""
    if result.seen:
        return (
            "an operation in a separate process is seen, so either nothing ran there in the recorded steps, "
            "or another profiler was active in the recording process"
        )
    if error := _ERROR.search(result.stderr):
        explanation = _CAUSES.get(
            error[1], "CUPTI reports {error}; check that LD_LIBRARY_PATH has no other CUDA's libcupti"
        )
        return explanation.format(error=error[1])
    if not result.supported:
        return (
            "this build of torch cannot profile GPUs (torch.profiler.supported_activities() has no CUDA); "
            "install one with CUDA and CUPTI, see https://pytorch.org/get-started/locally"
        )
    why = f" (looking for it failed: {result.failure})" if result.failure else ""
    return f"the reason is unknown{why}; `overlaplab doctor` checks this machine"


def probe(device: str) -> Probe:
    """Profile one small operation on the device, such as `cuda:0`, in a separate process."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__, device],  # -P: or this folder's modules would hide the library's
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            env={**os.environ, "KINETO_LOG_LEVEL": "2"},
        )
    except subprocess.TimeoutExpired:
        return Probe(failure=f"no answer within {TIMEOUT_S:g} s")
    except OSError as error:
        return Probe(failure=f"the process cannot be started: {error}")
    if done.returncode != 0:
        return Probe(failure=_error_line(done.stderr) or f"exit code {done.returncode}", stderr=done.stderr)
    answer = json.loads(done.stdout.rpartition(ANSWER)[2].partition("\n")[0])
    return Probe(seen=answer["seen"], supported=answer["supported"], stderr=done.stderr)


def _error_line(stderr: str) -> str | None:
    """The line of a traceback that names the error; other lines may follow it, such as CUDA's hints."""
    errors = re.findall(r"^[\w.]+(?:Error|Exception)\b.*", stderr, re.MULTILINE)
    return errors[-1].strip() if errors else None


def _look(device: str) -> dict[str, bool]:
    """The answer to `probe`, in the process that it starts. CUDA starts before the profiler, as in a recording."""
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
