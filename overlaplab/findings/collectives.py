"""What the tables of collectives say, as sentences: plain text, not Markdown, not HTML."""

from __future__ import annotations

import pandas as pd

from overlaplab.words import count, ms, percent, rank_word

__all__ = ["collectives_seen"]


def collectives_seen(table: pd.DataFrame, late: pd.DataFrame) -> str:
    """What ranks' time in collectives was, and for whom they waited.

    Takes rows of `overlaplab.collectives` and what `overlaplab.analyses.stragglers_of` makes of them.
    """
    number = count(int(table["index"].nunique()), "collective")
    known = table[table["wait_ns"].notna()]
    if known.empty:
        took = table.dropna(subset=["start_ns", "end_ns"])
        spent = ms(int((took["end_ns"] - took["start_ns"]).sum()))
        return (
            f"{number}, in which ranks spent {spent}. What of it is waiting is unknown: that takes the traces of all"
            " ranks that took part."
        )
    spent_ns, waited_ns = int((known["end_ns"] - known["start_ns"]).sum()), int(known["wait_ns"].sum())
    first = (
        f"{number}: of the {ms(spent_ns)} that {count(int(table['rank'].nunique()), 'rank')} spent in them,"
        f" {ms(waited_ns)} ({percent(waited_ns, spent_ns)}) is waiting for the last rank to come."
    )
    if late.empty or not late["last"].any():
        return f"{first} No rank came last by more than clocks may differ."
    worst = late.iloc[0]
    return (
        f"{first} Rank {rank_word(worst['rank'])} cost most: it came last in {worst['last']} of {worst['collectives']},"
        f" and the others waited {ms(worst['cost_ns'])} for it, from their arrivals on."
    )
