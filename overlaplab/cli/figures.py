"""The commands that print figures of one run, as tables or as JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from overlaplab.cli.options import OPENING, Every, Json, Opening, RunPath, group_options
from overlaplab.cli.shared import load, print_json, show
from overlaplab.errors import OverlaplabError
from overlaplab.selection import EVERYTHING, Selection

app = typer.Typer()

_WITHOUT_TABLES = ("summary", "exposed", "collectives")
"""Commands for which a worker that reads a rank finds all that they need, see `overlaplab.load_ranks`."""


_COMMANDS = (
    (
        "exposed",
        "runs/bucketed --skip-steps 1",
        "Why communication was exposed: the verdict, then each cause and collective, and what to do about it.",
    ),
    (
        "buckets",
        "runs/bucketed --rank 0 --step 4",
        "When each bucket's gradients arrived, when its all-reduce ran, and how much of it was exposed.",
    ),
    (
        "schedule",
        "runs/zero3 --rank 0 --step 4",
        "When each layer's parameters were gathered, used and freed; with --rank and --step each gather and its waits.",
    ),
    (
        "pipeline",
        "runs/pipeline --step 4",
        "What each stage of a pipeline did with which microbatch, how much of the time is bubble, and what to try.",
    ),
    (
        "collectives",
        "runs/bucketed --step 4",
        "Every collective across ranks: who came last, who waited, how fast the data moved; by group and kind.",
    ),
)
"""The commands about one run: name, arguments of an example, help."""


@app.command(epilog="Example: overlaplab summary runs/bucketed --skip-steps 1")
@group_options
def summary(
    run: RunPath,
    as_json: Json = False,
    every: Every = False,
    line: Annotated[
        bool, typer.Option("--line", help="Print one line: what is exposed, why, what to try first, what that gains.")
    ] = False,
    selection: Selection = EVERYTHING,
    opening: Opening = OPENING,
) -> None:
    """What to try, and where each rank's steps went: compute, communication hidden and exposed, memory, idle."""
    if line and (as_json or every):
        what = f"--line goes without {'--json' if as_json else '--all'}"
        raise OverlaplabError(what, remedy="Leave one of them out.")
    if line:
        from overlaplab.report import terminal
        from overlaplab.sections.run_tables import RunTables

        print(terminal.line(RunTables(run=load([run], opening, tables=False)[0], selection=selection)))
    else:
        _print("summary", run, selection, opening, as_json=as_json, every=every)


def _print(name: str, run: str, selection: Selection, opening: Opening, *, as_json: bool, every: bool) -> None:
    """Print a command's document, or its tables."""
    from overlaplab.report import documents, terminal
    from overlaplab.sections.run_tables import RunTables

    loaded = load([run], opening, tables=name not in _WITHOUT_TABLES)[0]
    tables = RunTables(run=loaded, selection=selection)
    if as_json:
        print_json(getattr(documents, f"{name}_document")(tables))
    else:
        show(*terminal.lead(tables.run), *getattr(terminal, name)(tables, every=every))


def _add(name: str, example: str, meaning: str) -> None:
    @app.command(name, help=meaning, epilog=f"Example: overlaplab {name} {example}")
    @group_options
    def command(
        run: RunPath,
        as_json: Json = False,
        every: Every = False,
        selection: Selection = EVERYTHING,
        opening: Opening = OPENING,
    ) -> None:
        _print(name, run, selection, opening, as_json=as_json, every=every)


for _command in _COMMANDS:
    _add(*_command)
