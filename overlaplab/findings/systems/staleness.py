"""How stale the gradients were that an asynchronous parameter server applied."""

from __future__ import annotations

import pandas as pd

from overlaplab.words import count


def staleness_title(table: pd.DataFrame) -> str:
    """The mean and the largest staleness, from rows of `overlaplab.analyses.staleness`."""
    mean, most = float(table["staleness"].mean()), int(table["staleness"].max())
    return f"Gradients were {mean:.1f} updates old on average when they were applied, at most {most}"


def staleness_remark(table: pd.DataFrame) -> str:
    """What staleness is, and what to expect of so many workers."""
    workers = int(table["worker"].nunique())
    return (
        "Staleness: the updates since a worker got the parameters that it computed with. With "
        f"{count(workers, 'worker')} its mean tends to {workers - 1}; that of slow workers is larger. "
        "--max-staleness bounds it."
    )
