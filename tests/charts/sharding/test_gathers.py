"""The charts of ZeRO-3 and those beside theory, from tables written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import pytest
from made.traces import run_of
from made.zero3 import integers, made_step, scatters_table, schedule_table, zero3_events

import overlaplab
from overlaplab import charts, findings
from overlaplab.analyses import HeldLimit, scatters
from overlaplab.charts.theme import DARK, LIGHT
from overlaplab.selection import Selection
from overlaplab.words import size_exact

MS = 1_000_000


def spec(chart: alt.LayerChart) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(chart.to_dict(), allow_nan=False))
    return found


def rows(chart: alt.LayerChart, layer: int) -> list[dict[str, Any]]:
    found = spec(chart)
    return list(found["datasets"][found["layer"][layer]["data"]["name"]])


def gather(unit: str, layer: int | None, phase: str, at: float, **changes: Any) -> dict[str, Any]:
    """A gather launched at some ms: on the link from 1 to 3 ms later, of which 0.5 are waited for, used from 3 to 5."""
    times = {
        "gather_launch_ns": at,
        "gather_start_ns": at + 1,
        "gather_end_ns": at + 3,
        "first_use_ns": at + 3,
        "last_use_ns": at + 5,
        "backward_first_use_ns": None,
        "backward_last_use_ns": None,
        "free_ns": at + 6,
        "wait_ns": 0.5,
        "held_ns": at,
    }
    row = {name: None if time is None else int(time * MS) for name, time in times.items()}
    identity = {"rank": 0, "step": 4, "unit": unit, "layer": layer, "microbatch": 0, "phase": phase}
    resharded = {"resharded_bytes": 0, "resharded_until_ns": None}
    return identity | row | resharded | {"free_phase": phase, "bytes": 1_210_000, "source": "engine"} | changes


KEPT = {
    "free_ns": 20 * MS,
    "free_phase": "backward",
    "backward_first_use_ns": 16 * MS,
    "backward_last_use_ns": 19 * MS,
}


def table() -> pd.DataFrame:
    """An embedding, layers 0 and 1, of which the last is kept, then layer 0 once more."""
    return integers(
        pd.DataFrame(
            [
                gather("embedding", None, "forward", 0),
                gather("layers.0", 0, "forward", 4),
                gather("layers.1", 1, "forward", 9, **KEPT),
                gather("layers.0", 0, "backward", 18),
            ]
        )
    )


SCATTERS = pd.DataFrame(
    [{"rank": 0, "step": 4, "unit": "layers.1", "layer": 1, "microbatch": 0}] * 1,
).assign(launch_ns=20 * MS, start_ns=21 * MS, end_ns=23 * MS, bytes=4)


def bars(chart: alt.LayerChart) -> set[tuple[str, str, str, float, float]]:
    drawn = rows(chart, 0) + rows(chart, 1)
    return {(row["row"], row["part"], row["phase"], row["begin"], row["end"]) for row in drawn}


def test_schedule_draws_every_stage() -> None:
    chart = charts.schedule(table(), SCATTERS)
    assert bars(chart) == {
        ("embedding", "parameters live", "forward", 0.0, 6.0),
        ("embedding", "all-gather", "forward", 1.0, 3.0),
        ("embedding", "compute waits for gather", "forward", 2.5, 3.0),
        ("embedding", "forward compute", "forward", 3.0, 5.0),
        ("0", "parameters live", "forward", 4.0, 10.0),
        ("0", "all-gather", "forward", 5.0, 7.0),
        ("0", "compute waits for gather", "forward", 6.5, 7.0),
        ("0", "forward compute", "forward", 7.0, 9.0),
        ("1", "parameters live", "forward", 9.0, 20.0),
        ("1", "all-gather", "forward", 10.0, 12.0),
        ("1", "compute waits for gather", "forward", 11.5, 12.0),
        ("1", "forward compute", "forward", 12.0, 14.0),
        ("1", "backward compute", "backward", 16.0, 19.0),
        ("1", "reduce-scatter", "backward", 21.0, 23.0),
        ("0", "parameters live", "backward", 18.0, 24.0),
        ("0", "all-gather", "backward", 19.0, 21.0),
        ("0", "compute waits for gather", "backward", 20.5, 21.0),
        ("0", "backward compute", "backward", 21.0, 23.0),
    }
    assert [(row["row"], row["begin"], row["phase"]) for row in rows(chart, 2)] == [
        ("embedding", 6.0, "forward"),
        ("0", 10.0, "forward"),
        ("1", 20.0, "backward"),
        ("0", 24.0, "backward"),
    ]
    assert rows(chart, 3) == [{"begin": 14.0}]
    found = spec(chart)
    assert found["layer"][4]["encoding"]["text"] == {"value": "turn: layer 1 stays gathered"}
    assert found["layer"][0]["encoding"]["y"]["scale"]["domain"] == ["embedding", "0", "1"]
    assert [tip["field"] for tip in found["layer"][1]["encoding"]["tooltip"]] == [
        *("unit", "part", "phase", "microbatch", "ms", "begin", "end", "size")
    ]


def test_schedule_counts_what_was_seen() -> None:
    title = spec(charts.schedule(table(), SCATTERS, prefetch=1, note="emulated link"))["title"]
    assert title["text"] == "Gather and free schedule: 3 gathers for 2 layers (2 forward + 1 backward)"
    assert title["subtitle"] == [
        "Prefetch depth 1. Compute waited 2.0 ms for gathers. Tick: layer freed. With embedding: 4 gathers.",
        "emulated link",
    ]


def test_the_made_tables_are_what_analyses_find(tmp_path: Path) -> None:
    run = run_of(tmp_path, zero3_events(3, 1, microbatches=2))
    found = overlaplab.schedule(run, Selection(steps=[3]))
    expected = schedule_table(made_step(3, 1, 2))
    pd.testing.assert_frame_equal(found[list(expected)], expected, check_dtype=False)
    sent = scatters_table(made_step(3, 1, 2))
    pd.testing.assert_frame_equal(scatters(run, Selection(steps=[3]))[list(sent)], sent, check_dtype=False)


@pytest.mark.parametrize(
    ("layers", "microbatches", "said"),
    [
        (32, 1, "63 gathers for 32 layers (32 forward + 31 backward)"),
        (8, 2, "30 gathers for 8 layers in 2 microbatches (16 forward + 14 backward)"),
    ],
)
def test_schedule_of_a_whole_step(layers: int, microbatches: int, said: str) -> None:
    made = made_step(layers, 1, microbatches)
    chart = charts.schedule(schedule_table(made), scatters_table(made))
    assert spec(chart)["title"]["text"] == f"Gather and free schedule: {said}"
    assert len(rows(chart, 3)) == microbatches  # turns
    drawn = [row["part"] for row in rows(chart, 1)]
    assert drawn.count("all-gather") == len(made.gathers)
    assert drawn.count("backward compute") == microbatches * (layers + 1)
    assert drawn.count("reduce-scatter") == microbatches * (layers + 2)


def test_every_layer_has_a_row_and_some_have_a_label() -> None:
    for layers, labels in (
        (8, ["embedding", *(str(layer) for layer in range(8)), "head"]),
        (32, ["embedding", *(str(layer) for layer in range(32)), "head"]),
        (50, ["embedding", *(str(layer) for layer in range(2, 49, 2)), "head"]),
        (100, ["embedding", *(str(layer) for layer in range(2, 99, 2)), "head"]),
    ):
        y = spec(charts.schedule(schedule_table(made_step(layers, 1))))["layer"][0]["encoding"]["y"]
        assert y["scale"]["domain"] == ["embedding", *(str(layer) for layer in range(layers)), "head"]
        assert y["axis"]["values"] == labels


def test_what_is_unknown_is_not_drawn_and_the_subtitle_says_so() -> None:
    """Somebody else's FSDP2 trace: no waits, no bytes, and one free without an event."""
    nothing = {"wait_ns": None, "bytes": None, "first_use_ns": None, "last_use_ns": None, "source": "fsdp2"}
    found = [
        gather("", None, "forward", 0, **nothing | {"free_ns": None, "free_phase": None}),
        gather("blocks.0", 0, "forward", 4, **nothing),
        gather("blocks.0", 0, "backward", 9, **nothing),
    ]
    chart = charts.schedule(integers(pd.DataFrame(found)))
    assert {part for _, part, _, _, _ in bars(chart)} == {"parameters live", "all-gather"}
    assert {row for row, part, _, _, _ in bars(chart) if part == "parameters live"} == {"0"}
    assert len(spec(chart)["layer"]) == 3  # where forward ended is unknown
    assert spec(chart)["title"]["subtitle"] == [
        "Tick: layer freed. With (root): 3 gathers. Read from FSDP2's ranges: a unit that is gathered"
        " again was freed after its forward.",
        "Unknown from this trace: when units were used, how long compute waited, how large units are, when units were"
        " freed (1 of 3 gathers).",
    ]


def test_uses_around_the_layers_are_not_drawn() -> None:
    root = gather("", None, "forward", 0, first_use_ns=3 * MS, last_use_ns=12 * MS)
    chart = charts.schedule(integers(pd.DataFrame([root, gather("layers.0", 0, "forward", 4)])))
    assert {part for row, part, _, _, _ in bars(chart) if row == "(root)"} == {
        *("parameters live", "all-gather", "compute waits for gather")
    }
    assert ("0", "forward compute", "forward", 7.0, 9.0) in bars(chart)
    assert "Compute of (root) surrounds that of the layers and is not drawn." in " ".join(
        spec(chart)["title"]["subtitle"]
    )


def test_the_most_layers_and_the_most_bytes_may_be_at_different_moments() -> None:
    found = [
        gather("embedding", None, "forward", 0, bytes=472_000),
        gather("layers.0", 0, "forward", 8, bytes=100_000),
        gather("layers.1", 1, "forward", 9, bytes=100_000),
    ]
    assert "At most 472 kB held in full at a time, and at most 2 layers." in findings.gathers_lead(
        integers(pd.DataFrame(found)), ""
    )


def test_units_without_numbers_and_numbers_used_twice() -> None:
    found = [gather("a", None, "forward", 0), gather("b", None, "forward", 9)]
    chart = charts.schedule(integers(pd.DataFrame(found)))
    assert "2 gathers for 2 units (2 forward + 0 backward)" in spec(chart)["title"]["text"]
    found = [gather("encoder.0", 0, "forward", 0), gather("decoder.0", 0, "forward", 9)]
    chart = charts.schedule(integers(pd.DataFrame(found)))
    assert {row["row"] for row in rows(chart, 0)} == {"encoder.0", "decoder.0"}


def test_names_out_of_a_trace_are_cut_and_printable() -> None:
    unit = "x\x1b" * 5000
    drawn = rows(charts.schedule(integers(pd.DataFrame([gather(unit, None, "forward", 0)]))), 0)
    assert len(drawn[0]["unit"]) == 80
    assert drawn[0]["unit"].isprintable()


@pytest.mark.parametrize(("dark", "tones"), [(False, LIGHT), (True, DARK)])
def test_both_charts_have_the_palette_of_their_theme(dark: bool, tones: Any) -> None:
    found = spec(charts.schedule(table(), SCATTERS, dark=dark))
    colour = found["layer"][0]["encoding"]["color"]["scale"]
    said = dict(zip(colour["domain"], colour["range"], strict=True))
    assert said["compute waits for gather"] == tones.exposed
    assert said["reduce-scatter"] == tones.scatter
    assert found["layer"][2]["mark"]["color"] == tones.ink
    assert "Tick: layer freed." in found["title"]["subtitle"][0]
    curve = spec(charts.gathered(held([(0, 0, 0), (1, 5, 1)]), dark=dark))
    assert curve["layer"][1]["mark"]["color"] == tones.gather


def test_a_narrow_chart_wraps_its_words() -> None:
    wide, narrow = (spec(charts.schedule(table(), prefetch=1, line=line)) for line in (145, 60))
    assert isinstance(wide["title"]["text"], str)
    assert len(narrow["title"]["text"]) == 2
    assert max(map(len, narrow["title"]["subtitle"])) <= 60
    assert narrow["layer"][4]["encoding"]["text"] == {"value": "turn"}


def held(points: list[tuple[float, int | None, int]]) -> pd.DataFrame:
    found = [{"rank": 0, "step": 4, "time_ns": int(at * MS), "bytes": size, "layers": n} for at, size, n in points]
    return pd.DataFrame(found).astype("Int64").assign(resharded_bytes=pd.array([0] * len(found), dtype="Int64"))


CURVE = [(0, 0, 0), (1, 400_000, 1), (3, 1_210_000, 3), (4, 810_000, 2), (6, 1_210_000, 3), (9, 0, 0)]


def test_gathered_is_a_step_curve_with_its_first_peak_named() -> None:
    chart = charts.gathered(held(CURVE), window_ns=(0, 10 * MS), note="emulated link")
    assert [(row["begin"], row["held"]) for row in rows(chart, 0)] == [
        (0.0, 0.0),
        (1.0, 0.4),
        (3.0, 1.21),
        (4.0, 0.81),
        (6.0, 1.21),
        (9.0, 0.0),
        (10.0, 0.0),
    ]
    found = spec(chart)
    assert {found["layer"][layer]["mark"]["interpolate"] for layer in (0, 1)} == {"step-after"}
    assert rows(chart, 2) == [{"begin": 3.0, "held": 1.21, "word": "peak 1.21 MB (3 layers)"}]
    named = spec(chart)["layer"][-1]["encoding"]
    assert named["text"]["field"] == "word"
    assert named["y"] == {"value": 8}  # at the top, which the curve does not reach
    assert found["title"]["text"] == "At most 1.21 MB of parameters held in full"
    assert found["title"]["subtitle"][-1] == "emulated link"
    assert found["layer"][0]["encoding"]["y"]["title"] == "gathered (MB)"
    assert found["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0.0, 10.0]


def test_gathered_in_layers_where_bytes_are_unknown() -> None:
    chart = charts.gathered(held([(0, None, 0), (2, None, 2), (3, None, 1)]))
    assert spec(chart)["title"]["text"] == "At most 2 layers held in full"
    assert [row["held"] for row in rows(chart, 0)] == [0, 2, 1, 1]
    assert rows(chart, 2)[0]["word"] == "peak 2 layers"


def test_what_resharded_units_hold_is_named_in_the_curve() -> None:
    curve = held(CURVE)
    curve.loc[4, "resharded_bytes"] = 810_000
    found = spec(charts.gathered(curve))["title"]
    assert found["text"] == "At most 1.21 MB of parameters held, with the parts of resharded units"
    assert "stays held in part until it is gathered again" in " ".join(found["subtitle"])


def test_an_unknown_curve_is_flat_and_says_so() -> None:
    unknown = held(CURVE).assign(bytes=pd.NA, layers=pd.NA).astype("Int64")
    chart = charts.gathered(unknown)
    assert spec(chart)["title"]["text"] == "How much was held is unknown"
    assert len(spec(chart)["layer"]) == 2
    (drawn,) = spec(chart)["datasets"].values()
    assert {row["held"] for row in drawn} == {0}


def test_a_unit_resharded_to_fewer_ranks_has_a_thin_bar_until_it_is_gathered_again() -> None:
    part = {"resharded_bytes": 605_000, "resharded_until_ns": 18 * MS}
    chart = charts.schedule(
        integers(pd.DataFrame([gather("a.0", 0, "forward", 4, **part), gather("a.0", 0, "backward", 18)]))
    )
    found = spec(chart)
    assert found["layer"][1]["mark"]["height"] == {"band": 0.3}
    assert [(row["part"], row["begin"], row["end"], row["size"]) for row in rows(chart, 1)] == [
        ("part live", 10.0, 18.0, "605 kB")
    ]
    assert "Thin: a part stays held" in " ".join(found["title"]["subtitle"])


def test_curve_and_schedule_share_their_axes() -> None:
    """One above the other they share the time axis, side by side also the heights."""
    made = made_step(4, 1)
    found, sent = schedule_table(made), scatters_table(made)
    window = charts.schedule_window(found, sent)
    assert window[0] == 0
    assert window[1] >= max(sent["end_ns"].max(), found["free_ns"].max())
    limit = HeldLimit(prefetch=1, units=2, staying=0, bytes=1)
    above = spec(charts.gathered(held(CURVE), window_ns=window, limit=limit))["layer"][0]["encoding"]
    below = spec(charts.schedule(found, sent, window_ns=window))["layer"][0]["encoding"]
    assert above["x"]["scale"] == below["x"]["scale"]
    extent = ("minExtent", "maxExtent")
    assert [above["y"]["axis"][key] for key in extent] == [below["y"]["axis"][key] for key in extent]
    higher = spec(charts.gathered(held(CURVE), top_bytes=5_000_000))["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert higher[1] > 5


def test_what_a_gpu_gathers_before_its_first_computation_is_drawn_too() -> None:
    early = gather("embedding", None, "forward", -4, held_ns=-2 * MS)
    found = integers(pd.DataFrame([early, gather("layers.0", 0, "forward", 4)]))
    assert charts.schedule_window(found) == (-3 * MS, 10_100_000)
    assert charts.schedule_window(integers(pd.DataFrame([gather("a", None, "forward", 4, gather_end_ns=None)])))[0] == 0


def compared(path: str, sent: int | None, theory: int | None, **changes: Any) -> dict[str, Any]:
    costs = {"sent_bytes": sent, "theory_sent_bytes": theory, "memory_bytes": sent, "theory_memory_bytes": theory}
    return (
        {"path": path, "strategy": "zero3", "bucket_cap_mb": None, "ranks": 2, "emulated": True, "predicted": False}
        | costs
        | changes
    )


def costs(*found: dict[str, Any]) -> pd.DataFrame:
    names = ("sent_bytes", "theory_sent_bytes", "memory_bytes", "theory_memory_bytes")
    return pd.DataFrame(found).astype(dict.fromkeys(names, "Int64"))


@pytest.mark.parametrize("draw", [charts.sent_compared, charts.memory_compared])
def test_costs_stand_beside_theory(draw: Any) -> None:
    chart = draw(
        costs(
            compared("runs/zero3", 12_600_000, 12_000_000),
            compared("runs/foreign", 5_000_000, None),
            compared("runs/old", None, None),
        )
    )
    assert [(row["run"], row["measured"], row["word"]) for row in rows(chart, 0)] == [
        ("zero3", 12.6, "12.6 MB, theory 12.0 MB"),
        ("foreign", 5.0, "5.00 MB, theory unknown"),
    ]
    assert [(row["run"], row["theory"]) for row in rows(chart, 1)] == [("zero3", 12.0)]
    assert "zero3 is furthest from theory, 5 % more" in spec(chart)["title"]["text"]


def test_costs_as_theory_says() -> None:
    chart = charts.sent_compared(costs(compared("a", 101, 100), compared("b", 99, 100)))
    assert spec(chart)["title"]["text"] == "Sent per rank: what theory says, within 2 %"
    chart = charts.memory_compared(costs(compared("a", 101, None)))
    assert spec(chart)["title"]["text"] == "Held per rank: there is no theory for these runs"


def test_one_rank_sends_nothing_as_theory_says() -> None:
    found = spec(charts.sent_compared(costs(compared("a", 0, 0))))
    assert found["title"]["text"] == "Sent per rank: what theory says, within 2 %"
    assert found["layer"][0]["encoding"]["x"]["scale"]["domainMax"]["expr"].startswith("7.0 * ")
    found = spec(charts.sent_compared(costs(compared("a", 0, 0), compared("b", 12, 0))))
    assert found["title"]["text"] == "Sent per rank: b is furthest from theory, 12 B where theory says 0 B"


def test_three_figures() -> None:
    assert [size_exact(count) for count in (0, 12, 1_999, 12_340, 123_400, 1_210_000, 3_000_000_000)] == [
        *("0 B", "12 B", "2.00 kB", "12.3 kB", "123 kB", "1.21 MB", "3.00 GB")
    ]
