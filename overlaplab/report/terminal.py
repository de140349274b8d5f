"""What each command prints where it is not asked for JSON: sentences, and tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pandas as pd
from msgspec.structs import replace
from rich import box
from rich.table import Table
from rich.text import Text

from overlaplab import analyses, findings
from overlaplab.columns import Column
from overlaplab.events import Run
from overlaplab.formats import UNKNOWN, digits, text
from overlaplab.report.documents import predict_document
from overlaplab.sections import tables
from overlaplab.sections.blocks import MOST_ROWS, TableBlock
from overlaplab.sections.run_tables import (
    RunTables,
    diagnosed_pipeline_waits,
    one_window,
    pipeline_tables,
    table_window,
)
from overlaplab.selection import Selection
from overlaplab.simulate.predictions.predict import Prediction
from overlaplab.words import visible_line

Printed: TypeAlias = Table | Text | str

_FEW_KERNELS = 5
_LOOKS: dict[str, dict[str, Any]] = {
    "last_parameter": {"overflow": "ellipsis"},
    "gathered_for": {"justify": "right", "no_wrap": True},
    "on_link": {"justify": "right", "no_wrap": True},
    "unit": {"overflow": "ellipsis", "no_wrap": True},
    "group": {"overflow": "ellipsis", "no_wrap": True, "max_width": 12},
    "kind": {"overflow": "ellipsis", "no_wrap": True, "max_width": 14},
}
"""How columns of texts give way to numbers, which are neither wrapped nor cut."""


def lead(run: Run) -> Iterator[Printed]:
    """That the run was predicted, before anything else is said of it; nothing of recordings."""
    if run.manifest is not None and run.manifest.predicted is not None:
        yield f"{findings.prediction_lead(run.manifest)}; nobody recorded it"


def _tables(block: TableBlock, title: str | None = None, *, every: bool, padding: int = 1) -> Iterator[Printed]:
    """A table with `every` row of it, or else summed up if it is too long; `title` stands in place of its caption."""
    parts = [block] if every else block.summed_up()
    if len(parts) > 1 and title:
        yield title
    for part in parts:
        yield terminal_table(part, title if len(parts) == 1 else None, padding=padding)


def line(of: RunTables) -> str:
    """The run in one line: which step speaks for it, what is exposed in it, why, and what to try first."""
    parts = [of.verdict] if of.diagnosis is None else findings.why_and_what_to_do(of.diagnosis)
    return visible_line(" ".join((*map(str, lead(of.run)), *parts)))


def summary(of: RunTables, *, every: bool = False) -> Iterator[Printed]:
    """The headline, what to try, each cause of the step that they are about, and the parts of each rank's steps."""
    if (diagnosis := of.diagnosis) is not None:
        yield " ".join(filter(None, (findings.why_and_what_to_do(diagnosis)[0], findings.how_short(diagnosis))))
        yield " ".join((diagnosis.advice, *diagnosis.remarks))
        if listed := diagnosis.listed_actions:
            yield terminal_table(tables.actions_rows(listed, advised=diagnosis.gain_ns is not None))
        if diagnosis.causes:
            yield terminal_table(tables.causes_rows(diagnosis))
    yield from _tables(tables.summary_rows(of.summary), findings.run_title(of.run), every=every)
    yield from warnings(of.warnings)


def exposed(of: RunTables, *, every: bool = False) -> Iterator[Printed]:
    """The verdict, each cause and collective, and what to do about it."""
    yield of.verdict
    yield findings.run_title(of.run)
    if of.diagnosis is not None:
        if of.diagnosis.causes:
            yield terminal_table(tables.causes_rows(of.diagnosis))
            yield from _tables(tables.spots_rows(of.diagnosis), findings.exposed_lead(of.diagnosis), every=every)
        if (by_axis := findings.exposed_by_axis(of.exposed)) is not None:
            yield by_axis
        yield of.diagnosis.advice
    yield from warnings(of.warnings)


def buckets(of: RunTables, *, every: bool = False) -> Iterator[Printed]:
    """Each rank's steps' buckets; of the step that speaks for the run, what each late one waited for."""
    table = of.buckets
    yield findings.run_title(of.run)
    if len(table):
        yield (
            "ms from each step's start; exposed: the collective's time without compute; simultaneous collectives each"
            " count it (the command `exposed` divides it)"
        )
    shown = table if every or len(table) <= MOST_ROWS else one_window(table, of.window)
    for _, rows in shown.groupby(["rank", "step"], dropna=False, sort=False):
        first = rows.iloc[0]
        places = digits(rows[["backward_end_ns", "end_ns"]], one_digit_from=100)
        begins, ends = (
            text(time_ns, "ns", places) for time_ns in (rows["backward_start_ns"].min(), rows["backward_end_ns"].max())
        )
        window = f"rank {_value_words(first['rank'])}, step {_value_words(first['step'])}"
        title = f"{window}: backward from {begins} to {ends} ms"
        yield from _tables(tables.buckets_rows(rows), title, every=every)
    if len(shown) < len(table):
        yield (
            f"{len(shown)} of {len(table):,} buckets: those of one step (--step and --rank"
            " choose others, --all prints all)"
        )
    if of.window and len(bucket_rows := analyses.rows_of(table, of.window)):
        late = analyses.late_buckets(bucket_rows)
        yield findings.buckets_lead(bucket_rows, late)
        yield from [] if analyses.launched_after_backward(bucket_rows) else findings.late_sentences(late)
    yield from warnings((*of.warnings, *findings.bucket_notes(table)))


def schedule(of: RunTables, *, every: bool = False) -> Iterator[Printed]:
    """The gathers of each rank's steps; of one rank and step, every gather and why compute waited for it."""
    table = of.schedule
    steps = analyses.schedule_steps(table)
    if len(steps) > 1:
        yield from _tables(tables.schedule_rows(steps), findings.run_title(of.run), every=every)
    else:
        yield findings.run_title(of.run)
    if len(steps) == 1:
        yield findings.schedule_line(steps.iloc[0], table["layer"].nunique())
        yield from _tables(tables.gathers_rows(table, of.find_diagnosis(*table_window(table))), "", every=every)
    yield from warnings((*of.warnings, *findings.schedule_notes(table)))


def collectives(of: RunTables, *, every: bool = False) -> Iterator[Printed]:
    """Each collective, or of many the most exposed; who came last; each group's and kind's communication."""
    block = tables.collectives_rows(analyses.each_collective(of.collectives))
    if len(block.frame):
        block = replace(block, frame=block.frame.sort_values("index"))
        yield from _tables(block, findings.run_title(of.run), every=every, padding=0)
        late = of.stragglers
        if late["last"].any():
            yield from _tables(tables.late_ranks_rows(late[late["last"] > 0]), every=every)
        yield from _tables(tables.median_kinds_rows(of.communication_by), every=every)
        if (by_axis := findings.exposed_by_axis(of.exposed)) is not None:
            yield by_axis
        if len(of.transfer_lines):
            yield from _tables(tables.lines_rows(of.transfer_lines), every=every)
        if len(slower := of.slowdowns):
            yield terminal_table(tables.slowdown_rows(slower.head(_FEW_KERNELS)))
    else:
        yield findings.run_title(of.run)
        yield findings.NO_COLLECTIVES
    yield from warnings((*of.warnings, *findings.unmatched_notes(of.collectives)))


def pipeline(of: RunTables, *, every: bool = False) -> Iterator[Printed]:
    """Each pipeline's bubble in the step that speaks for the run, what its ranks did, and what to try."""
    yield findings.run_title(of.run)
    if of.pipeline.empty:
        if (waits := diagnosed_pipeline_waits(of)).empty:
            yield findings.NO_PIPELINE
        else:
            yield findings.pipeline_waits_lead(waits)
            yield from _tables(tables.pipeline_waits_rows(waits), every=every)
            yield findings.PIPELINE_UNLABELLED
        yield from warnings(of.warnings)
        return
    _, ranks, step = pipeline_tables(of)
    figures = step.iloc[0].to_dict()
    yield findings.pipeline_lead(figures)
    yield "; ".join(f"{tile.label} {tile.value} ({tile.note})" for tile in findings.pipeline_tiles(figures))
    yield from _tables(tables.pipeline_ranks_rows(ranks), every=every)
    yield from findings.pipeline_advice(of.pipeline_remedies)
    yield from warnings(of.warnings)


def advise(of: RunTables) -> Iterator[Printed]:
    """The run's advice, what other settings gain, what no buckets gain, and the lines to change."""
    yield findings.run_title(of.run)
    if (diagnosis := of.diagnosis) is None:
        yield of.verdict
        return
    yield findings.what_to_do(diagnosis)
    settings = tables.advice_rows(of.advice, findings.window_word(diagnosis.step))
    if len(settings.frame):
        yield terminal_table(settings)
    yield from findings.advice_sentences(of.advice, diagnosis)
    yield from findings.advice_lines(of.advice, of.loop, diagnosis)
    yield from warnings(of.warnings)


def compare(runs: Sequence[Run], selection: Selection, *, every: bool = False) -> Iterator[Printed]:
    """Runs side by side; by cap where they are a sweep."""
    notes: tuple[str, ...] = ()
    if analyses.is_sweep(runs):
        table = analyses.sweep(runs, selection)
        what = findings.run_title(runs[0]).removeprefix(f"{runs[0].path}: ")
        block = tables.sweep_rows(table, analyses.sweep_links(runs, selection))
        yield terminal_table(block, f"Step by bucket_cap_mb: {what}", bold=table["fastest"].tolist())
        yield f"{findings.sweep_finding(table)}."
        notes = findings.sweep_notes(table)
    else:
        table = analyses.compare(runs, selection)
        yield from _tables(tables.compare_rows(table), "Runs compared", every=every)
        if len(runs) > 1:  # else a baseline or a requirement is what it is compared with
            yield f"{findings.compare_finding(table)}."
        notes = findings.compare_notes(table)
        batches = analyses.largest_batches(runs, selection)
        if (rows := tables.batches_rows(batches)) is not None:
            yield terminal_table(rows, "The largest batch that fits")
            yield f"{findings.batches_finding(batches)}."
        if (costs := tables.costs_rows(table)) is not None:
            yield from _tables(costs, "Sent per rank and step, held per rank", every=every)
    yield from warnings_by_run(runs)
    yield from warnings(notes)


def predict(prediction: Prediction, recorded: Run, predicted: Run) -> Iterator[Printed]:
    """What was predicted, step and exposed time recorded and predicted, and how far the step may be off."""
    document = predict_document(prediction, recorded, predicted)
    before, after, interval = (document[key] for key in ("recorded", "predicted", "interval"))
    assert predicted.manifest is not None  # it was written
    yield findings.prediction_lead(predicted.manifest)
    yield findings.figure_line("mean step", before["step_ns"], after["step_ns"], interval["half_ns"])
    yield findings.figure_line("exposed communication in the mean", before["exposed_comm_ns"], after["exposed_comm_ns"])
    yield findings.interval_line(interval["half_ns"], interval)
    microbatches = (findings.microbatches_of(recorded), findings.microbatches_of(predicted))
    yield findings.gain_finding(before["step_ns"], after["step_ns"], document["gain"]["half_ns"], microbatches)
    if remark := findings.extrapolation(prediction.times_as_far):
        yield remark
    yield from warnings(document["warnings"])


def warnings_by_run(runs: Iterable[Run]) -> Iterator[Text]:
    """What a reader of these runs' figures must know, a line each."""
    return warnings(f"{run.path}: {each}" for run in runs for each in findings.run_warnings(run))


def warnings(sentences: Iterable[str]) -> Iterator[Text]:
    """Each sentence as a warning of its own line."""
    return (plain_text(f"warning: {sentence}", "yellow") for sentence in sentences)


def terminal_table(
    block: TableBlock, title: str | None = None, *, padding: int = 1, bold: Sequence[bool] = ()
) -> Table:
    """A table's narrow columns in ms."""
    title = block.caption if title is None else title
    caption = [block.legend, f"{block.left_out} (--all prints all)" if block.left_out else ""]
    shown = Table(
        title=plain_text(title) if title else None,
        title_justify="left",
        caption="; ".join(part for part in caption if part) or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, padding),
        pad_edge=False,
        collapse_padding=True,
    )
    columns = block.narrow or block.columns
    for column in columns:
        if column.unit == "text":
            shown.add_column(column.terse, **_LOOKS.get(column.name, {"overflow": "fold"}))
        else:
            shown.add_column(column.terse, justify="right", no_wrap=True)
    times = {column.name: column.unit for column in columns if column.unit in ("ns", "ms")}
    places = digits(block.frame[list(times)], *set(times.values()), one_digit_from=100)
    cells = [_cells(block.frame, column, places) for column in columns]
    for row, texts in enumerate(zip(*cells, strict=True)):
        shown.add_row(*map(plain_text, texts), style="bold" if bold and bold[row] else None)
    return shown


def plain_text(text: str, style: str = "") -> Text:
    """Text as it is: what comes out of a trace is neither markup nor a control sequence."""
    return Text(visible_line(text), style=style)


def _cells(frame: pd.DataFrame, column: Column, places: int) -> list[str]:
    """A column's cells; times have so many places."""
    if f"terse_{column.name}" in frame:
        return [str(cell) for cell in frame[f"terse_{column.name}"]]
    values = frame[column.name]
    match column.unit:
        case "ns" | "ms":
            return [text(value, column.unit, places) for value in values]
        case "bytes":
            return [_size(value, "kB" if column.short == "kB" else "MB") for value in values]
        case "ratio":
            return [UNKNOWN if pd.isna(value) else f"{text(value, 'ratio')} %" for value in values]
    return [_value_words(value) for value in values]


def _size(value: Any, unit: str) -> str:
    """A size with no more digits than tell something."""
    return text(value, unit, 0 if unit == "kB" or (pd.notna(value) and value >= 1e9) else 2)


def _value_words(value: Any) -> str:
    return text(value, "text" if isinstance(value, str) else "count")
