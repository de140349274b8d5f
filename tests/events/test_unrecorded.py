"""A recording on a GPU whose trace holds the host alone: nothing is counted, and every screen says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made.gpu import bucketed
from made.phantoms import phantom_run
from made.traces import event, gloo, op, run_of, step, write

import overlaplab
from overlaplab import Run, load_run
from overlaplab.analyses import communication_by, exposed, idle, totals, volume
from overlaplab.cli import main
from overlaplab.events import WorkKind, classify
from overlaplab.findings import run_warnings
from overlaplab.findings.warnings import unrecorded_activity

HOST = [one for one in bucketed() if one["cat"] in ("cpu_op", "user_annotation")]
"""The host's ranges and operators: no kernels, no runtime calls."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return phantom_run(tmp_path / "run", HOST, device="cuda")


def test_the_host_is_not_taken_for_the_computation(run: Run) -> None:
    assert set(classify(run.traces[0])) == {WorkKind.NOTHING}
    tables = (overlaplab.summary, totals, exposed, idle, overlaplab.buckets, overlaplab.schedule, volume)
    assert [len(analysis(run)) for analysis in (*tables, communication_by)] == [0] * 8


def test_when_a_collective_ran_is_unknown(run: Run) -> None:
    """The engine's `engine::comm` is a range around the launch there, not the collective."""
    table = overlaplab.collectives(run)
    assert table["bytes"].tolist() == [8_000_000] * 4
    assert table["launch_ns"].notna().all()
    assert table[["start_ns", "exposed_ns", "transfer_ns", "bus_gb_per_s"]].isna().all(axis=None)
    assert set(table["unmatched"]) == {"when it ran was not recorded"}


def test_gloos_times_stay_and_nothing_is_called_exposed(tmp_path: Path) -> None:
    run = run_of(tmp_path, [step(0, 0, 100), op("mm", 0, 30), gloo(10, 90)], manifest={"device": "cuda"})
    table = overlaplab.collectives(run)
    assert (table["end_ns"] - table["start_ns"]).tolist() == [80_000]
    assert table["exposed_ns"].isna().all()


def test_what_is_said(run: Run, tmp_path: Path) -> None:
    said = unrecorded_activity(run)
    assert said is not None
    assert said.startswith("device activity was not recorded, so there is no breakdown: record with activities=[")
    assert "overlaplab doctor" in said
    assert run_warnings(run) == (said,)
    host, cpu = [op("mm", 0, 1)], [op("mm", 0, 1), gloo(2, 3)]
    assert unrecorded_activity(run_of(tmp_path / "cpu", cpu, manifest={})) is None
    kernel = {**op("mm", 0, 1), "cat": "kernel"}
    some = run_of(tmp_path / "some", host, [kernel], host, manifest={"device": "cuda"})
    assert str(unrecorded_activity(some)).startswith("device activity was not recorded on ranks 0, 2, so there")


def test_a_cause_that_the_recorder_found_replaces_the_general_remedy(tmp_path: Path) -> None:
    run = phantom_run(tmp_path, HOST, device="cuda", device_activity_missing="nsys holds CUPTI: end it")
    assert run_warnings(run) == (
        "device activity was not recorded, so there is no breakdown: nsys holds CUPTI: end it",
    )


def test_what_is_said_follows_what_names_the_device(tmp_path: Path) -> None:
    """Nobody is told to record with CUDA activities whose trace shows that they were on, or who has no CUDA."""

    def said(events: list[dict[str, Any]], **keys: Any) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        write(folder / "rank0.json", [op("mm", 0, 9), *events], **keys)
        return str(unrecorded_activity(load_run(folder)))

    calls = said([event("urEnqueueKernelLaunch", 1, 2, cat="xpu_runtime", correlation=1)])
    assert "holds the calls to the device (xpu_runtime) without its kernels" in calls
    unknown = said([{"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "Ascend Hardware"}}])
    assert unknown.startswith(
        "this device is not known, so there is no breakdown: the trace holds process 'Ascend Hard"
    )
    xccl = said([], distributedInfo={"backend": "xccl"})
    assert xccl.endswith(
        "the backend xccl needs a device; record with activities=torch.profiler.supported_activities()"
    )
    assert not any("CUDA" in text for text in (calls, unknown, xccl))
    properties = said([], deviceProperties=[{"id": 0, "name": "NVIDIA H100"}])
    assert "the process could see NVIDIA H100; record with" in properties
    assert "CUDA_VISIBLE_DEVICES=" in properties


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["summary", "RUN"], 0),
        (["exposed", "RUN"], 0),
        (["buckets", "RUN"], 0),
        (["schedule", "RUN"], 0),
        (["collectives", "RUN"], 0),
        (["compare", "RUN", "RUN"], 0),
        (["compare", "RUN", "RUN", "--fail-if", "exposed_comm_ns > 5%"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_commands(
    command: list[str],
    code: int,
    run: Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["overlaplab", *(run.path if word == "RUN" else word for word in command)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == code
    assert "evice activity was not recorded" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["summary", "exposed"])
def test_the_documents(
    command: str, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["overlaplab", command, run.path, "--json"])
    with pytest.raises(SystemExit):
        main()
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["warnings"] == [unrecorded_activity(run)]
    assert not any(rank["steps"] for rank in document["ranks"])
