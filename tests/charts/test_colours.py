"""One colour per meaning in either theme; what meets on a chart is told apart, also by the colour-blind; text reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import combinations
from typing import Any

import altair as alt
import pytest
from colours import BLINDNESSES, contrast, distance, hue
from samples import sample_run, sample_tables

import overlaplab
from overlaplab import charts
from overlaplab.analyses import each_collective, rows_of, scatters, stragglers_of
from overlaplab.analyses.systems.plan import plan_over_ranks
from overlaplab.causes import Cause
from overlaplab.charts.lanes import mark_colours
from overlaplab.charts.theme import DARK, LIGHT, Palette, cause_colours
from overlaplab.costs.batch import planned_batch
from overlaplab.costs.plan import Plan
from overlaplab.findings import bucket_causes
from overlaplab.timeline.marks import CAUSE_MARKS, MarkKind

LEAST = 0.08
"""Oklab: four times what is just seen."""
LEAST_SEEN = 0.085
"""The same of colours that meet on a page, if not in one legend, for those who see all colours."""
MOST_TURNED_DEGREES = 30
GROUNDS = {"light": "#FFFFFF", "dark": "#0E1117"}
"""Streamlit's, and the report's."""
PALETTES = {"light": LIGHT, "dark": DARK}
PARTS = ("compute", "hidden", "waiting", "exposed", "memory", "idle")
"""Of a bar of the page Summary."""
KINDS = ("reduce", "gather", "scatter", "to_all", "other")
MEANINGS = {
    "compute": {"compute only", "backward compute"},
    "forward": {"forward compute"},
    "hidden": {"communication hidden by compute", "compute and communication together"},
    "exposed": {"communication exposed", "exposed, transfer", "compute waits for gather", Cause.TAIL.label},
    "waiting": {"exposed, until the last rank came", charts.collectives.ALONE, "waited for rank 1"},
    "memory": {"memory only", "activations"},
    "idle": {"idle", "gradients arriving", "parameters live"},
    "held": {"ready, waits for its launch", "ready, not launched yet"},
    "queued": {"launched, link busy", "launched, link busy: before it starts, or exposed"},
    "starting": {"launched, not started", charts.collectives.SHARED},
    "gap": {"host paused, long or short"},
    "bound": {"cannot be hidden by any bucketing"},
    "gather": {"all-gather", "parameters"},
    "reduce": {"all-reduce"},
    "scatter": {"reduce-scatter", "gradients"},
    "to_all": {"all-to-all", "optimizer"},
}
"""By the palette's name of a colour: what the legends of charts call it."""


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[alt.LayerChart]]:
    """Charts of recorded runs, in both themes."""
    bucketed, zero2, zero3 = (sample_run(name) for name in ("bucketed", "zero2", "zero3"))
    buckets, schedule = overlaplab.buckets(bucketed), overlaplab.schedule(zero3)
    one = {"rank": 0, "step": buckets["step"].iloc[-1]}
    found = sample_tables("bucketed").find_diagnosis(rank=0, step=int(one["step"]))
    of_zero3 = {"rank": 0, "step": schedule["step"].iloc[-1]}
    batch = planned_batch(tokens=64, seq=8, microbatch=1, ranks=8)
    planned = plan_over_ranks(Plan(parameters=10**6, batch=batch)).query("stage == 3")
    collectives = [overlaplab.collectives(run) for run in (bucketed, zero2)]

    def draw(dark: bool) -> list[alt.LayerChart]:
        return [
            charts.summary(overlaplab.summary(bucketed), dark=dark),
            charts.buckets(rows_of(buckets, one), dark=dark),
            charts.buckets(rows_of(buckets, one), causes=bucket_causes(found, rows_of(buckets, one)), dark=dark),
            charts.schedule(rows_of(schedule, of_zero3), rows_of(scatters(zero3), of_zero3), dark=dark),
            *(charts.bus_bandwidth(each_collective(table), dark=dark) for table in collectives),
            charts.late_ranks(stragglers_of(collectives[0]), dark=dark),
            charts.planned_memory(planned, limit=10**9, planned=8, title="", dark=dark),
        ]

    return {theme: draw(theme == "dark") for theme in PALETTES}


def scales(spec: Any) -> Iterator[dict[str, str]]:
    """The colour of each word, of every colour scale in a chart's spec."""
    if isinstance(spec, dict):
        scale = (spec.get("color") or {}).get("scale") if isinstance(spec.get("color"), dict) else None
        if scale is not None:
            yield dict(zip(scale["domain"], scale["range"], strict=True))
        for key, value in spec.items():
            if key not in ("data", "datasets"):
                yield from scales(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from scales(value)


@pytest.mark.parametrize("theme", PALETTES)
def test_a_colour_has_one_meaning(drawn: dict[str, list[alt.LayerChart]], theme: str) -> None:
    of_tone = {tone: name for name, tone in asdict(PALETTES[theme]).items() if name not in ("on_dark", "on_light")}
    found: dict[str, set[str]] = {}
    for chart in drawn[theme]:
        for scale in scales(chart.to_dict()):
            for word, tone in scale.items():
                found.setdefault(of_tone[tone], set()).add(word)
    unforeseen = {name: words - MEANINGS[name] for name, words in found.items() if words - MEANINGS[name]}
    assert unforeseen == {}
    assert {"compute", "hidden", "exposed", "gather", "reduce", "scatter"} <= set(found)


@pytest.mark.parametrize("blindness", BLINDNESSES)
@pytest.mark.parametrize("theme", PALETTES)
def test_what_meets_is_told_apart(drawn: dict[str, list[alt.LayerChart]], theme: str, blindness: str) -> None:
    tones = PALETTES[theme]
    lanes = {tone for mark, tone in mark_colours(tones).items() if mark not in (*PHASES, *EXPOSED)}
    meet = [set(scale.values()) for chart in drawn[theme] for scale in scales(chart.to_dict())]
    meet += [{getattr(tones, name) for name in PARTS}]
    meet += [{getattr(tones, kind) for kind in KINDS}, set(cause_colours(tones).values()), lanes | {tones.exposed}]
    near = {
        pair: distance(*pair, blindness)
        for own in meet
        for pair in combinations(sorted(own), 2)
        if distance(*pair, blindness) < LEAST
    }
    assert near == {}


@pytest.mark.parametrize("theme", PALETTES)
def test_what_stands_on_one_page_is_told_apart(theme: str) -> None:
    """Causes, kinds of collectives and parts of a step, whichever chart they are on."""
    tones = PALETTES[theme]
    seen = {getattr(tones, name) for name in (*KINDS, "compute", "hidden")} | set(cause_colours(tones).values())
    assert min(distance(*pair) for pair in combinations(sorted(seen), 2)) >= LEAST_SEEN


@pytest.mark.parametrize("theme", PALETTES)
def test_what_a_reader_took_for_one_is_further_apart(theme: str) -> None:
    tones = PALETTES[theme]
    assert distance(tones.waiting, tones.memory) >= 0.12
    assert distance(tones.held, tones.reduce) >= (0.12 if theme == "light" else 0.09)
    assert contrast(tones.idle, GROUNDS[theme]) >= (1.3 if theme == "light" else 2.5)


@pytest.mark.parametrize("theme", PALETTES)
def test_marks_of_exposed_time_have_a_colour_each(theme: str) -> None:
    """Except what nothing can hide, which goes by two names."""
    tones = mark_colours(PALETTES[theme])
    exposed = [tones[mark] for mark in EXPOSED if mark.value != Cause.UNHIDEABLE.value]
    assert len({*exposed}) == len(exposed)
    assert min(distance(*pair) for pair in combinations(exposed, 2)) >= LEAST


def test_a_legend_has_a_colour_once(drawn: dict[str, list[alt.LayerChart]]) -> None:
    legends = [scale for of_theme in drawn.values() for chart in of_theme for scale in scales(chart.to_dict())]
    assert all(len(set(scale.values())) == len(scale) for scale in legends)


def test_a_meaning_has_one_hue_in_both_themes() -> None:
    turned = {}
    for name in set(asdict(LIGHT)) - {"ink", "soft", "grid", "on_dark", "on_light"}:
        light, dark = hue(getattr(LIGHT, name)), hue(getattr(DARK, name))
        assert (light is None) == (dark is None), name
        if light is not None and dark is not None:
            turned[name] = abs((light - dark + 180) % 360 - 180)
    assert {name: degrees for name, degrees in turned.items() if degrees > MOST_TURNED_DEGREES} == {}
    assert len(turned) > 15


EXPOSED = (MarkKind.EXPOSED, *CAUSE_MARKS)
"""In a lane of their own, each with its cause's colour."""
PHASES = (MarkKind.STEP, MarkKind.FORWARD, MarkKind.BACKWARD, MarkKind.OPTIMIZER, MarkKind.HOST, MarkKind.FREE)
"""Greys and sand in a lane of their own, with their names on them; what is freed is a tick."""


@pytest.mark.parametrize("theme", PALETTES)
def test_text_reads_on_its_ground(theme: str) -> None:
    tones, ground = PALETTES[theme], GROUNDS[theme]
    assert min(contrast(tone, ground) for tone in (tones.ink, tones.soft)) >= 4.5
    assert min(contrast(tones.on_dark, tone) for tone in (tones.compute, tones.exposed)) >= 4.5
    assert min(contrast(tones.on_light, tone) for tone in (tones.hidden, tones.gather, tones.waiting)) >= 4.5


@pytest.mark.parametrize("tones", [LIGHT, DARK])
def test_every_cause_has_a_colour(tones: Palette) -> None:
    assert set(cause_colours(tones)) == set(Cause)
    # What nothing can hide goes by two names: with and without a bound that tells so.
    assert len(set(cause_colours(tones).values())) == len(Cause) - 1


def test_the_oracle_knows_what_is_confused() -> None:
    """White stays white; red and olive, blue and green are nearer to those who confuse them."""
    assert all(matrix.sum(axis=1) == pytest.approx(1, abs=1e-5) for matrix in BLINDNESSES.values())
    assert distance("#FF0000", "#00FF00") > 0.5
    for blindness, *pair in (
        ("protanopia", "#C23B22", "#6B7A00"),
        ("deuteranopia", "#C23B22", "#6B7A00"),
        ("tritanopia", "#0072B2", "#00806B"),
    ):
        assert distance(*pair, blindness) < 0.6 * distance(*pair), blindness
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)


def test_a_legend_has_as_many_columns_as_have_room() -> None:
    pairs = [("ab", "#000000"), ("abcdefghij", "#000001"), ("a", "#000002")]
    legend = charts.theme.colours(pairs, left=80).to_dict()["legend"]
    room = "min(width, (containerSize()[0] || 1e9) - 80)"
    assert legend["columns"] == {"expr": f"{room} >= 165 ? 3 : {room} >= 130 ? 2 : 1"}
