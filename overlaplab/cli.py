"""The `overlaplab` command: reads its arguments, composes analyses and reports, and says what went wrong in one line.

Exit codes: 0 done, 1 a check failed, 2 bad input.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from overlaplab import analyses
from overlaplab.dashboard.server import command as dashboard_command
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.load import holds_trace, load_run, slice_run
from overlaplab.report import console as tables
from overlaplab.report import documents

__all__ = ["app", "main"]

app = typer.Typer(
    help="Where did my communication time go, and what would hide it?",
    no_args_is_help=True,
    add_completion=True,
)

RunPath = Annotated[
    str, typer.Argument(metavar="RUN", help="A run, a folder of torch.profiler traces, or one trace; or s3://….")
]
RunPaths = Annotated[list[str], typer.Argument(metavar="RUN…", help="Runs, folders of traces, or traces.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, in ns, and nothing else.")]
Ranks = Annotated[list[int] | None, typer.Option("--rank", help="Only this rank; may be given again.")]
Steps = Annotated[list[int] | None, typer.Option("--step", help="Only this step; may be given again.")]
AssignRank = Annotated[
    list[str] | None,
    typer.Option("--assign-rank", metavar="FILE=N", help="This file's rank, if it does not tell; may be given again."),
]
Recording = Annotated[
    int | None, typer.Option(min=1, help="Of several recordings of the same ranks, this one. The default is the last.")
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Read the traces themselves, and keep no tables of them.")]
SkipSteps = Annotated[int, typer.Option("--skip-steps", min=0, help="Leave out each rank's first steps.")]


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="Record a run: the options are those of python -m engine, shown by `overlaplab record --help`.",
)
def record(context: typer.Context) -> None:
    """Become the engine, which records; its options, progress and exit code are this command's."""
    for module in ("engine", "torch"):
        if importlib.util.find_spec(module) is None:
            raise OverlaplabError(
                f"recording needs {module}", remedy="Install it with: pip install 'overlaplab[engine]'."
            )
    os.execv(sys.executable, [sys.executable, "-m", "engine", *context.args])


@app.command(epilog="Example: overlaplab summary runs/bucketed --skip-steps 1")
def summary(
    run: RunPath,
    as_json: Json = False,
    rank: Ranks = None,
    step: Steps = None,
    skip_steps: SkipSteps = 0,
    assign_rank: AssignRank = None,
    recording: Recording = None,
    no_cache: NoCache = False,
) -> None:
    """Where each rank's steps went: compute, communication hidden and exposed, memory, idle."""
    loaded = _load([run], assign_rank, recording, no_cache)[0]
    chosen: dict[str, Any] = {"ranks": rank, "steps": step, "skip_steps": skip_steps}
    if as_json:
        return _print_json(documents.summary_document(loaded, **chosen))
    table = analyses.summary(loaded, **chosen)
    _print(tables.summary_table(table, _title(loaded)), analyses.warnings_of(loaded))
    return None


@app.command(epilog="Example: overlaplab buckets runs/bucketed --rank 0 --step 4")
def buckets(
    run: RunPath,
    as_json: Json = False,
    rank: Ranks = None,
    step: Steps = None,
    skip_steps: SkipSteps = 0,
    assign_rank: AssignRank = None,
    recording: Recording = None,
    no_cache: NoCache = False,
) -> None:
    """When each bucket's gradients arrived, when its all-reduce ran, and what of it was exposed."""
    loaded = _load([run], assign_rank, recording, no_cache)[0]
    chosen: dict[str, Any] = {"ranks": rank, "steps": step, "skip_steps": skip_steps}
    if as_json:
        return _print_json(documents.buckets_document(loaded, **chosen))
    table = analyses.buckets(loaded, **chosen)
    console = Console()
    console.print(tables.plain(_title(loaded)))
    console.print("ms from each step's start; exposed: the collective's time without compute")
    for _, of_step in table.groupby(["rank", "step"], dropna=False, sort=False):
        console.print(tables.buckets_table(of_step))
    _print_warnings((*analyses.warnings_of(loaded), *analyses.bucket_notes(table)))
    return None


@app.command(epilog="Example: overlaplab schedule runs/zero3 --rank 0 --step 4")
def schedule(
    run: RunPath,
    as_json: Json = False,
    rank: Ranks = None,
    step: Steps = None,
    skip_steps: SkipSteps = 0,
    assign_rank: AssignRank = None,
    recording: Recording = None,
    no_cache: NoCache = False,
) -> None:
    """When each layer's parameters were gathered, used and freed; of one rank and step, every gather."""
    loaded = _load([run], assign_rank, recording, no_cache)[0]
    chosen: dict[str, Any] = {"ranks": rank, "steps": step, "skip_steps": skip_steps}
    if as_json:
        return _print_json(documents.schedule_document(loaded, **chosen))
    table = analyses.schedule(loaded, **chosen)
    per_step = analyses.schedule_steps(table)
    console = Console()
    if len(per_step) == 1:
        console.print(tables.plain(_title(loaded)))
        console.print(tables.plain(tables.schedule_line(per_step.iloc[0], table["layer"].nunique())))
        console.print(tables.gathers_table(table))
    elif len(per_step):
        console.print(tables.schedule_table(per_step, _title(loaded)))
    else:
        console.print(tables.plain(_title(loaded)))
    _print_warnings((*analyses.warnings_of(loaded), *analyses.schedule_notes(table)))
    return None


@app.command(epilog="Example: overlaplab collectives runs/bucketed --step 4")
def collectives(
    run: RunPath,
    as_json: Json = False,
    rank: Ranks = None,
    step: Steps = None,
    skip_steps: SkipSteps = 0,
    assign_rank: AssignRank = None,
    recording: Recording = None,
    no_cache: NoCache = False,
) -> None:
    """Every collective across ranks: who came last, who waited, how fast the data moved; by group and kind."""
    loaded = _load([run], assign_rank, recording, no_cache)[0]
    chosen: dict[str, Any] = {"ranks": rank, "steps": step, "skip_steps": skip_steps}
    if as_json:
        return _print_json(documents.collectives_document(loaded, **chosen))
    table = analyses.collectives(loaded, **chosen)
    late = tables.stragglers_table(analyses.stragglers(loaded, **chosen))
    for shown in (tables.collectives_table(table, _title(loaded)), late):
        if shown is not None:
            Console().print(shown)
    _print(
        tables.communication_table(analyses.communication_by(loaded, **chosen)),
        (*analyses.warnings_of(loaded), *_unmatched(table["unmatched"].dropna().tolist())),
    )
    return None


@app.command(epilog="Example: overlaplab compare runs/naive runs/bucketed --fail-if 'exposed_comm_ns > 5%'")
def compare(
    runs: RunPaths,
    as_json: Json = False,
    rank: Ranks = None,
    step: Steps = None,
    skip_steps: SkipSteps = 0,
    fail_if: Annotated[
        str | None,
        typer.Option(help="Exit with 1 where the last run differs so from the first, as in 'exposed_comm_ns > 5%'."),
    ] = None,
    assign_rank: AssignRank = None,
    recording: Recording = None,
    no_cache: NoCache = False,
) -> None:
    """Runs side by side: step time, its parts, and which is fastest beyond the spread."""
    if len(runs) < 2:
        raise OverlaplabError("only one run", path=runs[0], remedy="Name two or more to compare.")
    condition = analyses.parse_condition(fail_if) if fail_if is not None else None
    loaded = _load(runs, assign_rank, recording, no_cache)
    chosen: dict[str, Any] = {"ranks": rank, "steps": step, "skip_steps": skip_steps}
    if as_json:
        _print_json(documents.compare_document(loaded, **chosen))
    else:
        warnings = [f"{one.path}: {warning}" for one in loaded for warning in analyses.warnings_of(one)]
        table = analyses.compare(loaded, **chosen)
        sizes = tables.sizes_table(table)
        Console().print(tables.compare_table(table))
        if sizes is not None:
            Console().print(sizes)
        _print_warnings(warnings)
    if condition is not None:
        _check(condition, loaded[0], loaded[-1], chosen)


@app.command("slice", epilog="Example: overlaplab slice runs/huge --steps 3:5 -o runs/part    (steps 3 and 4)")
def slice_command(
    run: RunPath,
    steps: Annotated[
        str, typer.Option(metavar="FROM:TO", help="From this step up to, not including, that one; or one step.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="A folder that does not exist yet.")],
    assign_rank: AssignRank = None,
    recording: Recording = None,
    no_cache: NoCache = False,
) -> None:
    """Copy the part of each trace that these steps need to a folder of its own, as traces.

    Figures of these steps are the same there. Steps are ProfilerStep numbers, as summary shows them, and half-open as
    in Python: 3:5 is 3 and 4, 3: is 3 and all after it. run.json is copied, with a note under "sliced".
    """
    first, last = _half_open(steps)
    if out.exists():
        raise OverlaplabError("exists already", path=out, remedy="Name a new folder.")
    loaded = _load([run], assign_rank, recording, no_cache)[0]
    with _progress() as bar:
        task = bar.add_task("copying events", total=None)
        chosen = slice_run(
            loaded, first, last, out, progress=lambda done, files: bar.update(task, completed=done, total=files)
        )
    listed = f"steps {chosen[0]} to {chosen[-1]}" if len(chosen) > 1 else f"step {chosen[0]}"
    ranks = "1 rank" if len(loaded.traces) == 1 else f"{len(loaded.traces)} ranks"
    Console().print(tables.plain(f"{out}: {listed} of {ranks}"))


@app.command("app", epilog="Example: overlaplab app runs")
def dashboard(
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="A folder of runs.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="On 127.0.0.1.")] = 8501,
) -> None:
    """Open the dashboard on a folder of runs."""
    if importlib.util.find_spec("streamlit") is None:
        raise OverlaplabError("the dashboard needs streamlit", remedy="Install it with: pip install 'overlaplab[app]'.")
    folder = folder or Path.cwd()
    if not folder.is_dir():
        raise OverlaplabError("not a directory", path=folder, remedy="Give the folder that holds your runs.")
    arguments = dashboard_command(folder.resolve(), port)
    os.execv(arguments[0], arguments)


def main() -> None:
    """Run the command line; whatever the user did wrong is one line on stderr and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        result = app(standalone_mode=False)
    except OverlaplabError as error:
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted")
    except typer.TyperException as error:  # a wrong option or argument
        _fail(f"{getattr(error, 'format_message', error.__str__)() or 'no command given.'} See --help.")
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        _fail(f"{error.filename}: {error.strerror}")
    else:
        sys.exit(result if isinstance(result, int) else 0)


def _fail(line: str) -> None:
    print("overlaplab:", " ".join(line.split()), file=sys.stderr)
    sys.exit(2)


def _load(paths: Sequence[str], assign_rank: Sequence[str] | None, recording: int | None, no_cache: bool) -> list[Run]:
    ranks = [_assignment(text) for text in assign_rank or ()]
    with _progress() as bar:
        task = bar.add_task("reading traces", total=None)

        def advance(done: int, files: int) -> None:
            bar.update(task, completed=done, total=files)

        return [
            load_run(path, assign_ranks=own, recording=recording, cache=not no_cache, progress=advance)
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


def _half_open(text: str) -> tuple[int | None, int | None]:
    """`3:5`, `3:`, `:5` or `3`, as the first step and the one after the last; None where it is open."""
    match = re.fullmatch(r"(\d{0,18})(:?)(\d{0,18})", text.strip())
    if match is None or not (match[1] or match[3]):
        raise OverlaplabError(f"--steps {text}: not FROM:TO", remedy="As in --steps 3:5, which is steps 3 and 4.")
    first = int(match[1]) if match[1] else None
    if not match[2]:
        return first, int(match[1]) + 1
    return first, int(match[3]) if match[3] else None


def _assignment(text: str) -> tuple[str, int]:
    file, _, rank = text.rpartition("=")
    if not file or not re.fullmatch(r"\d{1,18}", rank):
        raise OverlaplabError(f"--assign-rank {text}: not FILE=N", remedy="As in --assign-rank trace_b.json.gz=1.")
    return file, int(rank)


@contextmanager
def _progress() -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar


def _title(run: Run) -> str:
    """What run it is; an emulated link is always said."""
    if run.manifest is None:
        return run.path
    link = run.manifest.link
    where = f", emulated link {link}" if link and link.emulated else ""
    return f"{run.path}: {run.manifest.strategy}, {len(run.traces)} ranks{where}"


def _print(table: Table, warnings: Iterable[str]) -> None:
    Console().print(table)
    _print_warnings(warnings)


def _unmatched(reasons: list[str]) -> list[str]:
    """How many have no counterpart, and why."""
    return [f"{count} without a counterpart: {reason}" for reason, count in Counter(reasons).most_common(5)]


def _print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        Console().print(tables.plain(f"warning: {warning}", style="yellow"))


def _print_json(document: documents.Document) -> None:
    print(json.dumps(document, allow_nan=False))


def _check(condition: analyses.Condition, first: Run, last: Run, chosen: dict[str, Any]) -> None:
    change = condition.change(analyses.summary(first, **chosen), analyses.summary(last, **chosen))
    if change is None:
        raise OverlaplabError(f"--fail-if: {condition.column} is unknown in one of the runs", path=last.path)
    if condition.met_by(change):
        print(f"overlaplab: {condition.column} changed by {change:+.1f} %: {condition}", file=sys.stderr)
        raise typer.Exit(1)
