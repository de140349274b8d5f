"""Sentences about a window of the timeline."""

from __future__ import annotations

import pandas as pd
import pytest
from samples import sample_run

from overlaplab.findings import timeline_lead, window_lead, window_size
from overlaplab.timeline.timeline import timeline_events, timeline_view
from overlaplab.timeline.window_statistics import WindowStatistics, timeline_window


def window(comm: int, overlapped: int, busy: int) -> WindowStatistics:
    """One rank's 1000 ns."""
    row = {"rank": 0, "span_ns": 1000, "busy_ns": busy, "comm_ns": comm, "overlapped_ns": overlapped}
    row |= {"exposed_comm_ns": comm - overlapped, "idle_ns": 1000 - busy}
    none = pd.DataFrame()
    return WindowStatistics(start_ns=0, end_ns=1000, ranks=pd.DataFrame([row]), kernels=none, causes=none, events=1)


@pytest.mark.parametrize(
    ("found", "lead"),
    [
        (window(0, 0, 500), "no communication; 50\u00a0% of the ranks' time is busy"),
        (window(400, 100, 900), "(30\u00a0% of this window)"),
        (window(400, 395, 995), "(<1\u00a0% of this window)"),
    ],
)
def test_lead(found: WindowStatistics, lead: str) -> None:
    assert lead in window_lead(found)


def test_a_report_counts_the_events_that_the_timeline_counts() -> None:
    timeline = timeline_events(sample_run("bucketed"))
    start, end = timeline.extent
    counted = window_size(timeline_window(timeline, start, end)).split(", ")[1].removesuffix(".")
    assert f" {counted}, drawn as " in timeline_lead(timeline_view(timeline), "the whole recording", 2)
