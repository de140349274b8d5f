"""The arguments and options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a run's files are opened."""

    assign_rank: tuple[str, ...] = ()
    """`FILE=N` for files that do not tell their rank."""
    recording: int | None = None
    """The number of one of several recordings of the same ranks; None: the last."""
    communication: str | None = None
    """A regular expression for kernels and copies that communicate beside those that are known."""
    no_cache: bool = False
    """Whether to read the traces themselves and keep no tables of them."""


OPENING = Opening()

Ranks = Annotated[list[int] | None, typer.Option("--rank", help="Only this rank (repeatable).")]
Steps = Annotated[list[int] | None, typer.Option("--step", help="Only this step (repeatable).")]
SkipSteps = Annotated[int, typer.Option("--skip-steps", min=0, help="Leave out each rank's first steps.")]
AssignRank = Annotated[
    list[str] | None,
    typer.Option("--assign-rank", metavar="FILE=N", help="Rank of FILE, if the file does not state it (repeatable)."),
]
Recording = Annotated[
    int | None,
    typer.Option(min=1, help="Which recording, if the ranks were recorded several times. Default: the last."),
]
Communication = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Count kernels and copies with such names as communication (case is ignored)."),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the cache.")]


def _selection(values: Mapping[str, Any]) -> Selection:
    return Selection(ranks=values["rank"], steps=values["step"], skip_steps=values["skip_steps"])


def _make_opening(values: Mapping[str, Any]) -> Opening:
    return Opening(
        assign_rank=tuple(values["assign_rank"] or ()),
        recording=values["recording"],
        communication=values["communication"],
        no_cache=values["no_cache"],
    )


_GROUPS: dict[Any, tuple[Callable[[Mapping[str, Any]], Any], dict[str, tuple[Any, Any]]]] = {
    Selection: (_selection, {"rank": (Ranks, None), "step": (Steps, None), "skip_steps": (SkipSteps, 0)}),
    Opening: (
        _make_opening,
        {
            "assign_rank": (AssignRank, None),
            "recording": (Recording, None),
            "communication": (Communication, None),
            "no_cache": (NoCache, False),
        },
    ),
}
"""Per type of a parameter how it is made of options, and these with their types and defaults."""


def group_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer whose parameters of the types `Selection` and `Opening` are each given by several options."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        _, options = _GROUPS.get(parameter.annotation, (None, None))
        parameters += (
            [parameter]
            if options is None
            else [
                inspect.Parameter(name, parameter.kind, annotation=annotation, default=default)
                for name, (annotation, default) in options.items()
            ]
        )

    @functools.wraps(command)
    def call_command(**values: Any) -> None:
        for parameter in signature.parameters.values():
            if parameter.annotation in _GROUPS:
                make, options = _GROUPS[parameter.annotation]
                values[parameter.name] = make({name: values.pop(name) for name in options})
        command(**values)

    call_command.__dict__["__signature__"] = signature.replace(parameters=parameters)
    call_command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call_command
