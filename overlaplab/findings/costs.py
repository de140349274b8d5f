"""What a strategy costs, in bytes sent and memory held, beside what theory says."""

from __future__ import annotations

import pandas as pd

from overlaplab.analyses import Theory
from overlaplab.analyses.memory import held_by_rank
from overlaplab.costs import server_ns, transfer_ns
from overlaplab.costs.memory import gathered_bytes, reduced_bytes
from overlaplab.findings.thresholds import CLOSE_TO_THEORY
from overlaplab.manifest import Manifest, strategy_traits
from overlaplab.words import count, ms, shorten, size_exact

COSTS_ADVICE = (
    "Of the runs that fit in memory take the one with the shortest step; where a figure is far from theory, look into"
    " that run's collectives."
)
"""What to do with a comparison of costs."""


def costs_title(rows: pd.DataFrame, verb: str) -> str:
    """Whether the runs' costs agree with theory, or which run is furthest from it.

    `rows`: `run`, `measured` and `theory` in bytes, null where there is no theory. `verb`: `Sent` or `Held`.
    """
    with_theory = rows[rows["theory"].notna()]
    if with_theory.empty:
        return f"{verb} per rank: there is no theory for these runs"
    nothing = with_theory[(with_theory["theory"] == 0) & (with_theory["measured"] != 0)]
    if len(nothing):
        size, name = max(zip(nothing["measured"].astype("int64"), nothing["run"], strict=True))
        return f"{verb} per rank: {name} is furthest from theory, {size_exact(int(size))} where theory says 0 B"
    off = [
        0.0 if theory == 0 else float(measured / theory - 1)
        for measured, theory in zip(with_theory["measured"], with_theory["theory"], strict=True)
    ]
    most, run = max(zip(off, with_theory["run"], strict=True), key=lambda pair: abs(pair[0]))
    if abs(most) <= CLOSE_TO_THEORY:
        return f"{verb} per rank: what theory says, within {100 * CLOSE_TO_THEORY:.0f} %"
    return f"{verb} per rank: {run} is furthest from theory, {100 * abs(most):.0f} % {'more' if most > 0 else 'less'}"


def sent_lead(sent_bytes: float, theory: Theory | None, window: str) -> str:
    """What a rank sent per step, measured and in theory, which knows steps alone; `window`: see `window_word`."""
    measured = size_exact(round(sent_bytes))
    if window != "step":
        return f"{measured} in all; theory is of one step, and none is marked."
    if theory is None:
        return f"{measured} in all; there is no theory for this run."
    lead = f"{measured} in all; theory says {size_exact(theory.sent_bytes)}: {shorten(theory.formula, 120)}"
    if theory.upper_formula != theory.formula:
        lead += f" (at most {theory.upper_formula}, {size_exact(theory.upper_sent_bytes)})"
    return f"{lead}."


def sent_notes(manifest: Manifest | None) -> str:
    """How the bytes of full tensors become bytes sent, and what n and Ψ stand for."""
    ring = "As a ring sends: all-reduce 2(n−1)/n of the full tensor, all-gather and reduce-scatter (n−1)/n."
    if manifest is None or not manifest.parameters:
        return ring
    whole = size_exact(sum(parameter.bytes for parameter in manifest.parameters))
    if (traits := strategy_traits(manifest)) is not None and traits.gradients == "server":
        letters = f"n = {count(manifest.world_size, 'rank')}; Ψ = {whole}, the bytes of all parameters."
        return f"{_server_note(manifest)} {letters}".lstrip()
    again = f"; A = {manifest.accumulate} microbatches" if (manifest.accumulate or 1) > 1 else ""
    return f"{ring} n = {count(manifest.axes.owners, 'rank')}; Ψ = {whole}, the bytes of all parameters{again}."


def _server_note(manifest: Manifest) -> str:
    """What of a step a server's link takes, beside what a ring would; empty without a link, or if nobody waits."""
    link, parameters, gradients = manifest.link, gathered_bytes(manifest), reduced_bytes(manifest)
    if link is None or manifest.asynchronous or parameters is None or gradients is None:
        return ""
    through, ring = ms(server_ns(gradients, parameters, link)), ms(transfer_ns("all_reduce", gradients, link))
    return f"Rank 0's link carries it one after another, in 2(n−1)(α + Ψ ÷ bandwidth) = {through}; a ring in {ring}."


def unknown_sizes(volume: pd.DataFrame) -> str:
    """Why the bytes sent are unknown: the collectives of unknown size, or in groups of unknown size, in rows of
    `overlaplab.volume`; else empty.
    """
    unknown = volume[volume["sent_bytes"].isna()]
    sizes = _kinds(unknown[unknown["bytes"].isna()])
    groups = _kinds(unknown[unknown["bytes"].notna()])
    reasons = [f"does not hold all sizes of {sizes}"] if sizes else []
    reasons += [f"does not say how many ranks took part in {groups}"] if groups else []
    return f"Unknown: the trace {', and '.join(reasons)}." if reasons else ""


def _kinds(rows: pd.DataFrame) -> str:
    """How many collectives of which kinds, in words."""
    counts = rows.groupby("kind", sort=False)["count"].sum()
    return ", ".join(
        f"{count(int(number), 'collective')} of kind {shorten(str(kind).replace('_', '-'), 40)}"
        for kind, number in counts.items()
    )


def held_lead(held: pd.DataFrame) -> str:
    """The memory of the rank that holds most, measured and in theory, from rows of `overlaplab.memory`."""
    sums = held_by_rank(held)
    most = sums.loc[[sums["bytes"].astype("int64").idxmax()]].iloc[0]
    measured = f"{size_exact(int(most['bytes']))} on the rank that holds most"
    if pd.isna(most["formula_bytes"]):
        return f"{measured}; there is no theory for this run."
    return f"{measured}; theory says {size_exact(int(most['formula_bytes']))}."


def held_notes(manifest: Manifest | None, peaks: pd.DataFrame) -> str:
    """What was measured, what the letters in formulas stand for, and how `analyses.peaks` differs."""
    number = manifest.model.parameters if manifest and manifest.model else None
    ranks = count(manifest.axes.owners, "rank") if manifest else "all ranks"
    many = "" if number is None else f"{number:,} = "
    notes = [
        "Tensors' storages after the last step's update, gradients still there."
        f" Ψ = {many}the number of parameters, in bytes per parameter; N = {ranks}."
    ]
    if peaks["peak_bytes"].notna().any():
        notes.append("The peak is the most that was allocated at any time, activations and buffers included.")
    if peaks["scratch_bytes"].notna().any():
        notes.append("Memory lent to phantoms is in no other figure.")
    return " ".join(notes)
