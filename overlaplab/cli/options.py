"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from overlaplab.cli.completion import STRATEGIES, runs_like, strategies_like

__all__ = [
    "AssignRank",
    "Json",
    "NoCache",
    "Ranks",
    "Recording",
    "RunPath",
    "RunPaths",
    "SkipSteps",
    "Steps",
    "Strategy",
]

RunPath = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run, a folder of torch.profiler traces, or one trace; or s3://….",
        autocompletion=runs_like,
    ),
]
RunPaths = Annotated[
    list[str],
    typer.Argument(metavar="RUN…", help="Runs, folders of traces, or traces.", autocompletion=runs_like),
]
Strategy = Annotated[
    str | None, typer.Option(metavar="NAME", help=f"{', '.join(STRATEGIES)}.", autocompletion=strategies_like)
]
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
