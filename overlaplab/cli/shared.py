"""What the commands share: loading with a progress bar, and printing tables, warnings and documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from overlaplab.cli.options import Opening
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.load import holds_trace, load_run
from overlaplab.report import console as tables
from overlaplab.report import documents

__all__ = ["load", "print_json", "print_table", "print_warnings", "progress_bar"]


def load(paths: Sequence[str], opening: Opening) -> list[Run]:
    """The runs at these paths, each with the ranks that `--assign-rank` gives to its files."""
    ranks = [_assignment(text) for text in opening.assign_rank]
    with progress_bar() as bar:
        task = bar.add_task("reading traces", total=None)

        def advance(done: int, files: int) -> None:
            bar.update(task, completed=done, total=files)

        return [
            load_run(path, assign_ranks=own, recording=opening.recording, cache=not opening.no_cache, progress=advance)
            for path, own in zip(paths, _by_run(paths, ranks), strict=True)
        ]


def _by_run(paths: Sequence[str], ranks: Sequence[tuple[str, int]]) -> list[dict[str, int]]:
    """The ranks that are assigned to each run's files: by path, or whatever it holds by that name."""
    own: list[dict[str, int]] = [{} for _ in paths]
    for file, rank in ranks:
        holders = [place for place, path in enumerate(paths) if len(paths) == 1 or holds_trace(path, file)]
        for place in holders or [0]:  # which says that there is none
            own[place][file] = rank
    return own


def _assignment(text: str) -> tuple[str, int]:
    file, _, rank = text.rpartition("=")
    if not file or not re.fullmatch(r"\d{1,18}", rank):
        raise OverlaplabError(f"--assign-rank {text}: not FILE=N", remedy="As in --assign-rank trace_b.json.gz=1.")
    return file, int(rank)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on stderr, gone when done; none where stderr is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar


def print_table(table: Table, warnings: Iterable[str]) -> None:
    """A table, then the warnings."""
    Console().print(table)
    print_warnings(warnings)


def print_warnings(warnings: Iterable[str]) -> None:
    """A line each."""
    for warning in warnings:
        Console().print(tables.plain(f"warning: {warning}", style="yellow"))


def print_json(document: documents.Document) -> None:
    """One JSON document on stdout; the command prints nothing else there."""
    print(json.dumps(document, allow_nan=False))
