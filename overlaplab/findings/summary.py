"""How the step time was spent, as sentences."""

from __future__ import annotations

import pandas as pd

from overlaplab.words import ms, percent


def summary_title(table: pd.DataFrame) -> str:
    """How much communication is exposed in rows of `overlaplab.summary` or `.totals`, and how much of it is waiting."""
    comm, exposed = int(table["comm_ns"].sum()), int(table["exposed_comm_ns"].sum())
    if comm == 0:
        return "No communication in these steps"
    title = f"Exposed {ms(exposed)} of communication: {percent(exposed, int(table['span_ns'].sum()))} of the step time"
    if exposed == 0 or table["exposed_wait_ns"].isna().any():
        return title
    return f"{title}, {ms(int(table['exposed_wait_ns'].sum()))} of it waiting for a rank"


def ranks_left_out(shown: int, ranks: int) -> str:
    """Say which ranks a chart shows, where it has no room for all."""
    return f"Shown: the {shown} of {ranks} ranks with most exposed time." if shown < ranks else ""


def summary_scope(table: pd.DataFrame) -> str:
    """How many ranks and steps the same rows cover."""
    ranks = table["rank"].nunique(dropna=False)
    windows = len(table) if "step" in table else 0
    scope = f"all {ranks} ranks" if ranks > 1 else "1 rank"
    if windows > ranks:
        scope += f" and {windows // ranks} steps" if windows % ranks == 0 else f", {windows} steps"
    return scope
