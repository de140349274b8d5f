"""The arguments and options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from msgspec import Struct

from overlaplab.cli.completion import STRATEGIES, runs_like, strategies_like
from overlaplab.selection import Selection

RunPath = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run, a folder of torch.profiler traces, one trace, or s3://…; - reads a pipe.",
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
Every = Annotated[bool, typer.Option("--all", help="Print every row of long tables.")]


class Opening(Struct, frozen=True, kw_only=True):
    """How a run's files are opened: each field is an option of the commands that open runs."""

    assign_rank: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE=N", help="Rank of FILE, if the file does not state it (repeatable)."),
    ] = None
    recording: Annotated[
        int | None,
        typer.Option(min=1, help="Which recording, if the ranks were recorded several times. Default: the last."),
    ] = None
    communication: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX", help="Count kernels and copies with such names as communication (case is ignored)."
        ),
    ] = None
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the cache.")] = False


OPENING = Opening()


def _select(
    rank: Annotated[list[int] | None, typer.Option(help="Only this rank (repeatable).")] = None,
    step: Annotated[list[int] | None, typer.Option(help="Only this step (repeatable).")] = None,
    skip_steps: Annotated[int, typer.Option(min=0, help="Leave out each rank's first steps.")] = 0,
) -> Selection:
    return Selection(ranks=rank, steps=step, skip_steps=skip_steps)


_GROUPS: dict[Any, Callable[..., Any]] = {Selection: _select, Opening: Opening}
"""By a parameter's type the function that makes it of options, which are the function's parameters."""


def group_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer whose parameters of the types `Selection` and `Opening` are each given by several options."""
    signature = inspect.signature(command, eval_str=True)
    kinds = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    groups = {name: _GROUPS[kind] for name, kind in kinds.items() if kind in _GROUPS}
    options = {name: inspect.signature(make, eval_str=True).parameters for name, make in groups.items()}
    parameters = [
        parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name, each in signature.parameters.items()
        for parameter in (options[name].values() if name in options else [each])
    ]

    @functools.wraps(command)
    def call_command(**values: Any) -> None:
        grouped = {
            name: make(**{option: values.pop(option) for option in options[name]}) for name, make in groups.items()
        }
        command(**values, **grouped)

    call_command.__dict__["__signature__"] = signature.replace(parameters=parameters)
    call_command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call_command
