"""The best buckets found against the recorded sweep: no cap did better than the recordings of another allow."""

from __future__ import annotations

import statistics
from collections import defaultdict

from samples import TRACES, sample_run

from overlaplab import Run, summary
from overlaplab.findings.diagnosis.bound import gains_by_buckets
from overlaplab.folders import run_folders
from overlaplab.simulate import bound


def medians(run: Run) -> tuple[float, float]:
    """The step as recorded, and with the best buckets found, in ns; medians over ranks and steps."""
    both = summary(run).merge(bound(run), on=["rank", "step"], suffixes=("", "_least"), validate="1:1")
    spans = both["span_ns"].tolist()
    gains = [
        gains_by_buckets(row | {"compute_ns": row["compute_ns_least"]}, row["exposed_comm_ns"])
        for row in both.to_dict("records")
    ]
    return statistics.median(spans), statistics.median(
        span - gain for span, gain in zip(spans, gains, strict=True) if gain is not None
    )


def test_no_recorded_cap_beats_the_bound_of_another() -> None:
    steps, bests = defaultdict[float, list[float]](list), defaultdict[float, list[float]](list)
    for folder in run_folders(TRACES / "sweep"):
        run = sample_run(folder)
        assert run.manifest is not None
        assert run.manifest.bucket_cap_mb is not None
        recorded, best = medians(run)
        steps[run.manifest.bucket_cap_mb].append(recorded)
        bests[run.manifest.bucket_cap_mb].append(best)
    assert sorted(steps) == [0.25, 1, 4, 25]
    for cap, recorded_ns in steps.items():
        spread_ns = max(recorded_ns) - min(recorded_ns)
        others = [best for other, found in bests.items() if other != cap for best in found]
        assert min(recorded_ns) > statistics.median(others) - spread_ns, cap
