"""The first screen of a run: its figures, one bar per cause of exposed time, every rank's steps; the rest is folded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from overlaplab import charts, findings
from overlaplab.analyses import rows_of
from overlaplab.findings import CauseShare, Diagnosis
from overlaplab.findings.thresholds import MOST_BARS, MOST_RANKS_DRAWN, SMALL_CAUSE
from overlaplab.findings.windows import window_word
from overlaplab.formats import as_shown
from overlaplab.sections import tables
from overlaplab.sections.blocks import Bar, Bars, Block, Chart, Folded, Lines, Section, TableBlock, Tiles
from overlaplab.sections.run_tables import RunTables
from overlaplab.words import ms, sentence


def summary_section(of: RunTables, diagnosis: Diagnosis, note: str | None) -> Section:
    """What stands under the headline of `diagnosis`, a diagnosis of this run."""
    blocks: list[Block] = []
    if listed := diagnosis.listed_actions:
        blocks.append(action_bars(listed, advised=diagnosis.gain_ns is not None))
    marks = findings.step_marks(diagnosis)
    if len(marks):
        draw = partial(charts.step_marks, marks, window=window_word(diagnosis.step))
        notes = (findings.marks_note(diagnosis), findings.describe_prediction(of.manifest))
        blocks.append(Chart(key="marks_chart", draw=draw, note="; ".join(filter(None, notes)) or None))
    table = of.summary
    rank_rows = rows_of(table, {"rank": diagnosis.rank})
    blocks.append(Tiles(key="tiles", tiles=findings.tiles(diagnosis, rank_rows, of.unseen)))
    if diagnosis.causes:
        blocks.append(cause_bars(diagnosis, predicted=bool(findings.describe_prediction(of.manifest))))
    rows = tables.summary_rows(table)
    chart_table = as_shown(table, rows.columns)
    blocks.append(Chart("summary_chart", partial(charts.summary, table, most=MOST_RANKS_DRAWN), note, chart_table))
    return Section(
        title="Summary",
        lead=sentence(findings.place_name(diagnosis)),
        blocks=[
            *blocks,
            Folded(key="steps_fold", heading="Every rank and step", blocks=lambda: [rows]),
            Folded(key="causes_fold", heading="Every cause and collective", blocks=partial(_cause_blocks, diagnosis)),
            Folded(key="costs_fold", heading="Bytes sent and memory, against theory", blocks=partial(_cost_blocks, of)),
        ],
        advice=(findings.what_to_do(diagnosis),),
    )


def cause_bars(diagnosis: Diagnosis, *, predicted: bool) -> Bars:
    """One bar per cause, the most expensive first."""
    causes = diagnosis.causes
    shown = [each for each in causes if each.exposed_ns >= SMALL_CAUSE * diagnosis.exposed_ns][:MOST_BARS] or causes[:1]
    longest = shown[0].exposed_ns
    return Bars(
        key="causes",
        heading=findings.causes_title(diagnosis),
        heads=("cause", "exposed", "where, and what helps"),
        bars=[_cause_bar(share, longest, diagnosis.rank) for share in shown],
        predicted=predicted,
        remainder=findings.rest_line(causes[len(shown) :]),
    )


def action_bars(actions: Sequence[findings.Advised], *, advised: bool) -> Bars:
    """One bar per action, in the order in which they are advised: what it gains per step of a training.

    `advised`: whether the first is what the advice says.
    """
    longest_ns = max(each.gain_ns for each in actions)
    return Bars(
        key="actions",
        heading=findings.actions_title(actions, advised=advised),
        heads=("action", "predicted gain", "how certain, and against what"),
        bars=[
            Bar(
                label=each.short,
                value=f"−{ms(each.gain_ns)}",
                share=each.gain_ns / longest_ns,
                colour="compute",
                lines=[findings.certainty_words(each), *([f"against {each.why}"] if each.why else [])],
            )
            for each in actions
        ],
        predicted=True,
    )


def _cause_bar(share: CauseShare, longest_ns: int, rank: int | None) -> Bar:
    starts, ends = share.rows["start_ns"], share.rows["end_ns"]
    carried = int(starts.iloc[0]), int(ends.iloc[0])  # of the collective with most of this cause's time
    where = {"start_ns": int(starts.min()), "end_ns": int(ends.max()), "carried": carried}
    return Bar(
        label=share.label,
        value=ms(share.exposed_ns),
        share=share.exposed_ns / longest_ns,
        colour=share.cause.colour,
        lines=[line for line in (share.what, share.remedy) if line],
        spot={**where, "rank": rank, "cause": share.cause, "late_rank": share.late_rank},
    )


def _cause_blocks(diagnosis: Diagnosis) -> list[TableBlock]:
    return [tables.spots_rows(diagnosis), tables.causes_rows(diagnosis)] if diagnosis.causes else []


def _cost_blocks(of: RunTables) -> list[TableBlock | Lines]:
    """Bytes sent and memory held beside theory, where the run tells them."""
    windows = of.summary
    volume = of.volume.merge(windows[["rank", "step"]].drop_duplicates(), on=["rank", "step"])
    memory, peaks = (rows[rows["rank"].isin(windows["rank"])] for rows in (of.memory, of.peaks))
    window = findings.table_word(windows)
    sent, held = tables.sent_rows(volume, len(windows), window), tables.held_rows(memory, peaks)
    blocks: list[TableBlock | Lines] = []
    if sent is not None:
        in_all = sent.frame["sent_bytes"].iloc[-1]
        lead = findings.sent_lead(in_all, of.theory, window)
        blocks.append(replace(sent, lead=f"{lead} {findings.sent_notes(of.manifest)}"))
    elif unknown := findings.unknown_sizes(volume):
        blocks.append(Lines(key="volume", heading=f"Sent per rank and {window}", lines=(unknown,)))
    if (copied := tables.copies_rows(of.copies)) is not None:
        blocks.append(copied)
    if held is not None:
        lead = findings.held_lead(memory)
        blocks.append(replace(held, lead=f"{lead} {findings.held_notes(of.manifest, peaks)}"))
    return blocks
