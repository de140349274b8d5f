"""The `overlaplab` command: reads its arguments, composes analyses and reports, and says what went wrong in one line.

Exit codes: 0 done, 1 a check failed, 2 bad input.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from typing import Annotated

import typer

from overlaplab.cli import advise, bench, comparing, doctor, figures, files, plan, predict, runs, watch
from overlaplab.cli.completion import ASKED, record_asked
from overlaplab.cli.engine import ENGINE
from overlaplab.cli.help import Commands
from overlaplab.errors import OverlaplabError
from overlaplab.words import visible_line

__all__ = ["app", "main"]

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


app.add_typer(figures.app)
app.add_typer(comparing.app)
app.add_typer(advise.app)
app.add_typer(runs.app)
app.add_typer(files.app)
app.add_typer(plan.app)
app.add_typer(predict.app)
app.add_typer(bench.app)
app.add_typer(doctor.app)
app.add_typer(watch.app)


def main() -> None:
    """Run the command line; whatever the user did wrong is one line on stderr and exit code 2."""
    if ASKED in os.environ:
        if importlib.util.find_spec("overlaplab_engine") and (environment := record_asked()) is not None:
            os.execve(sys.executable, [*ENGINE], environment)
        # A shell waits. Where there is rich, typer loads it to strip markup, which our help texts do not have.
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
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
    print("overlaplab:", visible_line(" ".join(line.split())), file=sys.stderr)
    sys.exit(2)
