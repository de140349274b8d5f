"""The strip of waits, the limit of what a prefetch holds, and what of reduce-scatters is exposed."""

from __future__ import annotations

import pandas as pd
import pytest
from samples import sample_run

from overlaplab import charts
from overlaplab.analyses import HeldLimit, held_limit, scatter_steps, schedule, schedule_steps
from overlaplab.findings import sharding


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
    assert sharding.scatters_exposed_title(steps.tail(2)) == "No reduce-scatter is exposed"


def gathers(*rows: tuple[str, int | None, str, str, int, int]) -> pd.DataFrame:
    """Unit, bytes, the phase gathered for and freed in, held from and until."""
    table = pd.DataFrame(rows, columns=["unit", "bytes", "phase", "free_phase", "held_ns", "free_ns"])
    table = table.astype(dict.fromkeys(("bytes", "held_ns", "free_ns"), "Int64"))
    nothing = pd.array([0] * len(table), dtype="Int64")
    return table.assign(backward_first_use_ns=pd.array([None] * len(table), dtype="Int64"), resharded_bytes=nothing)


def test_a_prefetch_holds_one_unit_more() -> None:
    rows = [(name, size, "forward", "forward", 0, 1) for name, size in (("a", 5), ("b", 7), ("c", 6), ("a", 5))]
    table = gathers(*rows)
    found = [held_limit(table, prefetch) for prefetch in (0, 1, 9)]
    assert [(one.units, one.staying, one.bytes) for one in found if one] == [(1, 0, 7), (2, 0, 13), (3, 0, 18)]
    assert held_limit(table.assign(bytes=pd.array([5, 7, None, 5], dtype="Int64")).head(3), 1) is None
    limit = HeldLimit(prefetch=1, units=2, staying=0, bytes=6_320_000)
    assert sharding.held_limit(limit, limit.bytes) == "Dashed: prefetch 1 may hold 2 units."
    assert sharding.held_limit(limit, limit.bytes + 1).endswith(" More was held: gathers began further ahead.")


def test_what_is_kept_is_held_beside_what_is_gathered_ahead() -> None:
    """Layers 0 and 1 are gathered twice; layer 2 and the head are kept at the turn, a root throughout."""
    passing = [("0", 5, "forward", "forward", 1, 3), ("1", 6, "forward", "forward", 2, 4)]
    again = [("1", 6, "backward", "backward", 8, 11), ("0", 5, "backward", "backward", 10, 13)]
    turn = [("2", 7, "forward", "backward", 3, 10), ("head", 3, "forward", "backward", 4, 8)]
    table = gathers(*passing, *turn, *again)
    found = [held_limit(table, prefetch) for prefetch in (0, 1, 2)]
    assert [(one.units, one.staying, one.bytes) for one in found if one] == [(2, 2, 10), (3, 2, 16), (4, 2, 21)]
    with_root = held_limit(gathers(("root", 4, "forward", "backward", 0, 14), *passing, *again), 0)
    assert with_root == HeldLimit(prefetch=0, units=2, staying=1, bytes=10)
    assert (
        sharding.held_limit(with_root, 0)
        == "Dashed: prefetch 0 may hold 2 units, 1 of them kept from the forward pass."
    )
    everything = [(name, 5, "forward", "backward", 0, 9) for name in "abc"]
    assert held_limit(gathers(*everything), 1) == HeldLimit(prefetch=1, units=3, staying=3, bytes=15)


@pytest.mark.parametrize("name", ["zero3", "zero3-serial", "torch-fsdp2", "course/hsdp", "course/shard-grad-op"])
def test_no_recorded_peak_exceeds_the_limit(name: str) -> None:
    run = sample_run(name)
    assert run.manifest is not None
    assert run.manifest.prefetch is not None
    for _, rows in schedule(run).groupby(["rank", "step"]):
        limit = held_limit(rows, run.manifest.prefetch)
        assert limit is not None
        assert int(schedule_steps(rows)["peak_gathered_bytes"].iloc[0]) <= limit.bytes


def test_what_of_reduce_scatters_is_exposed() -> None:
    scatters = pd.DataFrame({"start_ns": [0, 5_000_000], "end_ns": [4_000_000, 11_000_000]})
    rows = [("reduce_scatter", "layers.1", 1_000_000), ("reduce_scatter", "layers.0", 4_000_000)]
    exposed = pd.DataFrame([*rows, ("all_gather", "head", 9)], columns=["kind", "what", "exposed_ns"])
    assert sharding.scatters_exposed(scatters, exposed) == (
        "Of 10.0 ms of reduce-scatters 5.0 ms is exposed (50\u00a0% of their time), the largest part of layers.0"
        " (4.0 ms)."
    )
    assert sharding.scatters_exposed(scatters, exposed.tail(1)) == "Of 10.0 ms of reduce-scatters nothing is exposed."
    assert sharding.scatters_exposed(scatters.head(0), exposed) is None


def test_what_of_gathers_is_exposed_beyond_waits_for_them() -> None:
    rows = [("all_gather", "head", 3_000_000), ("reduce_scatter", "head", 9), ("all_gather", "activations", 9)]
    exposed = pd.DataFrame(rows, columns=["kind", "what", "exposed_ns"])
    waits = pd.DataFrame({"unit": ["head", "head"], "wait_ns": pd.array([2_000_000, 0], dtype="Int64")})
    assert sharding.gathers_exposed(waits, exposed) == (
        "Gathers are exposed for 3.0 ms: also while compute paused for another reason."
    )
    assert sharding.gathers_exposed(waits.assign(wait_ns=[3_000_000, 0]), exposed) is None
    assert sharding.gathers_exposed(waits.assign(wait_ns=pd.array([2_000_000, None], dtype="Int64")), exposed) is None
