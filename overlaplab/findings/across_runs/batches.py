"""The way of sharding that fits most samples into a memory limit, and the one that takes least time for each."""

from __future__ import annotations

import pandas as pd

from overlaplab.words import count, duration, size_exact

PUBLISHED_NOTE = (
    "published: Hugging Face's measurements of GPT-2 Large on two GPUs of 24 GB (2022); other models, limits and "
    "links give others"
)
"""Where the ratios come from that stand beside those of rows of `largest_batches`."""


def batches_finding(table: pd.DataFrame) -> str:
    """Say which row of `largest_batches` fits most samples, and at what time per sample; the table has rows."""
    most = table.iloc[int(table["batch"].astype("int64").argmax())]
    fits = f"{most['sharding']} fits {count(int(most['batch']), 'sample')} per rank"
    limits = table["memory_limit_bytes"].dropna().unique()
    if len(limits) > 1:
        return "Different memory limits, not comparable"
    within = f" within {size_exact(int(limits[0]))}" if len(limits) else ""
    base = table[table["batch_ratio"].eq(1) & table["sample_ratio"].eq(1)]
    if len(table) < 2 or base.empty or pd.isna(most["batch_ratio"]) or pd.isna(most["sample_ratio"]):
        return fits + within
    of = base.iloc[0]["sharding"]
    if of == most["sharding"]:
        return f"{fits}{within}, the most of all"
    return (
        f"{fits}{within}, {most['batch_ratio']:.2f} × {of}'s, and takes {most['sample_ratio']:.2f} × its time "
        "per sample"
    )


def batches_advice(table: pd.DataFrame) -> str | None:
    """The row of `largest_batches` to choose, and why; None where their times per sample do not compare."""
    with_ratio = table[table["sample_ratio"].notna()]
    if len(with_ratio) < 2:
        return None
    least, second = with_ratio.sort_values("sample_ms", kind="stable").head(2).to_dict("records")
    most = with_ratio.iloc[int(with_ratio["batch"].astype("int64").argmax())]
    if second["sample_ms"] - least["sample_ms"] <= max(least["sample_iqr_ms"], second["sample_iqr_ms"]):
        return (
            f"{least['sharding']} and {second['sharding']} do not differ clearly in time per sample: record more "
            "steps, with nothing else running, before choosing by it."
        )
    advice = f"Choose {least['sharding']}: it takes least time per sample, {duration(float(least['sample_ms']))}"
    if most["batch"] > least["batch"]:
        return f"{advice}; {most['sharding']} pays where a rank must hold more than {least['batch']} samples."
    return f"{advice}."
