"""The strip of waits, the limit of what a prefetch holds, and what of reduce-scatters is exposed."""

from __future__ import annotations

import pandas as pd

from overlaplab import charts, findings
from overlaplab.analyses import held_limit, scatter_steps


def test_a_cell_per_rank_and_step() -> None:
    rows = [(0, 3, 1_000_000), (0, 4, 2_500_000), (1, 3, 0), (1, 4, None)]
    steps = pd.DataFrame(rows, columns=["rank", "step", "wait_ns"]).astype("Int64")
    found = charts.gather_waits(steps).to_dict()
    cells = next(iter(found["datasets"].values()))
    assert [(cell["row"], cell["step"], cell["ms"]) for cell in cells] == [("0", 3, 1.0), ("0", 4, 2.5), ("1", 3, 0.0)]
    assert found["title"]["text"] == "Compute waited for gathers for 2.5 ms at most in a rank's step"
    assert found["description"].startswith("A strip of 2 ranks by 2 steps.")
    nothing = charts.gather_waits(steps.head(0)).to_dict()
    assert nothing["title"]["text"] == "How long compute waited for gathers is unknown"


def test_reduce_scatters_have_a_strip_too() -> None:
    scatters = pd.DataFrame({"rank": [0, 0, 1, 1], "step": [3, 4, 3, 4], "start_ns": 0, "end_ns": [9, 9, 9, None]})
    rows = [(0, 3, "reduce_scatter", 1), (0, 4, "all_gather", 9), (0, 3, "reduce_scatter", 2)]
    exposed = pd.DataFrame(rows, columns=["rank", "step", "kind", "exposed_ns"])
    whole = dict.fromkeys(("rank", "step"), "Int64")
    steps = scatter_steps(
        scatters.astype(whole), exposed.assign(exposed_ns=exposed["exposed_ns"] * 10**6).astype(whole)
    )
    found = charts.scatters_exposed(steps, note="Click.").to_dict()
    cells = next(iter(found["datasets"].values()))
    assert [(cell["row"], cell["step"], cell["ms"]) for cell in cells] == [("0", 3, 3.0), ("0", 4, 0.0), ("1", 3, 0.0)]
    assert found["title"]["text"] == "Reduce-scatters were exposed for 3.0 ms at most in a rank's step"
    assert found["title"]["subtitle"] == ["Exposed time of reduce-scatters. Click."]
    assert findings.scatters_exposed_title(steps.tail(2)) == "No reduce-scatter is exposed"


def test_a_prefetch_holds_one_unit_more() -> None:
    table = pd.DataFrame({"unit": ["a", "b", "c", "a"], "bytes": pd.array([5, 7, 6, 5], dtype="Int64")})
    assert held_limit(table, 0) == (1, 7)
    assert held_limit(table, 1) == (2, 13)
    assert held_limit(table, 9) == (3, 18)
    assert held_limit(table.assign(bytes=pd.array([5, None, 6, 5], dtype="Int64")), 1) is None
    assert findings.held_limit(2, 6_320_000) == "prefetch 1 may hold 2 units: 6.3 MB"


def test_what_of_reduce_scatters_is_exposed() -> None:
    scatters = pd.DataFrame({"start_ns": [0, 5_000_000], "end_ns": [4_000_000, 11_000_000]})
    rows = [("reduce_scatter", "layers.1", 1_000_000), ("reduce_scatter", "layers.0", 4_000_000)]
    exposed = pd.DataFrame([*rows, ("all_gather", "head", 9)], columns=["kind", "what", "exposed_ns"])
    assert findings.scatters_exposed(scatters, exposed) == (
        "Of 10.0 ms of reduce-scatters 5.0 ms is exposed (50\u00a0% of their time), most of it of layers.0 (4.0 ms)."
    )
    assert findings.scatters_exposed(scatters, exposed.tail(1)) == "Of 10.0 ms of reduce-scatters nothing is exposed."
    assert findings.scatters_exposed(scatters.head(0), exposed) is None
