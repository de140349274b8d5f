"""One event of a trace as tables, for the Timeline page."""

from __future__ import annotations

import pandas as pd

from overlaplab.findings import event_facts
from overlaplab.timeline.event_details import CollectiveDetails, EventDetails

__all__ = ["event_rows", "peer_rows"]


def event_rows(details: EventDetails) -> pd.DataFrame:
    """What is known of the event, a row each: `what`, `value`."""
    return pd.DataFrame(event_facts(details), columns=["what", "value"])


def peer_rows(collective: CollectiveDetails) -> pd.DataFrame:
    """Each rank's part in the collective, as `overlaplab.collectives` has it."""
    return pd.DataFrame(collective["peers"]).astype("Int64")
