"""What the tables say, as sentences: plain text for screens and reports, not Markdown, not HTML."""

from __future__ import annotations

from typing import Any

import pandas as pd

from overlaplab.charts.theme import count, ms, percent, rank_word, shorten
from overlaplab.events import Manifest

__all__ = ["late_buckets", "late_sentences", "note", "verdict"]

_COST_NS = 1_000  # below a microsecond a wait is the clock's grain


def note(manifest: Manifest | None) -> str | None:
    """The line about a run that stands under its charts: strategy, ranks, bucket cap, and the link if
    emulated.
    """
    if manifest is None:
        return None
    parts = [shorten(manifest.strategy), count(manifest.world_size, "rank"), shorten(manifest.device)]
    if manifest.bucket_cap_mb is not None:
        parts.append(f"bucket_cap_mb {manifest.bucket_cap_mb:g}")
    if manifest.link is not None and manifest.link.emulated:
        parts.append(f"emulated link {manifest.link}")
        if manifest.link_attained is False:
            parts.append("link not attained")
    return ", ".join(parts)


def verdict(table: pd.DataFrame, manifest: Manifest | None) -> str:
    """The summary in one or two sentences, every percentage with its denominator.

    Takes `overlaplab.summary(run)`, one row per rank and step.
    """
    if table.empty:
        return "Nothing in this run counts as compute, communication or memory: there is nothing to show."
    strategy = shorten(manifest.strategy) if manifest is not None else "Foreign traces"
    ranks = table["rank"].nunique(dropna=False)
    start = f"{strategy}, {count(ranks, 'rank')}: median step {ms(table['span_ns'].median())}."
    comm = int(table["comm_ns"].sum())
    if comm == 0:
        return f"{start} No communication in these steps."
    means = table.groupby("rank", dropna=False)[["span_ns", "comm_ns", "exposed_comm_ns"]].mean()
    worst = int(means["exposed_comm_ns"].astype("float64").argmax())
    row, rank = means.iloc[worst], means.index[worst]
    who = f"Worst rank {rank_word(rank)}" if ranks > 1 else f"Rank {rank_word(rank)}"
    hidden = int(table["overlapped_ns"].sum())
    return (
        f"{start} {who}: {ms(row['exposed_comm_ns'])} of {ms(row['comm_ns'])} of"
        f" communication per step is exposed"
        f" ({percent(row['exposed_comm_ns'], row['span_ns'])} of its step time)."
        f" Over all ranks, {percent(hidden, comm)} of communication time is hidden behind compute."
    )


def late_buckets(table: pd.DataFrame) -> pd.DataFrame:
    """What each bucket of one rank and step waited for and cost; one row per bucket that cost anything,
    dearest first.

    Takes rows of `overlaplab.buckets(run)` for one rank and step. Columns: `index`, `parameter` (whose
    gradient came last), `gap_ns` (how long after the bucket's gradient before it; null where it is the
    only one), `held_ns` (the longest that a later bucket, ready, waited for this one), `held` (their
    indices), `link_ns` (how long it was launched but the link was busy), `exposed_ns`, `cost_ns` = exposed
    + held.
    """
    rows = []
    ordered = table.sort_values("index", kind="stable").to_dict("records")
    held = _held(ordered)
    for bucket in ordered:
        arrivals = sorted(time for time in bucket["gradient_ready_ns"] if time is not None and not pd.isna(time))
        waiting = held.get(bucket["index"], {})
        exposed = _whole(bucket["exposed_ns"])
        cost = exposed + max(waiting.values(), default=0)
        if cost < _COST_NS:
            continue
        rows.append(
            {
                "index": bucket["index"],
                "parameter": bucket["last_parameter"],
                "gap_ns": arrivals[-1] - arrivals[-2] if len(arrivals) > 1 else pd.NA,
                "held_ns": max(waiting.values(), default=0),
                "held": tuple(waiting),
                "link_ns": max(_whole(bucket["start_ns"]) - _ready_to_go(bucket), 0),
                "exposed_ns": exposed,
                "cost_ns": cost,
            }
        )
    columns = ["index", "parameter", "gap_ns", "held_ns", "held", "link_ns", "exposed_ns", "cost_ns"]
    found = pd.DataFrame(rows, columns=columns).astype({"gap_ns": "Int64"})
    return found.sort_values("cost_ns", ascending=False, kind="stable", ignore_index=True)


def late_sentences(late: pd.DataFrame, limit: int = 6) -> list[str]:
    """`late_buckets` in words, a line per bucket."""
    lines = [_late_sentence(row) for row in late.head(limit).to_dict("records")]
    if len(late) > limit:
        lines.append(f"{count(len(late) - limit, 'more late bucket')} in the table below.")
    return lines


def _late_sentence(row: dict[Any, Any]) -> str:
    """Which gradient came last and when; whether the bucket was held by it or by the link; what it cost."""
    name = "an unknown parameter" if _missing(row["parameter"]) else shorten(str(row["parameter"]), 80)
    gap = "the only one in it"
    if not _missing(row["gap_ns"]):
        gap = f"{ms(row['gap_ns'])} after the one before it"
    if row["link_ns"] > max(_whole(row["gap_ns"]), row["held_ns"]):
        line = f"waited {ms(row['link_ns'])} for the busy link; its last gradient was {name}, {gap}"
    else:
        line = f"was held by {name}, whose gradient came last, {gap}"
    if row["held"]:
        upto = "up to " if len(row["held"]) > 1 else ""
        line += f"; {_these(row['held'])} stood ready and waited {upto}{ms(row['held_ns'])} for it"
    return f"Bucket {row['index']} {line}. Exposed: {ms(row['exposed_ns'])}."


def _held(ordered: list[dict[Any, Any]]) -> dict[object, dict[object, int]]:
    """By bucket: the later ones that were ready but had to wait for it, and how long, in ns.

    Launches keep bucket order, so what a ready bucket waits for is the earlier one that became ready last.
    """
    held: dict[object, dict[object, int]] = {}
    latest: dict[Any, Any] | None = None
    for bucket in ordered:
        if _missing(bucket["ready_ns"]):
            continue
        if latest is not None:
            waits = _whole(latest["ready_ns"]) - _whole(bucket["ready_ns"])
            waits = min(waits, _ready_to_go(bucket) - _whole(bucket["ready_ns"]))
            if waits >= _COST_NS:
                held.setdefault(latest["index"], {})[bucket["index"]] = waits
        if latest is None or _whole(bucket["ready_ns"]) >= _whole(latest["ready_ns"]):
            latest = bucket
    return held


def _ready_to_go(bucket: dict[Any, Any]) -> int:
    """When a bucket was both ready and launched, in ns."""
    times = [_whole(bucket[key]) for key in ("ready_ns", "launch_ns") if not _missing(bucket[key])]
    return max(times, default=_whole(bucket["start_ns"]))


def _missing(value: Any) -> bool:
    return value is None or bool(pd.isna(value))


def _whole(value: Any) -> int:
    return 0 if _missing(value) else int(value)


def _these(indices: tuple[int, ...]) -> str:
    if len(indices) == 1:
        return f"bucket {indices[0]}"
    if len(indices) > 6:
        return f"{len(indices)} buckets"
    return f"buckets {', '.join(str(index) for index in indices[:-1])} and {indices[-1]}"
