"""Sentences about a window of the timeline."""

from __future__ import annotations

import pandas as pd
import pytest

from overlaplab.findings import window_advice, window_lead
from overlaplab.timeline.window_statistics import WindowStatistics


def window(comm: int, overlapped: int, busy: int) -> WindowStatistics:
    """One rank's 1000 ns."""
    row = {"rank": 0, "span_ns": 1000, "busy_ns": busy, "comm_ns": comm, "overlapped_ns": overlapped}
    row |= {"exposed_comm_ns": comm - overlapped, "idle_ns": 1000 - busy}
    return WindowStatistics(start_ns=0, end_ns=1000, ranks=pd.DataFrame([row]), kernels=pd.DataFrame(), events=1)


@pytest.mark.parametrize(
    ("found", "lead", "advice"),
    [
        (window(0, 0, 500), "no communication; 50\u00a0% of the ranks' time is busy", "idle here"),
        (window(400, 100, 900), "(75\u00a0% of communication, 30\u00a0% of the time)", "would gain at most"),
        (window(400, 395, 995), "(1\u00a0% of communication, <1\u00a0% of the time)", "Nothing to hide here"),
    ],
)
def test_lead_and_advice(found: WindowStatistics, lead: str, advice: str) -> None:
    assert lead in window_lead(found)
    assert advice in window_advice(found)[0]
