"""The same figures as tables for a terminal of 80 columns, in ms, under the registry's short headers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from overlaplab.columns import Column, columns
from overlaplab.findings import no_fastest
from overlaplab.formats import UNKNOWN, digits, text
from overlaplab.words import last_gradient, to_ms, visible

__all__ = [
    "add_names",
    "add_numbers",
    "add_row",
    "blank_table",
    "buckets_table",
    "collectives_table",
    "communication_table",
    "compare_table",
    "gathers_table",
    "plain",
    "schedule_line",
    "schedule_table",
    "sizes_table",
    "stragglers_table",
    "summary_table",
]

MOST_LISTED = 60
"""More collectives than that make no table that anybody reads,"""
FEW_LISTED = 20
"""so only these many are shown."""


def summary_table(table: pd.DataFrame, title: str) -> Table:
    """`summary`'s rows: the five parts of each step, and the share of communication that was hidden."""
    waited = ["exposed_wait_ns"] if table["exposed_wait_ns"].notna().any() else []
    parts = ("compute_only_ns", "overlapped_ns", "exposed_comm_ns", *waited, "memory_only_ns", "idle_ns")
    times = columns("summary", "span_ns", *parts)
    shown = blank_table(title, *columns("summary", "rank", "step"), *times, *columns("summary", "overlap_ratio"))
    shown.caption = "ms; compute + hidden + exposed + memory + idle = step; overlap = hidden ÷ communication" + (
        "; wait: of the exposed, until the last rank came" if waited else ""
    )
    places = digits(table["span_ns"], one=100)
    for _, row in table.iterrows():
        identity = [_known(row["rank"]), _known(row["step"])]
        add_row(shown, [*identity, *_times(row, times, places), _percent(row["overlap_ratio"])])
    return shown


def buckets_table(table: pd.DataFrame) -> Table:
    """`buckets`' rows of one rank and step: when each was ready, ran, and which parameter it waited for."""
    first = table.iloc[0]
    places = digits(table[["backward_end_ns", "end_ns"]], one=100)
    begins, ends = (text(first[name], "ns", places) for name in ("backward_start_ns", "backward_end_ns"))
    title = f"rank {_known(first['rank'])}, step {_known(first['step'])}: backward from {begins} to {ends} ms"
    times = columns("buckets", "ready_ns", "start_ns", "end_ns", "exposed_ns")
    shown = blank_table(title, *columns("buckets", "index", "bytes"), *times)
    add_names(shown, *columns("buckets", "last_parameter"), overflow="ellipsis")
    for row in table.to_dict("records"):
        size = text(row["bytes"], "MB", 1)
        add_row(shown, [str(row["index"]), size, *_times(row, times, places), last_gradient(row) or UNKNOWN])
    return shown


def compare_table(table: pd.DataFrame) -> Table:
    """`compare`'s rows, the median over all ranks' steps and its interquartile range."""
    figures = columns(
        "compare", "step_ms_median", "step_ms_iqr", "exposed_ms_median", "comm_ms_median", "compute_ms_median"
    )
    shown = blank_table("Runs compared")
    add_names(shown, *columns("compare", "run"), overflow="fold")
    add_numbers(shown, *columns("compare", "bucket_cap_mb"), *figures, *columns("compare", "overlap_ratio"))
    shown.caption = "medians over every rank's steps, ms; overlap = hidden ÷ communication; cap = bucket_cap_mb"
    emulated = table["emulated"].astype(bool)
    if emulated.all():
        shown.caption += "; emulated links"
    if (alone := int((table["phantoms"] > 0).sum())) > 0:
        shown.caption += f"; one rank of an emulated group, its peers phantoms: {alone} of {len(table)}"
    why = no_fastest(table)
    if why is not None:
        shown.caption += f"; none is fastest: {why}"
    places = digits(table["step_ms_median"], "ms", one=100)
    for name, row in zip(_short_names(table), table.to_dict("records"), strict=True):
        said = f"{name}{' ← fastest' if row['fastest'] else ''}"
        if row["emulated"] and not emulated.all():
            said += " (emulated link)"
        numbers = [_known(row["bucket_cap_mb"]), *_times(row, figures, places)]
        add_row(shown, [said, *numbers, _percent(row["overlap_ratio"])])
    return shown


def sizes_table(table: pd.DataFrame) -> Table | None:
    """What `compare`'s runs sent and held, beside the theory; None where nothing is known of either."""
    names = ["sent_bytes", "theory_sent_bytes", "memory_bytes", "theory_memory_bytes", "peak_memory_bytes"]
    if table[names].isna().all(axis=None):
        return None
    shown = blank_table("Sent per rank and step, held per rank")
    shown.caption = "MB; sent: median over every rank's steps; held: parameters, gradients, optimizer, the largest rank"
    if table["peak_memory_bytes"].notna().any():
        shown.caption += "; peak: the allocator's highest mark, activations included"
    else:
        names.pop()
    add_names(shown, *columns("compare", "run"), overflow="fold")
    add_numbers(shown, *columns("compare", *names))
    for run, row in zip(_short_names(table), table.to_dict("records"), strict=True):
        add_row(shown, [run, *(text(row[name], "MB", 2) for name in names)])
    return shown


def _short_names(table: pd.DataFrame) -> list[str]:
    """The last part of each run's path, or so many parts as tell the runs apart."""
    parts = [PurePath(str(path)).parts for path in table["path"]]
    for depth in range(1, max(map(len, parts), default=1)):
        names = ["/".join(own[-depth:]) for own in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(path) for path in table["path"]]


def schedule_table(steps: pd.DataFrame, title: str) -> Table:
    """`schedule_steps`' rows: gathers of layers by pass, frees, all gathers, the peak, and the wait."""
    names = ("rank", "step", "layer_gathers", "layer_frees", "gathers")
    peak = ("peak_gathered_bytes", "peak_layers", "peak_ns")
    shown = blank_table(title, *columns("schedule_steps", *names, *peak, "wait_ns"))
    shown.caption = "of layers: gathers = for forward + for backward; wait: ms that gathers kept the rank waiting"
    places = digits(steps[["peak_ns", "wait_ns"]], one=100)
    for _, row in steps.iterrows():
        by_pass = f"{row['layer_gathers']} = {row['forward_layer_gathers']} + {row['backward_layer_gathers']}"
        counts = [_known(row["rank"]), _known(row["step"]), by_pass, str(row["layer_frees"]), str(row["gathers"])]
        most = [text(row["peak_gathered_bytes"], "MB", 2), _known(row["peak_layers"])]
        add_row(shown, [*counts, *most, *(text(row[name], "ns", places) for name in ("peak_ns", "wait_ns"))])
    return shown


def schedule_line(step: pd.Series, layers: int) -> str:
    """One row of `schedule_steps` as a sentence; `layers` is the number of different ones."""
    places = digits(step[["peak_ns", "wait_ns"]], one=100)
    peak, waited = (text(step[name], "ns", places) for name in ("peak_ns", "wait_ns"))
    return (
        f"rank {_known(step['rank'])}, step {_known(step['step'])}: {step['layer_gathers']} gathers of {layers} layers "
        f"= {step['forward_layer_gathers']} forward + {step['backward_layer_gathers']} backward, "
        f"{step['layer_frees']} freed; {step['gathers']} gathers in all; "
        f"peak {text(step['peak_gathered_bytes'], 'MB', 2)} MB ({step['peak_layers']} layers) at {peak} ms; "
        f"waited {waited} ms"
    )


def gathers_table(table: pd.DataFrame) -> Table:
    """`schedule`'s rows of one rank and step."""
    times = columns(
        "schedule", "gather_launch_ns", "gather_start_ns", "gather_end_ns", "wait_ns", "first_use_ns", "free_ns"
    )
    shown = blank_table("")
    shown.title = None
    add_names(shown, *columns("schedule", "unit"), overflow="ellipsis", no_wrap=True)
    add_numbers(shown, *columns("schedule", "gathered_for"), *times, *columns("schedule", "bytes"))
    shown.caption = "ms from the step's start; for: the pass, and the microbatch; wait: ms until the gather ended"
    places = digits(table[["gather_end_ns", "free_ns"]], one=100)
    for _, row in table.iterrows():
        which = f"{'fwd' if row['phase'] == 'forward' else 'bwd'} {row['microbatch']}"
        add_row(shown, [row["unit"], which, *_times(row, times, places), text(row["bytes"], "kB")])
    return shown


def collectives_table(table: pd.DataFrame, title: str) -> Table:
    """`collectives`' rows, one line per collective; of many, those that were exposed most."""
    longest = table.groupby("index")["exposed_ns"].max().fillna(-1)
    listed = longest if len(longest) <= MOST_LISTED else longest.nlargest(FEW_LISTED)
    shown = blank_table(title, *columns("each_collective", "index", "step"))
    shown.padding = (0, 0)
    add_names(shown, *columns("each_collective", "group"), overflow="ellipsis", no_wrap=True, max_width=12)
    add_names(shown, *columns("each_collective", "kind"), overflow="ellipsis", no_wrap=True, max_width=14)
    names = ("bytes", "wait_ns", "transfer_ns", "exposed_ns", "last_rank", "bus_gb_per_s")
    add_numbers(shown, *columns("each_collective", *names))
    shown.caption = (
        "ms; wait: until the last rank came, of the one that waited longest (≈0: within clock error); "
        "exposed: of the rank with most; GB/s: bus bandwidth, ≥ where only the duration is known"
    )
    if len(listed) < len(longest):
        shown.caption += f"; the {len(listed)} of {len(longest)} that were exposed most (--json tells all)"
    for index, rows in table[table["index"].isin(listed.index)].groupby("index"):
        first = rows.iloc[0]
        waited = rows["wait_ns"].max()
        near = pd.notna(waited) and pd.notna(first["within_clock_error"]) and bool(first["within_clock_error"])
        bus = text(first["bus_gb_per_s"], "GB/s", 2)
        told = [_known(first["group_description"] or first["group"]), _known(first["kind"]), _size(first["bytes"])]
        times = ["≈0" if near else _fine_ms(waited), _fine_ms(first["transfer_ns"]), _fine_ms(rows["exposed_ns"].max())]
        last = _known(first["last_rank"])
        bound = "≥" if first["bus_is_lower_bound"] else ""
        add_row(shown, [str(index), _known(first["step"]), *told, *times, last, bound + bus])
    return shown


def communication_table(table: pd.DataFrame) -> Table:
    """`communication_by`'s rows, by group and kind: the median of the ranks."""
    shown = blank_table("By group and kind, the median rank")
    add_names(shown, *columns("communication_by", "group", "kind"), overflow="ellipsis", no_wrap=True, max_width=14)
    names = ("ranks", "count", "bytes", "busy_ns", "exposed_ns", "exposed_max_ns")
    add_numbers(shown, *columns("communication_by", *names))
    shown.caption = (
        "at most: of the rank most exposed; groups may work at once, so times may add up to more than there is"
    )
    named = table.assign(name=table["group_description"].fillna(table["group"]))
    places = digits(table["busy_ns"], one=100)
    for (name, kind), rows in named.groupby(["name", "kind"], dropna=False, sort=False):
        middle = rows[["count", "busy_ns", "exposed_ns"]].median()
        size = rows["bytes"].astype("Float64").median() if rows["bytes"].notna().all() else None
        times = (middle["busy_ns"], middle["exposed_ns"], rows["exposed_ns"].max())
        counts = [str(len(rows)), f"{middle['count']:g}", _size(size)]
        add_row(shown, [_known(name), _known(kind), *counts, *(text(time, "ns", places) for time in times)])
    return shown


def stragglers_table(table: pd.DataFrame) -> Table | None:
    """`stragglers`' rows; None where no rank made others wait."""
    if not table["last"].any():
        return None
    times = columns("stragglers", "late_median_ns", "late_max_ns", "cost_ns", "alone_ns")
    shown = blank_table("Who came last", *columns("stragglers", "rank", "last", "collectives"), *times)
    shown.caption = "late: after the median arrival of the others, the median; others waited: ms, all ranks' together"
    places = digits(table[["late_max_ns", "cost_ns"]], one=100)
    for _, row in table[table["last"] > 0].iterrows():
        counts = [_known(row["rank"]), str(row["last"]), str(row["collectives"])]
        add_row(shown, [*counts, *_times(row, times, places)])
    return shown


def blank_table(title: str, *numbers: Column) -> Table:
    """A table without rows, of columns of numbers."""
    shown = Table(
        title=plain(title),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    add_numbers(shown, *numbers)
    return shown


def add_numbers(shown: Table, *numbers: Column) -> None:
    """Add columns of numbers, which stand on the right and are neither wrapped nor cut."""
    for column in numbers:
        shown.add_column(column.terse, justify="right", no_wrap=True)


def add_names(shown: Table, *names: Column, **look: Any) -> None:
    """Add columns of texts, which may give way as `look` says."""
    for column in names:
        shown.add_column(column.terse, **look)


def plain(text: str, style: str = "") -> Text:
    """Text as it is: what comes out of a trace is neither markup nor an order to the terminal."""
    return Text(visible(text), style=style)


def add_row(shown: Table, cells: Iterable[str], style: str | None = None) -> None:
    """Add a row of texts as they are."""
    shown.add_row(*map(plain, cells), style=style)


def _known(value: Any) -> str:
    return text(value, "text" if isinstance(value, str) else "count")


def _times(row: Any, times: Iterable[Column], places: int) -> list[str]:
    return [text(row[column.name], column.unit, places) for column in times]


def _fine_ms(value: Any) -> str:
    """On a GPU a transfer takes microseconds."""
    return text(value, "ns", 1 if pd.notna(value) and to_ms(value) >= 10 else 3)


def _size(value: Any) -> str:
    """MB, with no more digits than tell something."""
    return text(value, "MB", 2 if pd.isna(value) or value < 1e9 else 0)


def _percent(value: Any) -> str:
    return UNKNOWN if pd.isna(value) else f"{text(value, 'ratio')} %"
