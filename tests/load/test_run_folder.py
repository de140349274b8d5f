"""Which files make a run, and which rank each is."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from made.traces import op, run_of, write

from overlaplab import OverlaplabError, load_ranks, load_run
from overlaplab.dashboard.folder import find_runs
from overlaplab.folders import run_folders


def info(rank: int, world_size: int = 2) -> dict[str, object]:
    return {"distributedInfo": {"rank": rank, "world_size": world_size, "backend": "gloo"}}


def test_ranks_come_in_order_and_share_one_zero(tmp_path: Path) -> None:
    write(tmp_path / "b.json", [op("mm", 5, 6)], **info(0))
    write(tmp_path / "a.json", [op("mm", 3, 6)], **info(1))
    run = load_run(tmp_path)
    assert [trace.rank for trace in run.traces] == [0, 1]
    assert [trace.origin_ns for trace in run.traces] == [3000, 3000]
    assert run.manifest is None
    assert run.warnings == ()


def test_the_name_tells_the_rank_where_the_file_does_not(tmp_path: Path) -> None:
    write(tmp_path / "rank-1.json", [])
    write(tmp_path / "worker0_step_12.169.pt.trace.json.gz", [])
    write(tmp_path / "worker9_rank2.json", [])
    write(tmp_path / "worker3.1694128201545.pt.trace.json", [])
    write(tmp_path / "worker4.pt.trace.json.gz", [])
    assert [trace.rank for trace in load_run(tmp_path).traces] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["gpu-worker3_1234.json", "worker3.example.org_1234.169.pt.trace.json"])
def test_a_machine_called_worker_is_no_rank(tmp_path: Path, name: str) -> None:
    assert load_run(write(tmp_path / name, [])).traces[0].rank is None


def test_one_file_without_a_rank_has_none(tmp_path: Path) -> None:
    assert load_run(write(tmp_path / "trace.json", [op("mm", 0, 1)])).traces[0].rank is None


def test_several_without_a_rank_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.json", [])
    write(tmp_path / "b.json", [])
    with pytest.raises(OverlaplabError, match=r"a\.json.*does not state its rank"):
        load_run(tmp_path)


def test_the_same_rank_twice_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.json", [], **info(1))
    write(tmp_path / "b.json", [], **info(1))
    with pytest.raises(OverlaplabError, match=r"b\.json: rank 1: the same rank as a\.json"):
        load_run(tmp_path)


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    assert load_run(write(tmp_path / "t.json", [], **info(0, 128))).warnings == ("127 of 128 ranks have no trace here",)


@pytest.mark.parametrize(
    ("trace_ranks", "here", "warnings"),
    [
        (None, [0, 2], ("2 of 4 ranks have no trace here",)),
        ([0, 2], [0, 2], ("2 of 4 ranks were recorded without a trace (--trace-ranks)",)),
        (
            [0, 2],
            [2],
            ("1 of 2 ranks has no trace here", "2 of 4 ranks were recorded without a trace (--trace-ranks)"),
        ),
        ([0], [0, 1], ("2 of 4 ranks were recorded without a trace (--trace-ranks)",)),
        ([0, 1, 2, 3], [0, 1, 2, 3], ()),
        ("0,2", [0, 2], ("2 of 4 ranks have no trace here",)),
        ([0, None, {}, 9], [0], ("3 of 4 ranks were recorded without a trace (--trace-ranks)",)),
    ],
)
def test_ranks_that_were_not_to_be_traced_are_not_missing(
    trace_ranks: object, here: list[int], warnings: tuple[str, ...], tmp_path: Path
) -> None:
    for rank in here:
        write(tmp_path / f"rank{rank}.json", [op("mm", 0, 1)])
    (tmp_path / "run.json").write_text(json.dumps({"format_version": 1, "world_size": 4, "trace_ranks": trace_ranks}))
    assert load_run(tmp_path).warnings == warnings


def test_an_empty_folder_and_no_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OverlaplabError, match="holds no trace"):
        load_run(tmp_path)
    with pytest.raises(OverlaplabError, match="no such file"):
        load_run(tmp_path / "absent")
    (tmp_path / "inner").mkdir()
    with pytest.raises(OverlaplabError, match=r"Is one of its folders meant: inner\?"):
        load_run(tmp_path)


def test_the_manifest_is_read(tmp_path: Path) -> None:
    link = {"emulated": True, "bandwidth_gbps": 1.0, "latency_us": 200.0, "world_size": 2}
    bucket = {"index": 0, "bytes": 8, "parameters": ["w", "b"]}
    run = run_of(tmp_path, [], manifest={"link": link, "buckets": [bucket], "seed": 7})
    assert run.manifest is not None
    assert run.manifest.strategy == "bucketed"
    assert run.manifest.link is not None
    assert str(run.manifest.link) == "1Gbps,200us"
    assert run.manifest.buckets[0].parameters == ("w", "b")
    assert run.manifest.raw["seed"] == 7


@pytest.mark.parametrize("text", ["{", '{"strategy": 3}', '{"format_version": 2}', "[]", '{"a":' + "[" * 100_000])
def test_a_bad_manifest_is_one_line(tmp_path: Path, text: str) -> None:
    write(tmp_path / "rank0.json", [])
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(OverlaplabError, match=r"run\.json"):
        load_run(tmp_path)


def test_a_manifest_that_would_block_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", [])
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(OverlaplabError, match=r"run\.json: not a file"):
        load_run(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OverlaplabError, match="format_version 2 is not 1"):
        run_of(tmp_path, [], manifest={"format_version": 2})


def test_a_stray_document_beside_traces_is_skipped_with_a_warning(tmp_path: Path) -> None:
    expected = run_of(tmp_path, [op("mm", 0, 9)], [op("mm", 0, 9)])
    (tmp_path / "config.json").write_text('{"learning_rate": 0.1}')
    for run in (load_run(tmp_path), load_run(tmp_path, executor=ThreadPoolExecutor(1)), load_ranks(tmp_path)):
        assert [trace.rank for trace in run.traces] == [0, 1]
        assert run.warnings == (
            *expected.warnings,
            "config.json was skipped: it is not a trace (no list of traceEvents)",
        )


def test_a_rank_whose_file_is_no_trace_is_not_skipped(tmp_path: Path) -> None:
    run_of(tmp_path, [op("mm", 0, 9)])
    (tmp_path / "rank1.json").write_text('{"learning_rate": 0.1}')
    with pytest.raises(OverlaplabError, match=r"rank1\.json: not a torch\.profiler trace"):
        load_run(tmp_path)


def test_a_folder_of_documents_alone_names_the_first(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(OverlaplabError, match=r"a\.json: not a torch\.profiler trace"):
        load_run(tmp_path)


def test_a_baseline_beside_runs_does_not_hide_them(tmp_path: Path) -> None:
    for name in ("b", "a", "cut"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "rank-0.json", [])
    cut = tmp_path / "cut" / "rank-0.json"
    cut.write_bytes(cut.read_bytes()[:5])
    (tmp_path / "documents").mkdir()
    for place in (tmp_path, tmp_path / "documents"):
        (place / "baseline.json").write_text('{"format_version": 1, "recordings": []}')
    assert run_folders(tmp_path) == [str(tmp_path / name) for name in ("a", "b", "cut")]
    assert [entry.name for entry in find_runs(tmp_path)] == ["a", "b", "cut"]
    (tmp_path / "events.json").write_text("[]")
    assert run_folders(tmp_path) == [str(tmp_path)]
    assert [entry.name for entry in find_runs(tmp_path)] == [".", "a", "b", "cut"]


def test_thousands_of_files_are_one_clear_line_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(3000):
        (tmp_path / f"rank{rank}.json").touch()  # reading any would fail otherwise
    with pytest.raises(
        OverlaplabError, match="holds 3,000 files named as traces, and at most 2,048 are opened"
    ) as caught:
        load_run(tmp_path)
    assert "OVERLAPLAB_MAX_TRACES=3000" in str(caught.value)
    monkeypatch.setenv("OVERLAPLAB_MAX_TRACES", "3000")
    with pytest.raises(OverlaplabError, match=r"not a torch\.profiler trace"):
        load_run(tmp_path)
