"""The figures of the sample runs are equal to those in tests/golden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loaded_script import script
from samples import gpu_samples, sample_run

ROOT = Path(__file__).parents[1]
RENEW = "; if that is meant, run `.venv/bin/python scripts/golden.py`, look at what has changed, and commit it"


SCRIPT = script("scripts/golden.py")
RUNS: list[Path] = SCRIPT.runs()


def test_every_run_is_written_down_and_nothing_else() -> None:
    kept = {path.relative_to(SCRIPT.GOLDEN) for path in SCRIPT.GOLDEN.rglob("*.json")}
    assert len(kept) >= 16
    assert kept == {SCRIPT.golden_path(run).relative_to(SCRIPT.GOLDEN) for run in RUNS}, f"the runs have changed{RENEW}"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run.relative_to(SCRIPT.TRACES)))
def test_figures_are_those_written_down(run: Path) -> None:
    """To the nanosecond; times and bytes of the schedule and of buckets are sums over a rank's steps."""
    found = flat(SCRIPT.figures(sample_run(run)))
    written = flat(json.loads(SCRIPT.golden_path(run).read_text()))
    differing = [key for key in found | written if found.get(key, "absent") != written.get(key, "absent")]
    shown = "; ".join(f"{key}: {written.get(key, 'absent')} → {found.get(key, 'absent')}" for key in differing[:3])
    assert not differing, f"{len(differing)} figures have changed, such as {shown}{RENEW}"


def flat(figures: dict[str, list[dict[str, int | None]]]) -> dict[str, int | None]:
    return {
        f"{kind}, rank {row['rank']}, {key}": value
        for kind, rows in figures.items()
        for row in rows
        for key, value in row.items()
    }


def test_runs_of_gpus_are_written_down_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever GPU their folder is named after, a sweep's within it included."""
    monkeypatch.setattr(SCRIPT, "TRACES", tmp_path)
    for name in ("naive", "h200/naive", "h200/sweep/cap-0.25"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").write_text(json.dumps({"device": "cuda" if "/" in name else "cpu"}))
    assert {str(SCRIPT.golden_path(run).relative_to(SCRIPT.GOLDEN)) for run in SCRIPT.runs()} == {
        *("naive.json", "h200/naive.json", "h200/sweep/cap-0.25.json")
    }
    assert gpu_samples(tmp_path) == [tmp_path / "h200" / "naive"]


def test_what_is_written_down_is_no_row_of_nulls() -> None:
    bucketed, zero3 = (json.loads((SCRIPT.GOLDEN / f"{name}.json").read_text()) for name in ("bucketed", "zero3"))
    assert [row["buckets"] for row in bucketed["buckets"]] == [21, 21]
    assert [row["layer_gathers"] for row in zero3["schedule"]] == [45, 45]
    assert None not in [*bucketed["buckets"][0].values(), *zero3["schedule"][0].values()]
