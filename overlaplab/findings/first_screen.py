"""What the first screen of a run says beside its diagnosis: which step it is about, its figures, how short it could be.

All follows from a `Diagnosis`, so that it says the same on every screen.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from msgspec import Struct

from overlaplab.findings.diagnosis.diagnose import Diagnosis
from overlaplab.findings.diagnosis.shares import CauseShare
from overlaplab.findings.diagnosis.unseen import OTHER_RANKS, Unseen
from overlaplab.findings.runs import note
from overlaplab.findings.thresholds import LITTLE_GAIN
from overlaplab.findings.windows import table_time, table_word, window_word
from overlaplab.manifest import Manifest
from overlaplab.words import count, ms, percent, rank_word, sentence


class Tile(Struct, frozen=True, kw_only=True):
    """One figure of the first screen."""

    label: str
    value: str
    note: str
    """What it is compared with."""


def about(manifest: Manifest | None, ranks: int) -> str:
    """What was recorded, on how many ranks."""
    return note(manifest) or f"Foreign traces, {count(ranks, 'rank')}"


def tiles(diagnosis: Diagnosis, steps: pd.DataFrame, unseen: Unseen = OTHER_RANKS) -> tuple[Tile, ...]:
    """The five figures of a step, percentages of its time. `steps`: the rows of `overlaplab.summary` of its rank."""
    hidden = None if unseen.only_ends else diagnosis.hidden_ns
    return (
        Tile(label=window_word(diagnosis.step), value=ms(diagnosis.span_ns), note=_median(steps, diagnosis.rank)),
        _share("communication", diagnosis.comm_ns, diagnosis),
        _share("hidden", hidden, diagnosis),
        _share("exposed", diagnosis.exposed_ns, diagnosis),
        _late_rank(diagnosis, steps),
    )


def _share(label: str, took: int | None, diagnosis: Diagnosis) -> Tile:
    if took is None:
        return Tile(label=label, value="unknown", note="not all of it was recorded")
    share = f"{percent(took, diagnosis.span_ns)} of the {window_word(diagnosis.step)}"
    return Tile(label=label, value=ms(took), note=share)


def _median(steps: pd.DataFrame, rank: int | None) -> str:
    if len(steps) < 2:
        return "the only one"
    whose = "" if rank is None else f" of rank {rank}"
    return f"median of {count(len(steps), 'step')}{whose}: {ms(float(steps['span_ns'].median()))}"


def _late_rank(diagnosis: Diagnosis, steps: pd.DataFrame) -> Tile:
    if diagnosis.late_rank is not None:
        waited = f"waited {ms(diagnosis.waited_ns)} for it"
        return Tile(label="late rank", value=rank_word(diagnosis.late_rank), note=waited)
    step_rows = steps if diagnosis.step is None else steps[steps["step"].eq(diagnosis.step).fillna(False)]
    if diagnosis.exposed_ns and step_rows["exposed_wait_ns"].isna().any():
        return Tile(label="late rank", value="unknown", note="waits are unknown")
    waits = bool(step_rows["exposed_wait_ns"].gt(0).any())  # for what a pipeline's schedule has come later
    return Tile(label="late rank", value="none", note="waits have other causes" if waits else "no wait for a rank")


def step_marks(diagnosis: Diagnosis) -> pd.DataFrame:
    """How long the step took and how short it could have been: `word`, `ns`, the shortest first.

    No rows where nothing is exposed. Recorded idle time and pauses stay in all of them, see `how_short`.
    """
    span, exposed = diagnosis.span_ns, diagnosis.exposed_ns
    alone = span - exposed + diagnosis.paused_ns  # without communication, but with the host's pauses
    marks = {"measured": span, "no communication": alone} if exposed else {}
    if exposed and diagnosis.bound is not None:
        gained = diagnosis.bucket_gain_ns
        played = pd.notna(diagnosis.bound.get("found_ns"))
        prompt = alone + int(diagnosis.bound["bound_ns"]) - int(diagnosis.bound["compute_ns"])  # nothing is delayed
        if gained is not None:
            marks["best buckets found" if played else "best buckets possible"] = span - gained
        if prompt < span and not played:
            marks["no delays or late ranks" if gained is None else "these buckets, no delays or late ranks"] = prompt
    if exposed and diagnosis.ahead is not None:
        marks[f"prefetch {diagnosis.ahead.depth}"] = diagnosis.ahead.step_ns
    rows = pd.DataFrame(list(marks.items()), columns=["word", "ns"]).astype({"ns": "int64"})
    return rows.sort_values("ns", kind="stable", ignore_index=True)


def marks_heading(window: str) -> str:
    """The heading of `step_marks`; `window`: see `window_word`."""
    return "How short this step could be with less exposed communication".replace("step", window)


def marks_title(marks: pd.DataFrame, window: str) -> str:
    """What `step_marks` show; `window`: see `window_word`."""
    longest = int(marks["ns"].max())
    words = [mark_words(word, int(ns), longest) for word, ns in marks[["word", "ns"]].to_numpy()]
    return f"{marks_heading(window)}: {', '.join(words)}"


def mark_words(word: str, ns: int, longest_ns: int) -> str:
    """One of `step_marks`, and how much less it is than the longest: `435 ms best buckets found (−35 ms, 7 %)`."""
    gain_ns = longest_ns - ns
    return f"{ms(ns)} {word}" + (f" (−{ms(gain_ns)}, {percent(gain_ns, longest_ns)})" if gain_ns else "")


def marks_note(diagnosis: Diagnosis) -> str | None:
    """On what `step_marks` depend."""
    open_ = diagnosis.bound is not None and not diagnosis.bound["waits_known"]
    notes = ["if none of the exposed time is waiting for other ranks"] if open_ else []
    idle_ns = diagnosis.idle_ns + diagnosis.paused_ns
    if idle_ns > LITTLE_GAIN * diagnosis.span_ns:
        what = "idle time and pauses of the host stay" if diagnosis.paused_ns else "idle time stays"
        notes.append(f"{ms(idle_ns)} of {what} in each")
    return "; ".join(notes) or None


def causes_title(diagnosis: Diagnosis) -> str:
    """The heading of the bars of causes."""
    return f"Where the {ms(diagnosis.exposed_ns)} of exposed communication went"


def rest_line(causes: Sequence[CauseShare]) -> str:
    """What the causes without a bar took; empty where there are none."""
    if not causes:
        return ""
    took = ms(sum(share.exposed_ns for share in causes))
    return sentence(f"{took} more of smaller causes: {', '.join(share.label for share in causes)}")


def summary_title(table: pd.DataFrame) -> str:
    """How much communication is exposed in rows of `overlaplab.summary` or `.totals`, and how much of it is waiting."""
    comm, exposed = int(table["comm_ns"].sum()), int(table["exposed_comm_ns"].sum())
    if comm == 0:
        return f"No communication in {'these steps' if table_word(table) == 'step' else 'this trace'}"
    share = percent(exposed, int(table["span_ns"].sum()))
    title = f"Exposed {ms(exposed)} of communication: {share} of the {table_time(table)}"
    if exposed == 0 or table["exposed_wait_ns"].isna().any():
        return title
    return f"{title}, {ms(int(table['exposed_wait_ns'].sum()))} of it until the last rank came"


def ranks_left_out(shown: int, ranks: int) -> str:
    """Say which ranks a chart shows, where it has no room for all."""
    return f"Shown: the {shown} of {ranks} ranks with most exposed time." if shown < ranks else ""


def summary_scope(table: pd.DataFrame) -> str:
    """How many ranks and steps rows of `overlaplab.summary` or `.totals` cover."""
    ranks = table["rank"].nunique(dropna=False)
    windows = len(table) if "step" in table else 0
    scope = f"all {ranks} ranks" if ranks > 1 else "1 rank"
    if windows > ranks:
        scope += f" and {windows // ranks} steps" if windows % ranks == 0 else f", {windows} steps"
    return scope
