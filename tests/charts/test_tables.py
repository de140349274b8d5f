"""Charts of tables written by hand: their marks and their texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import pytest
from made.traces import launched, run_of, step

from overlaplab import charts, compare
from overlaplab.causes import Cause
from overlaplab.charts.theme import DARK, LIGHT
from overlaplab.findings import bucket_notes, compare_advice
from overlaplab.timeline.timeline import View
from overlaplab.words import ms, percent, shorten, size_exact

MS = 1_000_000


def spec(chart: alt.LayerChart) -> dict[str, Any]:
    """The chart as Vega-Lite, checked against its schema, and fit to be sent as JSON."""
    found: dict[str, Any] = json.loads(json.dumps(chart.to_dict(), allow_nan=False))
    return found


def rows(chart: alt.LayerChart, layer: int) -> list[dict[str, Any]]:
    """The data of one layer."""
    found = spec(chart)
    name = found["layer"][layer].get("data", found.get("data"))["name"]
    return list(found["datasets"][name])


def summary_table(**changes: Any) -> pd.DataFrame:
    row = {
        "rank": 0,
        "step": 1,
        "start_ns": 0,
        "span_ns": 100 * MS,
        "compute_ns": 60 * MS,
        "comm_ns": 30 * MS,
        "overlapped_ns": 20 * MS,
        "compute_only_ns": 40 * MS,
        "exposed_comm_ns": 10 * MS,
        "exposed_wait_ns": 4 * MS,
        "exposed_transfer_ns": 6 * MS,
        "memory_only_ns": 5 * MS,
        "idle_ns": 25 * MS,
        "overlap_ratio": 2 / 3,
    }
    second = row | {"rank": 1, "exposed_comm_ns": 20 * MS, "comm_ns": 40 * MS, "idle_ns": 15 * MS}
    second |= {"exposed_wait_ns": None, "exposed_transfer_ns": None} | changes
    return pd.DataFrame([row, second]).astype(
        dict.fromkeys(("rank", "step", "exposed_wait_ns", "exposed_transfer_ns"), "Int64")
    )


def test_summary_parts_add_up_to_the_step() -> None:
    drawn = pd.DataFrame(rows(charts.summary(summary_table()), 0))
    assert drawn["part"].unique().tolist() == [
        "compute only",
        "compute and communication together",
        "exposed, until the last rank came",
        "exposed, transfer",
        "memory only",
        "idle",
        "communication exposed",  # of rank 1, whose wait is unknown
    ]
    assert drawn[drawn["rank"] == "0"]["share"].tolist() == [40.0, 20.0, 4.0, 6.0, 5.0, 25.0]
    assert drawn.groupby("rank")["share"].sum().tolist() == [100.0, 100.0]
    assert drawn[drawn["rank"] == "0"]["begin"].tolist() == [0.0, 40.0, 60.0, 64.0, 70.0, 75.0]
    assert drawn[drawn["rank"] == "1"]["end"].tolist() == [40.0, 60.0, 80.0, 85.0, 100.0]


def test_summary_says_what_it_found_and_of_what() -> None:
    chart = charts.summary(summary_table(), note="emulated link 1Gbps,200us")
    title = spec(chart)["title"]
    assert title["text"] == "Exposed 30.0 ms of communication: 15\u00a0% of the step time"
    known = summary_table(exposed_wait_ns=5 * MS, exposed_transfer_ns=15 * MS)
    assert str(spec(charts.summary(known))["title"]["text"]).endswith(", 9.0 ms of it until the last rank came")
    assert title["subtitle"] == [
        "Summed over all 2 ranks. Each bar is 100 % of its rank's step time; numbers are percent of it. emulated link"
        " 1Gbps,200us"
    ]
    assert spec(chart)["description"] == (
        "Bars of 2 ranks, each split into compute only, compute and communication together, exposed, until the"
        " last rank came, exposed, transfer, communication exposed, memory only, idle."
        " Exposed 30.0 ms of communication: 15\u00a0% of the step time."
    )
    axis = spec(chart)["layer"][0]["encoding"]["x"]
    assert axis["axis"]["title"] == "% of the step time"
    assert axis["scale"]["domain"] == [0, 100]


def test_of_many_ranks_the_most_exposed_are_drawn() -> None:
    one = summary_table().iloc[[0]]
    table = pd.concat(
        [one.assign(rank=rank, exposed_comm_ns=exposed * MS) for rank, exposed in enumerate((3, 1, 5, 2))]
    )
    chart = charts.summary(table.astype({"rank": "Int64"}), most=2)
    assert {row["rank"] for row in rows(chart, 0)} == {"0", "2"}
    assert "Shown: the 2 of 4 ranks with most exposed time." in " ".join(spec(chart)["title"]["subtitle"])
    assert spec(chart)["title"]["text"].startswith("Exposed 11.0 ms")
    whole = charts.summary(table.astype({"rank": "Int64"}), most=4)
    assert "Shown" not in " ".join(spec(whole)["title"]["subtitle"])


def test_summary_without_communication_or_rank() -> None:
    table = summary_table(comm_ns=0, exposed_comm_ns=0, overlapped_ns=0).iloc[[1]]
    table = table.assign(rank=pd.array([None], dtype="Int64"))
    chart = charts.summary(table)
    assert spec(chart)["title"]["text"] == "No communication in these steps"
    assert {row["rank"] for row in rows(chart, 0)} == {"unknown"}


@pytest.mark.parametrize(("dark", "tones"), [(False, LIGHT), (True, DARK)])
def test_each_theme_has_its_palette(dark: bool, tones: Any) -> None:
    found = spec(charts.summary(summary_table(), dark=dark))
    colour = found["layer"][0]["encoding"]["color"]["scale"]
    assert dict(zip(colour["domain"], colour["range"], strict=True))["exposed, transfer"] == tones.exposed
    assert found["config"]["title"]["subtitleColor"] == tones.soft
    assert found["background"] == "transparent"


def bucket(index: int, **changes: Any) -> dict[str, Any]:
    """A bucket of two gradients: ready at 12 ms, launched, on the link from 13 to 17 ms."""
    return {
        "rank": 0,
        "step": 3,
        "backward_start_ns": 5 * MS,
        "backward_end_ns": 20 * MS,
        "index": index,
        "bytes": 8_400_000,
        "parameters": ("a", "b"),
        "gradient_ready_ns": (10 * MS, 12 * MS),
        "last_parameter": "b",
        "arrivals": (1, 2),
        "shapes": (None, None),
        "ready_ns": 12 * MS,
        "launch_ns": 12 * MS,
        "start_ns": 13 * MS,
        "end_ns": 17 * MS,
        "exposed_ns": 0,
    } | changes


LATE = bucket(
    1,
    parameters=("c", "d", "unused"),
    gradient_ready_ns=(11 * MS, 11 * MS + 500_000, None),
    last_parameter="d",
    arrivals=(3, 4, None),
    shapes=(None, None, None),
    ready_ns=11 * MS + 500_000,
    launch_ns=12 * MS + 100_000,
    start_ns=17 * MS,
    end_ns=23 * MS,
    exposed_ns=3 * MS,
)


def bands(chart: alt.LayerChart) -> list[tuple[str, str, float, float]]:
    """By bucket, as they follow each other; those of one height are a layer."""
    bars = [layer for layer, drawn in enumerate(spec(chart)["layer"]) if drawn["mark"]["type"] == "bar"]
    sent = [row for layer in bars[1:] for row in rows(chart, layer)]
    drawn = rows(chart, 0) + sorted(sent, key=lambda row: (row["bucket"], row["begin"]))
    return [(row["bucket"], row["what"], row["begin"], row["end"]) for row in drawn]


def test_buckets_draw_each_stage() -> None:
    chart = charts.buckets(pd.DataFrame([LATE, bucket(0)]))
    first, second = "0: 8.40 MB, 2 gradients", "1: 8.40 MB, 3 gradients"
    assert bands(chart) == [
        (first, "gradients arriving", 10.0, 12.0),
        (second, "gradients arriving", 11.0, 11.5),
        (first, "launched, not started", 12.0, 13.0),
        (first, "communication hidden by compute", 13.0, 17.0),
        (second, "ready, waits for its launch", 11.5, 12.1),
        (second, "launched, link busy", 12.1, 17.0),
        (second, "communication hidden by compute", 17.0, 20.0),
        (second, "communication exposed", 20.0, 23.0),
    ]
    assert [(row["bucket"], row["begin"]) for row in rows(chart, 3)] == [
        (first, 10.0),
        (first, 12.0),
        (second, 11.0),
        (second, 11.5),
    ]
    assert [(row["begin"], row["parameter"]) for row in rows(chart, 4)] == [(12.0, "b"), (11.5, "d")]
    assert rows(chart, 5) == [{"begin": 20.0}]
    assert spec(chart)["layer"][6]["encoding"]["text"] == {"value": "backward ends"}
    order = spec(chart)["layer"][0]["encoding"]["y"]
    assert order["sort"] == [first, second]


def test_a_bucket_waits_for_the_link_only_until_the_one_before_has_ended() -> None:
    """The remaining delay is the link's thread waking up. A bucket whose end is unknown holds up no other."""
    woken = LATE | {"start_ns": 17 * MS + 400_000}
    drawn = [band for band in bands(charts.buckets(pd.DataFrame([bucket(0), woken]))) if "launched" in band[1]]
    second = "1: 8.40 MB, 3 gradients"
    assert [band[1:] for band in drawn if band[0] == second] == [
        ("launched, link busy", 12.1, 17.0),
        ("launched, not started", 17.0, 17.4),
    ]
    unknown = bucket(0, start_ns=None, end_ns=None, exposed_ns=None)
    drawn = bands(charts.buckets(pd.DataFrame([unknown, LATE])))
    assert (second, "launched, not started", 12.1, 17.0) in drawn


def test_buckets_say_what_they_found() -> None:
    title = spec(charts.buckets(pd.DataFrame([bucket(0), LATE])))["title"]
    assert title["text"] == "3.0 ms of the buckets' 10.0 ms of communication are exposed"
    assert title["subtitle"][1].startswith("1 bucket waited more than 0.05 ms for launch, although ready")


def exposed_moments(*rows: tuple[int | None, Cause, str, float, float]) -> pd.DataFrame:
    """As from `findings.bucket_causes`, of times in ms."""
    table = pd.DataFrame(rows, columns=["row", "cause", "label", "start_ns", "end_ns"]).astype({"row": "Int64"})
    times = {name: (table[name] * MS).astype("int64") for name in ("start_ns", "end_ns")}
    return table.assign(**times)


def test_causes_are_drawn_when_they_were() -> None:
    """A late launch between two hidden stretches; at the end a wait for a rank of which the number has room."""
    causes = exposed_moments(
        (1, Cause.LATE, "launched late (late launch)", 18, 19), (1, Cause.STRAGGLER, "waited for rank 7", 21, 23)
    )
    chart = charts.buckets(pd.DataFrame([bucket(0), LATE]), causes=causes)
    assert [band[1:] for band in bands(chart) if band[2] >= 17] == [
        ("communication hidden by compute", 17.0, 18.0),
        ("launched late (late launch)", 18.0, 19.0),
        ("communication hidden by compute", 19.0, 21.0),
        ("waited for rank 7", 21.0, 23.0),
    ]
    texts = [layer for layer, drawn in enumerate(spec(chart)["layer"]) if drawn["mark"]["type"] == "text"]
    assert [row["word"] for row in rows(chart, texts[0])] == ["7"]
    assert "Exposed time has the colour of its cause." in spec(chart)["title"]["subtitle"][0]


def test_a_moment_that_another_collective_counts_is_thin() -> None:
    """Of 3 ms exposed one is another bucket's, one of no bucket, and one is unknown: that is at the end."""
    causes = exposed_moments(
        (0, Cause.TAIL, "nothing left to overlap (tail)", 18, 19), (None, Cause.QUEUED, "link busy (queued)", 20, 21)
    )
    chart = charts.buckets(pd.DataFrame([bucket(0), LATE]), causes=causes)
    late = [band[1:] for band in bands(chart) if band[0].startswith("1:") and band[2] >= 17]
    assert late == [
        ("communication hidden by compute", 17.0, 18.0),
        ("nothing left to overlap (tail)", 18.0, 19.0),
        ("communication hidden by compute", 19.0, 20.0),
        ("link busy (queued)", 20.0, 21.0),
        ("communication hidden by compute", 21.0, 22.0),
        ("communication exposed", 22.0, 23.0),
    ]
    heights = {
        row["what"]: drawn["mark"]["height"]["band"]
        for layer, drawn in enumerate(spec(chart)["layer"])
        if drawn["mark"]["type"] == "bar"
        for row in rows(chart, layer)
    }
    assert heights["link busy (queued)"] < heights["communication hidden by compute"]
    assert "Thin: counted in another collective" in " ".join(spec(chart)["title"]["subtitle"])


def test_no_two_entries_of_the_legend_have_one_colour() -> None:
    causes = exposed_moments(
        *((1, Cause.STRAGGLER, f"waited for rank {rank}", 17 + rank * 0.5, 17.5 + rank * 0.5) for rank in range(4)),
        (1, Cause.QUEUED, "link busy (queued)", 20, 21),
        (1, Cause.LATE, "launched late (late launch)", 21, 22),
    )
    chart = spec(charts.buckets(pd.DataFrame([bucket(0), LATE]), causes=causes))
    scale = chart["layer"][0]["encoding"]["color"]["scale"]
    assert len(set(scale["range"])) == len(scale["range"])
    busy = "launched, link busy: before it starts, or exposed"
    assert {"waited for other ranks", busy, "ready, not launched yet"} <= set(scale["domain"])


def test_buckets_that_are_sent_at_once_are_said_to_count_twice() -> None:
    """From 13 to 17 and from 14 to 23 ms."""
    spans = {"start_ns": [13 * MS, 14 * MS], "end_ns": [17 * MS, 23 * MS]}
    at_once = pd.DataFrame([bucket(0), LATE]).assign(**spans)
    title = spec(charts.buckets(at_once))["title"]
    assert title["text"].endswith(" 13.0 ms of communication are exposed, added up: some are sent at once")
    (note,) = bucket_notes(at_once.assign(source="engine", told_by="engine", passes=1))
    assert "13.0 ms added up, and 10.0 ms together" in note


def test_a_launch_before_device_readiness_is_no_negative_wait() -> None:
    """On a GPU the launch is host time and comes before the device has the gradients."""
    drawn = bands(charts.buckets(pd.DataFrame([bucket(0, launch_ns=2 * MS)])))
    assert all(end > begin for _, _, begin, end in drawn)
    assert "ready, waits for its launch" not in {part for _, part, _, _ in drawn}


def test_a_bucket_without_any_gradient_is_drawn_too() -> None:
    nothing = {"gradient_ready_ns": (None, None), "arrivals": (None, None), "ready_ns": None, "last_parameter": None}
    chart = charts.buckets(pd.DataFrame([bucket(0), bucket(1, **nothing)]))
    assert ("1: 8.40 MB, 2 gradients", "communication hidden by compute", 13.0, 17.0) in bands(chart)


def test_buckets_of_unnamed_gradients_are_drawn() -> None:
    unnamed = {"parameters": (None, None), "last_parameter": None, "arrivals": (1, 17)}
    known = bucket(0, **unnamed, shapes=((8,), (1024, 4096)))
    unknown = {"parameters": (), "arrivals": (), "shapes": (), "gradient_ready_ns": (), "last_parameter": None}
    chart = charts.buckets(pd.DataFrame([known, bucket(1, **unknown, bytes=None, ready_ns=None)]))
    drawn = json.dumps(spec(chart), ensure_ascii=False)
    assert "gradient 17 (1024×4096)" in drawn
    assert {label for label, *_ in bands(chart)} == {"0: 8.40 MB, 2 gradients", "1: unknown gradients"}


def test_a_bucket_told_by_its_launch_waits_for_no_other() -> None:
    """The device may have finished all work launched so far: then the bucket is ready before its launch."""
    late = {"launch_ns": 12 * MS + 500_000, "start_ns": 13 * MS}
    for source, waits in (("ddp", False), ("engine", True)):
        chart = charts.buckets(pd.DataFrame([bucket(0, **late, source=source)]))
        assert ("ready, waits for its launch" in {part for _, part, _, _ in bands(chart)}) is waits
        assert ("waited more than" in json.dumps(spec(chart)["title"])) is waits


def test_a_wait_too_short_to_be_seen_is_not_in_the_legend() -> None:
    legend = []
    for late_ns in (1_000, 1_000_000):
        chart = charts.buckets(pd.DataFrame([bucket(0, launch_ns=12 * MS, start_ns=12 * MS + late_ns)]))
        legend.append(spec(chart)["layer"][0]["encoding"]["color"]["legend"]["values"])
    assert [charts.readiness.STARTING in words for words in legend] == [False, True]


def test_buckets_without_their_communication_claim_nothing_about_it() -> None:
    unknown = {"start_ns": None, "end_ns": None, "exposed_ns": None}
    title = spec(charts.buckets(pd.DataFrame([bucket(0, **unknown), bucket(1, **unknown)])))["title"]
    assert title["text"] == "The buckets' communication was not found in the trace"
    assert title["subtitle"][1] == "The communication of 2 buckets was not found in the trace."


def compared(**changes: Any) -> dict[str, Any]:
    return {
        "path": "runs/cap-25",
        "strategy": "bucketed",
        "bucket_cap_mb": 25.0,
        "ranks": 2,
        "steps": 5,
        "step_ms_median": 100.0,
        "step_ms_iqr": 1.5,
        "exposed_ms_median": 10.0,
        "exposed_ms_iqr": 1.0,
        "comm_ms_median": 40.0,
        "comm_ms_iqr": 1.0,
        "compute_ms_median": 80.0,
        "compute_ms_iqr": 1.0,
        "overlap_ratio": 0.75,
        "fastest": True,
        "emulated": True,
        "predicted": False,
        "spread_ms": 1.5,
        "model": None,
        "recording_of": 0,
        "tier": 1,
    } | changes


SLOWER = {
    "path": "runs/cap-1",
    "bucket_cap_mb": 1.0,
    "step_ms_median": 110.0,
    "fastest": False,
    "recording_of": 1,
    "tier": 2,
}
TIED = SLOWER | {"tier": 1}


def test_compare_draws_the_parts_of_the_median_step() -> None:
    chart = charts.compare(pd.DataFrame([compared(), compared(**SLOWER)]))
    drawn = [(row["run"], row["part"], row["begin"], row["end"]) for row in rows(chart, 0)]
    assert drawn[:4] == [
        ("25", "compute only", 0.0, 50.0),
        ("25", "communication hidden by compute", 50.0, 80.0),
        ("25", "communication exposed", 80.0, 90.0),
        ("25", "neither (idle, memory)", 90.0, 100.0),
    ]
    assert [row["word"] for row in rows(chart, 1)] == ["110.0 ms, IQR 1.5 ms"]
    assert [row["word"] for row in rows(chart, 2)] == ["100.0 ms, IQR 1.5 ms, fastest"]
    assert spec(chart)["title"]["text"] == "Fastest: bucket_cap_mb 25, 100.0 ms per step"
    assert spec(chart)["title"]["subtitle"][-1] == "emulated link"


def test_compare_draws_parts_that_add_up_to_the_bar() -> None:
    """Medians of the parts may be of different steps, and add up to more than the median step."""
    table = pd.DataFrame([compared(exposed_ms_median=50.0, comm_ms_median=80.0)])
    drawn = rows(charts.compare(table), 0)
    assert [row["ms"] for row in drawn] == pytest.approx([50 / 1.3, 30 / 1.3, 50 / 1.3])
    assert drawn[-1]["end"] == pytest.approx(100.0)


def test_compare_draws_idle_time_by_its_share(tmp_path: Path) -> None:
    """Steps of 100, 100 and 400 µs: compute and communication are 60 and 40, 40 and 60, and 40 and 0."""
    events = [step(0, 0, 100), step(1, 100, 200), step(2, 200, 600)]
    for number, (begin, computes, sends) in enumerate([(0, 60, 40), (100, 40, 60), (560, 40, 0)]):
        events += launched("gemm", min(begin, 200), begin, begin + computes, correlation=2 * number + 1)
        if sends:
            start = begin + computes
            events += launched(
                "ncclDevKernel_AllReduce", begin + 1, start, start + sends, stream=9, correlation=2 * number + 2
            )
    run = run_of(tmp_path / "run", events, backend="nccl")
    table = compare([run])
    drawn = {row["part"]: row["ms"] for row in rows(charts.compare(table), 0)}
    assert drawn == pytest.approx(
        {
            "compute only": 0.1 * 140 / 600,
            "communication exposed": 0.1 * 100 / 600,
            "neither (idle, memory)": 0.1 * 360 / 600,
        }
    )


def test_compare_names_runs_by_folder_where_more_than_the_cap_differs() -> None:
    table = pd.DataFrame([compared(), compared(path="b/cap-25", strategy="naive", bucket_cap_mb=None, fastest=False)])
    chart = charts.compare(table)
    assert [row["run"] for row in rows(chart, 2)] == ["runs/cap-25"]
    assert spec(chart)["layer"][0]["encoding"]["y"]["title"] == "run"


def test_compare_marks_emulated_runs_among_real_ones() -> None:
    table = pd.DataFrame([compared(), compared(path="runs/real", emulated=False, fastest=False)])
    assert {row["run"] for row in rows(charts.compare(table), 0)} == {"cap-25 (emulated link)", "real"}


def test_compare_without_a_winner_says_so() -> None:
    table = pd.DataFrame([compared(fastest=False), compared(**TIED)])
    assert spec(charts.compare(table))["title"]["text"] == "Step time: no clear difference"
    assert "the difference is within the spread" in compare_advice(table)


def test_compare_counts_the_fastest_that_tie() -> None:
    tied = [compared(path=f"runs/{place}", fastest=False, recording_of=place) for place in range(3)]
    chart = charts.compare(pd.DataFrame([*tied, compared(**SLOWER | {"recording_of": 3})]))
    assert spec(chart)["title"]["text"] == "Step time: the fastest ties with 2 others"


def test_compare_says_why_nothing_can_win() -> None:
    few = pd.DataFrame([compared(fastest=False), compared(**TIED, spread_ms=None)])
    assert "too few steps to show" in spec(charts.compare(few))["title"]["text"]
    assert compare_advice(few).startswith("Record at least 3 steps of each run")
    other = pd.DataFrame([compared(fastest=False, model="{}"), compared(**SLOWER, model='{"layers": 2}')])
    assert "different models" in spec(charts.compare(other))["title"]["text"]
    assert "one model" in compare_advice(other)


def test_compare_names_all_recordings_of_the_fastest_setting() -> None:
    table = pd.DataFrame([compared(path="a"), compared(path="b"), compared(**SLOWER)])
    assert spec(charts.compare(table))["title"]["text"] == "Fastest: a, b, recordings of one setting"


def view(name: str) -> View:
    marks = pd.DataFrame(
        {
            "lane": [0, 1, 2],
            "part": ["step", "compute", "tail"],
            "start_ns": [0, 0, 60 * MS],
            "end_ns": [100 * MS, 60 * MS, 90 * MS],
            "events": [1, 7, 1],
            "busy_ns": [100 * MS, 50 * MS, 30 * MS],
            "name": ["step 4", name, "communication"],
            "label": ["rank 0 steps", "rank 0 thread 1", "rank 0 exposed"],
            "rank": [0, 0, 0],
        }
    )
    totals = pd.DataFrame(
        {
            "rank": [0],
            "span_ns": [100 * MS],
            "compute_ns": [60 * MS],
            "comm_ns": [40 * MS],
            "overlapped_ns": [10 * MS],
            "exposed_comm_ns": [30 * MS],
        }
    )
    return View(start_ns=0, end_ns=100 * MS, marks=marks, lanes=marks[["lane", "label", "rank"]], totals=totals)


def test_timeline_draws_one_table_over_its_window() -> None:
    chart = charts.timeline(view("aten::mm"), note="emulated link 1Gbps,200us")
    found = spec(chart)
    assert [(row["lane"], row["begin"], row["end"], row["events"]) for row in rows(chart, 0)] == [
        ("rank 0 steps", 0.0, 100.0, 1),
        ("rank 0 thread 1", 0.0, 60.0, 7),
        ("rank 0 exposed", 60.0, 90.0, 1),
    ]
    assert found["data"]["name"] in found["datasets"]
    assert not any("data" in layer for layer in found["layer"])
    assert found["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0.0, 100.0]
    assert found["layer"][0]["encoding"]["y"]["scale"]["domain"] == [
        "rank 0 steps",
        "rank 0 thread 1",
        "rank 0 exposed",
    ]
    assert {param["name"]: param.get("bind") for param in found["params"]} == {"window": "scales", "pointed": None}
    assert found["title"]["text"] == (
        "Exposed communication 30.0 ms of 40.0 ms, 30\u00a0% of this window, from 0 ms to 100.0 ms"
    )
    assert found["title"]["subtitle"] == ["emulated link 1Gbps,200us"]


def test_long_names_are_cut_and_control_characters_gone() -> None:
    chart = charts.timeline(view("x" * 10_000 + "\x1b[31m\u202e"))
    what = rows(chart, 0)[1]["what"]
    assert len(what) == 90
    assert what.isprintable()


def test_small_words() -> None:
    assert [size_exact(count) for count in (12, 65_536, 8_400_000, 3_200_000_000)] == [
        "12 B",
        "65.5 kB",
        "8.40 MB",
        "3.20 GB",
    ]
    assert [ms(ns) for ns in (0, 4_000, 350_000, 57_640_000)] == ["0 ms", "0.004 ms", "0.35 ms", "57.6 ms"]
    assert [percent(part, 1000) for part in (0, 1, 500, 999, 1000)] == [
        "0\u00a0%",
        "<1\u00a0%",
        "50\u00a0%",
        ">99\u00a0%",
        "100\u00a0%",
    ]
    assert percent(1, 0) == "-"
    assert shorten("abcdefghij", 5) == "ab…ij"


def of_two_ranks() -> View:
    """Two ranks, a step each that begins in the window, a bucket on both and many events on one's stream."""
    told = [
        (0, "rank 0 steps", 0, "steps", "step", -1, 10, 100, 1, "step 4"),
        (1, "rank 0 buckets", 0, "labels", "all-reduce", 7, 20, 60, 1, "bucket 3, last: head.weight"),
        (2, "rank 1 steps", 1, "steps", "step", -1, 0, 90, 1, "step 4"),
        (3, "rank 1 buckets", 1, "labels", "all-reduce", 7, 30, 30, 1, "bucket 3, last: head.weight"),
        (4, "rank 1 stream 7", 1, "stream", "compute", -1, 0, 90, 12, "sgemm"),
    ]
    names = ["lane", "label", "rank", "kind", "part", "collective", "start_ns", "end_ns", "events", "name"]
    marks = pd.DataFrame(told, columns=names).assign(busy_ns=MS)
    marks[["start_ns", "end_ns"]] *= MS
    zeros = {name: [0, 0] for name in ("span_ns", "compute_ns", "comm_ns", "overlapped_ns", "exposed_comm_ns")}
    steps = pd.DataFrame({"rank": [0, 1], "step": [4, 4], "start_ns": [10 * MS, -MS], "end_ns": [100 * MS, 90 * MS]})
    return View(
        start_ns=0,
        end_ns=100 * MS,
        marks=marks,
        lanes=marks[["lane", "label", "rank", "kind"]],
        totals=pd.DataFrame({"rank": [0, 1]} | zeros),
        steps=steps,
        offsets=((1, 2_500_000), (2, -400_000), (3, 250_000), (4, 260_000), (5, 270_000)),
    )


def test_the_timeline_marks_steps_ranks_and_clocks_and_links_a_collective() -> None:
    chart = charts.timeline(of_two_ranks())
    found = spec(chart)
    assert found["title"]["subtitle"] == [
        "Clocks corrected to the first rank's: rank 1 -2.5 ms, rank 2 +0.40 ms, rank 5 -0.27 ms, rank 4 -0.26 ms"
        " and 1 more rank"
    ]
    assert found["title"]["text"].startswith("No communication")
    tables = [found["datasets"][layer["data"]["name"]] for layer in found["layer"] if "data" in layer]
    assert tables == [
        [{"lane": "rank 1 steps"}],  # a line above it
        [{"begin": 10.0, "lane": "rank 0 steps", "until": "rank 0 buckets"}],  # rank 1's step began before the window
    ]
    drawn = rows(chart, 2)
    assert [(row["word"], row["collective"], row["apart"]) for row in drawn] == [
        ("step 4", -1, False),
        ("bucket 3", 7, True),
        ("step 4", -1, False),
        ("", 7, False),
        ("", -1, False),
    ]
    fades = found["layer"][2]["encoding"]["opacity"]["condition"]["test"]
    assert "datum.collective !== pointed.collective[0]" in fades
