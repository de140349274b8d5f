"""What is advised where it is unknown who waited: other ranks' traces only where they are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.traces import event, gloo, launched, op, run_of, step
from samples import sample_run

import overlaplab
from overlaplab import Run, findings
from overlaplab.analyses import each_collective, worst_step
from overlaplab.charts import waits
from overlaplab.findings.diagnosis.unseen import late_start_words
from overlaplab.sections.run_tables import RunTables


def everything_said(run: Run) -> str:
    """All sentences that are about waiting for other ranks."""
    tables = RunTables(run=run)
    found, table = tables.diagnosis, tables.summary
    assert found is not None
    unknown = overlaplab.exposed(run).assign(cause="unknown")
    again = findings.diagnose(table, worst_step(table) | {"idle_ns": 0}, unknown, tables.idle, unseen=tables.unseen)
    collectives = overlaplab.collectives(run)
    chart = waits(each_collective(collectives)).to_dict()
    return " ".join(
        (
            tables.verdict,
            found.advice,
            again.advice,
            *(share.remedy for diagnosis in (found, again) for share in diagnosis.causes),
            findings.collectives_lead(collectives, found),
            str(chart["title"]),
        )
    )


def random_ends(*ends: float) -> list[dict[str, Any]]:
    found = [op("mm", 0, 500)]
    for end in ends:
        found += [event("c10d::allreduce_", end - 900, end - 899), gloo(end - 800, end)]
    return found


def kernels(kind: str, *ends: float) -> list[dict[str, Any]]:
    found = launched("gemm", 0, 1, 5, correlation=99)
    for number, end in enumerate(ends):
        found += launched(f"ncclDevKernel_{kind}", end - 900, end - 800, end, correlation=number + 1)
    return found


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        (
            [random_ends(1000, 3000, 9000), random_ends(1000, 3000, 9000, 90_000, 99_000, 110_000, 190_000)],
            None,  # those in common are matched
        ),
        (
            [kernels("AllReduce", 1000, 9000), kernels("AllGather", 1000, 9000)],
            "collectives of different ranks could not be matched: a rank's collectives differ from rank",
        ),
        (
            [kernels("AllReduce", 1000, 5000, 9000), kernels("AllReduce", 1300, 5600, 9900)],
            None,  # one is as far apart as clocks are
        ),
        (
            [kernels("Broadcast", 1000, 5000, 9000)] * 2,
            "in sends, broadcasts and the like not all ranks need to wait for the last one",
        ),
    ],
    ids=["matched", "unlike", "doubtful", "broadcast"],
)
def test_who_has_all_traces_is_not_told_to_open_them(tmp_path: Path, ranks: list[Any], why: str | None) -> None:
    run = run_of(tmp_path, *ranks, backend="gloo" if ranks[0][0]["name"] == "aten::mm" else "nccl")
    said = everything_said(run)
    assert "together" not in said
    assert "not all members" not in said
    assert "traces of all ranks" not in said
    assert (why or "waiting") in said
    assert why is None or said.count(why) >= 2


def test_who_lacks_traces_is_told_so(tmp_path: Path) -> None:
    run_of(tmp_path, *[random_ends(1000, 3000, 9000)] * 2)
    (tmp_path / "rank1.pt.trace.json.gz").unlink()
    run = overlaplab.load_run(tmp_path)
    assert findings.unseen(run).waits is None
    said = everything_said(run)
    assert "opening all ranks' traces together" in said
    assert "traces of all ranks that took part" in said


def late_ranks(folder: Path, *late: float, steps: int = 1) -> Run:
    """Ranks whose recording, and first all-reduce, began so many µs late."""
    ranks = []
    for begun in late:
        ranks.append(launched("gemm", begun, begun + 10, begun + 50, correlation=99))
        for number in range(steps):
            start = begun if number == 0 else 20_000 * number
            ranks[-1] += [step(number, start, start + 9_500)]
            kernel = ("ncclDevKernel_AllReduce", start + 20, start + 100, 20_000 * number + 9_000)
            ranks[-1] += launched(*kernel, stream=9, correlation=number + 1)
            ranks[-1] += launched("gemm", start + 30, start + 60, start + 90, correlation=number + 50)
    return run_of(folder, *ranks, backend="nccl")


def test_where_one_step_was_recorded_the_profilers_start_may_be_the_cause(tmp_path: Path) -> None:
    """As in a trace of DLRM, where rank 7 began 7.5 ms after the first, and was blamed for as much."""
    run = late_ranks(tmp_path, 0, 100, 7500)
    assert findings.unseen(run).late_starts == {2: 7_500_000}
    why = (
        "Only one step was recorded, and rank 2 began to record 7.5 ms after the first rank: the profiler's own"
        " start may be why"
    )
    tables = RunTables(run=run)
    assert why in tables.verdict
    assert tables.diagnosis is not None
    assert why in tables.diagnosis.advice


def test_of_several_steps_the_start_is_in_the_first_alone(tmp_path: Path) -> None:
    assert findings.unseen(late_ranks(tmp_path / "a", 0, 100, 7500, steps=2)).late_starts == {}
    assert findings.unseen(late_ranks(tmp_path / "b", 0, 100, 150)).late_starts == {}


def test_a_start_that_explains_little_of_the_wait_is_no_excuse(tmp_path: Path) -> None:
    unseen = findings.unseen(late_ranks(tmp_path, 0, 100, 7500))
    assert "rank 2 began to record 7.5 ms" in late_start_words(unseen, 2, 15_000_000)
    assert late_start_words(unseen, 2, 16_000_000) == ""
    assert late_start_words(unseen, 1, 1) == ""


def test_what_a_pipeline_has_already_is_not_advised() -> None:
    for sample in ("course/interleaved", "course/zero-bubble"):
        diagnosis = RunTables(run=sample_run(sample)).diagnosis
        assert diagnosis is not None
        assert "several stages on each rank" not in diagnosis.advice + "".join(map(str, diagnosis.causes))
