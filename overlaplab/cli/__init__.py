"""The `overlaplab` command: reads its arguments, composes analyses and reports, and says what went wrong in one line.

Exit codes: 0 done, 1 a check failed, 2 bad input.
"""

from __future__ import annotations

import gc
import importlib.util
import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption

from overlaplab.cli import advise, bench, comparing, doctor, figures, files, plan, predict, runs, watch
from overlaplab.cli.completion import ASKED, record_asked
from overlaplab.cli.engine import ENGINE
from overlaplab.errors import OverlaplabError
from overlaplab.words import visible_line

_METAVARS = {"bool": "", "int": "N", "list[int]": "N"}
"""By the type of an option what stands beside its name: nothing beside a switch."""

_OBJECTS_BETWEEN_LOOKS = 1_000_000
"""Objects that the garbage collector lets pass before it looks for cycles: a short command ends before."""


class Commands(TyperGroup):
    """Commands in whose help no type of Python's stands beside switches and whole numbers."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The group's own options."""
        return _name_values(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _name_values(command.get_params(ctx))
        return command


def _name_values(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and parameter.metavar is None:
            parameter.metavar = _METAVARS.get(parameter.bare_type())
    return parameters


app = typer.Typer(
    cls=Commands,
    epilog="Begin with: overlaplab record --strategy bucketed --out runs/bucketed, then: overlaplab app runs",
    no_args_is_help=True,
    add_completion=True,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"overlaplab {version('overlaplab')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[  # its callback uses it
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Where did my communication time go, and what would hide it?"""


for commands in (figures, comparing, advise, runs, files, plan, predict, bench, doctor, watch):
    app.add_typer(commands.app)


def main() -> None:
    """Run the command line; whatever the user did wrong is one line on stderr and exit code 2."""
    if ASKED in os.environ:
        if importlib.util.find_spec("overlaplab_engine") and (environment := record_asked()) is not None:
            os.execve(sys.executable, [*ENGINE], environment)
        # A shell waits. Where there is rich, typer loads it to strip markup, which our help texts do not have.
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    gc.set_threshold(_OBJECTS_BETWEEN_LOOKS)
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
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
    else:
        sys.exit(result if isinstance(result, int) else 0)
    finally:
        gc.freeze()  # else Python's end looks at every object several times: 0.2 s


def _fail(line: str) -> None:
    print("overlaplab:", visible_line(" ".join(line.split())), file=sys.stderr)
    sys.exit(2)
