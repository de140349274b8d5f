"""The verdict on a run in a few sentences, about one rank's step: percentages are shares of that."""

from __future__ import annotations

import pandas as pd

from overlaplab.events import Run, WorkKind, counting_as
from overlaplab.findings.diagnosis.diagnose import Diagnosis, place_name
from overlaplab.findings.diagnosis.unseen import OTHER_RANKS, Unseen, late_start_words
from overlaplab.findings.thresholds import LITTLE_GAIN
from overlaplab.findings.windows import window_word
from overlaplab.manifest import Manifest
from overlaplab.words import count, ms, shorten


def why_no_breakdown(run: Run) -> str:
    """Why a run whose device activity was recorded has no rows in `summary`."""
    if all(counting_as(trace, WorkKind.NOTHING).all() for trace in run.traces):
        return "Nothing in this run counts as compute, communication or memory: there is nothing to show."
    return "No step of this run launched a compute kernel: there is no breakdown of its steps."


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
    if several:
        return f"mean step {ms(table['span_ns'].mean())}"
    return f"median {window_word(table['step'].max())} {ms(table['span_ns'].median())}"


def how_short(diagnosis: Diagnosis) -> str:
    """How short the step could have been; empty where communication is not its problem, or where that is unknown.

    Recorded idle time and pauses stay in every figure, since it is not communication that causes them.
    """
    bound, ahead, span_ns, paused_ns = diagnosis.bound, diagnosis.ahead, diagnosis.span_ns, diagnosis.paused_ns
    if not diagnosis.is_problem or bound is None or not diagnosis.exposed_ns:
        return ""
    exposed_ns, idle_ns = diagnosis.exposed_ns - paused_ns, diagnosis.idle_ns + paused_ns
    alone_ns = span_ns - exposed_ns
    it = "The trace" if diagnosis.step is None else "That step"
    pauses = " or paused" if paused_ns else ""
    idles = f", {ms(idle_ns)} of it idle{pauses}" if idle_ns > LITTLE_GAIN * span_ns else ""
    condition = "" if bound["waits_known"] else ", if none of it is waiting for other ranks"
    if pd.notna(bound.get("found_ns")):  # buckets were played with all ranks
        best, least, condition = int(bound["found_ns"]), int(bound["least_ns"]), ""
        gap = f" (no buckets get below about {ms(least)})" if best - least > LITTLE_GAIN * span_ns else ""
        if span_ns - best <= LITTLE_GAIN * span_ns:
            return (
                f"{it} takes {ms(span_ns)}; the best buckets found gain {ms(max(span_ns - best, 0))}{gap}. Without"
                f" any communication it would take {ms(alone_ns)}{idles}."
            )
        how = f"{ms(best)} with the best buckets found{gap}"
    elif (gained := diagnosis.bucket_gain_ns) is not None:
        how = f"at best {ms(span_ns - gained)} with other buckets and no delays or late ranks"
    elif ahead is not None:
        how = f"at best {ms(ahead.step_ns)} with prefetch {ahead.depth}"
    else:
        least = alone_ns + int(bound["bound_ns"]) - int(bound["compute_ns"])
        if span_ns - least <= LITTLE_GAIN * span_ns:
            return (
                f"{it} takes {ms(span_ns)}, and would take {ms(alone_ns)} without any communication{idles}{condition}."
            )
        how = f"at best {ms(least)} with the same launches and no delays or late ranks"
    return f"{it} takes {ms(span_ns)}: {how}, and {ms(alone_ns)} without any communication{idles}{condition}."


def hidden_finding(diagnosis: Diagnosis, unseen: Unseen) -> str:
    """How much of the communication was hidden, as far as the traces show it."""
    hidden = f"{ms(diagnosis.hidden_ns)} of {ms(diagnosis.comm_ns)}"
    if unseen.only_ends:
        return (
            "How much of communication is hidden is unknown: of low-latency DeepEP only the kernels that send and that"
            f" receive are seen ({hidden} of their and the others' time is hidden), not the time between."
        )
    return f"{hidden} of communication is hidden."
