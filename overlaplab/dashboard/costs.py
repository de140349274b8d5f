"""What a run's strategy costs, in two small tables: bytes sent and memory held, beside what theory says."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from overlaplab.columns import columns
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.widgets import show_table
from overlaplab.words import count, shorten, size_exact

__all__ = ["costs_beside_theory"]

_SENT = columns("volume", "kind", "count", "bytes", "sent_bytes")
_HELD = columns("memory", "rank", "part", "bytes", "formula_bytes", "formula")


def costs_beside_theory(opened: Opened, windows: pd.DataFrame) -> None:
    """Draw both tables, where a run tells them, for the ranks and steps of `windows`, rows of `overlaplab.summary`."""
    sent = _sent(opened, windows)
    held, peaks = (table[table["rank"].isin(windows["rank"])] for table in (opened.memory, opened.peaks))
    unsized = _unsized(opened, windows)
    if sent.empty and held.empty and not unsized:
        return
    left, right = st.columns(2, gap="medium")
    if not sent.empty:
        with left:
            st.subheader("Sent per rank and step", anchor=False)
            st.text(f"{_sent_words(opened, sent)}\n{_ring(opened)}")
            show_table(sent, _SENT, "volume_table")
    elif unsized:
        with left:
            st.subheader("Sent per rank and step", anchor=False)
            st.text(unsized)
    if not held.empty:
        with right:
            st.subheader("Memory per rank", anchor=False)
            st.text(f"{_held_words(held)}\n{_storages(opened)}{_peak_words(peaks)}")
            show_table(_with_peaks(held, peaks), _HELD, "memory_table")


def _sent(opened: Opened, windows: pd.DataFrame) -> pd.DataFrame:
    """A row per kind of collective with its means over ranks and steps, and their sum."""
    volume = opened.volume.merge(windows[["rank", "step"]].drop_duplicates(), on=["rank", "step"])
    if volume.empty or volume["sent_bytes"].isna().any():
        return pd.DataFrame()
    number = len(windows)
    sums = volume.groupby("kind", sort=False)[["count", "bytes", "sent_bytes"]].sum().astype("float64") / number
    rows = pd.concat([sums, sums.sum().to_frame("in all").T])
    return rows.assign(kind=[_word(kind) for kind in rows.index])


def _unsized(opened: Opened, windows: pd.DataFrame) -> str:
    """Which collectives leave what was sent unknown, in one sentence; empty where all sizes are known."""
    volume = opened.volume.merge(windows[["rank", "step"]].drop_duplicates(), on=["rank", "step"])
    counts = volume[volume["sent_bytes"].isna()].groupby("kind", sort=False)["count"].sum()
    kinds = [
        f"{count(int(number), 'collective')} of kind {shorten(_word(kind), 40)}" for kind, number in counts.items()
    ]
    return f"Unknown, since the trace does not tell all sizes of {', '.join(kinds)}." if kinds else ""


def _sent_words(opened: Opened, sent: pd.DataFrame) -> str:
    """Measured and theory in one sentence."""
    measured = size_exact(round(sent["sent_bytes"].iloc[-1]))
    theory = opened.theory
    if theory is None:
        return f"{measured} in all; there is no theory for this run."
    said = f"{measured} in all; theory says {size_exact(theory.sent_bytes)}: {shorten(theory.formula, 120)}"
    if theory.upper_formula != theory.formula:
        said += f" (at most {theory.upper_formula}, {size_exact(theory.upper_sent_bytes)})"
    return f"{said}."


def _held_words(held: pd.DataFrame) -> str:
    """Measured and theory of the rank that holds most, in one sentence."""
    sums = held.groupby("rank")[["bytes", "formula_bytes"]].sum(min_count=3)
    most = sums.loc[[sums["bytes"].astype("int64").idxmax()]].iloc[0]
    told = f"{size_exact(int(most['bytes']))} on the rank that holds most"
    if pd.isna(most["formula_bytes"]):
        return f"{told}; there is no theory for this run."
    return f"{told}; theory says {size_exact(int(most['formula_bytes']))}."


def _ring(opened: Opened) -> str:
    """How full bytes become sent bytes, and what Ψ stands for."""
    manifest = opened.run.manifest
    told = "As a ring sends: all-reduce 2(n−1)/n of the full tensor, all-gather and reduce-scatter (n−1)/n."
    if manifest is None or not manifest.parameters:
        return told
    whole = size_exact(sum(parameter.bytes for parameter in manifest.parameters))
    again = f"; A = {manifest.accumulate} microbatches" if (manifest.accumulate or 1) > 1 else ""
    return f"{told} n = {count(manifest.world_size, 'rank')}; Ψ = {whole}, the bytes of all parameters{again}."


def _storages(opened: Opened) -> str:
    """What was measured, and what the formulas' letters stand for."""
    manifest = opened.run.manifest
    number = manifest.model.parameters if manifest and manifest.model else None
    ranks = count(manifest.world_size, "rank") if manifest else "all ranks"
    many = "" if number is None else f"{number:,} = "
    return (
        "Tensors' storages after the last step's update, gradients still there."
        f" Ψ = {many}the number of parameters, in bytes per parameter; N = {ranks}."
    )


def _peak_words(peaks: pd.DataFrame) -> str:
    """What is shown beside the formulas' parts; empty where that is nothing."""
    said = ""
    if peaks["peak_bytes"].notna().any():
        said = " The peak is the most that was allocated at any time, activations and buffers included."
    return f"{said} What is lent to phantoms is in no other figure." if peaks["scratch_bytes"].notna().any() else said


def _with_peaks(held: pd.DataFrame, peaks: pd.DataFrame) -> pd.DataFrame:
    """A row per rank and part; where they are known, its peak and what was lent to phantoms follow."""
    for name, column in (("peak", "peak_bytes"), ("lent to phantoms", "scratch_bytes")):
        known = peaks[peaks[column].notna()]
        held = pd.concat([held, pd.DataFrame({"rank": known["rank"], "part": name, "bytes": known[column]})])
    return held.sort_values("rank", kind="stable", ignore_index=True)


def _word(kind: object) -> str:
    return str(kind).replace("_", "-")
