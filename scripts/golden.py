"""Write down what the analyses find in the runs of traces/, for the tests to compare: tests/golden/<run>.json.

python scripts/golden.py    # after a change of figures that is meant, or of the runs
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

import overlaplab
from overlaplab.analyses import schedule_steps

ROOT = Path(__file__).resolve().parents[1]
TRACES, GOLDEN = ROOT / "traces", ROOT / "tests" / "golden"

_BUCKETS = ("bytes", "ready_ns", "launch_ns", "start_ns", "end_ns", "exposed_ns")
_COUNTS = ("gathers", "frees", "layer_gathers", "layer_frees", "peak_gathered_bytes")
_GATHERS = ("gather_launch_ns", "gather_start_ns", "gather_end_ns", "first_use_ns", "last_use_ns", "free_ns", "wait_ns")


def main() -> None:
    """Write every run's figures, take away those of runs that are gone, and say what has changed."""
    wanted = {golden_path(run) for run in runs()}
    for run in runs():
        path, text = golden_path(run), json.dumps(figures(overlaplab.load_run(run)), indent=1) + "\n"
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"{path.relative_to(ROOT)}: written")
    for path in set(GOLDEN.rglob("*.json")) - wanted:
        path.unlink()
        print(f"{path.relative_to(ROOT)}: taken away")


def runs() -> list[Path]:
    """The folders of all sample runs."""
    return sorted(path.parent for path in TRACES.rglob("run.json"))


def golden_path(run: Path) -> Path:
    """Where a sample run's figures are kept."""
    return GOLDEN / run.relative_to(TRACES).with_suffix(run.suffix + ".json")


def figures(run: overlaplab.Run) -> dict[str, list[dict[str, Any]]]:
    """A run's totals per rank, as JSON has them: of `summary`, and sums over its buckets and its gathers.

    Times are whole ns; moments are summed as they are, from each step's start.
    """
    buckets, gathers = overlaplab.buckets(run), overlaplab.schedule(run)
    totals = overlaplab.totals(run).drop(columns="overlap_ratio")
    steps = schedule_steps(gathers).groupby("rank")[list(_COUNTS)].sum()
    counted = buckets.groupby("rank").size().rename("buckets")
    return {
        "summary": _records(totals),
        "buckets": _records(pd.concat([counted, _sums(buckets, _BUCKETS)], axis=1).reset_index()),
        "schedule": _records(pd.concat([steps, _sums(gathers, _GATHERS)], axis=1).reset_index()),
    }


def _sums(table: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    return table.groupby("rank")[list(columns)].sum(min_count=1)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows = table.astype("Int64").to_dict("records")
    return [{str(key): None if pd.isna(value) else int(value) for key, value in row.items()} for row in rows]


if __name__ == "__main__":
    main()
