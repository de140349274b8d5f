"""The rank of a file, the ranks in a merged file, and which of several recordings is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made.traces import event, launched, op, step, write

from overlaplab import OverlaplabError, Run, load_run, summary

Command = Callable[..., tuple[Any, str, str]]


def info(rank: int, world_size: int = 2) -> dict[str, Any]:
    return {"distributedInfo": {"rank": rank, "world_size": world_size, "backend": "gloo"}}


def of(pid: object, device: int, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same events of this process, on this device."""
    moved = []
    for one in events:
        arguments = one["args"] | ({"device": device} if "stream" in one["args"] else {})
        moved.append(one | {"pid": device if "stream" in one["args"] else pid, "args": arguments})
    return moved


def kernels(at: float, length: float, correlation: int) -> list[dict[str, Any]]:
    """A step that computes, and then communicates for as long."""
    end = at + 10 + length
    return [
        step(0, at, at + 8),
        op("mm", at, at + 4),
        *launched("gemm", at + 1, at + 10, end, correlation=correlation),
        *launched("ncclDevKernel_AllReduce", at + 3, end, end + length, stream=20, correlation=correlation + 1),
    ]


def shown(run: Run) -> list[tuple[int | None, int, int]]:
    """Compute and communication of each rank, in µs."""
    return [
        (row.rank, row.compute_ns // 1000, row.comm_ns // 1000)
        for row in summary(run)[["rank", "compute_ns", "comm_ns"]].itertuples()
    ]


class TestAssigned:
    def test_by_name_and_by_path(self, tmp_path: Path) -> None:
        a, b = write(tmp_path / "a.json", [op("mm", 0, 1)]), write(tmp_path / "b.json", [op("mm", 0, 1)])
        run = load_run(tmp_path, assign_ranks={"a.json": 3, str(b): 1})
        assert [(trace.rank, trace.path) for trace in run.traces] == [(1, str(b)), (3, str(a))]

    def test_one_file(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.json", [])
        assert load_run(path, assign_ranks={"a.json": 3}).traces[0].rank == 3

    def test_what_the_user_says_counts_more_than_the_file(self, tmp_path: Path) -> None:
        write(tmp_path / "a.json", [], **info(0))
        write(tmp_path / "b.json", [], **info(0))
        run = load_run(tmp_path, assign_ranks={"b.json": 1})
        assert [trace.rank for trace in run.traces] == [0, 1]
        assert run.warnings == ("b.json: says rank 0, and is taken for rank 1",)

    def test_an_unknown_file_is_refused(self, tmp_path: Path) -> None:
        write(tmp_path / "a.json", [])
        with pytest.raises(OverlaplabError, match=r"c\.json: no such trace.*There is a\.json"):
            load_run(tmp_path, assign_ranks={"c.json": 0})
        with pytest.raises(OverlaplabError, match="-1 is not a rank"):
            load_run(tmp_path, assign_ranks={"a.json": -1})
        with pytest.raises(OverlaplabError, match=r"a\.json: 1000000000000000000 is not a rank"):
            load_run(tmp_path, assign_ranks={"a.json": 10**18})

    def test_a_number_too_large_in_a_name_is_none(self, tmp_path: Path) -> None:
        long, short = "9" * 19, "9" * 18
        assert load_run(write(tmp_path / f"rank{long}.json", [step(1, 0, 9)])).traces[0].rank is None
        assert load_run(write(tmp_path / f"rank{short}.json", [step(1, 0, 9)])).traces[0].rank == int(short)

    def test_without_it_the_error_says_how(self, tmp_path: Path) -> None:
        write(tmp_path / "a.json", [])
        write(tmp_path / "b.json", [])
        with pytest.raises(OverlaplabError, match=r"a\.json: .*does not state its rank.*--assign-rank a\.json=N"):
            load_run(tmp_path)

    def test_on_the_command_line(self, tmp_path: Path, command: Command) -> None:
        write(tmp_path / "a.json", kernels(0, 5, 1))
        write(tmp_path / "b.json", kernels(0, 5, 1))
        line = ("summary", tmp_path, "--json", "--assign-rank")
        assert command(*line, "a.json=1", "--assign-rank", "b.json=0")[0] == 0
        code, out, err = command(*line, f"a.json={'9' * 5000}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        code, _, err = command(*line, "a.json")
        assert (code, err.count("\n")) == (2, 1)
        assert "not FILE=N" in err

    def test_of_several_runs_each_takes_its_own(self, tmp_path: Path, command: Command) -> None:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            write(tmp_path / name / "a.json", kernels(0, 5, 1))
        runs = [str(tmp_path / name) for name in ("first", "second")]
        line = ("compare", *runs, "--rank", 4, "--json", "--assign-rank")
        codes = [command(*line, file)[0] for file in ("a.json=4", f"{runs[1]}/a.json=4", "b.json=4")]
        assert codes == [0, 2, 2]


class TestRecordings:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Two ranks recorded at 0 µs and at 1000 µs, the second time for longer; rank 1's clock is 10 µs ahead."""
        for number, at in enumerate((0, 1000)):
            for rank in (0, 1):
                events = [op("mm", at + 10 * rank, at + 100 + number)]
                write(tmp_path / f"rank{rank}_{number}.json", events, **info(rank))
        return tmp_path

    def test_the_default_is_the_last_and_says_so(self, folder: Path) -> None:
        run = load_run(folder)
        assert [(trace.rank, Path(trace.path).name) for trace in run.traces] == [
            (0, "rank0_1.json"),
            (1, "rank1_1.json"),
        ]
        assert run.traces[0].origin_ns == 1_000_000
        (warning,) = run.warnings
        assert "2 recordings" in warning
        assert "--recording" in warning

    def test_each_can_be_picked(self, folder: Path) -> None:
        names = [[Path(trace.path).name for trace in load_run(folder, recording=n).traces] for n in (1, 2)]
        assert names == [["rank0_0.json", "rank1_0.json"], ["rank0_1.json", "rank1_1.json"]]
        assert load_run(folder, recording=1).warnings == ()

    def test_a_short_trace_does_not_end_a_recording(self, tmp_path: Path) -> None:
        """Rank 1 ends before rank 2 begins, but rank 0 lasts longer than both."""
        for at in (0, 1000):
            for rank, start, end in ((0, 0, 100), (1, 10, 20), (2, 50, 90)):
                write(tmp_path / f"rank{rank}_{at}.json", [op("mm", at + start, at + end)], **info(rank, 3))
        assert [trace.rank for trace in load_run(tmp_path, recording=1).traces] == [0, 1, 2]

    @pytest.mark.parametrize("number", [0, 3, -1])
    def test_others_are_refused(self, folder: Path, number: int) -> None:
        with pytest.raises(OverlaplabError, match=rf"no recording {number}\. It holds 2"):
            load_run(folder, recording=number)

    def test_a_rank_that_misses_the_first_is_missing_in_it_alone(self, folder: Path) -> None:
        (folder / "rank1_0.json").unlink()
        first, last = load_run(folder, recording=1), load_run(folder, recording=2)
        assert [trace.rank for trace in first.traces] == [0]
        assert first.warnings == ("1 of 2 ranks has no trace here",)
        assert [Path(trace.path).name for trace in last.traces] == ["rank0_1.json", "rank1_1.json"]

    def test_the_same_rank_at_overlapping_times_is_refused(self, tmp_path: Path) -> None:
        write(tmp_path / "a.json", [op("mm", 0, 100)], **info(1))
        write(tmp_path / "b.json", [op("mm", 99, 200)], **info(1))
        with pytest.raises(OverlaplabError, match=r"b\.json: rank 1: the same rank as a\.json, at overlapping times"):
            load_run(tmp_path)

    def test_recordings_that_another_rank_connects_are_refused(self, folder: Path) -> None:
        write(folder / "rank1_0.json", [op("mm", 50, 1050)], **info(1))
        (folder / "rank1_1.json").unlink()
        with pytest.raises(OverlaplabError, match="another rank's trace connects"):
            load_run(folder)

    def test_ranks_recorded_once_are_one_recording_whatever_their_clocks(self, tmp_path: Path) -> None:
        write(tmp_path / "a.json", [op("mm", 0, 1)], **info(0))
        write(tmp_path / "b.json", [op("mm", 9000, 9001)], **info(1))
        assert [trace.rank for trace in load_run(tmp_path).traces] == [0, 1]
        with pytest.raises(OverlaplabError, match="no recording 2"):
            load_run(tmp_path, recording=2)


class TestMerged:
    def test_by_the_rank_in_the_arguments(self, tmp_path: Path) -> None:
        """Both ranks call their process and device the same."""
        events = []
        for rank, length in ((0, 20), (1, 30)):
            events += [one | {"args": one["args"] | {"rank": rank}} for one in kernels(0, length, 1)]
        run = load_run(write(tmp_path / "merged.json", events))
        assert shown(run) == [(0, 20, 20), (1, 30, 30)]
        assert run.warnings == ("merged.json: holds the ranks 0, 1",)

    def test_more_ranks_than_files_are_opened_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OVERLAPLAB_MAX_TRACES", "3")
        path = write(tmp_path / "merged.json", [event("mm", at, at + 1, rank=at) for at in range(4)])
        with pytest.raises(OverlaplabError, match="holds 4 ranks, and at most 3 are opened"):
            load_run(path)

    def test_one_process_that_drives_two_devices(self, tmp_path: Path) -> None:
        """The host's events belong to both; a launch finds what it launched on its own device."""
        first, second = of(9, 0, kernels(0, 20, 1)), of(9, 1, kernels(0, 30, 11))
        host = [one for one in second if "stream" not in one["args"] and one["cat"] == "cuda_runtime"]
        device = [one for one in second if "stream" in one["args"]]
        run = load_run(write(tmp_path / "trace.json", [*first, *host, *device]))
        assert shown(run) == [(0, 20, 20), (1, 30, 30)]
        assert [int((trace.events["name"] == "aten::mm").sum()) for trace in run.traces] == [1, 1]

    def test_two_processes_whose_numbers_coincide(self, tmp_path: Path) -> None:
        """Process 70 drives device 1 and began 2 µs later: its launches come after some of device 0's kernels."""
        first, second = of(50, 0, kernels(0, 20, 1)), of(70, 1, kernels(12, 30, 1))
        run = load_run(write(tmp_path / "trace.json", [*second, *first]))
        assert shown(run) == [(0, 20, 20), (1, 30, 30)]
        hosts = [trace.events.loc[trace.events["category"] == "cpu_op", "pid"].tolist() for trace in run.traces]
        assert hosts == [["50"], ["70"]]

    def test_what_tells_of_collectives_goes_with_its_event(self, tmp_path: Path) -> None:
        told = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 4, "Out msg nelems": 4}
        events = []
        for device in (0, 1):
            own = of(50 + device, device, kernels(0, 20, 1 + 10 * device))
            own[-1]["args"] |= told | {"In msg nelems": 4 + device}
            events += own
        run = load_run(write(tmp_path / "trace.json", events))
        for device, trace in enumerate(run.traces):
            (row,) = trace.collectives.itertuples()
            assert trace.events["name"][row.event] == "ncclDevKernel_AllReduce"
            assert row.elements_in == 4 + device

    def test_a_rank_that_uses_two_devices_stays_one(self, tmp_path: Path) -> None:
        events = [*of(9, 0, kernels(0, 20, 1)), *of(9, 1, launched("gemm", 5, 12, 14, correlation=9))]
        assert [trace.rank for trace in load_run(write(tmp_path / "t.json", events, **info(3, 4))).traces] == [3]
        assert [trace.rank for trace in load_run(write(tmp_path / "rank5.json", events)).traces] == [5]

    def test_a_copy_on_another_device_makes_no_rank(self, tmp_path: Path) -> None:
        copy = launched("Memset", 5, 12, 14, correlation=9, cat="gpu_memset")
        events = [*of(9, 2, kernels(0, 20, 1)), *of(9, 0, copy)]
        assert [trace.rank for trace in load_run(write(tmp_path / "t.json", events)).traces] == [None]

    def test_it_takes_no_rank(self, tmp_path: Path) -> None:
        events = [*of(9, 0, kernels(0, 20, 1)), *of(9, 1, kernels(0, 30, 11))]
        write(tmp_path / "t.json", events)
        with pytest.raises(OverlaplabError, match=r"t\.json: holds ranks 0, 1, so it cannot be assigned one"):
            load_run(tmp_path, assign_ranks={"t.json": 3})

    def test_merged_beside_others(self, tmp_path: Path) -> None:
        write(tmp_path / "node0.json", [*of(9, 0, kernels(0, 20, 1)), *of(9, 1, kernels(0, 30, 11))])
        write(tmp_path / "rank2.json", [event("aten::mm", 0, 5)])
        assert [trace.rank for trace in load_run(tmp_path).traces] == [0, 1, 2]
