"""The same figures as tables for a terminal of 80 columns, in ms."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from overlaplab.analyses import no_fastest
from overlaplab.words import last_gradient, visible

__all__ = [
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

NS_PER_MS = 1_000_000

MOST_LISTED = 60
"""More collectives than that make no table that anybody reads,"""
FEW_LISTED = 20
"""so only these many are shown."""


def summary_table(table: pd.DataFrame, title: str) -> Table:
    """`summary`'s rows: the five parts of each step, and the share of communication that was hidden."""
    waited = ["wait"] if table["exposed_wait_ns"].notna().any() else []
    columns = ["step ms", "compute", "overlap", "exposed", *waited, "memory", "idle", "hidden"]
    shown = blank_table(title, "rank", "step", *columns)
    shown.caption = "ms; compute + overlap + exposed + memory + idle = step; hidden = overlap ÷ communication" + (
        "; wait: of the exposed, until the last rank came" if waited else ""
    )
    parts = ["span_ns", "compute_only_ns", "overlapped_ns", "exposed_comm_ns", "memory_only_ns", "idle_ns"]
    parts[4:4] = ["exposed_wait_ns"] if waited else []
    digits = _digits(table["span_ns"])
    for _, row in table.iterrows():
        times = (_ms(row[part], digits) for part in parts)
        add_row(shown, [_known(row["rank"]), _known(row["step"]), *times, _percent(row["overlap_ratio"])])
    return shown


def buckets_table(table: pd.DataFrame) -> Table:
    """`buckets`' rows of one rank and step: when each was ready, ran, and which parameter it waited for."""
    first = table.iloc[0]
    digits = _digits(table[["backward_end_ns", "end_ns"]])
    begins, ends = _ms(first["backward_start_ns"], digits), _ms(first["backward_end_ns"], digits)
    title = f"rank {_known(first['rank'])}, step {_known(first['step'])}: backward from {begins} to {ends} ms"
    shown = blank_table(title, "bucket", "MB", "ready", "start", "end", "exposed")
    shown.add_column("last gradient", overflow="ellipsis")
    for row in table.to_dict("records"):
        times = (_ms(row[column], digits) for column in ("ready_ns", "start_ns", "end_ns", "exposed_ns"))
        megabytes = "–" if pd.isna(row["bytes"]) else f"{row['bytes'] / 1e6:.1f}"
        add_row(shown, [str(row["index"]), megabytes, *times, last_gradient(row) or "–"])
    return shown


def compare_table(table: pd.DataFrame) -> Table:
    """`compare`'s rows, the median over all ranks' steps and its interquartile range."""
    shown = blank_table("Runs compared", first="run")
    for column in ("cap", "step ms", "± IQR", "exposed", "comm", "compute", "hidden"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.caption = "medians over every rank's steps, ms; hidden = overlap ÷ communication; cap = bucket_cap_mb"
    emulated = table["emulated"].astype(bool)
    if emulated.all():
        shown.caption += "; emulated links"
    if (alone := int((table["phantoms"] > 0).sum())) > 0:
        shown.caption += f"; one rank of an emulated group, its peers phantoms: {alone} of {len(table)}"
    why = no_fastest(table)
    if why is not None:
        shown.caption += f"; none is fastest: {why}"
    figures = ["step_ms_median", "step_ms_iqr", "exposed_ms_median", "comm_ms_median", "compute_ms_median"]
    digits = _digits(table["step_ms_median"].astype("Float64") * NS_PER_MS)
    for name, row in zip(_short_names(table), table.to_dict("records"), strict=True):
        said = f"{name}{' ← fastest' if row['fastest'] else ''}"
        if row["emulated"] and not emulated.all():
            said += " (emulated link)"
        numbers = (_ms(None if pd.isna(row[figure]) else row[figure] * NS_PER_MS, digits) for figure in figures)
        add_row(shown, [said, _known(row["bucket_cap_mb"]), *numbers, _percent(row["overlap_ratio"])])
    return shown


def sizes_table(table: pd.DataFrame) -> Table | None:
    """What `compare`'s runs sent and held, beside the theory; None where nothing is known of either."""
    columns = ["sent_bytes", "theory_sent_bytes", "memory_bytes", "theory_memory_bytes", "peak_memory_bytes"]
    if table[columns].isna().all(axis=None):
        return None
    shown = blank_table("Sent per rank and step, held per rank", first="run")
    shown.caption = "sent: median over every rank's steps; held: parameters, gradients, optimizer, the largest rank"
    if table["peak_memory_bytes"].notna().any():
        shown.caption += "; peak: the allocator's highest mark, activations included"
    else:
        columns.pop()
    for column in ("sent MB", "theory", "held MB", "theory", "peak MB")[: len(columns)]:
        shown.add_column(column, justify="right", no_wrap=True)
    for name, row in zip(_short_names(table), table.to_dict("records"), strict=True):
        add_row(shown, [name, *(_mb(row[column]) for column in columns)])
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
    shown = blank_table(title, "rank", "step", "of layers", "freed", "in all", "peak MB", "layers", "at ms", "waited")
    shown.caption = "of layers: gathers = for forward + for backward; waited: ms that gathers kept the rank waiting"
    digits = _digits(steps[["peak_ns", "wait_ns"]])
    for _, row in steps.iterrows():
        by_pass = f"{row['layer_gathers']} = {row['forward_layer_gathers']} + {row['backward_layer_gathers']}"
        peak = [_mb(row["peak_gathered_bytes"]), _known(row["peak_layers"]), _ms(row["peak_ns"], digits)]
        counts = [_known(row["rank"]), _known(row["step"]), by_pass, str(row["layer_frees"]), str(row["gathers"])]
        add_row(shown, [*counts, *peak, _ms(row["wait_ns"], digits)])
    return shown


def schedule_line(step: pd.Series, layers: int) -> str:
    """One row of `schedule_steps` as a sentence; `layers` is the number of different ones."""
    digits = _digits(step[["peak_ns", "wait_ns"]])
    peak, waited = (_ms(step[name], digits) for name in ("peak_ns", "wait_ns"))
    return (
        f"rank {_known(step['rank'])}, step {_known(step['step'])}: {step['layer_gathers']} gathers of {layers} layers "
        f"= {step['forward_layer_gathers']} forward + {step['backward_layer_gathers']} backward, "
        f"{step['layer_frees']} freed; {step['gathers']} gathers in all; "
        f"peak {_mb(step['peak_gathered_bytes'])} MB ({step['peak_layers']} layers) at {peak} ms; "
        f"waited {waited} ms"
    )


def gathers_table(table: pd.DataFrame) -> Table:
    """`schedule`'s rows of one rank and step."""
    shown = blank_table("")
    shown.title = None
    shown.add_column("unit", overflow="ellipsis", no_wrap=True)
    for column in ("for", "launch", "start", "end", "wait", "use", "free", "kB"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.caption = "ms from the step's start; for: the pass, and the microbatch; wait: ms until the gather ended"
    digits = _digits(table[["gather_end_ns", "free_ns"]])
    for _, row in table.iterrows():
        which = f"{'fwd' if row['phase'] == 'forward' else 'bwd'} {row['microbatch']}"
        columns = ("gather_launch_ns", "gather_start_ns", "gather_end_ns", "wait_ns", "first_use_ns", "free_ns")
        size = "–" if pd.isna(row["bytes"]) else f"{row['bytes'] / 1e3:.0f}"
        add_row(shown, [row["unit"], which, *(_ms(row[column], digits) for column in columns), size])
    return shown


def collectives_table(table: pd.DataFrame, title: str) -> Table:
    """`collectives`' rows, one line per collective; of many, those that were exposed most."""
    longest = table.groupby("index")["exposed_ns"].max().fillna(-1)
    listed = longest if len(longest) <= MOST_LISTED else longest.nlargest(FEW_LISTED)
    shown = blank_table(title, "#", "step")
    shown.padding = (0, 0)
    shown.add_column("group", overflow="ellipsis", no_wrap=True, max_width=12)
    shown.add_column("kind", overflow="ellipsis", no_wrap=True, max_width=14)
    for column in ("MB", "wait", "transfer", "exposed", "last", "GB/s"):
        shown.add_column(column, justify="right", no_wrap=True)
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
        bus = "–" if pd.isna(first["bus_gb_per_s"]) else f"{first['bus_gb_per_s']:.2f}"
        texts = [_known(first["group_description"] or first["group"]), _known(first["kind"]), _size(first["bytes"])]
        times = ["≈0" if near else _fine_ms(waited), _fine_ms(first["transfer_ns"]), _fine_ms(rows["exposed_ns"].max())]
        last = _known(first["last_rank"])
        bound = "≥" if first["bus_is_lower_bound"] else ""
        add_row(shown, [str(index), _known(first["step"]), *texts, *times, last, bound + bus])
    return shown


def communication_table(table: pd.DataFrame) -> Table:
    """`communication_by`'s rows, by group and kind: the median of the ranks."""
    shown = blank_table("By group and kind, the median rank")
    shown.add_column("group", overflow="ellipsis", no_wrap=True, max_width=14)
    shown.add_column("kind", overflow="ellipsis", no_wrap=True, max_width=14)
    for column in ("ranks", "count", "MB", "busy ms", "exposed", "at most"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.caption = (
        "at most: of the rank most exposed; groups may work at once, so times may add up to more than there is"
    )
    named = table.assign(name=table["group_description"].fillna(table["group"]))
    digits = _digits(table["busy_ns"])
    for (name, kind), rows in named.groupby(["name", "kind"], dropna=False, sort=False):
        middle = rows[["count", "busy_ns", "exposed_ns"]].median()
        size = rows["bytes"].astype("Float64").median() if rows["bytes"].notna().all() else None
        times = [_ms(time, digits) for time in (middle["busy_ns"], middle["exposed_ns"], rows["exposed_ns"].max())]
        add_row(shown, [_known(name), _known(kind), str(len(rows)), f"{middle['count']:g}", _size(size), *times])
    return shown


def stragglers_table(table: pd.DataFrame) -> Table | None:
    """`stragglers`' rows; None where no rank made others wait."""
    if not table["last"].any():
        return None
    shown = blank_table("Who came last", "rank", "last", "of", "late ms", "at most", "others waited", "for it alone")
    shown.caption = "late: after the median arrival of the others, the median; others waited: ms, all ranks' together"
    digits = _digits(table[["late_max_ns", "cost_ns"]])
    for _, row in table[table["last"] > 0].iterrows():
        times = (_ms(row[column], digits) for column in ("late_median_ns", "late_max_ns", "cost_ns", "alone_ns"))
        add_row(shown, [_known(row["rank"]), str(row["last"]), str(row["collectives"]), *times])
    return shown


def blank_table(title: str, *columns: str, first: str | None = None) -> Table:
    """A table without rows: `first`, whose texts may wrap, then `columns` of numbers, which never do."""
    shown = Table(
        title=plain(title),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    if first:
        shown.add_column(first, overflow="fold")
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    return shown


def plain(text: str, style: str = "") -> Text:
    """Text as it is: what comes out of a trace is neither markup nor an order to the terminal."""
    return Text(visible(text), style=style)


def add_row(shown: Table, cells: Iterable[str], style: str | None = None) -> None:
    """Add a row of texts as they are."""
    shown.add_row(*map(plain, cells), style=style)


def _known(value: Any) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _digits(times: pd.Series | pd.DataFrame) -> int:
    """How many digits of ms tell these ns apart: on a GPU whole steps take a few ms."""
    known = times.to_numpy(dtype="float64", na_value=float("nan"))
    return next((digits for digits, most in ((1, 100), (2, 10)) if (known >= most * NS_PER_MS).any()), 3)


def _ms(value: Any, digits: int) -> str:
    return "–" if pd.isna(value) else f"{value / NS_PER_MS:.{digits}f}"


def _fine_ms(value: Any) -> str:
    """On a GPU a transfer takes microseconds."""
    return "–" if pd.isna(value) else f"{value / NS_PER_MS:.{1 if value >= 10 * NS_PER_MS else 3}f}"


def _mb(value: Any) -> str:
    return "–" if pd.isna(value) else f"{value / 1e6:.2f}"


def _size(value: Any) -> str:
    """MB, with no more digits than tell something."""
    return "–" if pd.isna(value) else f"{value / 1e6:.{2 if value < 1e9 else 0}f}"


def _percent(value: Any) -> str:
    return "–" if pd.isna(value) else f"{100 * value:.0f} %"
