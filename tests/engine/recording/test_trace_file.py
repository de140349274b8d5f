"""When the recorder of a trace waits for a GPU, and whether it saw anything on it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from overlaplab_engine.recording import trace_file as record


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (torch.device("cuda", 1), "prepare on cuda:1, wait for cuda:1, start on cuda:1, stop on cuda:1"),
        (None, "prepare, start, stop"),
    ],
)
def test_the_device_is_done_with_warmup_before_the_recording(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: torch.device | None, expected: str
) -> None:
    """Two steps of warm-up: between the second one and the first that is recorded, and nowhere else.

    torch's profiler ends by waiting for the current device: that of the rank, whatever the loop has made current.
    """
    done: list[str] = []
    current: list[torch.device] = []

    @contextmanager
    def on(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    class Profiler:
        def __init__(self, **options: Any) -> None:
            """Nothing but notes of the calls."""

        def note(self, word: str) -> None:
            done.append(f"{word} on {current[-1]}" if current else word)

        prepare_trace = partialmethod(note, "prepare")
        start_trace = partialmethod(note, "start")
        stop_trace = partialmethod(note, "stop")

    monkeypatch.setattr(record, "profile", Profiler)
    monkeypatch.setattr(torch._C._autograd, "_profiler_enabled", lambda: "start" in str(done))
    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append(f"wait for {device}"))
    with record.TraceFile(tmp_path, 0, warmup=2, steps=2, gpu=gpu, hold=True) as trace:
        for _ in range(5):
            trace.step()
    assert ", ".join(done) == expected


@pytest.mark.parametrize("gpu", [True, False])
def test_whom_streams_wait_for_is_asked_for_on_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: bool) -> None:
    options: list[dict[str, Any]] = []
    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", lambda **config: options.append(config))
    monkeypatch.setattr(record, "profile", lambda **_: None)
    record.TraceFile(tmp_path, 0, warmup=1, steps=1, gpu=torch.device("cuda") if gpu else None)
    assert options == [{"enable_cuda_sync_events": gpu, "profile_all_threads": False}]


@pytest.mark.filterwarnings("ignore:CUDA is not available, disabling CUDA profiling")
@pytest.mark.parametrize("gpu", [torch.device("cuda"), None])
def test_a_trace_without_device_events_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: torch.device | None
) -> None:
    """The real profiler for a GPU that it cannot see; only the waits for the GPU are left out."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    with record.TraceFile(tmp_path, 0, warmup=1, steps=1, gpu=gpu) as trace:
        for _ in range(2):
            torch.ones(3).add_(1)
            assert not trace.saw_no_device
            trace.step()
    assert trace.saw_no_device is (gpu is not None)
    lines = gzip.decompress((tmp_path / "rank0.pt.trace.json.gz").read_bytes()).splitlines()
    assert any(b'"cat": "cpu_op"' in line for line in lines)  # how kernels are written, too
    trace.discard()
    assert list(tmp_path.iterdir()) == []
