"""A trace that holds several iterations without `ProfilerStep`: one line says so, and what writes them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from made.traces import event, gloo, op, run_of, step

from overlaplab import charts, load_run
from overlaplab.findings import actions_title, advice_sentences, certainty_words, run_warnings
from overlaplab.findings.first_screen import summary_title, tiles
from overlaplab.sections.blocks import Folded, TableBlock
from overlaplab.sections.run_tables import RunTables
from overlaplab.sections.summary import summary_section
from overlaplab.sections.tables import advice_rows

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


def test_no_gain_of_it_is_one_per_step(tmp_path: Path) -> None:
    """Three recorded steps without their marks: gains, shares and idle time are of the whole trace."""
    recorded = Path(__file__).parents[1] / "situations" / "recorded" / "waiting-hook"
    for path in recorded.glob("rank*.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        events = [each for each in document["traceEvents"] if not str(each.get("name")).startswith("ProfilerStep")]
        (tmp_path / path.name).write_bytes(gzip.compress(json.dumps(document | {"traceEvents": events}).encode()))
    of = RunTables(run=load_run(tmp_path, cache=False))
    diagnosis = of.diagnosis
    assert diagnosis is not None
    words = [of.verdict, diagnosis.advice, actions_title(diagnosis.actions, advised=True), summary_title(of.summary)]
    words += [f"{certainty_words(each)} {each.why}" for each in diagnosis.actions]
    assert [text for text in words if "step" in text.replace("per-step", "")] == []
    assert tiles(diagnosis, of.summary)[0].label == "trace"
    sentences = [*advice_sentences(of.advice, diagnosis), advice_rows(of.advice, "trace").legend]
    assert [text for text in sentences if re.search(r"\bsteps?\b", text.replace("per-step", ""))] == []
    bars = json.dumps(charts.summary(of.summary).to_dict())
    assert "100 % of its rank's trace" in bars
    assert "step time" not in summary_title(of.totals)
    assert "step time" not in bars
    folds = [block for block in summary_section(of, diagnosis, None).blocks if isinstance(block, Folded)]
    costs = next(fold.blocks for fold in folds if fold.key == "costs_fold")
    assert callable(costs)
    leads = {block.caption: block.lead for block in costs() if isinstance(block, TableBlock)}
    assert "theory is of one step, and none is marked" in leads["Sent per rank and trace"]
