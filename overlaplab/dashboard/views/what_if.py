"""The What if page: what a step would take with another cap, link or number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from overlaplab import findings
from overlaplab.costs import Algorithm
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.folder import manifest_told
from overlaplab.dashboard.widgets import error_line, nothing_to_show, open_page, show_block, show_warnings, what_to_do
from overlaplab.errors import OverlaplabError
from overlaplab.manifest import Link, Manifest, traits_of
from overlaplab.sections.what_if import Asked, caps_tried, what_if_parts
from overlaplab.simulate.predictions.error import recorded_caps
from overlaplab.simulate.programs.options import CAP_MB
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.wide import Skew
from overlaplab.traits import TRAITS, Traits

_BANDWIDTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0)
_LATENCIES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0)
_RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 5000, 10_000)
_ALGORITHMS: dict[Algorithm, str] = {"ring": "ring, as emulated", "auto": "ring or trees"}
_PREDICTED = [name for name, traits in TRAITS.items() if traits.is_played]
_NO_STRAGGLER = "Every rank works as the median rank does."
_SKEWS: dict[Skew, str] = {"recorded": "recorded steps", "lognormal": "fitted distribution"}


def page() -> None:
    """Draw the page."""
    opened = open_page("What if", "What a step would take with another setting: predicted from this recording alone.")
    if opened.not_predicted is not None:
        nothing_to_show(
            opened,
            "Of this run no other setting can be predicted. That takes a run of the engine on a CPU, with the traces of"
            " all ranks (`overlaplab record`).",
        )
        st.text(opened.not_predicted)
        return
    show_warnings(opened)
    _answer(opened, _recorded(opened))


@st.fragment
def _answer(opened: Opened, recorded: pd.DataFrame) -> None:
    """The controls and what they ask for; moving one draws nothing else of the page anew."""
    head = st.container(key="headline")
    notes = st.container(key="remarks_what_if", gap=None)
    asked = _ask(opened)
    try:
        parts = what_if_parts(opened.run, asked, recorded, findings.note(opened.manifest))
    except OverlaplabError as error:
        error_line(error)
        return
    head.text(parts.headline)
    for line in parts.notes:
        notes.text(line)
    for charts in filter(None, (parts.over, (parts.lanes,), parts.growing)):
        with st.container(key=f"side_by_side_{charts[0].key}"):
            for column, chart in zip(st.columns(len(charts)), charts, strict=True):
                with column:
                    show_block(chart)
    what_to_do((parts.advice,))


def _ask(opened: Opened) -> Asked:
    """Draw the controls; they begin at what was recorded."""
    manifest = opened.manifest
    assert manifest is not None
    with st.container(key="asked", horizontal=True, gap="small"):
        strategy = _select("Strategy", _PREDICTED, manifest.strategy)
        traits = TRAITS.get(strategy or manifest.strategy or "") or traits_of(manifest) or Traits()
        setting = Setting(
            strategy=strategy,
            bucket_cap_mb=_cap(opened, traits),
            prefetch=_slide("Prefetch", "{} ahead", range(5), _or(manifest.prefetch, 1)) if _gathers(traits) else None,
            link=_link(manifest),
            ranks=_slide("Ranks", "{:,}", _RANKS, manifest.world_size),
            accumulate=_slide("Microbatches", "{}", (1, 2, 4, 8), _or(manifest.accumulate, 1)),
            straggler=manifest.world_size == 1
            or not st.checkbox("No straggler", help=_NO_STRAGGLER, **_look("balanced")),
        )
        algorithm = st.selectbox("Collectives", list(_ALGORITHMS), format_func=_ALGORITHMS.__getitem__, **_look("alg"))
        skew = st.selectbox("Further ranks work as", list(_SKEWS), format_func=_SKEWS.__getitem__, **_look("skew"))
    return Asked(setting=setting, algorithm=algorithm, skew=skew)


def _gathers(traits: Traits) -> bool:
    return traits.gathers == "units"


def _cap(opened: Opened, traits: Traits) -> float | None:
    if not traits.buckets or opened.manifest is None:
        return None
    chosen: float | None = _slide(
        "bucket_cap_mb", "{:g} MiB", caps_tried(opened.run), _or(opened.manifest.bucket_cap_mb, CAP_MB)
    )
    return chosen


def _link(manifest: Manifest) -> Link | None:
    """The link that was chosen; None for the recorded one."""
    link = manifest.link
    if link is None:
        return None
    bandwidth = _slide("Bandwidth", "{:g} Gbit/s", _BANDWIDTHS, link.bandwidth_gbps)
    latency = _slide("Latency", "{:g} µs", _LATENCIES, link.latency_us)
    if bandwidth is None and latency is None:
        return None
    return replace(link, bandwidth_gbps=_or(bandwidth, link.bandwidth_gbps), latency_us=_or(latency, link.latency_us))


def _slide(label: str, form: str, values: Iterable[Any], recorded: Any) -> Any:
    """A slider's value, at first the recorded one; None while it is that."""
    chosen = st.select_slider(
        label,
        sorted({*values, recorded}),
        value=recorded,
        format_func=lambda value: form.format(value) + (" (recorded)" if value == recorded else ""),
        **_look(label),
    )
    return None if chosen == recorded else chosen


def _select(label: str, options: list[str], recorded: str | None) -> str | None:
    """One of the options, at first the recorded one; None while it is that."""
    known = options if recorded is None or recorded in options else [recorded, *options]
    place = known.index(recorded) if recorded is not None else None
    chosen = st.selectbox(label, known, index=place, **_look(label))
    return None if chosen == recorded else chosen


def _look(label: str) -> dict[str, Any]:
    """A control's key, so that another run's begins anew, and a width of which two fit into a narrow window."""
    name = label.lower().replace(" ", "_")
    return {"key": f"asked_{name} of {st.session_state['run']}", "width": 195}


def _or(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def _recorded(opened: Opened) -> pd.DataFrame:
    """Recordings of the same setting or with other caps, as far as they lie beside this run in the opened folder."""
    own, root, name = opened.manifest, st.session_state["folder"], st.session_state["run"]
    assert own is not None
    beside = [other for other in st.session_state["names"] if Path(other).parent == Path(name).parent]
    found = [own] if root is None else [manifest_told(root, other) for other in beside]
    return recorded_caps(own, filter(None, found))


page()
