"""When a Recorder records: late, again, on a signal, where the environment says, and not in a pause."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from overlaplab_engine import Recorder
from overlaplab_engine.errors import EngineError
from torch import nn
from torch.profiler import profile

import overlaplab
from overlaplab.events.windows import step_windows

STEP, NO_STEP = "ProfilerStep#", "overlaplab::next_step#"


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


def train(model: nn.Module) -> None:
    model(torch.ones(3, 4)).sum().backward()


def events(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress((run / "rank0.pt.trace.json.gz").read_bytes()))[
        "traceEvents"
    ]
    return sorted((e for e in found if e.get("ph") == "X"), key=lambda event: event["ts"])


def ranges(run: Path) -> list[str]:
    """The names of the profiler's ranges; of those outside steps without their numbers."""
    names = [event["name"] for event in events(run)]
    return [
        name.split("#")[0] if name.startswith(NO_STEP) else name for name in names if name.startswith((STEP, NO_STEP))
    ]


def steps(run: Path) -> list[int]:
    return overlaplab.summary(overlaplab.load_run(run))["step"].tolist()  # type: ignore[no-any-return]


def test_a_recording_may_begin_late(tmp_path: Path, model: nn.Module) -> None:
    with Recorder(tmp_path, model, warmup=1, steps=2, start_at=3) as recorder:
        for step in range(6):
            assert bool(model[0].weight._post_accumulate_grad_hooks) == (step >= 3)
            train(model)
            recorder.step()
    assert recorder.done
    assert steps(tmp_path) == [4, 5]
    assert [row["step"] for row in json.loads((tmp_path / "run.json").read_text())["machine"]] == [4, 5]


def test_a_loop_that_ends_before_the_recording_begins_is_told(tmp_path: Path, model: nn.Module) -> None:
    recorder = Recorder(tmp_path, model, start_at=3).start()
    recorder.step()
    with pytest.warns(UserWarning, match="no run in .*: the loop made 1 steps, and the recording begins at step 3"):
        recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_it_may_record_again_and_again(tmp_path: Path, model: nn.Module) -> None:
    with Recorder(tmp_path, model, warmup=1, steps=1, start_at=1, every=3) as recorder:
        for _ in range(7):
            train(model)
            recorder.step()
        assert not recorder.done
    assert {path.name: steps(path) for path in tmp_path.iterdir()} == {"step-1": [2], "step-4": [5]}


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cannot record 2 \+ 3 steps every 4 steps"):
        Recorder(tmp_path, every=4)
    with pytest.raises(EngineError, match="start_at is a number of steps, 0 or more, not -1"):
        Recorder(tmp_path, start_at=-1)
    with pytest.warns(UserWarning, match=r"nothing is recorded: .* ranks must be among 0 to 0, not \[0, 1\]"):
        Recorder(tmp_path, ranks=[0, 1]).start()


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that a handler of the user's got."""
    found: list[int] = []
    former = signal.signal(signal.SIGUSR2, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGUSR2, former)


def test_a_signal_starts_a_recording(tmp_path: Path, model: nn.Module, heard: list[int]) -> None:
    handler = signal.getsignal(signal.SIGUSR2)
    with Recorder(tmp_path, model, warmup=1, steps=1, on_signal=True) as recorder:
        for step in range(9):
            if step in (1, 5):
                os.kill(os.getpid(), signal.SIGUSR2)
            train(model)
            recorder.step()
    assert {path.name: steps(path) for path in tmp_path.iterdir()} == {"step-2": [3], "step-6": [7]}
    assert heard == [signal.SIGUSR2] * 2
    assert signal.getsignal(signal.SIGUSR2) is handler


def test_a_handler_that_was_set_later_stays(tmp_path: Path, model: nn.Module, heard: list[int]) -> None:
    def later(number: int, frame: Any) -> None:
        """The user's own, from now on."""

    with Recorder(tmp_path, model, on_signal=True):
        signal.signal(signal.SIGUSR2, later)
    assert signal.getsignal(signal.SIGUSR2) is later


def test_signals_are_for_the_main_thread(tmp_path: Path, model: nn.Module) -> None:
    recorder = Recorder(tmp_path, model, on_signal=True)
    with pytest.warns(UserWarning, match=r"nothing is recorded: .* on_signal needs start\(\) in the main thread"):
        ThreadPoolExecutor().submit(recorder.start).result()


@pytest.mark.parametrize("why", ["no directory", "a profiler runs"])
def test_a_signal_ends_no_training_of_which_nothing_is_recorded(
    tmp_path: Path, model: nn.Module, heard: list[int], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.delenv("OVERLAPLAB_RECORD", raising=False)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    if why == "no directory":
        recorder = Recorder(None, model, on_signal=True).start()
    else:
        with profile(), pytest.warns(UserWarning, match="nothing is recorded: a profiler is running"):
            recorder = Recorder(tmp_path, model, on_signal=True).start()
    assert signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL  # which would end the process
    os.kill(os.getpid(), signal.SIGUSR2)
    for _ in range(6):
        train(model)
        recorder.step()
    recorder.close()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_the_directory(tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPLAB_RECORD", str(tmp_path / "there"))
    for out in (tmp_path / "here", None):
        with Recorder(out, model, warmup=1, steps=1) as recorder:
            for _ in range(2):
                train(model)
                recorder.step()
        assert [path.name for path in tmp_path.iterdir()] == ["there"]
        assert steps(tmp_path / "there") == [1]


def test_without_a_directory_nothing_is_recorded(
    tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OVERLAPLAB_RECORD", raising=False)
    monkeypatch.chdir(tmp_path)
    with profile(), Recorder(None, model) as recorder:  # a profiler of one's own is no matter
        for _ in range(6):
            train(model)
            with recorder.paused():
                train(model)
            recorder.step()
        assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert list(tmp_path.iterdir()) == []


def pause(recorder: Recorder, model: nn.Module) -> None:
    """Evaluation, with an operator that training has not."""
    with recorder.paused():
        model(torch.ones(2, 4)).sin()
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("place", "named"),
    [("before step()", True), ("before step()", False), ("after step()", True), ("around step()", True)],
)
def test_a_pause_is_in_no_step(tmp_path: Path, model: nn.Module, place: str, named: bool) -> None:
    """Without a model the longer part of a step is the step."""
    with Recorder(tmp_path, model if named else None, warmup=1, steps=3) as recorder:
        for step in range(4):
            train(model)
            if not named:
                time.sleep(0.02)
            if place == "before step()" and step == 2:
                pause(recorder, model)
            if place == "around step()" and step in (0, 2):
                with recorder.paused():
                    recorder.step()
                    pause(recorder, model)
            else:
                recorder.step()
            if place == "after step()" and step == 1:
                pause(recorder, model)
    assert recorder.done
    assert steps(tmp_path) == [1, 2, 3]
    found = events(tmp_path)
    assert "aten::sin" not in {event["name"] for event in found}
    assert not torch._C._autograd._profiler_enabled()
    windows = step_windows(overlaplab.load_run(tmp_path).traces[0])
    paused = [event for event in found if event["name"].startswith(NO_STEP) and event["dur"] >= 10_000]
    assert len(paused) == 1  # the recording begins within the other
    passes = [event["ts"] for event in found if event["name"] == "aten::addmm"]
    assert len(passes) == 2 * 3
    assert [window.step for window in windows] == [1, 2, 3]
    took = [row["took_ns"] for row in json.loads((tmp_path / "run.json").read_text())["machine"]]
    for window, machine_ns in zip(windows, took, strict=True):
        assert machine_ns < 2 * (window.end_ns - window.start_ns) + 5_000_000


def test_a_step_that_a_pause_splits_is_not_recorded(tmp_path: Path, model: nn.Module) -> None:
    with Recorder(tmp_path, model, warmup=1, steps=2) as recorder:
        for step in range(4):
            train(model)
            if step == 2:
                pause(recorder, model)
                train(model)
            recorder.step()
    assert recorder.done
    assert steps(tmp_path) == [1, 3]
    assert ranges(tmp_path) == [f"{STEP}1", *3 * ["overlaplab::next_step"], f"{STEP}3"]


def test_a_loop_that_splits_every_step_ends_the_recording(tmp_path: Path, model: nn.Module) -> None:
    """Or the trace would grow on and on."""
    recorder = Recorder(tmp_path, model, warmup=1, steps=1).start()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(6):
            train(model)
            pause(recorder, model)
            train(model)
            recorder.step()
    assert [str(one.message).partition(": ")[2] for one in said] == [
        "the loop made 5 steps, but the recording takes 1 + 1, so that no step was recorded"
    ]
    assert list(tmp_path.iterdir()) == []


def test_an_exception_ends_a_pause(tmp_path: Path, model: nn.Module) -> None:
    with Recorder(tmp_path, model, warmup=1, steps=1) as recorder:
        recorder.step()
        with pytest.raises(KeyError), recorder.paused(), recorder.paused():
            raise KeyError
        train(model)
        recorder.step()
    assert "aten::addmm" in {event["name"] for event in events(tmp_path)}


def shortened(run: Path, model: nn.Module, max_mb: float) -> tuple[list[int], int, list[str]]:
    """The steps of three that are kept, the bytes of the text, and the reasons in warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with Recorder(run, model, warmup=1, steps=3, max_mb=max_mb) as recorder:
            for _ in range(4):
                for _ in range(50):
                    train(model)
                recorder.step()
    assert recorder.done
    text = gzip.decompress((run / "rank0.pt.trace.json.gz").read_bytes())
    return steps(run), len(text), [str(one.message).partition(": ")[2] for one in said]


def test_a_trace_that_is_too_large_keeps_its_first_steps(tmp_path: Path, model: nn.Module) -> None:
    kept, full, said = shortened(tmp_path, model, max_mb=2000)
    assert (kept, said) == ([1, 2, 3], [])
    for share, count in ((0.0, 1), (0.75, 2)):
        kept, size, said = shortened(tmp_path, model, max_mb=share * full / 1e6)
        assert kept == [1, 2, 3][:count]
        assert said == ["3 steps are more than max_mb; record fewer, or fewer ranks (steps=, ranks=)"]
        assert json.loads((tmp_path / "run.json").read_text())["steps"] == count
        assert [event["name"] for event in events(tmp_path)].count("aten::addmm") == 2 * 50 * count
        assert ranges(tmp_path) == [f"{STEP}{n}" for n in kept] + ["overlaplab::next_step"]
        assert abs(size / full - count / 3) < 0.05
