"""The verdict on a run in a few sentences: about one rank's step, of which percentages are shares."""

from __future__ import annotations

import pandas as pd

from overlaplab.findings.diagnosis.bound import bound_finding
from overlaplab.findings.diagnosis.diagnose import Diagnosis, place_name
from overlaplab.findings.diagnosis.unseen import OTHER_RANKS, Unseen, late_start_words
from overlaplab.manifest import Manifest
from overlaplab.words import count, ms, shorten

NOTHING_COUNTS = "Nothing in this run counts as compute, communication or memory: there is nothing to show."


def verdict(table: pd.DataFrame, manifest: Manifest | None, diagnosis: Diagnosis, unseen: Unseen = OTHER_RANKS) -> str:
    """The diagnosis of a run in a few sentences; `table` has the rows of `overlaplab.summary` that it was chosen from.

    `unseen`: what the traces do not show.
    """
    strategy = shorten(manifest.strategy or "Recorded loop") if manifest is not None else "Foreign traces"
    ranks = count(table["rank"].nunique(dropna=False), "rank")
    sentences = [f"{strategy}, {ranks}, {_step(table)}; {place_name(diagnosis)}:", diagnosis.headline]
    sentences.append(how_short(diagnosis))
    if diagnosis.comm_ns:
        sentences.append(hidden_finding(diagnosis, unseen))
    if diagnosis.late_rank is not None:
        sentences.append(late_start_words(unseen, diagnosis.late_rank, diagnosis.waited_ns))
    sentences += diagnosis.remarks
    return " ".join(filter(None, sentences))


def _step(table: pd.DataFrame) -> str:
    """How long a step takes; of several kinds the mean, which tells of a whole training."""
    several = "step_kind" in table and table["step_kind"].nunique() > 1
    return f"mean step {ms(table['span_ns'].mean())}" if several else f"median step {ms(table['span_ns'].median())}"


def how_short(diagnosis: Diagnosis) -> str:
    """How short the step could have been; empty where communication is not its problem, or where that is unknown."""
    if not diagnosis.is_problem or diagnosis.bound is None:
        return ""
    sentence = bound_finding(
        diagnosis.bound,
        diagnosis.span_ns,
        diagnosis.exposed_ns,
        diagnosis.ahead,
        idle=diagnosis.idle_ns,
        paused=diagnosis.paused_ns,
    )
    return sentence or ""


def hidden_finding(diagnosis: Diagnosis, unseen: Unseen = OTHER_RANKS) -> str:
    """How much of the communication was hidden, as far as the traces show it."""
    hidden = f"{ms(diagnosis.hidden_ns)} of {ms(diagnosis.comm_ns)}"
    if unseen.only_ends:
        return (
            "How much of communication is hidden is unknown: of low-latency DeepEP only the kernels that send and that"
            f" receive are seen ({hidden} of their and the others' time is hidden), not the time between."
        )
    return f"{hidden} of communication is hidden."
