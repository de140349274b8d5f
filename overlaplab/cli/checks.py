"""What the facts about a machine mean for recording and showing runs: pure, from facts to a verdict on each."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import Struct

from overlaplab.words import count

Facts: TypeAlias = dict[str, Any]
"""`doctor.facts`."""

_LITTLE_BYTES = 2e9
_TOO_FEW_BYTES = 1e8


class Verdict(StrEnum):
    """What a fact means."""

    OK = "ok"
    WARNING = "warning"
    """Recording works, but something else does not, or figures suffer."""
    PROBLEM = "problem"
    """It keeps a recording from working."""


class Check(Struct, frozen=True):
    """One line of the doctor's answer."""

    name: str
    verdict: Verdict
    fact: str
    remedy: str | None = None


def checks(facts: Facts) -> list[Check]:
    """The verdict on each fact, in the order in which they are shown."""
    engine = facts["engine"]
    verdicts = [Check("overlaplab", Verdict.OK, f"{facts['overlaplab']}, Python {facts['python']}")]
    if "failure" in engine:
        verdicts.append(
            Check("torch", Verdict.PROBLEM, f"asking torch failed: {engine['failure']}", "Reinstall torch.")
        )
    else:
        torch = engine["torch"]
        verdicts += [_torch(torch), _gpus(engine["nvidia"], torch)]
        if torch is not None and "error" not in torch:
            verdicts += [_profiler(torch), _nccl(torch), _gloo(torch)]
    return [*verdicts, _cores(facts), _loopback(facts), _port(facts), _extras(facts), _disk(facts), _cache(facts)]


def _torch(torch: Facts | None) -> Check:
    if torch is None:
        return Check("torch", Verdict.PROBLEM, "not installed", "pip install 'overlaplab[engine]'")
    if "error" in torch:
        return Check("torch", Verdict.PROBLEM, f"cannot be loaded: {torch['error']}", "Reinstall torch.")
    built = f"built for CUDA {torch['cuda']}" if torch["cuda"] else "a CPU build"
    if torch["hip"]:
        built = f"built for ROCm {torch['hip']}"
    return Check("torch", Verdict.OK, f"{torch['version']}, {built}")


def _gpus(nvidia: Facts, torch: Facts | None) -> Check:
    if not nvidia["gpus"]:
        return _no_nvidia_gpu(nvidia, usable=0 if torch is None else torch.get("gpus", 0))
    named = ", ".join(f"{number} × {name}" for name, number in Counter(map(_gpu, nvidia["gpus"])).items())
    named += f"; driver {nvidia['driver']}" if nvidia["driver"] else ""
    reason = None if torch is None else torch.get("no_gpu")
    if reason is not None:
        return Check("GPUs", Verdict.PROBLEM, f"{named}: {reason['why']}", reason["remedy"])
    return Check("GPUs", Verdict.OK, named)


def _no_nvidia_gpu(nvidia: Facts, usable: int) -> Check:
    if usable:  # of another maker
        return Check("GPUs", Verdict.OK, count(usable, "GPU"))
    if nvidia["error"]:
        remedy = "Install the driver anew, or restart the machine after an update of it."
        return Check("GPUs", Verdict.WARNING, f"nvidia-smi gives no answer: {nvidia['error']}", remedy)
    return Check("GPUs", Verdict.OK, "none from NVIDIA; recordings run on the CPU")


def _gpu(gpu: Facts) -> str:
    memory = f"{gpu['memory_mib'] / 1024:.0f} GiB" if gpu["memory_mib"] else ""
    capability = f"compute capability {gpu['compute_capability']}" if gpu["compute_capability"] else ""
    details = ", ".join(part for part in (memory, capability) if part)
    return f"{gpu['name']} ({details})" if details else str(gpu["name"])


def _profiler(torch: Facts) -> Check:
    cupti = torch["cupti"]
    if cupti is None:
        return Check("CUPTI", Verdict.OK, "not applicable: torch has no GPU to profile")
    if cupti["seen"]:
        return Check("CUPTI", Verdict.OK, "the profiler sees kernels")
    what, _, remedy = cupti["cause"].partition("; ")
    return Check("CUPTI", Verdict.PROBLEM, f"the profiler sees no kernels: {what}", remedy or None)


def _nccl(torch: Facts) -> Check:
    if torch["nccl"]:
        return Check("NCCL", Verdict.OK, torch["nccl"])
    if torch["gpus"]:
        return Check(
            "NCCL", Verdict.PROBLEM, "missing: GPUs cannot communicate", "Install a torch that has it (Linux)."
        )
    return Check("NCCL", Verdict.OK, "not applicable: torch has no GPU to communicate with")


def _gloo(torch: Facts) -> Check:
    if torch["gloo"]:
        return Check("gloo", Verdict.OK, "available")
    verdict = Verdict.WARNING if torch["gpus"] else Verdict.PROBLEM
    return Check("gloo", verdict, "missing: CPU processes cannot communicate", "Install a torch that has it.")


def _cores(facts: Facts) -> Check:
    cores, load = facts["cores"], facts["load"]
    fact = f"{count(cores, 'core')} usable" + ("" if load is None else f", load {load:.1f}")
    if cores < 2:
        return Check("cores", Verdict.WARNING, fact, "CPU ranks take turns on one core, so nothing overlaps: use two.")
    if load is not None and load >= cores:
        return Check(
            "cores", Verdict.WARNING, fact, "Other programs take time from the ranks: record when they are done."
        )
    return Check("cores", Verdict.OK, fact)


def _loopback(facts: Facts) -> Check:
    error = facts["loopback_error"]
    if error is None:
        return Check("ports", Verdict.OK, "ranks can meet on 127.0.0.1")
    return Check(
        "ports", Verdict.PROBLEM, f"127.0.0.1 cannot be used: {error}", "Allow sockets on the loopback interface."
    )


def _port(facts: Facts) -> Check:
    port = facts["dashboard"]["port"]
    if facts["dashboard"]["free"]:
        return Check("dashboard", Verdict.OK, f"port {port} is free")
    return Check("dashboard", Verdict.WARNING, f"port {port} is taken", f"overlaplab app --port {port + 1}")


def _extras(facts: Facts) -> Check:
    missing = facts["missing_extras"]
    if not missing:
        return Check("extras", Verdict.OK, "all installed")
    install = f"pip install 'overlaplab[{','.join(missing)}]'"
    return Check("extras", Verdict.WARNING, f"not installed: {', '.join(missing)}", install)


def _disk(facts: Facts) -> Check:
    free = facts["free_bytes"]
    fact = f"{free / 1e9:.1f} GB free in {facts['folder']}"
    if free >= _LITTLE_BYTES:
        return Check("disk", Verdict.OK, fact)
    verdict = Verdict.WARNING if free >= _TOO_FEW_BYTES else Verdict.PROBLEM
    return Check("disk", verdict, fact, "Record to another disk with --out, or make room.")


def _cache(facts: Facts) -> Check:
    cache = facts["cache"]
    if cache["off"]:
        return Check("cache", Verdict.OK, "switched off by OVERLAPLAB_NO_CACHE")
    if cache["writable"]:
        return Check("cache", Verdict.OK, cache["folder"])
    remedy = "Set OVERLAPLAB_CACHE_DIR to a folder that you may write; until then traces are read anew each time."
    return Check("cache", Verdict.WARNING, f"{cache['folder']} cannot be written", remedy)
