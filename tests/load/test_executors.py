"""Ranks read by other processes: the default pool, Dask's cluster, and what goes wrong there."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from made.traces import op, run_of, write
from pandas.testing import assert_frame_equal

from overlaplab import OverlaplabError, Run, exposed, load_ranks, load_run
from overlaplab.load import reading

SAMPLES = Path(__file__).parents[2] / "traces"


def assert_same(first: Run, second: Run) -> None:
    assert [trace.rank for trace in first.traces] == [trace.rank for trace in second.traces]
    for one, other in zip(first.traces, second.traces, strict=True):
        for table in ("events", "collectives", "inputs", "syncs"):
            assert_frame_equal(getattr(one, table), getattr(other, table))
        assert (one.groups, one.world_size, one.origin_ns) == (other.groups, other.world_size, other.origin_ns)
    assert first.warnings == second.warnings


class Counting(ThreadPoolExecutor):
    """An executor of threads that counts its calls."""

    asked = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked += 1
        return super().submit(*args, **kwargs)


class Broken(Executor):
    """An executor that loses its workers, like a pool whose worker is killed for using too much memory."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(BrokenProcessPool("a worker was killed"))
        return future


def test_the_users_executor_reads_each_file_once() -> None:
    with Counting(2) as executor:
        run = load_run(SAMPLES / "naive", executor=executor, cache=False)
        assert executor.asked == 2
    assert_same(run, load_run(SAMPLES / "naive", cache=False))


def test_progress_counts_every_file(tmp_path: Path) -> None:
    run_of(tmp_path, [op("mm", 0, 1)], [op("mm", 0, 1)])
    seen: list[tuple[int, int]] = []
    with ThreadPoolExecutor(1) as executor:
        load_run(tmp_path, executor=executor, progress=lambda *at: seen.append(at))
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_a_worker_names_the_file_that_it_cannot_read(tmp_path: Path) -> None:
    run_of(tmp_path, [op("mm", 0, 1)])
    (tmp_path / "rank1.json").write_text("no trace")
    with ThreadPoolExecutor(1) as executor, pytest.raises(OverlaplabError, match=r"rank1\.json: "):
        load_run(tmp_path, executor=executor)


def test_an_executor_that_loses_its_workers_is_one_line() -> None:
    with pytest.raises(OverlaplabError, match="did not read it"):
        load_run(SAMPLES / "naive", executor=Broken(), cache=False)


class Exhausted(ThreadPoolExecutor):
    """Its workers have no memory left after the first file; the first file's is done last."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if str(args[1].path).endswith("rank1.pt.trace.json.gz"):
            future.set_exception(MemoryError("no memory"))
        return future


def test_an_executors_error_names_the_file_that_it_failed_on(tmp_path: Path) -> None:
    run_of(tmp_path, [op("mm", 0, 1)], [op("mm", 0, 1)])
    with Exhausted(1) as executor, pytest.raises(OverlaplabError, match=r"rank1\..*MemoryError: no memory"):
        load_run(tmp_path, executor=executor, cache=False)


def test_small_runs_start_no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "loky", None)  # an import would raise
    run_of(tmp_path, [op("mm", 0, 1)], [op("mm", 0, 1)])


def test_large_runs_are_read_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_run(SAMPLES / "naive", cache=False)
    monkeypatch.setattr(reading, "WORTH_BYTES", 0)
    monkeypatch.setattr(reading, "_processors", lambda: 2)
    monkeypatch.setattr(reading, "_read_here", None)  # not by this one
    assert_same(load_run(SAMPLES / "naive", cache=False), expected)


def test_where_the_pool_breaks_this_process_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_run(SAMPLES / "naive", cache=False)
    monkeypatch.setattr(reading, "_workers", lambda missing: Broken())
    assert_same(load_run(SAMPLES / "naive", cache=False), expected)


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import overlaplab\nfrom overlaplab.load import reading\n"
        "print('begins')\n"
        "reading.WORTH_BYTES, reading._processors, reading._read_here = 0, lambda: 2, None\n"
        f"print(len(overlaplab.load_run({str(SAMPLES / 'naive')!r}, cache=False).traces))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("begins\n2\n", "")


def test_a_damaged_file_of_many_ends_the_workers_in_silence(tmp_path: Path) -> None:
    """Jobs that wait when they end are theirs to drop: loky's thread failed at cancelled ones, with a traceback."""
    (tmp_path / "rank0.json.gz").write_bytes(b"damaged")
    for rank in range(1, 16):
        (tmp_path / f"rank{rank}.json.gz").symlink_to(SAMPLES / "naive" / "rank1.pt.trace.json.gz")
    program = (
        "import overlaplab\nfrom overlaplab.load import reading\n"
        "reading.WORTH_BYTES, reading._processors = 0, lambda: 2\n"
        f"try: overlaplab.load_run({str(tmp_path)!r}, cache=False)\n"
        "except overlaplab.OverlaplabError as error: print(str(error).partition(': ')[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == (f"{tmp_path / 'rank0.json.gz'}\n", "")


def test_a_process_that_may_have_no_children_reads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WORTH_BYTES", 0)
    monkeypatch.setitem(sys.modules, "loky", None)
    monkeypatch.setitem(reading.multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    assert len(load_run(SAMPLES / "naive", cache=False).traces) == 2


def test_dask_reads_the_ranks_on_its_cluster(tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    expected = load_run(SAMPLES / "naive", cache=False)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        run = load_run(SAMPLES / "naive", executor=client.get_executor(), cache=False)
        assert os.getpid() not in client.run(os.getpid).values()
        ranks = load_ranks(SAMPLES / "naive", executor=client.get_executor(), cache=False)
        (tmp_path / "rank0.json").write_text("no trace")
        with pytest.raises(OverlaplabError, match=r"rank0\.json: not a torch\.profiler trace"):
            load_run(tmp_path, executor=client.get_executor())
    assert_same(run, expected)
    assert_frame_equal(exposed(ranks), exposed(expected))


def test_the_cache_spares_the_executor_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPLAB_CACHE_DIR", str(tmp_path))
    with Counting(2) as executor:
        first = load_run(SAMPLES / "naive", executor=executor)
        second = load_run(SAMPLES / "naive", executor=executor)
        assert executor.asked == 2
    assert_same(first, second)


def test_one_small_file_needs_no_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "loky", None)
    assert len(load_run(write(tmp_path / "rank0.json", [op("mm", 0, 1)])).traces) == 1
