"""Steps of a GPU that is kept waiting by its host, and of a CPU that evaluates, written out by hand; times in µs."""

from __future__ import annotations

from typing import Any

from made.traces import event, gloo, launched, op, step

Event = dict[str, Any]


def loop(
    *, op_us: int = 30, kernel_us: int = 10, item: bool = False, load_us: int = 0, pause_us: int = 0
) -> list[Event]:
    """Two steps of ten kernels of 10 µs, each launched by an operator of its own; the host may load data, pause, or
    wait for the device with an `.item()` in the middle.
    """
    events: list[Event] = []
    host = free = 0
    for number in (3, 4):
        begun = host
        if load_us:
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            events.append(event(name, host, host + load_us, cat="user_annotation"))
        host += load_us + pause_us
        for place in range(10):
            events.append(op("mm", host, host + op_us))
            start = max(host + 2, free)
            events += launched("gemm", host, start, start + kernel_us, correlation=100 * number + place)
            free, host = start + kernel_us, host + op_us
            if item and place == 4:
                until = max(host + 3, free)
                events.append(op("item", host, until))
                events.append(event("cudaStreamSynchronize", host + 1, until, cat="cuda_runtime", correlation=number))
                host = until
        events.append(step(number, begun, host))
    return events


def evaluating_loop() -> list[Event]:
    """Six steps of 1,000 µs: 100 of loading, a forward pass of 200, a backward pass of 300 and 100 of waiting for its
    all-reduce, 50 of the optimizer. Every third has three forward passes more, and takes 600 longer.
    """
    events: list[Event] = []
    at = 0

    def run_forward() -> int:
        for name in ("engine::forward microbatch=0", "DistributedDataParallel.forward"):
            events.append(event(name, at, at + 200, cat="user_annotation"))
        events.append(op("mm", at, at + 200))
        return at + 200

    for number in range(6):
        begun = at
        events.append(op("load", at, at + 100))
        at += 100
        at = run_forward()
        events.append(event("engine::backward microbatch=0 sync=1", at, at + 400, cat="user_annotation"))
        events += [op("mm", at, at + 300), gloo(at + 250, at + 400)]
        events += [
            event("engine::optimizer", at + 400, at + 450, cat="user_annotation"),
            op("add_", at + 400, at + 450),
        ]
        at += 500
        for _ in range(3 if number % 3 == 2 else 0):
            at = run_forward()
        at += 200
        events.append(step(number, begun, at - 1))
    return events
