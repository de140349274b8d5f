"""Settings that would make the recorded steps shorter, by how much, and what memory they cost.

[Note: played], [Note: by the bound]: docs/design/plays.md, Advice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from overlaplab.analyses.delays import without_busy_steps
from overlaplab.analyses.exposed import exposed_pauses
from overlaplab.analyses.summary import summary
from overlaplab.analyses.worst import rows_of, worst_step
from overlaplab.events import Run, missing_ranks
from overlaplab.manifest import strategy_traits
from overlaplab.simulate.advice.tried import (
    best_setting,
    depths_played,
    device_settings,
    played_gain_half_ns,
    scattered_caps,
)
from overlaplab.simulate.bound import sendable_gradients
from overlaplab.simulate.buckets.cutting import best_cutting, last_end
from overlaplab.simulate.buckets.search import BucketSearch, BucketsPlayed, Candidate, bucket_search
from overlaplab.simulate.fill_buckets import cap_ranges, closing_caps
from overlaplab.simulate.transfers import times_beyond
from overlaplab.simulate.undisturbed import TIE, mean_step_ns, recorded_spans_ns, undisturbed_steps

OPTIONS = ("first_bucket", "cap", "cap_and_first_bucket", "buckets", "prefetch")
"""What can be changed: the first bucket's cap, the cap, both, the sizes of all buckets, the units gathered ahead."""
_TYPES = {
    "option": "object",
    **dict.fromkeys(("bucket_cap_mb", "first_bucket_mb"), "Float64"),
    **dict.fromkeys(("prefetch", "buckets"), "Int64"),
    **dict.fromkeys(("bucket_sizes", "caps_mb"), "object"),
    **dict.fromkeys(("gain_ns", "half_ns", "low_ns", "high_ns", "step_ns", "least_ns", "memory_bytes"), "Int64"),
    **dict.fromkeys(("replayed", "best"), "bool"),
}


def advise(run: Run) -> pd.DataFrame:
    """One row per setting that was tried, in the order of `OPTIONS`, the smallest first; empty where none can be.

    Columns: `option` (one of `OPTIONS`), `bucket_cap_mb`, `first_bucket_mb` (Float64, in MiB), `prefetch` (Int64; all
    three null where the option leaves them as they are), `buckets` (how many, Int64), `bucket_sizes` (the bytes of each
    in order of launch), `caps_mb` (the caps in MiB that give them, the last one serves on; both tuples, null of a
    prefetch), `gain_ns` (how much shorter a step is), `half_ns` (see `played_gain_half_ns`), `low_ns`, `high_ns` (its
    range; all four Int64, see [Note: played]; without a replay `gain_ns` is the most that it can be, and the others are
    null), `step_ns` (the mean step then), `least_ns` (the least with any buckets, null of a prefetch, of
    reduce-scattered buckets, and without a replay), `memory_bytes` (what each rank holds more at most; all Int64),
    `replayed` (see [Note: by the bound]), `best` (of its option). Without a link, buckets more than twice
    outside the measured sizes are not tried.
    """
    rows = [*_search_rows(run), *_setting_rows(run)] or list(_rows_by_bound(run))
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


def best_cap_mb(run: Run) -> float | None:
    """The cap that `advise` finds best, without what it tells of other options; None where none was replayed."""
    search = bucket_search(run)
    if search is not None:
        return search.best_cap.caps_mb[-1] if search.best_cap else None
    best = best_setting(run, scattered_caps(run) or device_settings(run))
    return best.value if best is not None and best.option == "cap" else None


def can_try_buckets(run: Run) -> bool:
    """Whether other buckets than the recorded ones could be tried at all without extrapolating."""
    search = bucket_search(run)
    return search is None or search.best_cap is not None or any(best for _, _, best in _first_options(run, search))


def _first_options(run: Run, search: BucketSearch) -> Iterator[tuple[str, Sequence[Candidate], BucketsPlayed | None]]:
    """The options of a first bucket: each with what is tried, and the best; torch's DDP has none."""
    traits, manifest = strategy_traits(run.manifest), run.manifest
    cap = manifest.bucket_cap_mb if manifest and traits and traits.buckets else None
    # Not `has_first_bucket`: a strategy without buckets is to become `bucketed`, which has a first one.
    has_first = manifest is not None and manifest.strategy not in (None, "torch-ddp")
    if has_first and cap is not None:
        yield "first_bucket", search.first_caps(cap), search.best_first_cap(cap)
    if has_first and search.best_cap is not None:  # none where the first bucket holds all gradients
        others = search.best_cap.caps_mb[-1]
        yield "cap_and_first_bucket", search.first_caps(others), search.best_first_cap(others)


def _search_rows(run: Run) -> Iterator[dict[str, Any]]:
    """The settings of a run that all-reduces gradients."""
    search = bucket_search(run)
    if search is None or not can_try_buckets(run):
        return
    options = [
        *_first_options(run, search),
        ("cap", search.caps, search.best_cap),
        ("buckets", search.lists, search.best_list),
    ]
    for option, tried, best in sorted(options, key=lambda each: OPTIONS.index(each[0])):
        for played in search.play_candidates(tried):
            caps: dict[str, Any] = {"caps_mb": played.caps_mb, "least_ns": round(search.least_ns)}
            if option in ("cap", "cap_and_first_bucket"):
                caps["bucket_cap_mb"] = played.caps_mb[-1]
            if option in ("first_bucket", "cap_and_first_bucket"):
                caps["first_bucket_mb"] = played.caps_mb[0]
            bucket_bytes = tuple(sum(search.cut.sizes[name] for name in names) for names in played.buckets)
            size: dict[str, Any] = {"buckets": len(bucket_bytes), "bucket_sizes": bucket_bytes, "memory_bytes": 0}
            is_best = best is not None and played.caps_mb == best.caps_mb
            yield {"option": option, "best": is_best} | caps | size | _gain(run, played.spans_ns)


def _setting_rows(run: Run) -> Iterator[dict[str, Any]]:
    """The settings of `scattered_caps`, `depths_played` and `device_settings`; a first bucket keeps its own cap."""
    for played in (scattered_caps(run), depths_played(run), device_settings(run)):
        best = best_setting(run, played)
        for each in played:
            row: dict[str, Any] = {"option": each.option, "prefetch": each.value}
            if each.option == "cap":
                row = {"option": "cap", "bucket_cap_mb": each.value, "caps_mb": each.caps_mb}
                row |= {"buckets": len(each.sizes), "bucket_sizes": each.sizes}
            row |= {"best": each is best, "memory_bytes": each.memory_bytes}
            yield row | _gain(run, each.spans_ns) | {"half_ns": each.half_ns}


def _gain(run: Run, spans_ns: npt.NDArray[np.int64]) -> dict[str, Any]:
    """What a setting gains whose steps take so long; see [Note: played]."""
    recorded_ns, changed_ns = mean_step_ns(run, recorded_spans_ns(run)), mean_step_ns(run, spans_ns)
    gained = (recorded_spans_ns(run) - spans_ns).mean(axis=0)[undisturbed_steps(run)]
    low_ns, high_ns = int(gained.min() - TIE * recorded_ns), int(gained.max() + TIE * recorded_ns)
    return {
        "gain_ns": round(recorded_ns - changed_ns),
        "half_ns": played_gain_half_ns(run),
        "low_ns": low_ns,
        "high_ns": high_ns,
        "step_ns": round(changed_ns),
        "replayed": True,
    }


def _rows_by_bound(run: Run) -> Iterator[dict[str, Any]]:
    """Every cap and the best buckets of all, of the step that speaks for the run; see [Note: by the bound]."""
    if missing_ranks(run):  # T may include waiting for them
        return
    table = without_busy_steps(run, summary(run))
    window = worst_step(table) if len(table) else None
    gradients = None if window is None else sendable_gradients(run, window)
    if window is None or gradients is None:
        return
    paused_ns = int(rows_of(exposed_pauses(run), window)["paused_ns"].sum())
    span_ns, exposed_ns = int(window["span_ns"]), int(window["exposed_comm_ns"]) - paused_ns
    order = range(len(gradients.bytes))
    rows = []
    for cap_range in cap_ranges(order, dict(enumerate(gradients.bytes))):
        bucket_bytes = tuple(sum(gradients.bytes[place] for place in bucket) for bucket in cap_range.buckets)
        if times_beyond(bucket_bytes, gradients.sent) is None:
            filled = list(map(len, cap_range.buckets))
            last_end_ns = last_end(gradients.ready_ns, gradients.bytes, filled, gradients.takes)
            caps = {"bucket_cap_mb": cap_range.cap_mb, "caps_mb": (cap_range.cap_mb,)}
            rows.append(_row_by_bound("cap", bucket_bytes, exposed_ns, last_end_ns - gradients.ready_ns[-1]) | caps)
    largest_ns = max((row["gain_ns"] for row in rows), default=0)
    tied = [row for row in rows if row["gain_ns"] >= largest_ns - TIE * span_ns]
    best = min(tied, key=lambda row: (row["buckets"], len(f"{row['bucket_cap_mb']:g}")), default=None)
    yield from (row | {"best": row is best, "step_ns": span_ns - row["gain_ns"]} for row in rows)
    end_ns, counts = best_cutting(gradients.ready_ns, gradients.bytes, gradients.takes)
    ends = np.cumsum(counts).tolist()
    cut = [gradients.bytes[end - count : end] for end, count in zip(ends, counts, strict=True)]
    row = _row_by_bound("buckets", tuple(map(sum, cut)), exposed_ns, end_ns - gradients.ready_ns[-1])
    yield row | {"caps_mb": tuple(closing_caps(cut)), "best": True, "step_ns": span_ns - row["gain_ns"]}


def _row_by_bound(option: str, bucket_bytes: tuple[int, ...], exposed_ns: int, late_ns: int) -> dict[str, Any]:
    size = {"buckets": len(bucket_bytes), "bucket_sizes": bucket_bytes, "memory_bytes": 0}
    return {"option": option, "gain_ns": exposed_ns - max(late_ns, 0), "replayed": False} | size
