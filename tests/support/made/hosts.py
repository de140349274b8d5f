"""Steps of a GPU that is kept waiting by its host, written out by hand; times in µs."""

from __future__ import annotations

from typing import Any

from made.traces import event, launched, op, step

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
