"""The commands that make something of runs: recordings, slices, the dashboard."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from overlaplab.cli import engine, script, sweep
from overlaplab.cli.options import OPENING, Opening, RunPath, Strategy, group_options
from overlaplab.cli.shared import load, need, need_engine, progress, show
from overlaplab.dashboard.server import HOST, PORT
from overlaplab.dashboard.server import command as dashboard_command
from overlaplab.errors import OverlaplabError
from overlaplab.ports import next_free_port
from overlaplab.words import count

app = typer.Typer()


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="Train a small model and record it; `overlaplab record --help` lists the options.",
)
def record(context: typer.Context, strategy: Strategy = None) -> None:
    """Become the engine, which records; its options, progress and exit code are this command's."""
    if "--help" not in context.args:  # which needs no torch
        need_engine()
    os.execv(sys.executable, [*engine.ENGINE, *_engine_options(context, strategy)])


@app.command(
    "sweep",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: overlaplab sweep --bucket-cap-mb 1,5,25,100 --out runs/caps --link 1Gbps,500us --batch 16;"
    " or: overlaplab sweep --bucket-cap-mb 1,5,25 --out runs/mine -- torchrun --nproc-per-node 2 train.py --cap"
    " {bucket_cap_mb}",
)
def sweep_command(
    context: typer.Context,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder of the recordings, DIR/cap-1, DIR/cap-5, …; finished ones are kept."),
    ],
    bucket_cap_mb: Annotated[str | None, typer.Option(metavar="CAPS", help="Caps in MiB, as in 1,5,25,100.")] = None,
    set_values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=A,B,…", help="Values for {NAME} in your command (repeatable)."),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(min=1, help="Recordings of each cap; with fewer than 4 no two caps can be told apart."),
    ] = 4,
    order_seed: Annotated[int, typer.Option(min=0, help="Seed of the random order of the caps.")] = 0,
    strategy: Strategy = None,
) -> None:
    """Record the same training with several bucket_cap_mb; further options are those of `overlaplab record`.

    Or, after --, your own command, whose script has a Recorder (docs/recorder.md): {bucket_cap_mb} and the names of
    --set in it become values, all combinations of them, and {out} the folder of a run.

    Unless told otherwise: --strategy bucketed --warmup 3 --steps 5. Warm-up steps are not recorded. Each round records
    every setting once, in a random order. What is there already is not recorded again, so an interrupted sweep goes on
    where it was. Compare with: overlaplab compare DIR
    """
    if "RANK" in os.environ:
        raise OverlaplabError("a sweep starts its ranks itself", remedy="Run it without torchrun.")
    recorder: sweep.Recorder
    own_command = bool(context.args) and not context.args[0].startswith("-")
    if own_command:
        if strategy is not None:
            remedy = "Your command decides it: leave --strategy out."
            raise OverlaplabError("--strategy is for overlaplab record", remedy=remedy)
        settings = script.settings(context.args, bucket_cap_mb, set_values or [])
        recorder = script.Script(context.args)
    else:
        need_engine()
        if bucket_cap_mb is None or set_values:
            raise OverlaplabError(
                "without a command after -- a sweep is over --bucket-cap-mb alone",
                remedy="As in --bucket-cap-mb 1,5,25; or see the second example of --help.",
            )
        settings = engine.settings(sweep.parse_caps(bucket_cap_mb))
        recorder = engine.Engine(engine.with_defaults(_engine_options(context, strategy)))
    rounds = sweep.in_rounds(settings, repeats, out, order_seed)
    order = " | ".join(" ".join(recording.name for recording in recordings) for recordings in rounds)
    print(f"overlaplab sweep: in random order (--order-seed {order_seed}): {order}", file=sys.stderr)
    failed = sweep.record_all(rounds, recorder)
    for line in failed:
        print(f"overlaplab sweep: {line}", file=sys.stderr)
    if failed:
        if own_command:
            print(f"overlaplab sweep: what the command said is in {out}/*.log", file=sys.stderr)
        raise typer.Exit(2)
    print(f"overlaplab sweep: done. Next: overlaplab compare {out}", file=sys.stderr)


@app.command("slice", epilog="Example: overlaplab slice runs/huge --steps 3:5 -o runs/part    (steps 3 and 4)")
@group_options
def slice_command(
    run: RunPath,
    steps: Annotated[
        str, typer.Option(metavar="FROM:TO", help="Steps from FROM up to, but not including, TO; or one step.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="A folder that does not exist yet.")],
    opening: Opening = OPENING,
) -> None:
    """Cut steps out of a run, into a new folder of traces.

    Figures of these steps are the same there. Steps are ProfilerStep numbers, as summary shows them, and half-open as
    in Python: 3:5 is 3 and 4, 3: is 3 and all after it. run.json is copied, with a note under "sliced".
    """
    from overlaplab.load.cut import slice_run

    first, last = _half_open(steps)
    if out.exists():
        raise OverlaplabError("exists already", path=out, remedy="Name a new folder.")
    loaded = load([run], opening)[0]
    with progress("copying events") as advance:
        chosen = slice_run(loaded, first, last, out, progress=advance)
    listed = f"steps {chosen[0]} to {chosen[-1]}" if len(chosen) > 1 else f"step {chosen[0]}"
    show(f"{out}: {listed} of {count(len(loaded.traces), 'rank')}")


@app.command("app", epilog="Example: overlaplab app runs")
def dashboard(
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="A folder of runs.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the dashboard.")] = PORT,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 lets other machines connect.")
    ] = HOST,
) -> None:
    """Open the dashboard on a folder of runs."""
    need("the dashboard", "app", "streamlit")
    folder = folder or Path.cwd()
    if not folder.is_dir():
        raise OverlaplabError("not a directory", path=folder, remedy="Give the folder that holds your runs.")
    _require_free(host, port)
    if host not in (HOST, "localhost", "::1"):
        print(
            f"overlaplab app: warning: anybody who reaches {host}, port {port}, can read these runs: there is no"
            " password",
            file=sys.stderr,
        )
    arguments = dashboard_command(folder.resolve(), port, host)
    os.execv(arguments[0], arguments)


def _require_free(host: str, port: int) -> None:
    try:
        free = next_free_port(host, port)
    except OSError as error:
        raise OverlaplabError(
            f"--host {host}: not an address of this machine ({error.strerror})",
            remedy=f"Leave it out for {HOST}, or give 0.0.0.0.",
        ) from None
    if free != port:
        others = "Give another --port." if free is None else f"The next free one: --port {free}."
        raise OverlaplabError(f"port {port} is in use", remedy=others)


def _engine_options(context: typer.Context, strategy: str | None) -> list[str]:
    """All that the engine is told; only the strategy is read here, for shells to complete it."""
    return [*([] if strategy is None else ["--strategy", strategy]), *context.args]


def _half_open(text: str) -> tuple[int | None, int | None]:
    """`3:5`, `3:`, `:5` or `3`, as the first step and the one after the last; None where it is open."""
    match = re.fullmatch(r"(\d{0,18})(:?)(\d{0,18})", text.strip())
    if match is None or not (match[1] or match[3]):
        raise OverlaplabError(f"--steps {text}: not FROM:TO", remedy="As in --steps 3:5, which is steps 3 and 4.")
    first = int(match[1]) if match[1] else None
    if not match[2]:
        return first, int(match[1]) + 1
    return first, int(match[3]) if match[3] else None
