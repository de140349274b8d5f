"""How the emulated link behaves on this machine's GPU, in under 90 seconds. Needs torch alone.

    python scripts/gpu_probe.py --out runs/probe

Each section answers one question: which driver and clocks there are, how fine the GPU's timer is, how much a matrix
product slows down beside a link that waits by a kernel and beside one that waits by the host (`--link-wait`), what a
trace holds of either, and by how much a collective exceeds its T there. A section that fails keeps no other from
running; then the exit code is 1. Without a GPU it is 2. The last line is `EDGES_NS=…`, for
`engine/overlaplab_engine/network/device_clock.py`.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

BEGAN = time.monotonic()

import torch  # noqa: E402  takes seconds, or on a cold machine many
from torch.profiler import ProfilerActivity, profile  # noqa: E402

cuda: Any = torch.cuda  # parts of which have no types
ROOT = Path(__file__).resolve().parents[1]
LONGEST_S = 80.0
"""After so long, from its start on, the probe ends, whatever hangs."""
T_NS = 140_000
"""The modelled time of the collectives that are measured: a gather among 8 ranks at 20 µs."""
LONG_NS = 20_000_000
"""So long the link is busy beside matrix products: longer than they take."""
ROW = 72
"""Collectives in a row that keep it busy for as long."""
SAME = 0.005
"""Slowdowns that differ by less are called equal."""
SHAPES = {"qkv": (16384, 1024, 3072), "up": (16384, 1024, 4096), "square": (8192, 8192, 8192)}
"""Matrix products that fill the GPU: rows, inner size, columns."""
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


def timer_steps(stamps: Sequence[int]) -> list[int]:
    """The five smallest steps, in ns, between stamps of a timer that differ."""
    ordered = sorted(stamps)
    return sorted({after - before for before, after in pairwise(ordered)} - {0})[:5]


def excess_ns(events: Sequence[dict[str, Any]], modelled_ns: int) -> list[int]:
    """By how much each collective exceeds its T in a trace: from the start of the first of its two device events to the
    end of the second."""
    device = sorted((e for e in events if e.get("cat") in DEVICE_CATEGORIES), key=lambda e: e["ts"])
    pairs = zip(device[::2], device[1::2], strict=True)
    return [round(1e3 * (last["ts"] + last["dur"] - first["ts"])) - modelled_ns for first, last in pairs]


def edges_ns(current: int, excess: Sequence[int]) -> int:
    """What EDGES_NS should be, to 100 ns: now `current`, collectives exceed their T by `excess`."""
    return 100 * round((current + statistics.median(excess)) / 100)


def verdict(slowdowns: Mapping[str, Sequence[float]]) -> str:
    """Say which way of waiting slows down computation less, by the worst slowdown of each."""
    worst = {name: max(values) for name, values in slowdowns.items()}
    figures = ", ".join(f"{name} {ratio:.3f}" for name, ratio in worst.items())
    if len(worst) < 2:
        return f"worst slowdown beside the link: {figures}; there is nothing to compare it with"
    least = min(worst, key=lambda name: worst[name])
    if max(worst.values()) - worst[least] < SAME:
        return f"worst slowdown beside the link: {figures}; neither disturbs computation less"
    return f"worst slowdown beside the link: {figures}; --link-wait {least} disturbs computation less"


def spread(values: Sequence[float]) -> str:
    """Their median and range, in ns."""
    return f"median {statistics.median(values):+.0f} ns, {min(values):+.0f} to {max(values):+.0f}"


class Probe:
    """The sections, and what they have found."""

    def __init__(self, out: Path | None = None) -> None:
        """What is said is also written to `out`."""
        self.out = out
        self.failed: list[str] = []
        self.clocks: dict[str, Any] = {}
        self.slowdowns: dict[str, list[float]] = {}
        self.edges: int | None = None
        self._section = ""
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / "probe.txt").write_text("")

    def say(self, line: str) -> None:
        """Print a line, and write it down at once."""
        print(line, flush=True)
        if self.out is not None:
            with (self.out / "probe.txt").open("a") as file:
                file.write(line + "\n")

    def run(self, section: Callable[..., None], *names: str) -> None:
        """Run a section, on the clock of this name, if any; if it fails, say so and go on."""
        self._section = " ".join([section.__name__, *names])
        began = time.monotonic()
        self.say(f"== {self._section}: {section.__doc__}")
        try:
            section(self, *names)
        except Exception as error:
            self.failed.append(self._section)
            self.say(f"{self._section} failed: {type(error).__name__}: {' '.join(str(error).split())}")
            traceback.print_exc()
        self.say(f"({time.monotonic() - began:.1f} s)")

    def end(self) -> int:
        """Say what it comes to; the exit code."""
        if self.slowdowns:
            self.say(verdict(self.slowdowns))
        if self.failed:
            self.say(f"failed: {', '.join(self.failed)}")
        self.say(f"EDGES_NS={'unknown' if self.edges is None else self.edges}")
        return 1 if self.failed else 0

    def give_up(self) -> None:
        """End a section that hangs."""
        self.failed.append(f"{self._section} (took too long)")
        os._exit(self.end())

    def occupy(self, name: str, slot: int, ns: int) -> None:
        """A collective that moves nothing, on the link's stream."""
        with cuda.stream(self.link):
            self.clocks[name].begin(slot, self.link)
            self.clocks[name].wait_until(slot, ns, self.link)

    @cached_property
    def link(self) -> Any:
        """The link's stream, as `engine/overlaplab_engine/network/stream_carrier.py` has it."""
        return cuda.Stream(torch.device("cuda", 0), priority=-1)


def machine(probe: Probe) -> None:
    """versions, driver, and how long the host's name takes, which torch's rendezvous looks up"""
    began = time.monotonic()
    socket.getfqdn()
    driver = Path("/proc/driver/nvidia/version")
    probe.say(f"socket.getfqdn: {time.monotonic() - began:.2f} s; {os.cpu_count()} cores")
    probe.say(f"Python {platform.python_version()}, torch {torch.__version__}, NCCL {cuda.nccl.version()}")
    probe.say(f"{cuda.get_device_name()}, compute capability {cuda.get_device_capability()}")
    probe.say(driver.read_text().splitlines()[0] if driver.exists() else f"{driver} is not there")


def kernel_clock(probe: Probe) -> None:
    """whether the link's kernels load and run"""
    from overlaplab_engine.network.device_clock import DeviceClock

    probe.clocks["kernel"] = DeviceClock(torch.device("cuda", 0))
    cuda.synchronize()
    probe.say(f"an empty collective takes {probe.clocks['kernel'].occupied_ns(1)[0]} ns by the clock's own stamps")


def host_clock(probe: Probe) -> None:
    """whether streams can wait for the host, and how late they go on"""
    from overlaplab_engine.network.host_clock import HostClock

    probe.clocks["host"] = HostClock(torch.device("cuda", 0))
    probe.say(f"the gate opens {probe.clocks['host'].lead_ns} ns before the time is over")


def timer(probe: Probe) -> None:
    """the steps of %globaltimer"""
    for slot in range(64):
        probe.occupy("kernel", slot, 0)
    cuda.synchronize()
    probe.say(f"steps in ns: {timer_steps(probe.clocks['kernel']._blocks[0][:64].flatten().tolist())}")


def computation(probe: Probe, name: str) -> None:
    """how much longer a matrix product takes beside a link that waits, and how much longer the link waits"""
    loads: dict[str, Callable[[], None]] = {
        "alone": lambda: None,
        "beside one wait": lambda: row(probe, name, 1),
        f"beside {ROW} waits": lambda: row(probe, name, ROW),
    }
    for shape, (rows, inner, columns) in SHAPES.items():
        a, b = (torch.randn(*size, device="cuda", dtype=torch.bfloat16) for size in ((rows, inner), (inner, columns)))
        torch.mm(a, b)
        times: dict[str, list[float]] = {load: [] for load in loads}
        for _ in range(15):  # all take turns
            for load, occupy in loads.items():
                times[load].append(product_ms(a, b, occupy))
        alone = statistics.median(times.pop("alone"))
        probe.say(f"{shape}: alone {alone:.3f} ms")
        for load, values in times.items():
            ratio = statistics.median(values) / alone
            probe.say(f"{shape}: {load} {statistics.median(values):.3f} ms, {ratio:.3f} times as long")
            probe.slowdowns.setdefault(name, []).append(ratio)
        late = [ns - LONG_NS // ROW for ns in probe.clocks[name].occupied_ns(ROW)]  # the last load was that of a row
        probe.say(f"{shape}: waits beside it exceed their time by {spread(late)}")


def row(probe: Probe, name: str, count: int) -> None:
    """So many collectives in a row, which together keep the link busy for `LONG_NS`."""
    for slot in range(count):
        probe.occupy(name, slot, LONG_NS // count)


def product_ms(a: Any, b: Any, occupy: Callable[[], None]) -> float:
    """Milliseconds of a matrix product, one of ten in a row, while `occupy` keeps the link busy."""
    cuda.synchronize()
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    occupy()
    cuda._sleep(200_000)  # meanwhile the host queues all ten
    begin.record()
    for _ in range(10):
        torch.mm(a, b)
    end.record()
    cuda.synchronize()
    return float(begin.elapsed_time(end)) / 10


def trace(probe: Probe, name: str) -> None:
    """what a trace holds of a collective, and by how much it exceeds its T"""
    from overlaplab_engine.network.device_clock import EDGES_NS

    events = trace_events(probe, name)
    device = [e for e in events if e.get("cat") in DEVICE_CATEGORIES]
    calls = [e for e in events if str(e.get("cat", "")).startswith("cuda_")]
    probe.say(f"categories: {', '.join(sorted({e['cat'] for e in events if 'cat' in e}))}")
    for what, group in (("calls", calls), ("on the device", device)):
        probe.say(f"{what}: {', '.join(sorted({e['cat'] + ' ' + e['name'] for e in group}))}")
    by_clock = [ns - T_NS for ns in probe.clocks[name].occupied_ns(50)]
    probe.say(f"excess over T by the clock's own account: {spread(by_clock)}")
    excess = excess_ns(events, T_NS)
    probe.say(f"excess over T in the trace: {spread(excess)}")
    if name == "kernel":
        probe.edges = edges_ns(EDGES_NS, excess)


def trace_events(probe: Probe, name: str) -> list[dict[str, Any]]:
    """The events of fifty collectives in a trace, which is left in `out`."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for slot in range(50):
            probe.occupy(name, slot, T_NS)
        cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = (probe.out or Path(folder)) / f"{name}.pt.trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return [e for e in events if e.get("ph") == "X"]


def close_clocks(probe: Probe) -> None:
    """whether the gate keeper ends"""
    for clock in probe.clocks.values():
        clock.close()


SECTIONS: tuple[tuple[Any, ...], ...] = (
    (machine,),
    (kernel_clock,),
    (timer,),
    (computation, "kernel"),
    (trace, "kernel"),
    (host_clock,),
    (computation, "host"),
    (trace, "host"),
    (close_clocks,),
)
"""What is known of the kernel comes first: the host's part might hang."""


def main() -> int:
    """Run all sections; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="directory for what is said, and for the traces")
    out: Path | None = parser.parse_args().out
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # as overlaplab_engine/__main__.py, which says why
    sys.path.insert(0, str(ROOT / "engine"))
    if not cuda.is_available():
        print("gpu_probe.py: this machine has no GPU", file=sys.stderr)
        return 2
    cuda.set_device(0)
    probe = Probe(out)
    watchdog = threading.Timer(BEGAN + LONGEST_S - time.monotonic(), probe.give_up)
    watchdog.daemon = True
    watchdog.start()
    for section in SECTIONS:
        probe.run(*section)
    watchdog.cancel()
    return probe.end()


if __name__ == "__main__":
    sys.exit(main())
