"""What a run's strategy costs, in two small tables: bytes sent and memory held, beside what theory says."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from overlaplab import findings
from overlaplab.columns import columns
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.widgets import show_table

__all__ = ["costs_beside_theory"]

_SENT = columns("volume", "kind", "count", "bytes", "sent_bytes")
_HELD = columns("memory", "rank", "part", "bytes", "formula_bytes", "formula")


def costs_beside_theory(opened: Opened, windows: pd.DataFrame) -> None:
    """Draw both tables, where a run tells them, for the ranks and steps of `windows`, rows of `overlaplab.summary`."""
    manifest = opened.run.manifest
    volume = opened.volume.merge(windows[["rank", "step"]].drop_duplicates(), on=["rank", "step"])
    sent = _sent(volume, len(windows))
    held, peaks = (table[table["rank"].isin(windows["rank"])] for table in (opened.memory, opened.peaks))
    unsized = findings.unknown_sizes(volume)
    if sent.empty and held.empty and not unsized:
        return
    left, right = st.columns(2, gap="medium")
    if not sent.empty:
        with left:
            st.subheader("Sent per rank and step", anchor=False)
            measured = sent["sent_bytes"].iloc[-1]
            st.text(f"{findings.sent_lead(measured, opened.theory)}\n{findings.sent_notes(manifest)}")
            show_table(sent, _SENT, "volume_table")
    elif unsized:
        with left:
            st.subheader("Sent per rank and step", anchor=False)
            st.text(unsized)
    if not held.empty:
        with right:
            st.subheader("Memory per rank", anchor=False)
            st.text(f"{findings.held_lead(held)}\n{findings.held_notes(manifest, peaks)}")
            show_table(_with_peaks(held, peaks), _HELD, "memory_table")


def _sent(volume: pd.DataFrame, number: int) -> pd.DataFrame:
    """A row per kind of collective with its means over `number` ranks' steps, and their sum."""
    if volume.empty or volume["sent_bytes"].isna().any():
        return pd.DataFrame()
    sums = volume.groupby("kind", sort=False)[["count", "bytes", "sent_bytes"]].sum().astype("float64") / number
    rows = pd.concat([sums, sums.sum().to_frame("in all").T])
    return rows.assign(kind=[str(kind).replace("_", "-") for kind in rows.index])


def _with_peaks(held: pd.DataFrame, peaks: pd.DataFrame) -> pd.DataFrame:
    """A row per rank and part; where they are known, its peak and what was lent to phantoms follow."""
    for name, column in (("peak", "peak_bytes"), ("lent to phantoms", "scratch_bytes")):
        known = peaks[peaks[column].notna()]
        held = pd.concat([held, pd.DataFrame({"rank": known["rank"], "part": name, "bytes": known[column]})])
    return held.sort_values("rank", kind="stable", ignore_index=True)
