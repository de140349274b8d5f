"""Charts saved from Python: each public one is drawn by vl-convert, as nothing around it says how wide it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import altair as alt
import pandas as pd
import pytest
from made.watched import MS, eventful
from PIL import Image
from samples import sample_run

import overlaplab
from overlaplab import analyses, charts
from overlaplab.analyses import rows_of
from overlaplab.analyses.systems.plan import plan_over_ranks
from overlaplab.charts.theme import WIDTH
from overlaplab.costs.batch import planned_batch
from overlaplab.costs.plan import Plan
from overlaplab.events import Run
from overlaplab.load.watched import load_watched
from overlaplab.sections.run_tables import RunTables
from overlaplab.sections.watched import WatchedTables
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.predictions.what_if import answer
from overlaplab.simulate.programs.setting import Setting
from overlaplab.timeline.timeline import timeline_view

LEAST_PX = WIDTH / 10
"""Marks that are drawn without a width all lie on the left edge."""
NO_CHARTS = {"draw_offline", "schedule_window", "timeline_rows"}


@cache
def one_step(analysis: Callable[..., pd.DataFrame], name: str) -> pd.DataFrame:
    """Rank 0's rows in the last step."""
    table = analysis(sample_run(name))
    return rows_of(table, {"rank": table["rank"].min(), "step": table["step"].max()})


def by_ranks() -> pd.DataFrame:
    columns = {"step_ns": [120_000_000, 500_000_000], "throughput": [1.0, 0.4], "held_bytes": [10**9, 10**8]}
    return pd.DataFrame({"ranks": [2, 128]} | columns).astype({"held_bytes": "Int64"})


def hops(name: str) -> alt.LayerChart:
    table = analyses.hops(sample_run(name))
    bucket = table[(table["step"] == table["step"].max()) & (table["bucket"] == 0)]
    return charts.hops(bucket, analyses.chunks_after_hops(bucket))


def timeline() -> alt.LayerChart:
    lanes = RunTables(run=sample_run("bucketed")).timeline
    last = lanes.steps[lanes.steps["step"] == lanes.steps["step"].max()]
    return charts.timeline(timeline_view(lanes, start_ns=int(last["start_ns"].min()), end_ns=int(last["end_ns"].max())))


def watched_late() -> alt.LayerChart:
    steps = {"first_step": 0, "last_step": 99, "telling_steps": 3}
    never = steps | {"rank": 0, "late_steps": 0, "late_share": 0.0, "late_median_ns": None}
    always = steps | {"rank": 1, "late_steps": 3, "late_share": 1.0, "late_median_ns": 8 * MS}
    return charts.watched_late(pd.DataFrame([never, always]).astype({"late_median_ns": "Int64"}))


def caps() -> list[Run]:
    return [sample_run(f"sweep/cap-{cap}") for cap in (1, 25)]


def scatters_exposed() -> alt.LayerChart:
    run = sample_run("zero3")
    return charts.scatters_exposed(analyses.scatter_steps(analyses.scatters(run), overlaplab.exposed(run)))


def planned_memory() -> alt.LayerChart:
    batch = planned_batch(tokens=64, seq=8, microbatch=1, ranks=8)
    table = plan_over_ranks(Plan(parameters=10**6, batch=batch)).query("stage == 3")
    return charts.planned_memory(table, limit=None, planned=8, title="Memory")


def step_lanes() -> alt.LayerChart:
    lanes = answer(sample_run("sweep/cap-25"), Question(setting=Setting())).lanes
    return charts.step_lanes(lanes, lanes, (300 * MS, 300 * MS))


CAPS = pd.DataFrame({"bucket_cap_mb": [1.0, 25.0], "step_ns": [170 * MS, 208 * MS]})
DEPTHS = pd.DataFrame({"prefetch": [1, 3], "step_ns": [170 * MS, 160 * MS]})
MARKS = pd.DataFrame({"word": ["no communication", "measured"], "ns": [10 * MS, 30 * MS]})


@cache
def compared() -> pd.DataFrame:
    return overlaplab.compare([sample_run(name) for name in ("naive", "bucketed")])


@cache
def matched() -> pd.DataFrame:
    return overlaplab.collectives(sample_run("bucketed"))


DRAWN: dict[str, Callable[[], alt.LayerChart]] = {
    "buckets": lambda: charts.buckets(one_step(overlaplab.buckets, "bucketed")),
    "bus_bandwidth": lambda: charts.bus_bandwidth(analyses.each_collective(matched())),
    "caps": lambda: charts.caps(overlaplab.sweep(caps())),
    "caps_predicted": lambda: charts.caps_predicted(CAPS, CAPS.head(0), 25.0, 10e6),
    "compare": lambda: charts.compare(compared()),
    "depths_predicted": lambda: charts.depths_predicted(DEPTHS, chosen=3, measured_ns=201 * MS, half_ns=10e6),
    "gather_waits": lambda: charts.gather_waits(analyses.schedule_steps(overlaplab.schedule(sample_run("zero3")))),
    "gathered": lambda: charts.gathered(analyses.gathered_bytes(one_step(overlaplab.schedule, "zero3"))),
    "held_predicted": lambda: charts.held_predicted(by_ranks(), chosen=2),
    "hops": lambda: hops("ring"),
    "late_ranks": lambda: charts.late_ranks(overlaplab.stragglers(sample_run("bucketed"))),
    "links": lambda: charts.links(analyses.sweep_links(caps())),
    "memory_compared": lambda: charts.memory_compared(compared()),
    "pipeline": lambda: charts.pipeline(one_pipeline(), title="Who does what when"),
    "pipeline_held": lambda: charts.pipeline_held(
        analyses.pipeline_held(one_pipeline()), end_ns=int(one_pipeline()["end_ns"].max())
    ),
    "planned_memory": planned_memory,
    "ranks_predicted": lambda: charts.ranks_predicted(by_ranks(), recorded=2, measured_ns=120 * MS, chosen=2, half=0.1),
    "scatters_exposed": scatters_exposed,
    "schedule": lambda: charts.schedule(one_step(overlaplab.schedule, "zero3")),
    "sent_compared": lambda: charts.sent_compared(compared()),
    "staleness": lambda: charts.staleness(analyses.staleness(sample_run("parameter-server"))),
    "step_lanes": step_lanes,
    "step_marks": lambda: charts.step_marks(MARKS),
    "summary": lambda: charts.summary(overlaplab.summary(sample_run("bucketed"))),
    "throughput_predicted": lambda: charts.throughput_predicted(by_ranks(), recorded=2, chosen=2),
    "timeline": timeline,
    "waits": lambda: charts.waits(analyses.each_collective(matched())),
    "watched_late": watched_late,
}


def one_pipeline() -> pd.DataFrame:
    table = overlaplab.pipeline(sample_run("pipeline"))
    return table[(table["step"] == table["step"].max()) & (table["pipeline"] == 0)]


def test_each_public_chart_is_here() -> None:
    assert {*DRAWN, "watched_shares", "watched_times"} == {*charts.__all__} - NO_CHARTS


def places(svg: str) -> Iterator[float]:
    """Where marks are from left to right, of each its left and its right end."""
    for group in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        if "role-mark" not in group.get("class", ""):
            continue
        for path in group.iter("{http://www.w3.org/2000/svg}path"):
            shift = re.match(r"translate\(([-\d.]+)", path.get("transform", "translate(0"))
            at = float(shift[1]) if shift else 0.0
            for letter, number in re.findall(r"([MLh])(-?[\d.]+)", path.get("d", "")):
                start = at if letter == "h" else (at := float(number) + (float(shift[1]) if shift else 0.0))
                yield start + (float(number) if letter == "h" else 0.0)


def check_saved(chart: alt.LayerChart, folder: Path) -> None:
    """Its marks have a width, and its title and subtitle end before its right edge."""
    chart.save(folder / "chart.svg")
    ends = [*places((folder / "chart.svg").read_text())]
    assert max(ends) - min(ends) > LEAST_PX
    chart.save(folder / "chart.png")
    with Image.open(folder / "chart.png") as picture:
        assert picture.width == pytest.approx(WIDTH, abs=2)
        edge = picture.convert("RGBA").crop((picture.width - 3, 0, picture.width, picture.height))
        assert edge.getchannel("A").getextrema() == (0, 0), "something is cut"


@pytest.mark.parametrize("name", list(DRAWN))
def test_a_saved_chart_has_marks_and_whole_titles(name: str, tmp_path: Path) -> None:
    check_saved(DRAWN[name](), tmp_path)


@pytest.mark.parametrize("name", list(DRAWN))
def test_a_legend_has_no_more_than_is_drawn(name: str) -> None:
    spec = DRAWN[name]().to_dict()
    words, drawn = set(), set()
    for layer in spec["layer"]:
        colour = layer.get("encoding", {}).get("color", {})
        if not isinstance(colour, dict) or "scale" not in colour:
            continue
        words |= {*colour["scale"]["domain"]}
        data = layer.get("data", spec.get("data", {}))
        rows = data["values"] if "values" in data else spec["datasets"][data["name"]]
        drawn |= {row["part"] for row in rows if row.get("held", 1) and row.get("end", 1e9) > row.get("begin", 0)}
    assert words <= drawn


def test_a_legend_of_a_run_without_communication_has_none() -> None:
    table = overlaplab.summary(sample_run("bucketed"))
    none = table.filter(regex="comm|overlapped|exposed").columns.drop("overlap_ratio", errors="ignore")
    legend = charts.summary(table.assign(**dict.fromkeys(none, 0))).to_dict()["layer"][0]["encoding"]["color"]
    assert set(legend["scale"]["domain"]) <= {"compute only", "memory only", "idle"}


def test_saved_charts_of_a_watched_training(tmp_path: Path) -> None:
    table = WatchedTables(load_watched(eventful(tmp_path / "watched"))).series
    check_saved(charts.watched_times(table), tmp_path)
    check_saved(charts.watched_shares(table), tmp_path)


def test_a_schedule_of_nothing_is_drawn() -> None:
    assert charts.schedule(overlaplab.schedule(sample_run("zero3")).head(0)).to_dict()
