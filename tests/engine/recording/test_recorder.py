"""The Recorder in one process, without a process group."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from overlaplab_engine import Recorder, labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.recording.subject import Subject
from overlaplab_engine.recording.trace_file import TraceFile
from overlaplab_engine.strategies.gradients.ddp_buckets import BucketLabels
from torch import nn
from torch.profiler import profile, schedule

import overlaplab

NAMES = ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


def train(model: nn.Module, recorder: Recorder, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(3, 4)).sum().backward()
        recorder.step()


def names_in(path: Path) -> Counter[str]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return Counter(e["name"] for e in events if e.get("name", "").startswith(("ProfilerStep#", "engine::")))


def test_it_leaves_a_run(tmp_path: Path, model: nn.Module) -> None:
    with Recorder(tmp_path / "new" / "run", model, warmup=1, steps=2) as recorder:
        train(model, recorder, 2)
        assert not recorder.done
        train(model, recorder, 1)
        assert recorder.done
        assert sorted(p.name for p in (tmp_path / "new" / "run").iterdir()) == ["rank0.pt.trace.json.gz", "run.json"]
        train(model, recorder, 3)
    assert names_in(tmp_path / "new" / "run" / "rank0.pt.trace.json.gz") == {
        "ProfilerStep#1": 1,
        "ProfilerStep#2": 1,
        **{f"engine::gradient_ready parameter={name}": 2 for name in NAMES},
    }


def test_what_was_recorded_is_said(
    tmp_path: Path, model: nn.Module, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Recorder("runs/my own", model, warmup=1, steps=2) as recorder:
        train(model, recorder, 5)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("overlaplab")]
    assert lines == ["overlaplab: 2 steps recorded in runs/my own: overlaplab summary 'runs/my own'"]
    with Recorder(tmp_path / "watched", model, start_at=99, watch=True) as watched:
        train(model, watched, 2)
        with pytest.warns(UserWarning, match="no run"):
            watched.close()
    assert "recorded in" not in capfd.readouterr().err


def test_run_json_says_what_is_known(tmp_path: Path, model: nn.Module) -> None:
    with Recorder(tmp_path, model, warmup=1, steps=1) as recorder:
        train(model, recorder, 2)
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert manifest.pop("versions")["torch"] == torch.__version__
    assert manifest.pop("hardware")["gpu"] is None
    assert manifest.pop("command").startswith("python ")
    assert manifest.pop("started_at").endswith("+00:00")
    assert [p["unit"] for p in manifest["parameters"]] == ["0", "0", "1", "1"]
    assert manifest.pop("parameters")[1] == {
        "name": "0.bias",
        "shape": [8],
        "dtype": "float32",
        "bytes": 32,
        "unit": "0",
    }
    (step,) = manifest.pop("machine")
    assert (step["rank"], step["step"], step["foreign_ns"]) == (0, 1, None)
    assert step["took_ns"] > 0
    ((before, after),) = manifest["calibration"].pop("probe_ns")
    assert before > 0
    assert after > 0
    assert manifest.pop("calibration") == {"units": [], "collectives": []}
    assert manifest == {
        "format_version": 1,
        "strategy": None,
        "traits": None,
        "device": "cpu",
        "backend": None,
        "world_size": 1,
        "link": None,
        "warmup": 1,
        "steps": 1,
        "trace_ranks": None,
        "model": {"parameters": 58},
        "bucket_cap_mb": None,
        "units": [
            {"name": "0", "bytes": 160, "parameters": NAMES[:2]},
            {"name": "1", "bytes": 72, "parameters": NAMES[2:]},
        ],
        "param_dtype": None,
        "reduce_dtype": None,
        "buckets": [],
    }


def test_afterwards_the_model_is_as_before(tmp_path: Path, model: nn.Module) -> None:
    with Recorder(tmp_path, model, warmup=1, steps=1) as recorder:
        assert all(p._post_accumulate_grad_hooks for p in model.parameters())
        train(model, recorder, 2)
        assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of what torch.compile imports
def test_a_compiled_model_keeps_its_names(model: nn.Module) -> None:
    plain, compiled = Subject.inspect(model), Subject.inspect(torch.compile(model))
    assert [root.module for root in compiled.roots] == [model]
    assert [unit.parameters.keys() for unit in compiled.units] == [unit.parameters.keys() for unit in plain.units]


def test_a_model_is_not_needed(tmp_path: Path, model: nn.Module) -> None:
    with Recorder(tmp_path, warmup=1, steps=1) as recorder:
        train(model, recorder, 2)
    assert names_in(tmp_path / "rank0.pt.trace.json.gz") == {"ProfilerStep#1": 1}
    assert "parameters" not in json.loads((tmp_path / "run.json").read_text())


def test_an_older_run_makes_way(tmp_path: Path, model: nn.Module) -> None:
    for rank in (0, 1, 2, 4):
        (tmp_path / f"rank{rank}.pt.trace.json.gz").touch()
    (tmp_path / "run.json").touch()
    (tmp_path / "notes.txt").touch()
    recorder = Recorder(tmp_path, model, warmup=1, steps=1).start()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "rank4.pt.trace.json.gz"]
    train(model, recorder, 2)


@pytest.mark.slow
def test_a_gpu_that_the_profiler_did_not_see_ends_no_training(
    tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is kept, and says why."""
    export = TraceFile._export

    def unseeing_export(self: TraceFile, profiler: object) -> None:
        export(self, profiler)
        self.saw_no_device = True

    monkeypatch.setattr(TraceFile, "_export", unseeing_export)
    recorder = Recorder(tmp_path, model, warmup=1, steps=1).start()
    with pytest.warns(UserWarning, match="the profiler saw nothing run on cpu: ") as warned:
        train(model, recorder, 4)
    assert recorder.done
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.pt.trace.json.gz", "run.json"]
    missing = json.loads((tmp_path / "run.json").read_text())["device_activity_missing"]
    assert str(warned[0].message) == f"{tmp_path}: the profiler saw nothing run on cpu: {missing}"


def test_a_loop_that_ends_early_leaves_the_steps_that_it_made(tmp_path: Path, model: nn.Module) -> None:
    recorder = Recorder(tmp_path, model, warmup=1, steps=3).start()
    train(model, recorder, 3)
    model(torch.ones(3, 4)).sum().backward()
    with pytest.warns(UserWarning, match=r" has 2 of 3 steps: the loop made 3 steps, but the recording takes 1 \+ 3"):
        recorder.close()
    assert not recorder.done
    assert json.loads((tmp_path / "run.json").read_text())["steps"] == 2
    found = names_in(tmp_path / "rank0.pt.trace.json.gz")
    assert [name for name in found if name.startswith("ProfilerStep")] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert overlaplab.summary(overlaplab.load_run(tmp_path))["step"].tolist() == [1, 2]


def test_a_forked_process_leaves_the_recording_to_its_parent(tmp_path: Path, model: nn.Module) -> None:
    """At its end Python closes the Recorder that it inherited."""
    with Recorder(tmp_path, model, warmup=1, steps=3) as recorder:
        train(model, recorder, 2)
        child = os.fork()
        if child == 0:
            try:
                recorder.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert list(tmp_path.iterdir()) == []
        train(model, recorder, 2)
    assert recorder.done


def test_an_exception_leaves_the_steps_before_it(tmp_path: Path, model: nn.Module) -> None:
    def interrupted() -> None:
        with Recorder(tmp_path, model, warmup=1, steps=2) as recorder:
            train(model, recorder, 2)
            raise KeyError

    with pytest.warns(UserWarning, match="has 1 of 2 steps"), pytest.raises(KeyError):
        interrupted()
    assert overlaplab.summary(overlaplab.load_run(tmp_path))["step"].tolist() == [1]


def test_a_loop_that_ends_in_the_warm_up_leaves_nothing_and_says_so(tmp_path: Path, model: nn.Module) -> None:
    recorder = Recorder(tmp_path, model, warmup=2, steps=2).start()
    train(model, recorder, 2)
    with pytest.warns(UserWarning, match=r"no run in .*: the loop made 2 steps, .* 2 \+ 2, so that no step was"):
        recorder.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EngineError, match="was started before"):
        recorder.start()


def test_a_step_before_the_start_is_refused(tmp_path: Path, model: nn.Module) -> None:
    with pytest.raises(EngineError, match="was not started: call step"):
        Recorder(tmp_path, model).step()


@pytest.mark.parametrize("package", ["overlaplab", "overlaplab_engine"])
def test_without_torch_one_line_tells_how_to_get_it(package: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; from {package} import Recorder"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert tried.stderr.splitlines()[-1] == (
        "ImportError: Recorder needs torch; install it with: pip install 'overlaplab[engine]'"
    )


def test_without_a_framework_one_line_tells_how_to_get_it() -> None:
    code = "import sys; sys.modules['accelerate'] = None; from overlaplab.integrations import AccelerateRecorder"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert tried.stderr.splitlines()[-1] == (
        "ImportError: AccelerateRecorder needs accelerate; install it with: pip install accelerate"
    )


def test_without_the_engine_one_line_tells_how_to_get_it() -> None:
    code = "import sys; sys.modules['overlaplab_engine'] = None; from overlaplab import Recorder"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert tried.stderr.splitlines()[-1] == (
        "ImportError: Recorder needs the engine; install it with: pip install 'overlaplab[engine]'"
    )


def test_what_cannot_be_recorded_is_said(tmp_path: Path, model: nn.Module) -> None:
    with pytest.raises(EngineError, match="1 or more warmup steps and 1 or more steps, not 0 and 3"):
        Recorder(tmp_path, warmup=0)
    with pytest.raises(EngineError, match="1 or more warmup steps and 1 or more steps, not 2 and 0"):
        Recorder(tmp_path, steps=0)
    with pytest.raises(EngineError, match=r"must be a torch\.nn\.Module, not a str"):
        Recorder(tmp_path, "model")  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="comm_hook is for a model in DistributedDataParallel"):
        Recorder(tmp_path, model, comm_hook=(None, lambda state, bucket: None))
    with pytest.raises(EngineError, match=r"1 or more steps, not 1\.5 and 3"):
        Recorder(tmp_path, warmup=1.5)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="ranks are numbers of ranks, not '0'"):
        Recorder(tmp_path, ranks="0")  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="max_mb is 0 or more, not nan"):
        Recorder(tmp_path, max_mb=float("nan"))


def test_the_loop_may_change_its_directory(tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Recorder("mine", model, warmup=1, steps=1) as recorder:
        monkeypatch.chdir("/")
        train(model, recorder, 2)
    assert sorted(p.name for p in (tmp_path / "mine").iterdir()) == ["rank0.pt.trace.json.gz", "run.json"]


def test_a_disk_that_takes_no_more_ends_no_training(tmp_path: Path, model: nn.Module) -> None:
    recorder = Recorder(tmp_path / "mine", model, warmup=1, steps=1).start()
    train(model, recorder, 1)
    shutil.rmtree(tmp_path / "mine")
    with pytest.warns(UserWarning, match=r"no run in .*mine: torch's profiler could not write its trace"):
        train(model, recorder, 1)
    train(model, recorder, 1)
    assert not recorder.done
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_nothing_else_may_profile_meanwhile(tmp_path: Path, model: nn.Module) -> None:
    """torch would lose events, or crash."""
    with Recorder(tmp_path / "one", model, warmup=1, steps=1) as recorder:
        with pytest.warns(UserWarning, match=r"nothing is recorded: another Recorder is open, on .*one"):
            second = Recorder(tmp_path / "two", model).start()
        train(model, second, 2)
        train(model, recorder, 2)
        assert recorder.done
    with profile():
        with pytest.warns(UserWarning, match="nothing is recorded: a profiler is running"):
            second = Recorder(tmp_path / "two", model).start()
        train(model, second, 2)
    assert not (tmp_path / "two").exists()
    with Recorder(tmp_path / "two", model, warmup=1, steps=1) as recorder:
        train(model, recorder, 2)
    assert recorder.done


@pytest.mark.parametrize(("begun", "kept"), [(0, True), (1, True), (2, False)])
def test_a_profiler_of_the_loops_own_ends_at_most_the_recording(
    tmp_path: Path, model: nn.Module, begun: int, kept: bool
) -> None:
    """In the warm-up it does not matter. In a recorded step it ends ours; torch crashes if that is ended once more."""
    with warnings.catch_warnings(record=True) as raised, Recorder(tmp_path, model, warmup=2, steps=1) as recorder:
        warnings.simplefilter("always")
        for step in range(3):
            with profile() if step == begun else nullcontext() as others:
                model(torch.ones(3, 4)).sum().backward()
            assert others is None or "aten::addmm" in {event.name for event in others.events()}
            recorder.step()
    assert recorder.done is kept
    lines = [str(warning.message).partition(": ")[2] for warning in raised if "no run" in str(warning.message)]
    assert lines == ([] if kept else ["another profiler was started meanwhile, and torch allows only one"])


def test_steps_of_a_profiler_that_idles_are_none(tmp_path: Path, model: nn.Module) -> None:
    with (
        Recorder(tmp_path, model, warmup=1, steps=2) as recorder,
        profile(schedule=schedule(wait=9, warmup=1, active=1)) as idle,
    ):
        for _ in range(3):
            train(model, recorder, 1)
            idle.step()
    assert recorder.done
    assert overlaplab.summary(overlaplab.load_run(tmp_path))["step"].tolist() == [1, 2]


class Stubborn(nn.Module):
    """Its children cannot be listed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]

    def named_children(self) -> Any:
        raise KeyError("children")


class Answering(nn.Linear):
    """It has an attribute by which a compiled model is recognised."""

    _orig_mod = 3


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: torch.jit.script(nn.Linear(4, 2)), 2),
        (lambda: nn.Sequential(nn.Linear(4, 4), torch.jit.trace(nn.Linear(4, 2), torch.ones(3, 4))), 4),
        (lambda: nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(2)), 4),
        (lambda: nn.Sequential(nn.ReLU()), 0),
        (lambda: Answering(4, 2), 2),
        (Stubborn, None),
    ],
    ids=["scripted", "traced", "lazy", "empty", "answering", "stubborn"],
)
def test_a_model_ends_no_training(tmp_path: Path, make: Callable[[], nn.Module], named: int | None) -> None:
    """What cannot be told of it is named once."""
    model, before = make(), torch.ones(3, 4, requires_grad=True)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        with Recorder(tmp_path, model, warmup=1, steps=2) as recorder:
            for _ in range(3):
                model(before).sum().backward()
                recorder.step()
    assert recorder.done
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert (manifest["steps"], manifest["device"]) == (2, "cpu")
    assert (len(manifest["parameters"]) if "parameters" in manifest else None) == named
    lines = [str(warning.message).removeprefix(f"labels are missing in {tmp_path}: ") for warning in raised]
    if isinstance(model, Stubborn):
        assert lines == ["nothing is labelled, as the model cannot be inspected: KeyError: 'children'"]
    elif "LazyLinear" in str(make()):
        assert lines == ["4 parameters have no shape before the model's first batch"]
    else:
        assert lines == []


def test_parameters_that_deepspeed_left_empty_have_their_shapes(tmp_path: Path, model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.ds_shape = parameter.shape  # type: ignore[attr-defined]
        parameter.data = torch.empty(0)
    with Recorder(tmp_path, model, warmup=1, steps=1) as recorder:
        for _ in range(2):
            recorder.step()
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert manifest["model"] == {"parameters": 58}
    assert [(p["shape"], p["bytes"]) for p in manifest["parameters"]] == [
        ([8, 4], 128),
        ([8], 32),
        ([2, 8], 64),
        ([2], 8),
    ]
    assert [unit["bytes"] for unit in manifest["units"]] == [160, 72]


def test_parameters_without_values_do_not_tell_the_device(tmp_path: Path) -> None:
    model = nn.Linear(4, 2, device="meta")
    with Recorder(tmp_path, model, warmup=1, steps=1) as recorder:
        model.to_empty(device="cpu")
        train(model, recorder, 2)
    assert json.loads((tmp_path / "run.json").read_text())["device"] == "cpu"


def test_a_label_that_fails_is_named_once_and_the_backward_pass_goes_on(
    tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(mark: object) -> None:
        raise ValueError("a label\nfailed")

    monkeypatch.setattr(labels, "instant", fail)
    with warnings.catch_warnings(record=True) as raised, Recorder(tmp_path, model, warmup=1, steps=1) as recorder:
        warnings.simplefilter("always")
        train(model, recorder, 2)
    assert [str(warning.message) for warning in raised] == [
        f"labels are missing in {tmp_path}: ValueError: a label failed"
    ]
    assert recorder.done
    assert [p.grad.tolist() for p in model[1].parameters() if p.grad is not None][1] == [6.0, 6.0]


def test_a_folder_that_cannot_be_made_ends_no_training(tmp_path: Path, model: nn.Module) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match=r"nothing is recorded: .*Not a directory"):
        recorder = Recorder(tmp_path / "file" / "run", model).start()
    train(model, recorder, 2)
    assert not recorder.done
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


class Bucket(NamedTuple):
    """As much of a GradBucket as labels need."""

    number: int
    held: list[torch.Tensor]

    def index(self) -> int:
        return self.number

    def parameters(self) -> list[torch.Tensor]:
        return self.held

    def buffer(self) -> torch.Tensor:
        return torch.cat([p.flatten() for p in self.held])


def test_buckets_are_those_launched_last(model: nn.Module) -> None:
    """DDP cuts its buckets anew after the first backward pass, perhaps into fewer."""
    held = list(model.parameters())
    found = BucketLabels(dict(model.named_parameters()))
    for buckets in ([(0, 1), (1, 2), (2, 4)], [(0, 3), (3, 4)]):
        for number, (start, end) in enumerate(buckets):
            with found.label_launch(Bucket(number, held[start:end])):
                pass
        assert [names for _, names in found.buckets.values()] == [NAMES[start:end] for start, end in buckets]
    assert found.buckets == {0: (4 * (32 + 8 + 16), NAMES[:3]), 1: (4 * 2, NAMES[3:])}


def test_torch_is_imported_with_the_recorder_alone() -> None:
    code = (
        "import sys, overlaplab, overlaplab_engine; assert 'torch' not in sys.modules; "
        "overlaplab.Recorder; assert 'torch' in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_both_packages_have_the_same_recorder() -> None:
    assert overlaplab.Recorder is Recorder
