"""The commands that print figures of runs, as tables or as JSON."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from overlaplab import analyses, findings
from overlaplab.cli.options import EVERYTHING, OPENING, Json, Opening, RunPath, RunPaths, Selection, grouped
from overlaplab.cli.shared import load, print_json, print_table, print_warnings
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.load import run_folders
from overlaplab.report import console as tables
from overlaplab.report import documents
from overlaplab.report.exposed import causes_table, exposed_document, spots_table
from overlaplab.report.sweeps import sweep_table

__all__ = ["app"]

app = typer.Typer()


@app.command(epilog="Example: overlaplab summary runs/bucketed --skip-steps 1")
@grouped
def summary(
    run: RunPath,
    as_json: Json = False,
    selection: Selection = EVERYTHING,
    opening: Opening = OPENING,
) -> None:
    """Where each rank's steps went: compute, communication hidden and exposed, memory, idle."""
    loaded = load([run], opening)[0]
    if as_json:
        return print_json(documents.summary_document(loaded, selection))
    table = analyses.summary(loaded, selection)
    print_table(tables.summary_table(table, findings.run_title(loaded)), findings.run_warnings(loaded))
    return None


@app.command(epilog="Example: overlaplab exposed runs/bucketed --skip-steps 1")
@grouped
def exposed(
    run: RunPath,
    as_json: Json = False,
    selection: Selection = EVERYTHING,
    opening: Opening = OPENING,
) -> None:
    """Why communication was exposed: the verdict, then each cause and collective, and what to do about it."""
    loaded = load([run], opening)[0]
    if as_json:
        return print_json(exposed_document(loaded, selection))
    table, causes = analyses.summary(loaded, selection), analyses.exposed(loaded, selection)
    idled = analyses.idle(loaded, selection)
    console = Console()
    missing = findings.not_recorded(loaded) if table.empty else None
    console.print(tables.plain(missing or findings.verdict(table, loaded.manifest, causes, idled)))
    console.print(tables.plain(findings.run_title(loaded)))
    if len(causes):
        window = analyses.worst_step(table)
        console.print(causes_table(table, causes))
        if len(rows := analyses.rows_of(causes, window)):  # a median step may have none
            console.print(spots_table(rows, window))
    console.print(tables.plain(findings.exposed_advice(table, causes, idled)))
    print_warnings(findings.run_warnings(loaded))
    return None


@app.command(epilog="Example: overlaplab buckets runs/bucketed --rank 0 --step 4")
@grouped
def buckets(
    run: RunPath,
    as_json: Json = False,
    selection: Selection = EVERYTHING,
    opening: Opening = OPENING,
) -> None:
    """When each bucket's gradients arrived, when its all-reduce ran, and what of it was exposed."""
    loaded = load([run], opening)[0]
    if as_json:
        return print_json(documents.buckets_document(loaded, selection))
    table = analyses.buckets(loaded, selection)
    console = Console()
    console.print(tables.plain(findings.run_title(loaded)))
    console.print("ms from each step's start; exposed: the collective's time without compute")
    for _, of_step in table.groupby(["rank", "step"], dropna=False, sort=False):
        console.print(tables.buckets_table(of_step))
    print_warnings((*findings.run_warnings(loaded), *findings.bucket_notes(table)))
    return None


@app.command(epilog="Example: overlaplab schedule runs/zero3 --rank 0 --step 4")
@grouped
def schedule(
    run: RunPath,
    as_json: Json = False,
    selection: Selection = EVERYTHING,
    opening: Opening = OPENING,
) -> None:
    """When each layer's parameters were gathered, used and freed; of one rank and step, every gather."""
    loaded = load([run], opening)[0]
    if as_json:
        return print_json(documents.schedule_document(loaded, selection))
    table = analyses.schedule(loaded, selection)
    per_step = analyses.schedule_steps(table)
    console = Console()
    if len(per_step) == 1:
        console.print(tables.plain(findings.run_title(loaded)))
        console.print(tables.plain(tables.schedule_line(per_step.iloc[0], table["layer"].nunique())))
        console.print(tables.gathers_table(table))
    elif len(per_step):
        console.print(tables.schedule_table(per_step, findings.run_title(loaded)))
    else:
        console.print(tables.plain(findings.run_title(loaded)))
    print_warnings((*findings.run_warnings(loaded), *findings.schedule_notes(table)))
    return None


@app.command(epilog="Example: overlaplab collectives runs/bucketed --step 4")
@grouped
def collectives(
    run: RunPath,
    as_json: Json = False,
    selection: Selection = EVERYTHING,
    opening: Opening = OPENING,
) -> None:
    """Every collective across ranks: who came last, who waited, how fast the data moved; by group and kind."""
    loaded = load([run], opening)[0]
    if as_json:
        return print_json(documents.collectives_document(loaded, selection))
    table = analyses.collectives(loaded, selection)
    late = tables.stragglers_table(analyses.stragglers(loaded, selection))
    for shown in (tables.collectives_table(table, findings.run_title(loaded)), late):
        if shown is not None:
            Console().print(shown)
    print_table(
        tables.communication_table(analyses.communication_by(loaded, selection)),
        (*findings.run_warnings(loaded), *findings.unmatched_notes(table)),
    )
    return None


@app.command(epilog="Example: overlaplab compare runs/naive runs/bucketed --fail-if 'exposed_comm_ns > 5%'")
@grouped
def compare(
    runs: RunPaths,
    as_json: Json = False,
    selection: Selection = EVERYTHING,
    fail_if: Annotated[
        str | None,
        typer.Option(help="Exit with 1 where the last run differs so from the first, as in 'exposed_comm_ns > 5%'."),
    ] = None,
    opening: Opening = OPENING,
) -> None:
    """Runs side by side: step time, its parts, and which is fastest beyond the spread.

    A folder of runs stands for all of them. Runs that differ in bucket_cap_mb alone are shown by cap.
    """
    runs = [folder for path in runs for folder in run_folders(path)]
    if len(runs) < 2:
        raise OverlaplabError("only one run", path=runs[0], remedy="Name two or more to compare.")
    condition = analyses.parse_condition(fail_if) if fail_if is not None else None
    loaded = load(runs, opening)
    if as_json:
        print_json(documents.compare_document(loaded, selection))
    else:
        warnings = [f"{one.path}: {warning}" for one in loaded for warning in findings.run_warnings(one)]
        table = analyses.compare(loaded, selection)
        sizes = None
        if analyses.is_sweep(loaded):
            warnings += _print_sweep(loaded, selection)
        else:
            Console().print(tables.compare_table(table))
            sizes = tables.sizes_table(table)
        if sizes is not None:
            Console().print(sizes)
        print_warnings(warnings)
    if condition is not None:
        _check(condition, loaded[0], loaded[-1], selection)


def _print_sweep(runs: list[Run], selection: Selection) -> tuple[str, ...]:
    """The table by cap and what it says; returns what its reader must know."""
    table = analyses.sweep(runs, selection)
    what = findings.run_title(runs[0]).removeprefix(f"{runs[0].path}: ")
    Console().print(sweep_table(table, analyses.sweep_links(runs, selection), f"Step by bucket_cap_mb: {what}"))
    Console().print(tables.plain(f"{findings.sweep_finding(table)}."))
    return findings.sweep_notes(table)


def _check(condition: analyses.Condition, first: Run, last: Run, selection: Selection) -> None:
    change = condition.change(analyses.summary(first, selection), analyses.summary(last, selection))
    if change is None:
        raise OverlaplabError(f"--fail-if: {condition.column} is unknown in one of the runs", path=last.path)
    if condition.met_by(change):
        print(f"overlaplab: {condition.column} changed by {change:+.1f} %: {condition}", file=sys.stderr)
        raise typer.Exit(1)
