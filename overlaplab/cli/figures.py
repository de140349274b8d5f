"""The commands that print figures of runs, as tables or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from overlaplab.cli.options import EVERYTHING, OPENING, Json, Opening, RunPath, RunPaths, Selection, grouped
from overlaplab.cli.shared import load, print_json, runs_at, show
from overlaplab.errors import OverlaplabError

if TYPE_CHECKING:
    from overlaplab.analyses import Condition
    from overlaplab.events import Run

__all__ = ["app"]

app = typer.Typer()

_WITHOUT_TABLES = ("summary", "exposed", "collectives")
"""Commands for which a worker that reads a rank finds all that they need, see `overlaplab.load_ranks`."""


_COMMANDS = (
    (
        "summary",
        "runs/bucketed --skip-steps 1",
        "What to try, and where each rank's steps went: compute, communication hidden and exposed, memory, idle.",
    ),
    (
        "exposed",
        "runs/bucketed --skip-steps 1",
        "Why communication was exposed: the verdict, then each cause and collective, and what to do about it.",
    ),
    (
        "buckets",
        "runs/bucketed --rank 0 --step 4",
        "When each bucket's gradients arrived, when its all-reduce ran, and what of it was exposed.",
    ),
    (
        "schedule",
        "runs/zero3 --rank 0 --step 4",
        "When each layer's parameters were gathered, used and freed; of one rank and step, every gather.",
    ),
    (
        "collectives",
        "runs/bucketed --step 4",
        "Every collective across ranks: who came last, who waited, how fast the data moved; by group and kind.",
    ),
)
"""The commands about one run: name, arguments of an example, help."""


def _add(name: str, example: str, meaning: str) -> None:
    @app.command(name, help=meaning, epilog=f"Example: overlaplab {name} {example}")
    @grouped
    def command(
        run: RunPath, as_json: Json = False, selection: Selection = EVERYTHING, opening: Opening = OPENING
    ) -> None:
        from overlaplab.report import documents, terminal

        loaded = load([run], opening, tables=name not in _WITHOUT_TABLES)[0]
        if as_json:
            print_json(getattr(documents, f"{name}_document")(loaded, selection))
        else:
            show(*getattr(terminal, name)(loaded, selection))


for _command in _COMMANDS:
    _add(*_command)


@app.command(epilog="Example: overlaplab compare runs/naive runs/bucketed --fail-if 'exposed_comm_ns > 5%'")
@grouped
def compare(
    runs: RunPaths,
    as_json: Json = False,
    selection: Selection = EVERYTHING,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Exit with 1 where the last run differs so from the first ('exposed_comm_ns > 5%'), or is so itself"
            " ('exposed_comm_ns > 5ms', 'exposed.tail > 5ms'). May be given several times: any one of them fails.",
        ),
    ] = None,
    opening: Opening = OPENING,
) -> None:
    """Runs side by side: step time, its parts, and which is fastest beyond the spread.

    A folder of runs stands for all of them. Runs that differ in bucket_cap_mb alone are shown by cap.
    """
    from overlaplab import analyses
    from overlaplab.report import documents, terminal

    runs = runs_at(runs)
    if len(runs) < 2:
        raise OverlaplabError("only one run", path=runs[0], remedy="Name two or more to compare.")
    conditions = [analyses.parse_condition(text) for text in fail_if or ()]
    loaded = load(runs, opening)
    if as_json:
        print_json(documents.compare_document(loaded, selection))
    else:
        show(*terminal.compare(loaded, selection))
    if conditions:
        _check(conditions, loaded[0], loaded[-1], selection)


def _check(conditions: Sequence[Condition], first: Run, last: Run, selection: Selection) -> None:
    """Exit with 1 if any condition is met, and say which are."""
    from overlaplab import analyses

    before, after = (analyses.figures(run, conditions, selection) for run in (first, last))
    failed = False
    for condition in conditions:
        found = condition.change(before, after) if condition.is_change else condition.value(after)
        if found is None:
            raise OverlaplabError(f"--fail-if: {condition.column} is unknown in one of the runs", path=last.path)
        if condition.met_by(found):
            failed = True
            said = f"changed by {found:+.1f} %" if condition.is_change else f"is {found:.4g}{condition.unit}"
            print(f"overlaplab: {condition.column} {said}: {condition}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)
