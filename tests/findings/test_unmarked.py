"""A trace that holds several iterations without `ProfilerStep`: one line says so, and what writes them."""

from __future__ import annotations

from pathlib import Path

from made.traces import event, gloo, op, run_of, step

from overlaplab.findings import run_warnings

EVENTS = [op("mm", 0, 50), gloo(40, 90), op("mm", 100, 150), gloo(140, 190)]
OPTIMIZER = [event("Optimizer.step#SGD.step", at, at + 5, cat="user_annotation") for at in (92, 192)]


def test_one_line_says_that_all_is_one_window(tmp_path: Path) -> None:
    """Of all ranks together, and not of a trace that has its steps, nor of a single iteration."""
    one = "the trace has no ProfilerStep"
    rest = (
        ", so all of it is one window, although Optimizer.step#SGD.step ran 2 times: prof.step() after each iteration,"
        " with schedule=torch.profiler.schedule(…), writes them"
    )
    without, marked = [*EVENTS, *OPTIMIZER], [step(0, 0, 100), step(1, 100, 200), *EVENTS, *OPTIMIZER]
    assert run_warnings(run_of(tmp_path / "both", without, without)) == (one + rest,)
    assert f"{one} on rank 1{rest}" in run_warnings(run_of(tmp_path / "mixed", marked, without))
    assert run_warnings(run_of(tmp_path / "marked", marked, marked)) == ()
    assert run_warnings(run_of(tmp_path / "once", [*EVENTS, OPTIMIZER[0]], [*EVENTS, OPTIMIZER[0]])) == ()
