"""`overlaplab.watch` in one process: its files, its bursts, what it does without names of torch, and with faults."""

from __future__ import annotations

import copy
import gc
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from overlaplab_engine import Recorder
from overlaplab_engine.errors import EngineError
from overlaplab_engine.watching import clock, log
from overlaplab_engine.watching import watch as watching
from overlaplab_engine.watching.bursts import Bursts
from overlaplab_engine.watching.passes import called_modules
from overlaplab_engine.watching.waits import METHODS, Waits
from overlaplab_engine.watching.watch import Watch
from ranks.warm_ranks import run_warm
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile

import overlaplab
from overlaplab.analyses.watched.steps import watched_bursts, watched_steps
from overlaplab.load.watched import CellKind, WatchedRank, load_watched
from overlaplab.ports import free_port


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def fail(error: Exception) -> None:
    pytest.fail(str(error))


def train(model: nn.Module, watch: Watch | Recorder, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(3, 4)).sum().backward()
        watch.step()


def rank0(out: Path) -> WatchedRank:
    return load_watched(out).ranks[0]


def reduce_and_train(model: nn.Module, watch: Watch, steps: int) -> None:
    for _ in range(steps):
        dist.all_reduce(torch.ones(2))
        train(model, watch, 1)


def test_both_sides_know_the_same_cells() -> None:
    assert {kind.name: kind.value for kind in log.CellKind} == {kind.name: kind.value for kind in CellKind}
    cell = log.Cell(log.CellKind.ALL_REDUCE, 7, 123, group=2, flags=1).to_bytes()
    assert np.frombuffer(cell, overlaplab.load.watched.CELL).tolist() == [(9, 1, 2, 7, 123)]


def test_every_step_has_its_time_and_its_data_loading(tmp_path: Path, model: nn.Module) -> None:
    with overlaplab.watch(model, tmp_path, every=4, burst=1) as watch:
        for step in range(4):
            if step == 2:
                time.sleep(0.02)
            train(model, watch, 1)
    steps = watched_steps(load_watched(tmp_path))
    assert steps["step"].tolist() == [0, 1, 2, 3]
    assert (steps["span_ns"] > steps["data_ns"]).all()
    assert steps["data_ns"][2] >= 20_000_000
    assert steps["measured"].tolist() == [False, False, False, True]
    bursts = watched_bursts(load_watched(tmp_path), steps)
    assert bursts["step"].tolist() == [3]
    assert bursts[["forward_ns", "backward_ns"]].notna().all(axis=None)
    assert rank0(tmp_path).header.ended


def test_before_an_evaluation_nothing_tells_how_long_data_took(tmp_path: Path, model: nn.Module) -> None:
    with overlaplab.watch(model, tmp_path) as watch:
        train(model, watch, 1)
        with torch.no_grad():
            model(torch.ones(3, 4))
        train(model, watch, 2)
    assert watched_steps(load_watched(tmp_path))["data_ns"].isna().tolist() == [False, True, False]


def test_pauses_are_no_part_of_steps(tmp_path: Path, model: nn.Module, group: None) -> None:
    with overlaplab.watch(model, tmp_path, every=3, burst=3) as watch:
        for _ in range(3):
            train(model, watch, 1)
            with watch.paused():
                time.sleep(0.2)
                dist.barrier()
        train(model, watch, 1)
    steps = watched_steps(load_watched(tmp_path))
    assert steps["span_ns"].min() < 100_000_000
    assert watched_bursts(load_watched(tmp_path), steps)["exposed_others_ns"].isna().all()


def test_a_watched_model_is_copied_and_saved_without_the_watch(tmp_path: Path, model: nn.Module) -> None:
    saved = io.BytesIO()
    with overlaplab.watch(model, tmp_path, every=1, burst=1) as watch:
        copied = copy.deepcopy(model)
        torch.save(model, saved)
        saved.seek(0)
        for other in (copied, torch.load(saved, weights_only=False)):
            other(torch.ones(3, 4)).sum().backward()
        watch.step()
        train(model, watch, 1)
    assert rank0(tmp_path).cells_of_kind(CellKind.FORWARD)["number"].tolist() == [1]


def test_pauses_may_be_nested_and_hold_passes_and_the_end_of_a_step(tmp_path: Path, model: nn.Module) -> None:
    with overlaplab.watch(model, tmp_path, every=1, burst=1) as watch:
        with watch.paused(), watch.paused():
            time.sleep(0.2)
        watch.step()
        with watch.paused():
            model(torch.ones(3, 4)).sum().backward()
            time.sleep(0.2)
            watch.step()
            time.sleep(0.2)
        train(model, watch, 1)
    spans = watched_steps(load_watched(tmp_path))["span_ns"]
    assert len(spans) == 3
    assert spans.between(0, 150_000_000).all()
    for kind in (CellKind.DATA, CellKind.FORWARD, CellKind.BACKWARD):
        assert rank0(tmp_path).cells_of_kind(kind)["number"].tolist() == [2]


def test_bursts_lie_evenly_and_return_at_no_fixed_distance() -> None:
    bursts = Bursts(every=10, burst=3)
    measured = [step for step in range(10_000) if bursts.holds(step)]
    assert len(measured) == 3000
    assert [sum(step // 10 == number for step in measured) for number in range(3)] == [3, 3, 3]
    by_last_digit = np.bincount([step % 10 for step in measured])
    assert by_last_digit.min() > 100
    all_of_them = Bursts(every=3, burst=3)
    assert all(all_of_them.holds(step) for step in range(20))


def test_waits_are_seen_in_bursts_alone_and_methods_are_restored(tmp_path: Path, model: nn.Module, group: None) -> None:
    before = {(cls, name): vars(cls)[name] for cls in (dist.Work, dist.ProcessGroup) for name in vars(cls)}
    ones = torch.ones(3)
    with overlaplab.watch(model, tmp_path, every=6, burst=3) as watch:
        for step in range(6):
            work = dist.all_reduce(ones, async_op=True)
            work.wait()
            dist.all_gather([torch.ones(3)], ones)
            dist.barrier()
            assert (vars(dist.Work)["wait"] is before[dist.Work, "wait"]) == (step not in (2, 3, 4, 5))
            assert type(work) is dist.Work
            watch.step()
    assert all(vars(cls)[name] is method for (cls, name), method in before.items())
    watched = load_watched(tmp_path)
    bursts = watched_bursts(watched, watched_steps(watched))
    for column in ("exposed_gradients_ns", "exposed_gathers_ns", "exposed_others_ns"):
        assert bursts["step"][bursts[column].notna()].tolist() == [3, 4, 5]
    assert [tuple(g.ranks) for g in rank0(tmp_path).header.groups] == [(0,)]
    assert rank0(tmp_path).cells_of_kind(CellKind.ALL_REDUCE)["number"].tolist() in ([0] * count for count in range(4))


def test_nested_waits_count_once_as_what_the_inner_one_waits_for(group: None) -> None:
    spans: list[tuple[log.CellKind, int]] = []

    class Slow(dist.Work):
        """A work around another one."""

        def __init__(self, inner: dist.Work) -> None:
            super().__init__()
            self.inner = inner

        def wait(self, timeout: Any = None) -> bool:
            time.sleep(0.01)
            return bool(self.inner.wait())

    waits = Waits(clock.WatchHostClock(), lambda kind: lambda ns: spans.append((kind, ns)), fail)
    waits.replace()
    waits.next_step(measuring=True)
    Slow(dist.all_reduce(torch.ones(2), async_op=True)).wait()
    waits.restore()
    Slow(dist.all_reduce(torch.ones(2), async_op=True)).wait()
    assert [kind for kind, _ in spans] == [log.CellKind.EXPOSED_GRADIENTS]
    assert spans[0][1] >= 10_000_000


def test_other_threads_waits_hold_up_nothing(group: None) -> None:
    spans: list[int] = []
    waits = Waits(clock.WatchHostClock(), lambda kind: spans.append, fail)
    waits.replace()
    waits.next_step(measuring=True)
    thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(2)))
    thread.start()
    thread.join()
    assert spans == []
    dist.all_reduce(torch.ones(2))
    assert len(spans) == 1
    waits.restore()


def test_a_work_that_fails_fails_as_without_a_watch(group: None) -> None:
    waits = Waits(clock.WatchHostClock(), lambda kind: lambda ns: None, fail)
    waits.replace()
    waits.next_step(measuring=True)
    try:
        with pytest.raises(ValueError, match="complex"):
            dist.all_reduce(torch.ones(2, dtype=torch.complex64), op=dist.ReduceOp.MAX)
    finally:
        waits.restore()


@pytest.mark.parametrize("place", ["WatchLog.append", "Watch._end_step", "WatchHostClock.mark", "Waits._note"])
def test_a_fault_in_the_watch_never_reaches_the_loop(
    tmp_path: Path, model: nn.Module, group: None, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    owner, name = place.rsplit(".", 1)
    cls = {one.__name__: one for one in (log.WatchLog, Watch, clock.WatchHostClock, Waits)}[owner]

    def fault(*_: Any) -> None:
        raise RuntimeError("a fault")

    with overlaplab.watch(model, tmp_path, every=3, burst=3) as watch:
        train(model, watch, 2)
        monkeypatch.setattr(cls, name, fault)
        with pytest.warns(UserWarning, match="the training is watched no more: RuntimeError: a fault") as caught:
            reduce_and_train(model, watch, 3)
    assert len(caught) == 1
    assert not model._forward_hooks
    assert vars(dist.Work)["wait"].__name__ == "wait"
    assert not hasattr(vars(dist.Work)["wait"], "__wrapped__")
    header = rank0(tmp_path).header
    assert (len(header.notes), header.ended) == (1, False)


def test_warnings_that_are_errors_stop_no_training(
    tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings(), overlaplab.watch(model, tmp_path) as watch:
        warnings.simplefilter("error")
        monkeypatch.setattr(log.WatchLog, "append", None)
        train(model, watch, 2)
    assert "watched no more" in capfd.readouterr().err


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path, model: nn.Module) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="watched no more"), overlaplab.watch(model, tmp_path / "file") as watch:
        train(model, watch, 2)


NAMES: dict[str, tuple[Any, str, str]] = {
    "the timers' rate": (DistributedDataParallel, "_set_ddp_runtime_logging_sample_rate", "DDP's waits"),
    "the timers": (DistributedDataParallel, "logger", "DDP's waits"),
    "works": (dist, "Work", "waits"),
}
"""Private names of torch, and what is not seen without them."""


@pytest.mark.parametrize("case", list(NAMES))
def test_without_a_private_name_the_watch_says_so_once_and_goes_on(
    tmp_path: Path, model: nn.Module, group: None, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    owner, name, unseen = NAMES[case]
    ddp = DistributedDataParallel(model)
    if name == "logger":
        ddp.__dict__["kept_logger"] = ddp.__dict__.pop("logger")
        monkeypatch.setattr(ddp, "_pre_forward", lambda *inputs, **named: (inputs, named))
    else:
        assert hasattr(owner, name)
        monkeypatch.delattr(owner, name)
    with (
        pytest.warns(UserWarning, match=f"{unseen} are not seen: this torch lacks") as caught,
        overlaplab.watch(ddp, tmp_path, every=4, burst=2) as watch,
    ):
        train(ddp.module, watch, 10)
    assert len(caught) == 1
    assert len(watched_steps(load_watched(tmp_path))) == 10
    assert len(rank0(tmp_path).header.notes) == 1


def test_without_the_end_of_backward_passes_they_stay_unknown(
    tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hasattr(torch.autograd.Variable._execution_engine, "queue_callback")
    monkeypatch.setattr(torch.autograd.Variable, "_execution_engine", object())
    with pytest.warns(UserWarning, match="forward and backward passes are not seen"):
        watch = overlaplab.watch(model, tmp_path, every=3, burst=3).start()
    for _ in range(3):
        watch.step()
    watch.close()
    watched = load_watched(tmp_path)
    assert watched_bursts(watched, watched_steps(watched))["backward_ns"].isna().all()


def test_torch_has_the_methods_that_are_replaced() -> None:
    """Each kind of collective is launched by at least these names, or by those of other releases."""
    names = {name for name in METHODS if name in vars(dist.ProcessGroup)}
    assert {"allreduce", "allgather", "broadcast", "barrier", "send", "recv", "reduce_scatter"} <= names
    assert names & {"_allgather_base", "all_gather_single"}
    assert names & {"_reduce_scatter_base", "reduce_scatter_single"}
    assert "wait" in vars(dist.Work)
    assert callable(torch._C._autograd._profiler_enabled)


def test_a_users_own_process_group_may_call_what_it_inherits(tmp_path: Path, model: nn.Module, group: None) -> None:
    """As without a watch: pybind calls an override from every frame but one of the method's own name."""
    calls = []

    class UsersGroup(dist.ProcessGroup):
        def allreduce(self, tensors: Any, options: Any) -> Any:
            calls.append(tensors)
            assert len(calls) < 50
            return super().allreduce(tensors, options)

    users_group, world = UsersGroup(0, 1), dist.group.WORLD
    assert world is not None
    gloo = dist.ProcessGroup.BackendType.GLOO
    users_group._set_default_backend(gloo)
    users_group._register_backend(torch.device("cpu"), gloo, world._get_backend(torch.device("cpu")))
    with Watch(model, tmp_path, every=4, burst=3) as watch:
        train(model, watch, 1)
        users_group.allreduce([torch.ones(2)], dist.AllreduceOptions()).wait()
        users_group.broadcast([torch.ones(2)], dist.BroadcastOptions()).wait()
    assert len(calls) == 1


@pytest.mark.parametrize("within", [True, False])
def test_groups_that_are_destroyed_are_let_go(tmp_path: Path, model: nn.Module, group: None, within: bool) -> None:
    """One that is destroyed within its step has no number, and no all-reduces."""
    groups = []
    with Watch(model, tmp_path, every=4, burst=3) as watch:
        for _ in range(9):
            passing = dist.new_group([0])
            groups.append(weakref.ref(passing))
            dist.all_reduce(torch.ones(2), group=passing)
            if within:
                dist.destroy_process_group(passing)
            train(model, watch, 1)
            if not within:
                dist.destroy_process_group(passing)
            del passing
        gc.collect()
        assert [each() for each in groups].count(None) >= 8
    rank = rank0(tmp_path)
    assert len(rank.cells_of_kind(CellKind.STEP)) == 9
    assert (len(rank.cells_of_kind(CellKind.ALL_REDUCE)) == 0) is within


def test_a_list_of_models_is_watched_as_the_models() -> None:
    first, second = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))
    assert list(called_modules(nn.ModuleList([first, second]))) == [first, second]
    assert list(called_modules(second)) == [second]


@pytest.mark.parametrize("layers", [1, 2])  # `len` of a compiled model is that of the one inside, or an error
def test_a_compiled_model_has_passes(tmp_path: Path, layers: int) -> None:
    model: Any = torch.compile(
        nn.Linear(4, 4) if layers == 1 else nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), backend="eager"
    )
    with overlaplab.watch(model, tmp_path, every=1, burst=1) as watch:
        train(model, watch, 2)
    for kind in (CellKind.FORWARD, CellKind.BACKWARD):
        assert rank0(tmp_path).cells_of_kind(kind)["number"].tolist() == [0, 1]


def test_a_model_compiled_in_place_has_passes(tmp_path: Path, model: nn.Module) -> None:
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    with overlaplab.watch(model, tmp_path, every=1, burst=1) as watch:
        train(model, watch, 2)
        copy.deepcopy(model)(torch.ones(3, 4))
    for kind in (CellKind.FORWARD, CellKind.BACKWARD):
        assert rank0(tmp_path).cells_of_kind(kind)["number"].tolist() == [0, 1]
    assert model._compiled_call_impl is compiled


def test_a_model_compiled_in_place_during_a_watch_has_passes(tmp_path: Path, model: nn.Module) -> None:
    """From the step on that follows."""
    with overlaplab.watch(model, tmp_path, every=1, burst=1) as watch:
        train(model, watch, 2)
        model.compile(backend="eager")
        compiled = model._compiled_call_impl
        train(model, watch, 3)
    for kind in (CellKind.FORWARD, CellKind.BACKWARD):
        assert rank0(tmp_path).cells_of_kind(kind)["number"].tolist() == [0, 1, 3, 4]
    assert model._compiled_call_impl is compiled


def test_parameters_that_fsdp2_offloads_are_those_of_a_gpu(
    tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Events(clock.WatchHostClock):
        """Stands in for a GPU's clock."""

    monkeypatch.setattr(watching, "EventClock", Events)
    setattr(next(model.parameters()), "device_mesh", SimpleNamespace(device_type="cuda"))  # noqa: B010
    with overlaplab.watch(model, tmp_path) as watch:
        assert isinstance(watch._clock, Events)
    assert json.loads((tmp_path / "rank0.json").read_text())["device"] == "cuda"


def test_profiled_steps_are_marked(tmp_path: Path, model: nn.Module) -> None:
    with overlaplab.watch(model, tmp_path) as watch:
        train(model, watch, 2)
        with profile():
            train(model, watch, 1)
        train(model, watch, 2)
    # The fourth began within the profiler.
    assert watched_steps(load_watched(tmp_path))["profiled"].tolist() == [False, False, True, True, False]


def test_the_environment_names_the_folder(tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(watching.OUT, str(tmp_path / "told"))
    with overlaplab.watch(model, tmp_path / "script") as watch:
        train(model, watch, 1)
    with Recorder(model=model) as recorder:
        train(model, recorder, 2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["told"]
    assert len(watched_steps(load_watched(tmp_path / "told"))) == 2


def test_a_recorder_watches_beyond_what_it_records(tmp_path: Path, model: nn.Module) -> None:
    with Recorder(tmp_path, model, warmup=1, steps=1, watch=True) as recorder:
        train(model, recorder, 6)
    steps = watched_steps(load_watched(tmp_path / "watch"))
    assert steps["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert steps["profiled"].any()
    assert not steps["profiled"].all()
    assert overlaplab.summary(overlaplab.load_run(tmp_path))["step"].tolist() == [1]


def test_a_recorders_pauses_are_the_watchs(tmp_path: Path, model: nn.Module) -> None:
    with Recorder(tmp_path, model, warmup=1, steps=1, watch=True) as recorder:
        train(model, recorder, 3)
        with recorder.paused():
            time.sleep(0.5)
        train(model, recorder, 1)
    assert watched_steps(load_watched(tmp_path / "watch"))["span_ns"].iloc[-1] < 400_000_000


def test_a_second_watch_is_refused(tmp_path: Path, model: nn.Module) -> None:
    with overlaplab.watch(model, tmp_path / "one") as first:
        with pytest.warns(UserWarning, match="another watch is open"):
            second = overlaplab.watch(model, tmp_path / "two").start()
        train(model, first, 1)
        second.step()
    assert len(watched_steps(load_watched(tmp_path / "one"))) == 1


@pytest.mark.parametrize(("every", "burst"), [(3, 4), (3, 0)])
def test_wrong_arguments_are_refused(tmp_path: Path, model: nn.Module, every: int, burst: int) -> None:
    with pytest.raises(EngineError, match="cannot measure"):
        overlaplab.watch(model, tmp_path, every=every, burst=burst)
    with pytest.raises(EngineError, match=r"must be a torch.nn.Module"):
        overlaplab.watch("model", tmp_path)
    with pytest.raises(EngineError, match="was not started"):
        overlaplab.watch(model, tmp_path).step()


def test_files_stay_small(tmp_path: Path, model: nn.Module, group: None) -> None:
    with overlaplab.watch(model, tmp_path) as watch:
        for _ in range(200):
            dist.all_reduce(torch.ones(2))
            train(model, watch, 1)
    waits = len(rank0(tmp_path).cells_of_kind(CellKind.ALL_REDUCE))
    assert waits <= 6
    assert (tmp_path / "rank0.cells").stat().st_size <= 200 * 64 + waits * 16
    assert (tmp_path / "rank0.json").stat().st_size < 1000


def test_a_killed_rank_leaves_all_steps_that_it_has_ended(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys, torch\n"
        "import overlaplab\n"
        "model = torch.nn.Linear(2, 2)\n"
        "with overlaplab.watch(model, sys.argv[1]) as watch:\n"
        "    for step in range(100):\n"
        "        model(torch.ones(1, 2)).sum().backward()\n"
        "        if step == 50:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        watch.step()\n"
    )
    (ended,) = run_warm(1, str(script), str(tmp_path / "live"))
    assert ended.code == -signal.SIGKILL
    assert watched_steps(load_watched(tmp_path / "live"))["step"].tolist() == list(range(50))
    assert not rank0(tmp_path / "live").header.ended


def test_an_earlier_training_is_replaced(tmp_path: Path, model: nn.Module) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_text("{}")
        (tmp_path / f"rank{rank}.cells").write_bytes(b"x" * 160)
    with overlaplab.watch(model, tmp_path) as watch:
        train(model, watch, 2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["rank0.cells", "rank0.json"]
    assert len(watched_steps(load_watched(tmp_path))) == 2


def test_importing_overlaplab_needs_no_torch() -> None:
    line = (
        "import sys, overlaplab; overlaplab.OverlaplabError; print('watch' in dir(overlaplab), 'torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert ended.stdout == "True False\n"


def test_the_header_is_plain(tmp_path: Path, model: nn.Module) -> None:
    with overlaplab.watch(model, tmp_path) as watch:
        train(model, watch, 1)
    header = json.loads((tmp_path / "rank0.json").read_text())
    assert header | {"started_unix_ns": 0, "torch": ""} == {
        "format": "overlaplab-watch",
        "version": 1,
        "rank": 0,
        "world_size": 1,
        "started_unix_ns": 0,
        "every": 100,
        "burst": 3,
        "device": "cpu",
        "ddp": 0,
        "torch": "",
        "groups": [],
        "notes": [],
        "recordings": [],
        "ended": True,
    }
    assert os.stat(tmp_path / "rank0.cells").st_size == 2 * 16
