"""What the commands share: loading with a progress bar, and printing tables and documents.

The commands' modules import slow packages (pandas, pyarrow, rich, …) only inside functions, so that `--help` and
shell completion, which import these modules, answer at once.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from overlaplab.cli.options import Opening
from overlaplab.errors import OverlaplabError

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

    from overlaplab.events import Run
    from overlaplab.report.documents import Document

SCHEMA_VERSION = 2
"""Version of the documents of `--json`: rises where a key goes or changes its meaning, and stays where one is added."""


def load(paths: Sequence[str], opening: Opening, *, tables: bool = True) -> list[Run]:
    """The runs at these paths, each with the ranks that `--assign-rank` gives to its files.

    `tables=False`: do not keep the events' tables of folders; see `analyses.load_ranks`.
    """
    from overlaplab.analyses import load_ranks
    from overlaplab.load.run_folder import load_run

    ranks = [_assignment(text) for text in opening.assign_rank or ()]
    if (piped := paths.count("-")) > 1:
        raise OverlaplabError("standard input is given twice", path="-", remedy="It can be read only once.")
    # Without tables a trace may be read a second time, which a pipe cannot be, and a single one need not be.
    keeps = [tables or bool(piped) or Path(path).is_file() for path in paths]
    with progress("reading traces") as advance:
        return [
            (load_run if keep else load_ranks)(
                path,
                assign_ranks=assigned,
                recording=opening.recording,
                communication=opening.communication,
                cache=not opening.no_cache,
                progress=advance,
            )
            for path, keep, assigned in zip(paths, keeps, _ranks_by_run(paths, ranks), strict=True)
        ]


def expand_runs(paths: Sequence[str]) -> list[str]:
    """The paths of runs, a folder of runs as those in it; what of it cannot be opened is named on stderr."""
    from overlaplab.folders import left_out, run_folders
    from overlaplab.words import shorten

    for path in paths:
        for folder, reason in left_out(path):
            print(f"overlaplab: {shorten(folder, 200)} was left out: {shorten(reason, 200)}", file=sys.stderr)
    return [folder for path in paths for folder in run_folders(path)]


def _ranks_by_run(paths: Sequence[str], ranks: Sequence[tuple[str, int]]) -> list[dict[str, int]]:
    """The ranks that are assigned to each run's files: by path, or whatever it holds by that name."""
    from overlaplab.load.run_folder import holds_trace

    assigned: list[dict[str, int]] = [{} for _ in paths]
    for file, rank in ranks:
        holders = [place for place, path in enumerate(paths) if len(paths) == 1 or holds_trace(path, file)]
        for place in holders or [0]:  # the first run, whose loading refuses an unknown file
            assigned[place][file] = rank
    return assigned


def _assignment(text: str) -> tuple[str, int]:
    file, _, rank = text.rpartition("=")
    if not file or not re.fullmatch(r"\d{1,18}", rank):
        raise OverlaplabError(f"--assign-rank {text}: not FILE=N", remedy="As in --assign-rank trace_b.json.gz=1.")
    return file, int(rank)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on stderr, gone when done; none where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar


@contextmanager
def progress(task: str) -> Iterator[Callable[[float, int], None]]:
    """`progress_bar` for one task; call with how many are done, and how many there are."""
    if not sys.stderr.isatty():  # rich takes a while to load
        yield lambda done, total: None
        return
    with progress_bar() as bar:
        number = bar.add_task(task, total=None)
        yield lambda done, total: bar.update(number, completed=done, total=total)


def show(*shown: Table | Text | str) -> None:
    """Print tables, and texts as they are."""
    from rich.console import Console

    from overlaplab.report.terminal import plain_text

    for item in shown:
        Console().print(plain_text(item) if isinstance(item, str) else item)


def print_json(document: Document) -> None:
    """One JSON document on stdout, with its `schema_version`; the command prints nothing else there."""
    print(json.dumps({"schema_version": SCHEMA_VERSION} | document, allow_nan=False))


def need(what: str, extra: str, *modules: str) -> None:
    """Raises `OverlaplabError` where a module is missing that an extra installs."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise OverlaplabError(
                f"{what} needs {module}", remedy=f"Install it with: pip install 'overlaplab[{extra}]'."
            )


def need_engine() -> None:
    """Raises `OverlaplabError` where nothing can be recorded."""
    need("recording", "engine", "overlaplab_engine", "torch")
