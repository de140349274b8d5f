"""One report for all tests: of buckets, of gathers, and of a run whose every string is hostile."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing.browser import PWNED
from made.runs import EMULATED, engine_events, made_gathering
from made.traces import event, gloo, op, run_of, step

from overlaplab import load_run
from overlaplab.report.page import report_page

HOSTILE = (
    f"![x](http://evil.example/md.png)</script><script>{PWNED}</script><!--"
    f"<img src=http://evil.example onerror={PWNED}>&\u2028\u202e"
)


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report's file."""
    folder = tmp_path_factory.mktemp("mailed")
    emulated = {"link": EMULATED, "link_attained": True}
    runs = [
        run_of(folder / "bucketed", engine_events(), engine_events(), manifest=emulated),
        load_run(made_gathering(folder) / "ahead"),
        run_of(
            folder / "<img src=x onerror=window.pwned&&pwned(1)>",
            [step(0, 0, 400), op(HOSTILE, 0, 100), gloo(150, 300, kind=HOSTILE), event(HOSTILE, 320, 390)],
            manifest={"strategy": HOSTILE, "backend": HOSTILE},
        ),
    ]
    path = folder / "report.html"
    path.write_text(report_page(runs), encoding="utf-8")
    return path
