"""The commands that print figures of runs, as tables or as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from overlaplab.cli.options import EVERYTHING, OPENING, Json, Opening, RunPath, RunPaths, Selection, grouped
from overlaplab.cli.shared import load, print_json, print_warnings, show
from overlaplab.errors import OverlaplabError
from overlaplab.folders import run_folders

if TYPE_CHECKING:
    from overlaplab.analyses import Condition
    from overlaplab.events import Run

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
    from overlaplab import analyses, findings
    from overlaplab.report import console, documents

    loaded = load([run], opening, tables=False)[0]
    if as_json:
        return print_json(documents.summary_document(loaded, selection))
    table = analyses.summary(loaded, selection)
    show(console.summary_table(table, findings.run_title(loaded)))
    print_warnings(findings.run_warnings(loaded))
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
    from overlaplab import analyses, findings
    from overlaplab.report.exposed import causes_table, exposed_document, spots_table

    loaded = load([run], opening, tables=False)[0]
    if as_json:
        return print_json(exposed_document(loaded, selection))
    table, causes = analyses.summary(loaded, selection), analyses.exposed(loaded, selection)
    idled = analyses.idle(loaded, selection)
    missing = findings.not_recorded(loaded) if table.empty else None
    only_ends = findings.sees_only_ends(loaded)
    verdict = missing or findings.verdict(table, loaded.manifest, causes, idled, only_ends=only_ends)
    show(verdict, findings.run_title(loaded))
    if len(causes):
        window = analyses.worst_step(table)
        show(causes_table(table, causes))
        if len(rows := analyses.rows_of(causes, window)):  # a median step may have none
            show(spots_table(rows, window))
    show(findings.exposed_advice(table, causes, idled))
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
    from overlaplab import analyses, findings
    from overlaplab.report import console, documents

    loaded = load([run], opening)[0]
    if as_json:
        return print_json(documents.buckets_document(loaded, selection))
    table = analyses.buckets(loaded, selection)
    show(findings.run_title(loaded), "ms from each step's start; exposed: the collective's time without compute")
    for _, of_step in table.groupby(["rank", "step"], dropna=False, sort=False):
        show(console.buckets_table(of_step))
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
    from overlaplab import analyses, findings
    from overlaplab.report import console, documents

    loaded = load([run], opening)[0]
    if as_json:
        return print_json(documents.schedule_document(loaded, selection))
    table = analyses.schedule(loaded, selection)
    per_step = analyses.schedule_steps(table)
    if len(per_step) == 1:
        line = console.schedule_line(per_step.iloc[0], table["layer"].nunique())
        show(findings.run_title(loaded), line, console.gathers_table(table))
    elif len(per_step):
        show(console.schedule_table(per_step, findings.run_title(loaded)))
    else:
        show(findings.run_title(loaded))
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
    from overlaplab import analyses, findings
    from overlaplab.report import console, documents

    loaded = load([run], opening, tables=False)[0]
    if as_json:
        return print_json(documents.collectives_document(loaded, selection))
    table = analyses.collectives(loaded, selection)
    show(
        console.collectives_table(table, findings.run_title(loaded)),
        console.stragglers_table(analyses.stragglers(loaded, selection)),
        console.communication_table(analyses.communication_by(loaded, selection)),
    )
    print_warnings((*findings.run_warnings(loaded), *findings.unmatched_notes(table)))
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
    from overlaplab import analyses, findings
    from overlaplab.report import console, documents

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
        if analyses.is_sweep(loaded):
            warnings += _print_sweep(loaded, selection)
        else:
            show(console.compare_table(table), console.sizes_table(table))
        print_warnings(warnings)
    if condition is not None:
        _check(condition, loaded[0], loaded[-1], selection)


def _print_sweep(runs: list[Run], selection: Selection) -> tuple[str, ...]:
    """The table by cap and what it says; returns what its reader must know."""
    from overlaplab import analyses, findings
    from overlaplab.report.sweeps import sweep_table

    table = analyses.sweep(runs, selection)
    what = findings.run_title(runs[0]).removeprefix(f"{runs[0].path}: ")
    show(sweep_table(table, analyses.sweep_links(runs, selection), f"Step by bucket_cap_mb: {what}"))
    show(f"{findings.sweep_finding(table)}.")
    return findings.sweep_notes(table)


def _check(condition: Condition, first: Run, last: Run, selection: Selection) -> None:
    from overlaplab import analyses

    change = condition.change(analyses.summary(first, selection), analyses.summary(last, selection))
    if change is None:
        raise OverlaplabError(f"--fail-if: {condition.column} is unknown in one of the runs", path=last.path)
    if condition.met_by(change):
        print(f"overlaplab: {condition.column} changed by {change:+.1f} %: {condition}", file=sys.stderr)
        raise typer.Exit(1)
