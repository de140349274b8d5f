"""Ranks that are worked out where they are read: the same figures, and no table of events in this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
from made.gpu import bucketed
from made.syncs import WAITS, computing, reduced
from made.traces import op, run_of
from pandas.testing import assert_frame_equal
from typer.testing import CliRunner

from overlaplab import OverlaplabError, Run, analyses, clocks, load_ranks, load_run
from overlaplab.cli import app
from overlaplab.events import Tables
from overlaplab.findings import run_warnings
from overlaplab.load.places import Located
from overlaplab.load.run_folder import FileOpener
from overlaplab.simulate.advice import tried

SAMPLES = Path(__file__).parents[2] / "traces"
TABLES: tuple[Callable[[Run], pd.DataFrame], ...] = (
    *(analyses.summary, analyses.totals, analyses.exposed, analyses.blocking, analyses.idle),
    *(analyses.collectives, analyses.stragglers, analyses.communication_by, clocks),
)


@pytest.fixture
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a rank's table again fails."""
    monkeypatch.setattr(FileOpener, "_tables", lambda opening, file, place: pytest.fail(f"{file.name} is read again"))


def assert_same(run: Run, whole: Run) -> None:
    for table in TABLES:
        assert_frame_equal(table(run), table(whole))
    assert run_warnings(run) == run_warnings(whole)


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize(
    "name",
    ["bucketed", "zero3", "torch-ddp-gloo", "torch-fsdp2", "ring", "pipeline", "parameter-server", "dp-tp"],
)
def test_the_figures_are_those_of_the_whole_tables(name: str) -> None:
    assert_same(load_ranks(SAMPLES / name), load_run(SAMPLES / name))


@pytest.mark.usefixtures("no_tables")
def test_a_gpu_run_needs_no_tables_either(tmp_path: Path) -> None:
    whole = run_of(tmp_path, bucketed(), bucketed(ddp=True), backend="nccl")
    assert_same(load_ranks(tmp_path), whole)


@pytest.mark.usefixtures("no_tables")
def test_what_was_waited_for_needs_no_tables_either(tmp_path: Path) -> None:
    whole = run_of(tmp_path, [*reduced(), *WAITS, *computing(100, 161, 200)], reduced(resolved=False), backend="nccl")
    assert_same(load_ranks(tmp_path), whole)
    assert analyses.blocking(whole)["blocking_ns"].tolist() == [60_000, 0]


@pytest.mark.usefixtures("no_tables")
def test_ranks_of_one_file_keep_to_their_own(tmp_path: Path) -> None:
    run = run_of(
        tmp_path, [op("mm", 0, 5), op("mm", 7, 9) | {"args": {"rank": 3}}, op("mm", 1, 2) | {"args": {"rank": 2}}]
    )
    assert [trace.rank for trace in run.traces] == [2, 3]
    assert_same(load_ranks(tmp_path), run)


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize("line", [("summary", "--json"), ("collectives",), ("collectives", "--json")])
def test_the_commands_hold_no_tables(line: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, [*line, str(SAMPLES / "bucketed")]).exit_code == 0


@pytest.mark.parametrize(
    "line", [("summary",), ("exposed",), pytest.param(("exposed", "--json"), marks=pytest.mark.slow)]
)
def test_what_advises_reads_one_rank_again(
    line: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The rank that the advice is about, for its bound; and each once to be played, but where so much was recorded on
    GPUs that this would take long.
    """
    run_of(tmp_path, bucketed(labelled=False), bucketed(labelled=False), backend="nccl")
    read: list[str] = []
    again = FileOpener._tables

    def counted(opening: FileOpener, file: Located, place: int) -> Tables:
        read.append(file.name)
        return again(opening, file, place)

    monkeypatch.setattr(FileOpener, "_tables", counted)
    assert CliRunner().invoke(app, [*line, str(tmp_path)]).exit_code == 0
    assert sorted(read) == ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"]
    read.clear()
    monkeypatch.setattr(tried, "_MAX_STRETCHES", 1)
    assert CliRunner().invoke(app, [*line, str(tmp_path)]).exit_code == 0
    assert len(read) == 1
    read.clear()
    assert CliRunner().invoke(app, [*line, str(SAMPLES / "bucketed")]).exit_code == 0
    assert sorted(read) == ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"]


def test_other_analyses_read_a_table_again() -> None:
    run, whole = load_ranks(SAMPLES / "bucketed"), load_run(SAMPLES / "bucketed")
    assert_frame_equal(analyses.buckets(run), analyses.buckets(whole))
    for trace, same in zip(run.traces, whole.traces, strict=True):
        assert_frame_equal(trace.events, same.events)
        assert trace.events is trace.events


@pytest.mark.usefixtures("no_tables")
def test_the_executor_works_the_ranks_out() -> None:
    whole = load_run(SAMPLES / "zero3")
    seen: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) as executor:
        assert_same(load_ranks(SAMPLES / "zero3", executor=executor, progress=lambda *at: seen.append(at)), whole)
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_what_is_no_trace_is_one_line(tmp_path: Path) -> None:
    run_of(tmp_path, [op("mm", 0, 1)])
    (tmp_path / "rank1.json").write_text("no trace")
    with ThreadPoolExecutor(1) as executor, pytest.raises(OverlaplabError, match=r"rank1\.json: "):
        load_ranks(tmp_path, executor=executor)


def test_the_device_of_the_manifest_counts_where_a_rank_is_read(tmp_path: Path) -> None:
    run_of(tmp_path, [op("mm", 0, 1)], manifest={"device": "cuda"})
    assert analyses.summary(load_ranks(tmp_path)).empty
