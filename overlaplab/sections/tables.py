"""Every table that people are shown, composed once for pages and terminals, from rows of `overlaplab.analyses`.

Nothing here imports altair, for which a terminal need not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from msgspec.structs import replace

from overlaplab import analyses, findings
from overlaplab.analyses.systems.bench import bench_side_by_side
from overlaplab.analyses.worst import drop_damaged, outlier_rows
from overlaplab.columns import Column, column, columns
from overlaplab.costs.link import UNSTEADY
from overlaplab.findings.windows import window_word
from overlaplab.formats import UNKNOWN, text
from overlaplab.sections.blocks import TableBlock
from overlaplab.timeline.marks import MarkKind
from overlaplab.timeline.window_statistics import WindowStatistics
from overlaplab.words import capitalise, count, kind_word, last_gradient, ms, shorten, size_exact, to_ms

_SUMMARY = (
    *("rank", "step", "span_ns", "compute_only_ns", "overlapped_ns", "exposed_comm_ns", "exposed_wait_ns"),
    *("exposed_transfer_ns", "memory_only_ns", "idle_ns", "overlap_ratio"),
)
_LEAST_CAUSE = 0.005
_BUCKETS = columns(
    "buckets",
    *("index", "bytes", "last_parameter", "ready_ns", "launch_ns", "start_ns", "end_ns", "exposed_ns", "held_ns"),
)
_GATHERS = columns(
    "schedule",
    *("unit", "phase", "microbatch", "gather_launch_ns", "gather_start_ns", "gather_end_ns"),
    *("first_use_ns", "wait_ns", "free_ns", "bytes"),
)
_PIPELINE_RANKS = columns(
    "pipeline_ranks",
    *("step", "rank", "stages", "span_ns", "busy_ns", "idle_ns", "schedule_ns", "imbalance_ns", "wait_ns"),
    *("transfer_ns", "overhead_ns", "held"),
)
_PIPELINE_WAITS = columns(
    "pipeline_waits",
    *("step", "rank", "place", "span_ns", "busy_ns", "bubble_ns", "bubble", "wait_ns", "transfer_ns", "sending_ns"),
    *("other_ns", "fill_ns", "received", "sent"),
)
_COMPARE = columns(
    "compare",
    *("run", "strategy", "bucket_cap_mb", "ranks", "steps", "step_ms_median", "step_ms_iqr"),
    *("compute_ms_median", "comm_ms_median", "exposed_ms_median", "overlap_ratio"),
)
_BATCHES = columns(
    "largest_batches",
    *("sharding", "batch", "batch_ratio", "published_batch_ratio", "sample_ms", "sample_ratio"),
    *("published_sample_ratio", "sample_iqr_ms", "peak_memory_bytes"),
)
_COSTS = ("sent_bytes", "theory_sent_bytes", "memory_bytes", "theory_memory_bytes")
_ALSO = {
    "peak_memory_bytes": "peak: the most allocated at one time, activations included",
    "activation_bytes": "act.: activations that autograd keeps of a microbatch",
    "recompute_ms": "again: forward passes that run again in a step",
}
"""Further costs, and what their headers mean."""
_SPEEDS = ("algbw_gb_per_s", "bus_gb_per_s")


def pipeline_rows(table: pd.DataFrame) -> TableBlock:
    """Rows of `pipeline` of one step, in order of time."""
    return TableBlock(
        key="pipeline_table",
        caption="Every action",
        frame=table.sort_values(["start_ns", "stage"], kind="stable"),
        columns=columns(
            "pipeline",
            *("stage", "action", "microbatch", "start_ns", "took_ns", "wait_ns", "transfer_ns", "overhead_ns", "held"),
        ),
        legend="ms from the step's first action; wait, moving, host: what lies before the action",
    )


def pipeline_ranks_rows(table: pd.DataFrame) -> TableBlock:
    """Rows of `pipeline_ranks`."""
    left_out = {"wait_ns", "transfer_ns", "overhead_ns"}
    return TableBlock(
        key="pipeline_ranks_table",
        caption="What each rank did in the step",
        frame=table,
        columns=_PIPELINE_RANKS,
        narrow=[column for column in _PIPELINE_RANKS if column.name not in left_out],
        legend="ms; step: from the first action of any rank to the last; sched.: the bubble that the schedule makes by"
        " itself; uneven: what unequal stages add",
        notes=["wait, moving and host are gaps before actions: the rest of a bubble comes after a rank's last action"],
    )


def pipeline_waits_rows(table: pd.DataFrame) -> TableBlock:
    """Rows of `pipeline_waits` of one step."""
    left_out = {"sending_ns", "other_ns", "sent"}
    return TableBlock(
        key="pipeline_waits_table",
        caption="What each rank of the pipeline waited for in the step",
        frame=table,
        columns=_PIPELINE_WAITS,
        narrow=[column for column in _PIPELINE_WAITS if column.name not in left_out],
        legend="ms; span: from first to last computation; bubble: of it, in which a message was received and nothing"
        " computed; before: the same, ahead of the span",
    )


def summary_rows(table: pd.DataFrame) -> TableBlock:
    """Rows of `summary`; many are summed up by rank, with the steps that are unlike the others."""
    block = _breakdown_rows("summary_table", "Per rank and step", table)
    if not block.is_long:
        return block
    whole = drop_damaged(table)
    steps = whole.groupby("rank", dropna=False)["step"].size().unique()
    means = _breakdown_rows(
        "means_table",
        f"Per rank, the mean of its {count(int(steps[0]), 'step') if len(steps) == 1 else 'steps'}",
        _means(whole),
        without=("step",),
    )
    outliers = outlier_rows(table)
    unlike = _breakdown_rows("outliers_table", "Steps unlike the others, of the rank most exposed in each", outliers)
    ranked = replace(unlike, legend="", ranked_by="away_ns", ranked_words="that differ most")
    return replace(block, summary=(means, ranked) if len(outliers) else (means,))


def _breakdown_rows(key: str, caption: str, table: pd.DataFrame, *, without: Sequence[str] = ()) -> TableBlock:
    """Where the time of each row's step, or mean step, went."""
    waits = table["exposed_wait_ns"].notna().any()
    unshown = {"exposed_transfer_ns"} if waits else {"exposed_transfer_ns", "exposed_wait_ns"}
    names = (*_SUMMARY, "damaged") if "damaged" in table and table["damaged"].any() else _SUMMARY
    shown = [name for name in names if name not in without]
    legend = "ms; alone (compute only) + hidden + exposed + memory + idle = step; overlap = hidden ÷ communication"
    return TableBlock(
        key=key,
        caption=caption,
        frame=table,
        columns=columns("summary", *shown),
        narrow=columns("summary", *(name for name in shown if name not in unshown)),
        legend=legend + ("; wait: of the exposed, until the last rank came" if waits else ""),
        ranked_by="exposed_comm_ns",
        ranked_words="that were exposed most",
    )


def _means(table: pd.DataFrame) -> pd.DataFrame:
    """Each rank's mean step; a part that is unknown in one of them is unknown, and the ratio is that of the sums."""
    parts = [name for name in _SUMMARY if name.endswith("_ns")]
    by = table.groupby("rank", dropna=False)
    means = by[[*parts, "comm_ns"]].mean()
    for name in parts:
        means[name] = means[name].mask(table[name].isna().groupby(table["rank"], dropna=False).any())
    ratio = (means["overlapped_ns"] / means["comm_ns"].where(means["comm_ns"] > 0)).astype("Float64")
    return means.assign(overlap_ratio=ratio).reset_index()


def advice_rows(table: pd.DataFrame, window: str) -> TableBlock:
    """The best setting of each kind that gains anything, of rows of `simulate.advise`; `window`: see `window_word`."""
    best = table[table["best"] & (table["gain_ns"] > 0)].reset_index(drop=True)
    words = [findings.option_words(row) for row in best.to_dict("records")]
    played = "the mean step" if window == "step" else f"the {window}"
    of = played if table["replayed"].any() else f"at most, of the {window} that speaks for the run"
    return TableBlock(
        key="advice_table",
        caption="What other settings gain",
        frame=best.assign(setting=pd.Series(words, dtype=object)),
        columns=columns("advise", "setting", "buckets", "gain_ns", "half_ns", "step_ns", "memory_bytes"),
        legend=f"ms; {of}; ±: the real gain may be so much more or less; more MB: each rank holds",
    )


def spots_rows(diagnosis: findings.Diagnosis) -> TableBlock:
    """Each cause and collective of a diagnosis, the most exposed first."""
    rows = pd.concat([share.rows for share in diagnosis.causes], ignore_index=True)
    of_step = rows["exposed_ns"] / diagnosis.span_ns
    frame = rows.assign(
        cause=[share.label for share in diagnosis.causes for _ in range(len(share.rows))],
        moved=[findings.collective_label(row) for row in rows.to_dict("records")],
        of_step=of_step,
        terse_exposed_ns=_texts(rows["exposed_ns"], "ns", 3),
        terse_of_step=_texts(of_step, "ratio", 1),
        terse_start_ns=_texts(rows["start_ns"], "ns", 3),
    ).sort_values("exposed_ns", ascending=False, kind="stable", ignore_index=True)
    return TableBlock(
        key="exposed_table",
        caption=f"{_place(diagnosis)}: each cause and collective, the largest first",
        frame=frame,
        columns=_exposed_columns(diagnosis, "cause", "moved", "exposed_ns", "of_step", "start_ns", "end_ns"),
        narrow=_exposed_columns(diagnosis, "exposed_ns", "of_step", "cause", "moved", "start_ns"),
        legend="from: from the run's start",
        notes=["from and to count from the run's start, as on the timeline"],
        most=20,
    )


def _exposed_columns(diagnosis: findings.Diagnosis, *names: str) -> tuple[Column, ...]:
    """Columns of `exposed`; their headers say `trace` where the diagnosis is about a trace without steps."""
    word = window_word(diagnosis.step)
    return tuple(replace(each, header=each.header.replace("step", word)) for each in columns("exposed", *names))


def _place(diagnosis: findings.Diagnosis) -> str:
    """The rank and step of a diagnosis, as a caption begins."""
    return capitalise(findings.rank_and_step({"rank": diagnosis.rank, "step": diagnosis.step}))


def actions_rows(actions: Sequence[findings.Advised], *, advised: bool) -> TableBlock:
    """What would help, in the order in which it is advised; `advised`: whether the first is what the advice says."""
    window = actions[0].window
    whole = "the mean step" if window == "step" else f"the {window}"
    frame = pd.DataFrame(
        {
            "gain_ns": [each.gain_ns for each in actions],
            "half_ns": pd.array([each.half_ns for each in actions], dtype="Int64"),
            "action": [f"{each.short}, at most" if each.action.condition else each.short for each in actions],
            "against": [each.why for each in actions],
        }
    )
    return TableBlock(
        key="actions_table",
        caption=findings.actions_title(actions, advised=advised),
        frame=frame,
        columns=columns("advise", "gain_ns", "half_ns", "action", "against"),
        legend=f"ms of {whole}; gains do not add up; what costs a search, precision or hardware comes first only with"
        f" twice the gain; ±: by how much the real gain may differ; against: the largest cause in the {window} shown",
    )


def causes_rows(diagnosis: findings.Diagnosis) -> TableBlock:
    """The causes of a diagnosis; several that are each less than `_LEAST_CAUSE` of the step are one row."""
    rows = [(share.label, share.exposed_ns, share.what, share.remedy) for share in diagnosis.causes]
    small = [row for row in rows if row[1] < _LEAST_CAUSE * diagnosis.span_ns]
    if len(small) > 1:
        rows = [row for row in rows if row not in small]
        rows.append((f"{len(small)} other causes", sum(row[1] for row in small), "", ""))
    frame = pd.DataFrame(rows, columns=["cause", "exposed_ns", "concerned", "remedy"])
    frame["of_step"] = frame["exposed_ns"] / diagnosis.span_ns
    return TableBlock(
        key="causes_table",
        caption=f"{_place(diagnosis)}: by cause",
        frame=frame.assign(
            terse_exposed_ns=_texts(frame["exposed_ns"], "ns", 1), terse_of_step=_texts(frame["of_step"], "ratio", 1)
        ),
        columns=_exposed_columns(diagnosis, "cause", "exposed_ns", "of_step", "concerned", "remedy"),
        narrow=_exposed_columns(diagnosis, "exposed_ns", "of_step", "cause", "concerned"),
    )


def buckets_rows(table: pd.DataFrame, causes: pd.DataFrame | None = None) -> TableBlock:
    """Rows of `buckets` of one rank and step; `causes`: `findings.bucket_causes` of the same, if they are known."""
    late = analyses.late_buckets(table)
    frame = table.assign(held_ns=late["held_ns"].reindex(table.index).fillna(0))
    words = [None if causes is None else findings.bucket_cause_words(causes, row) for _, row in frame.iterrows()]
    once = None if causes is None else findings.counted_once_note(causes, table)
    frame = frame.reset_index(drop=True)
    return TableBlock(
        key="buckets_table",
        caption="Per bucket, times from the step's start",
        frame=frame.assign(
            last_parameter=pd.Series([last_gradient(row) for row in frame.to_dict("records")], dtype=object),
            gap_ns=frame["gradient_ready_ns"].map(analyses.last_gap_ns),
            cause=pd.Series(words, dtype=object),
            terse_bytes=_texts(frame["bytes"], "MB", 1),
        ),
        columns=_BUCKETS,
        wide=(
            *_BUCKETS[:2],
            *columns("buckets", "exposed_ns", "cause"),
            *_BUCKETS[2:3],
            *columns("buckets", "gap_ns"),
            *(column for column in _BUCKETS[3:] if column.name != "exposed_ns"),
        ),
        narrow=columns("buckets", "index", "bytes", "ready_ns", "start_ns", "end_ns", "exposed_ns", "last_parameter"),
        notes=[*findings.bucket_notes(table), *filter(None, [once])],
    )


def gathers_rows(table: pd.DataFrame, diagnosis: findings.Diagnosis | None = None) -> TableBlock:
    """Rows of `schedule` of one rank and step, the longest waits first, with causes from that step's `diagnosis`."""
    causes = pd.Series(findings.gather_cause_words(diagnosis, table), table.index, dtype=object)
    table = table.assign(cause=causes).sort_values("wait_ns", ascending=False, kind="stable", na_position="last")
    passes = zip(table["phase"], table["microbatch"], strict=True)
    return TableBlock(
        key="gathers_table",
        caption="Per gather, times from the step's start",
        frame=table.assign(
            unit=[shorten(str(unit), 80) for unit in table["unit"]],
            terse_unit=table["unit"],
            gathered_for=[f"{'fwd' if phase == 'forward' else 'bwd'} {microbatch}" for phase, microbatch in passes],
        ),
        columns=_GATHERS,
        wide=(
            *columns("schedule", "unit", "phase", "wait_ns", "cause", "bytes"),
            *(column for column in _GATHERS if column.name not in ("unit", "phase", "wait_ns", "bytes")),
        ),
        narrow=columns(
            "schedule",
            *("unit", "gathered_for", "gather_launch_ns", "gather_start_ns", "gather_end_ns", "wait_ns"),
            *("first_use_ns", "free_ns", "bytes", "cause"),
        ),
        legend="ms from the step's start; for: the pass, and the microbatch; wait: ms until the gather ended",
        notes=findings.schedule_notes(table),
        most=120,
    )


def schedule_rows(steps: pd.DataFrame) -> TableBlock:
    """Rows of `schedule_steps`, for a terminal."""
    counts = zip(*(steps[f"{phase}layer_gathers"] for phase in ("", "forward_", "backward_")), strict=True)
    frame = steps.assign(terse_layer_gathers=[f"{both} = {forward} + {backward}" for both, forward, backward in counts])
    return TableBlock(
        key="schedule_table",
        caption="Per rank and step",
        frame=frame,
        ranked_by="wait_ns",
        ranked_words="in which gathers kept the rank waiting longest",
        narrow=columns(
            "schedule_steps",
            *("rank", "step", "layer_gathers", "layer_frees", "gathers", "peak_gathered_bytes", "peak_layers"),
            *("peak_ns", "wait_ns"),
        ),
        legend="of layers: gathers = for forward + for backward; wait: ms that gathers kept the rank waiting",
    )


def collectives_rows(rows: pd.DataFrame) -> TableBlock:
    """Rows of `each_collective`, the most exposed first."""
    rows = _word_groups(rows).sort_values("exposed_ns", ascending=False, kind="stable", na_position="last")
    near = rows["within_clock_error"].fillna(False).astype(bool) & rows["wait_ns"].notna()
    bounds = rows["bus_is_lower_bound"]
    speeds = zip(bounds, _texts(rows["bus_gb_per_s"], "GB/s", 2), strict=True)
    return TableBlock(
        key="collectives_table",
        caption="Per collective, the most exposed first",
        frame=rows.assign(
            bus_is_lower_bound=bound_words(rows),
            last_word=rows["last_rank"]
            .map("rank {}".format, na_action="ignore")
            .astype(object)
            .mask(near, "within clock error"),
            terse_wait_ns=pd.Series(_fine_times(rows["wait_ns"]), rows.index).mask(near, "≈0"),
            terse_last_rank=pd.Series(_texts(rows["last_rank"], "count", 0), rows.index).mask(near, "≈"),
            terse_transfer_ns=_fine_times(rows["transfer_ns"]),
            terse_exposed_ns=_fine_times(rows["exposed_ns"]),
            terse_bus_gb_per_s=[f"≥{speed}" if bound else speed for bound, speed in speeds],
        ),
        columns=columns(
            "each_collective",
            *("index", "step", "group", "kind", "bytes", "wait_ns", "transfer_ns", "exposed_ns", "last_rank"),
            "bus_gb_per_s",
        ),
        wide=(
            *columns(
                "each_collective",
                *("index", "step", "kind", "bytes", "start_ns", "longest_ns", "wait_ns", "transfer_ns", "exposed_ns"),
            ),
            replace(column("each_collective", "last_rank"), name="last_word", unit="text"),
            *columns("each_collective", "bus_gb_per_s", "bus_is_lower_bound", "skew_ns", "ranks", "group", "dtype"),
            *columns("each_collective", "unmatched"),
        ),
        legend="ms; wait: until the last rank came, on the rank that waited longest (≈: within clock error); "
        "exposed: on the most exposed rank; simultaneous collectives each count it (the command `exposed` divides it); "
        "GB/s: bus bandwidth, ≥ where only the duration is known",
        notes=["bus bandwidth is a lower bound where the transfer is unknown"] if bounds.any() else [],
        ranked_by="exposed_ns",
        ranked_words="that were exposed most",
    )


_MOST_POINTS = 40  # a chart with more is worth its place
_MOST_SIZES = 4  # rows of a table by size; with more sizes a chart shows more


def sizes_rows(rows: pd.DataFrame, link_gb_per_s: float | None = None) -> TableBlock | None:
    """Rows of `each_collective` by kind and size, if these are so few that a chart would show hardly any points.

    None where there are more, or no size and bandwidth is known. Sizes that read alike are one.
    """
    shown = rows[(rows["bus_gb_per_s"] > 0).fillna(False) & (rows["bytes"] > 0).fillna(False)]
    sizes = [size_exact(int(size)) for size in shown["bytes"]]
    most = max(len(shown), int(rows["wait_ns"].notna().sum()))
    if not len(shown) or most > _MOST_POINTS or len(set(sizes)) > _MOST_SIZES:
        return None
    figures = {
        "bytes": ("bytes", "median"),
        "count": ("bytes", "size"),
        "transfer_ns": ("transfer_ns", "median"),
        "least_ns": ("transfer_ns", "min"),
        "most_ns": ("transfer_ns", "max"),
        "wait_ns": ("wait_ns", "max"),
        "bus_gb_per_s": ("bus_gb_per_s", "median"),
    }
    numbers = shown.astype(dict.fromkeys(("bytes", "transfer_ns", "wait_ns", "bus_gb_per_s"), "Float64"))
    by = numbers.assign(kind=shown["kind"].map(kind_word)).groupby(["kind", pd.Series(sizes, shown.index)], sort=False)
    frame = by.agg(**figures).reset_index(level=0).sort_values("bytes", ascending=False, ignore_index=True)
    with_wait = shown[shown["wait_ns"].notna() & shown["transfer_ns"].notna()]
    transfer = column("each_collective", "transfer_ns")
    return TableBlock(
        key="sizes_table",
        caption="By size",
        frame=frame.assign(transfers=[_span(*ends) for ends in zip(frame["least_ns"], frame["most_ns"], strict=True)]),
        columns=(
            *columns("each_collective", "kind", "bytes", "count"),
            replace(transfer, header="transfer"),
            replace(transfer, name="transfers", unit="text", header="shortest to longest"),
            replace(column("each_collective", "bus_gb_per_s"), header="bus bandwidth"),
            replace(column("each_collective", "wait_ns"), header="longest wait"),
        ),
        lead=f"{findings.bandwidth_title(shown, link_gb_per_s)}."
        + (f" {findings.waits_title(rows, with_wait)}." if len(with_wait) else ""),
        notes=[remark[:1].lower() + remark[1:].removesuffix(".") for remark in findings.bandwidth_remarks(rows, shown)],
    )


def _span(least_ns: Any, most_ns: Any) -> str:
    return UNKNOWN if pd.isna(least_ns) else f"{ms(least_ns)} to {ms(most_ns)}"


def late_ranks_rows(table: pd.DataFrame) -> TableBlock:
    """Rows of `stragglers`."""
    names = ("rank", "last", "collectives", "late_median_ns", "late_max_ns", "cost_ns", "alone_ns")
    return TableBlock(
        key="late_table",
        caption="Who came last",
        frame=table,
        columns=columns("stragglers", *names),
        legend="late: its median, counted from the other ranks' median arrival; others waited: ms, summed over ranks;"
        " for it alone: less, had it come with the second to last",
        ranked_by="cost_ns",
        ranked_words="that the others waited for longest",
        notes=["lateness counts from the other ranks' median arrival"],
    )


def kinds_rows(table: pd.DataFrame) -> TableBlock:
    """Rows of `communication_by`; with their axes where one is known."""
    axis = () if table["axis"].isna().all() else ("axis",)
    return TableBlock(
        key="by_kind_table",
        caption="By group and kind",
        frame=_word_groups(table),
        columns=columns("communication_by", "rank", "group", *axis, "kind", "count", "bytes", "busy_ns", "exposed_ns"),
        ranked_by="exposed_ns",
        ranked_words="that were exposed most",
    )


def median_kinds_rows(table: pd.DataFrame) -> TableBlock:
    """Rows of `communication_by` as medians of the ranks, for a terminal."""
    rows = []
    for (group, kind), rank_rows in _word_groups(table).groupby(["group", "kind"], dropna=False, sort=False):
        middle = rank_rows[["count", "busy_ns", "exposed_ns"]].median().to_dict()
        size = rank_rows["bytes"].astype("Float64").median() if rank_rows["bytes"].notna().all() else None
        most = rank_rows["exposed_ns"].max()
        words = {"group": group, "terse_group": rank_rows["terse_group"].iloc[0], "kind": kind}
        rows.append(words | {"ranks": len(rank_rows), "bytes": size, "exposed_max_ns": most} | middle)
    shown = ("group", "kind", "ranks", "count", "bytes", "busy_ns", "exposed_ns", "exposed_max_ns")
    return TableBlock(
        key="by_kind_table",
        caption="By group and kind, the median rank",
        frame=pd.DataFrame(rows, columns=[*shown, "terse_group"]),
        ranked_by="exposed_max_ns",
        ranked_words="that were exposed most",
        narrow=columns("communication_by", *shown),
        legend="ms of all that is selected, together; at most: the most exposed rank; groups may work at the same time",
    )


def lines_rows(table: pd.DataFrame) -> TableBlock:
    """Rows of `transfer_lines`."""
    names = ("ranks", "kind", "count", "sizes", "latency_ns", "bus_gb_per_s", "deviation", "r_squared")
    astray = table["deviation"].gt(UNSTEADY).fillna(False)  # times that lie too far from their line
    is_negative = table["r_squared"].lt(0).fillna(False)
    unexplained = is_negative & ~astray
    fits_less = "the mean explains the times better than the line"
    frame = table.assign(
        **{name: table[name].mask(astray) for name in ("latency_ns", "bus_gb_per_s")},
        r_squared=table["r_squared"].mask(is_negative),
        ranks=[shorten(", ".join(map(str, ranks)), 40) for ranks in table["ranks"]],
        kind=table["kind"].map(kind_word),
        terse_bus_gb_per_s=_texts(table["bus_gb_per_s"].mask(astray), "GB/s", 2),
    )
    return TableBlock(
        key="lines_table",
        caption="Latency and bandwidth, by lines through the transfers",
        frame=frame,
        columns=columns("transfer_lines", *names),
        narrow=columns("transfer_lines", *(name for name in names if name not in ("sizes", "deviation"))),
        legend=(f"{UNKNOWN}: no line explains the times. " if astray.any() else "")
        + (f"R² {UNKNOWN}: {fits_less}. " if unexplained.any() else "")
        + "T = s·α + f·bytes ÷ B of a ring in s messages; B: GB/s; waiting for late ranks is not in it",
        notes=[
            *(["where α and B are missing, no line explains the times"] if astray.any() else []),
            *([f"where R² alone is missing, {fits_less}"] if unexplained.any() else []),
            "a transfer takes s·α + f·bytes ÷ B, as on a ring; waiting for late ranks is not in it",
        ],
    )


def bound_words(rows: pd.DataFrame) -> pd.Series[Any]:
    """What the bandwidths in rows of `each_collective` are, in words; null where there is none."""
    words = rows["bus_is_lower_bound"].map({True: "a lower bound", False: "measured"})
    return words.where(rows["bus_gb_per_s"].notna())


def slowdown_rows(table: pd.DataFrame) -> TableBlock:
    """Rows of `slowdowns`."""
    return TableBlock(
        key="slowdown_table",
        caption="The same kernels alone, and beside communication",
        frame=table.assign(terse_name=[shorten(name.removeprefix("void "), 40) for name in table["name"]]),
        columns=columns("slowdowns", "name", "pairs", "alone_ns", "beside_ns", "slowdown"),
        legend="medians of one step's kernels, ms",
    )


def compare_rows(table: pd.DataFrame, settings: Sequence[str] | None = None) -> TableBlock:
    """Rows of `compare`; `settings` says in words what each run was recorded with."""
    emulated = table["emulated"].astype(bool)
    marked = emulated & (not emulated.all())
    runs = zip(findings.short_names(table), table["fastest"], marked, strict=True)
    legend = "medians over every rank's steps, ms; overlap = hidden ÷ communication; cap = bucket_cap_mb"
    if emulated.all():
        legend += "; emulated links"
    if (alone := int((table["phantoms"] > 0).sum())) > 0:
        legend += f"; one rank of an emulated group, its peers phantoms: {alone} of {len(table)}"
    if (why := findings.no_fastest(table)) is not None:
        legend += f"; none is fastest: {why}"
    return TableBlock(
        key="compare_table",
        caption="Medians over all ranks' steps",
        frame=table.assign(
            run=findings.run_labels(table)[1],
            setting=settings,
            terse_run=[
                f"{name}{' ← fastest' if fastest else ''}{' (emulated link)' if mark else ''}"
                for name, fastest, mark in runs
            ],
        ),
        columns=_COMPARE,
        wide=() if settings is None else (*_COMPARE[:2], *columns("compare", "setting"), *_COMPARE[3:]),
        narrow=columns(
            "compare",
            *("run", "bucket_cap_mb", "step_ms_median", "step_ms_iqr", "exposed_ms_median", "comm_ms_median"),
            *("compute_ms_median", "overlap_ratio"),
        ),
        legend=legend,
        notes=findings.compare_notes(table),
    )


def batches_rows(table: pd.DataFrame) -> TableBlock | None:
    """Rows of `largest_batches`; None where there are none."""
    if table.empty:
        return None
    return TableBlock(
        key="batches_table",
        caption="The largest batch that fits, by sharding",
        frame=table,
        columns=_BATCHES,
        narrow=_BATCHES[:-2],
        legend="samples per rank; ms of a step ÷ samples of all ranks; % of the first row with DDP, else the first"
        + (f"; {findings.PUBLISHED_NOTE}" if table["published_batch_ratio"].notna().any() else ""),
    )


def costs_rows(table: pd.DataFrame) -> TableBlock | None:
    """Rows of `compare`: what each run sent and held, beside theory; None where nothing is known of either."""
    if table[[*_COSTS, *_ALSO]].isna().all(axis=None):
        return None
    filled = [name for name in _ALSO if table[name].notna().any()]
    legend = "MB; sent: median over every rank's steps; held: parameters, gradients, optimizer, the largest rank"
    return TableBlock(
        key="costs_table",
        caption="Per run",
        frame=table.assign(run=findings.run_labels(table)[1], terse_run=findings.short_names(table)),
        columns=columns("compare", "run", *_COSTS, *filled),
        legend="; ".join((legend, *(_ALSO[name] for name in filled))),
    )


def sweep_rows(table: pd.DataFrame, links: pd.DataFrame) -> TableBlock:
    """Rows of `sweep`, with from when to when the link was in use by `sweep_links`."""
    on_link = links.groupby("bucket_cap_mb").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    spans = {cap: f"{text(span['start'], 'ns')}–{text(span['end'], 'ns')}" for cap, span in on_link.iterrows()}
    times = ("step_ms", "spread_ms", "compute_only_ms", "hidden_ms", "exposed_ms", "rest_ms")
    # Of seconds the tenths tell nothing, and ten columns have no room for them.
    terse = {
        f"terse_{name}": [text(took, "ms", 1 if pd.isna(took) or took < 1000 else 0) for took in table[name]]
        for name in times
    }
    return TableBlock(
        key="caps_table",
        caption="By bucket_cap_mb, each cap's recordings together",
        frame=table.assign(on_link=[spans.get(cap, UNKNOWN) for cap in table["bucket_cap_mb"]], **terse),
        columns=columns(
            "sweep",
            *("bucket_cap_mb", "tier", "runs", "steps", "buckets", "step_ms", "spread_ms", "lowest_ms", "highest_ms"),
            *("compute_only_ms", "hidden_ms", "exposed_ms", "rest_ms", "overlap_ratio"),
        ),
        wide=columns(
            "sweep",
            *("bucket_cap_mb", "tier", "buckets", "step_ms", "spread_ms", "compute_only_ms", "hidden_ms"),
            *("exposed_ms", "rest_ms", "overlap_ratio", "runs", "lowest_ms", "highest_ms", "steps"),
        ),
        narrow=columns("sweep", "bucket_cap_mb", "runs", "buckets", *times, "on_link"),
        legend="ms; step: median over every rank's steps, ± their spread, divided by all steps' shares into alone"
        " (compute only), hidden (communication while the rank computes), exposed and rest (memory, idle); on link:"
        " first start to last end in the first rank's step nearest the median",
        notes=findings.sweep_notes(table),
    )


def bench_rows(table: pd.DataFrame, ranks: int) -> TableBlock:
    """Rows of `bench_collectives`, the algorithms side by side."""
    algorithms = table["algorithm"].drop_duplicates()
    speeds = [f"{algorithm}_{figure}" for algorithm in algorithms for figure in _SPEEDS]
    named = [f"{algorithm}_{figure}" for algorithm in algorithms for figure in ("time_ns", *_SPEEDS)]
    wide = bench_side_by_side(table)
    return TableBlock(
        key="bench_table",
        caption=f"All-reduce over {ranks} ranks, out of place",
        frame=wide.assign(
            terse_bytes=wide["bytes"].map(size_exact),
            **{f"terse_{name}": (1000 * wide[name]).map("{:.3g}".format) for name in speeds},
        ),
        columns=columns("bench_side_by_side", "bytes", *named),
        legend="each algorithm: ms per all-reduce; alg = bytes ÷ time, bus = alg × 2(n−1)/n, both in MB/s",
    )


def sent_rows(volume: pd.DataFrame, windows: int, window: str) -> TableBlock | None:
    """Rows of `volume` as means over so many ranks' windows, and their sum; None where a size is unknown."""
    if volume.empty or volume["sent_bytes"].isna().any():
        return None
    sums = volume.groupby("kind", sort=False)[["count", "bytes", "sent_bytes"]].sum().astype("float64") / windows
    rows = pd.concat([sums, sums.sum().to_frame("in all").T])
    return TableBlock(
        key="volume_table",
        caption=f"Sent per rank and {window}",
        frame=rows.assign(count=rows["count"].round(3), kind=[str(kind).replace("_", "-") for kind in rows.index]),
        columns=columns("volume", "kind", "count", "bytes", "sent_bytes"),
    )


def copies_rows(copies: pd.DataFrame) -> TableBlock | None:
    """Rows of `copies` as means per rank and step of each direction; None without any."""
    if copies.empty:
        return None
    figures = ["count", "bytes", "theory_bytes", "copy_ns", "hidden_ns"]
    return TableBlock(
        key="copies_table",
        caption="Copied between the device and its host, per rank and step",
        frame=copies.groupby("way", sort=False)[figures].mean().reset_index(),
        columns=columns("copies", "way", *figures),
        legend="MB and ms; down: gradients, to the host; up: parameters",
    )


def held_rows(held: pd.DataFrame, peaks: pd.DataFrame) -> TableBlock | None:
    """Rows of `memory`; where they are known, each rank's peak and what was lent to phantoms follow."""
    if held.empty:
        return None
    for name, source in (("peak", "peak_bytes"), ("lent to phantoms", "scratch_bytes")):
        measured = peaks[peaks[source].notna()]
        held = pd.concat([held, pd.DataFrame({"rank": measured["rank"], "part": name, "bytes": measured[source]})])
    return TableBlock(
        key="memory_table",
        caption="Memory per rank",
        frame=held.sort_values("rank", kind="stable", ignore_index=True),
        columns=columns("memory", "rank", "part", "bytes", "formula_bytes", "formula"),
    )


def window_rows(ranks: pd.DataFrame, caption: str, notes: Sequence[str] = ()) -> TableBlock:
    """What each rank did within a window, from `window_totals`."""
    comm = ranks["comm_ns"].astype("Float64").replace(0, None)  # a share of nothing is null
    return TableBlock(
        key="window_table",
        caption=caption,
        frame=ranks.assign(
            exposed_share=ranks["exposed_comm_ns"] / ranks["span_ns"], overlap_ratio=ranks["overlapped_ns"] / comm
        ),
        columns=columns("window", "rank", "span_ns", "compute_ns", "comm_ns", "overlapped_ns", "exposed_comm_ns"),
        wide=columns(
            "window",
            *("rank", "exposed_comm_ns", "compute_ns", "idle_ns", "comm_ns", "overlapped_ns", "busy_ns"),
            *("exposed_share", "overlap_ratio"),
        ),
        narrow=columns("window", "rank", "exposed_comm_ns", "compute_ns", "idle_ns"),
        notes=notes,
    )


def window_causes_rows(window: WindowStatistics) -> TableBlock:
    """Why communication was exposed in a window."""
    return TableBlock(
        key="window_causes",
        caption="Why it was exposed"
        + (f", {count(len(window.ranks), 'rank')} together" if len(window.ranks) > 1 else ""),
        frame=window.causes.assign(cause=[findings.mark_word(MarkKind(part)) for part in window.causes["part"]]),
        columns=columns("exposed", "exposed_ns", "cause"),
    )


def kernels_rows(kernels: pd.DataFrame) -> TableBlock:
    """`WindowStatistics.kernels`."""
    return TableBlock(
        key="kernels_table",
        caption="What took most time there",
        frame=kernels.assign(name=[shorten(findings.group_name(name), 200) for name in kernels["name"]]),
        columns=columns("kernels", "busy_ns", "name", "part", "events"),
        narrow=columns("kernels", "busy_ns", "name"),
    )


def _word_groups(table: pd.DataFrame) -> pd.DataFrame:
    """The table with groups by their descriptions, for a terminal by their axes, and kinds as people write them.

    A message's group says from which rank to which, and stays.
    """
    described = table["group_description"].replace("", None).fillna(table["group"]).fillna("unknown")
    group = described.where(~table["group"].astype(str).str.contains(":", regex=False), table["group"])
    return table.assign(
        group=group, terse_group=table["axis"].fillna(group), kind=table["kind"].map(kind_word, na_action="ignore")
    )


def _texts(values: pd.Series[Any], unit: str, digits: int = 0) -> list[str]:
    return [text(value, unit, digits) for value in values]


def _fine_times(times: pd.Series[Any]) -> list[str]:
    """In ms, below 10 ms to the µs: on a GPU a transfer takes microseconds."""
    return [text(time, "ns", 1 if pd.notna(time) and to_ms(time) >= 10 else 3) for time in times]
