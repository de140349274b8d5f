"""The command that follows a watched training."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overlaplab.cli.options import Json
from overlaplab.cli.shared import print_json, show

if TYPE_CHECKING:
    from overlaplab.sections.watched import WatchedTables

app = typer.Typer()

REFRESH_S = 2.0
"""So often the files are read again; reading takes longer than this only of very long trainings."""


@app.command("watch", epilog="Example: overlaplab watch runs/live")
def watch_command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder that overlaplab.watch writes into, or one of Flight Recorder dumps."
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Print what is there, and end.")] = False,
    as_json: Json = False,
) -> None:
    """Follow a training that is watched (docs/watching.md): its steps, what is exposed, who is late, what has changed.

    Ends with the training, or with Ctrl-C; where standard output is no terminal, prints once.
    """
    from overlaplab.load.flight_recorder import is_dumps, load_dumps
    from overlaplab.report.watched import dumped_document, dumped_terminal, watched_document, watched_terminal

    if is_dumps(folder):
        dumps = load_dumps(folder)
        if as_json:
            print_json(dumped_document(dumps))
        else:
            show(*dumped_terminal(dumps))
    elif as_json:
        print_json(watched_document(_read(folder)))
    elif once or not sys.stdout.isatty():
        show(*watched_terminal(_read(folder)))
    else:
        _follow(folder)


def _read(folder: Path) -> WatchedTables:
    from overlaplab.load.watched import load_watched
    from overlaplab.sections.watched import WatchedTables

    return WatchedTables(load_watched(folder))


def _follow(folder: Path) -> None:
    from rich.console import Group
    from rich.live import Live

    from overlaplab.report.terminal import plain_text
    from overlaplab.report.watched import watched_terminal

    tables = _read(folder)
    with suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
        while True:
            shown = [plain_text(part) if isinstance(part, str) else part for part in watched_terminal(tables)]
            live.update(Group(*shown), refresh=True)
            if all(rank.header.ended for rank in tables.watched.ranks):
                return
            time.sleep(REFRESH_S)
            tables = _read(folder)
