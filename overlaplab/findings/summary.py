"""How the step time was spent, as sentences."""

from __future__ import annotations

import pandas as pd

from overlaplab.words import ms, percent


def summary_title(table: pd.DataFrame) -> str:
    """How much communication is exposed in rows of `overlaplab.summary` or `.totals`, and how much of it is waiting."""
    comm, exposed = int(table["comm_ns"].sum()), int(table["exposed_comm_ns"].sum())
    if comm == 0:
        return "No communication in these steps"
    title = f"Exposed {ms(exposed)} of {ms(comm)} of communication ({percent(exposed, comm)})"
    if exposed == 0 or table["exposed_wait_ns"].isna().any():
        return title
    return f"{title}, {percent(int(table['exposed_wait_ns'].sum()), exposed)} of it waiting for a rank"


def summary_scope(table: pd.DataFrame) -> str:
    """How many ranks and steps the same rows cover."""
    ranks = table["rank"].nunique(dropna=False)
    windows = len(table) if "step" in table else 0
    scope = f"all {ranks} ranks" if ranks > 1 else "1 rank"
    if windows > ranks:
        scope += f" and {windows // ranks} steps" if windows % ranks == 0 else f", {windows} steps"
    return scope


def summary_advice(table: pd.DataFrame) -> str:
    """What hiding communication could gain at most, from rows of `overlaplab.summary`."""
    span, exposed = int(table["span_ns"].sum()), int(table["exposed_comm_ns"].sum())
    if exposed == 0:
        return "Leave communication as it is: none is exposed."
    return (
        f"Hiding all exposed communication would gain at most {ms(exposed / len(table))} per rank and step,"
        f" {percent(exposed, span)} of the step time. The causes of exposed time say how."
    )
