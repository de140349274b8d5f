"""`overlaplab advise`: what another setting would gain, and recordings that confirm it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from msgspec.structs import asdict

from overlaplab.cli import engine, script, sweep
from overlaplab.cli.options import OPENING, Json, Opening, RunPath, group_options
from overlaplab.cli.shared import load, need_engine, print_json, show
from overlaplab.errors import OverlaplabError

if TYPE_CHECKING:
    from overlaplab.events import Run
    from overlaplab.findings import Loop
    from overlaplab.sections.run_tables import RunTables

app = typer.Typer()

Row: TypeAlias = Mapping[Any, Any]
"""A row of `simulate.advise`."""
Settings: TypeAlias = Mapping[str, tuple[str, ...]]
"""What a recorder is told of each setting, by the name of its folder."""

_PRESENT, _ADVISED, _NEIGHBOUR = "present", "advised", "neighbour"
"""The folders of what is recorded."""


@app.command(
    context_settings={"allow_extra_args": True},
    epilog="Example: overlaplab advise runs/bucketed --verify; or: overlaplab advise runs/mine --verify -- torchrun"
    " --nproc-per-node 2 train.py --cap {bucket_cap_mb}",
)
@group_options
def advise(
    context: typer.Context,
    run: RunPath,
    as_json: Json = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Record the present, the advised and a neighbouring setting, and compare them."),
    ] = False,
    repeats: Annotated[
        int | None, typer.Option(min=3, help="Recordings of each setting with --verify. Default: 3.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of --verify's recordings. Default: RUN-verify.")
    ] = None,
    opening: Opening = OPENING,
) -> None:
    """Name the cap, first bucket, list of caps or prefetch that would make the step shorter, and by how much.

    Replays every cap that makes a difference; for zero1, zero2 and runs on GPUs a few caps. With --verify the settings
    are recorded in turn, with the run's own command or, for a run that your own script recorded, the one after --,
    in which {bucket_cap_mb} becomes the cap. The exit code is 1 where the gain is not confirmed.
    """
    if context.args and not verify:
        raise OverlaplabError(f"{context.args[0]}: one run only", remedy="A command after -- goes with --verify.")
    for option, value in (("--repeats", repeats), ("--out", out)):
        if value is not None and not verify:
            raise OverlaplabError(f"{option} goes with --verify", remedy="Add --verify, or leave it out.")
    from overlaplab import findings
    from overlaplab.report import documents, terminal
    from overlaplab.sections.run_tables import RunTables

    loaded = load([run], opening)[0]
    if (refused := findings.advice_refused(loaded)) is not None:
        raise OverlaplabError(refused[0], path=run, remedy=refused[1])
    tables = RunTables(run=loaded)
    if not as_json:
        show(*terminal.advise(tables))
    verified = None
    if verify:
        again = Opening(communication=opening.communication, no_cache=opening.no_cache)
        verified = _verify_advice(tables, out or _folder_beside(run), repeats or 3, context.args, again)
    if as_json:
        print_json(documents.advice_document(tables, verified))
    elif verified is not None:
        show(verified["sentence"], *terminal.warnings(verified["warnings"]))
    if verified is not None and not verified["confirmed"]:
        raise typer.Exit(1)


def _folder_beside(run: str) -> Path:
    """Where recordings go unless the user says; raises `OverlaplabError` for a run that is no folder."""
    if not Path(run).is_dir():
        raise OverlaplabError("--verify would record beside the run", path=run, remedy="Name a folder with --out.")
    return Path(f"{run.rstrip('/')}-verify")


def _verify_advice(tables: RunTables, out: Path, repeats: int, command: list[str], opening: Opening) -> dict[str, Any]:
    """Record the settings in turn, by the user's command or else the run's own: is the advised one's gain confirmed?"""
    from overlaplab import findings
    from overlaplab.analyses.across_runs.tiers import verify_gain

    run, row = tables.run, findings.choose_setting(tables.advice, tables.diagnosis)
    if row is None or not row["replayed"]:
        raise OverlaplabError("there is nothing to verify: no option is known to gain enough", path=run.path)
    other = findings.neighbour(tables.advice, row)
    rows = {_PRESENT: None, _ADVISED: row} | ({} if other is None else {_NEIGHBOUR: other})
    recorder, settings = _script_settings(run, rows, command) if command else _engine_settings(run, rows, tables.loop)
    rounds = sweep.in_rounds(settings, repeats, out, seed=0)
    if failed := sweep.record_all(rounds, recorder):
        raise OverlaplabError(failed[0], path=out)
    runs = {name: _recordings(rounds, name, opening) for name in settings}
    spans = {name: [_spans(recording) for recording in recorded] for name, recorded in runs.items()}
    gain = verify_gain(spans[_PRESENT], spans[_ADVISED])
    beside = verify_gain(spans[_ADVISED], spans[_NEIGHBOUR]) if other is not None else None
    confirmed, sentence = findings.verified_finding(row, gain, other, beside)
    return {
        "confirmed": confirmed,
        "sentence": sentence,
        **asdict(gain),
        "gained_ms": gain.gained_ms,
        "neighbour_ms": None if beside is None else beside.after_ms,
        "folder": str(out),
        "warnings": [
            f"{recording.path}: {refused[0]}"
            for recorded in runs.values()
            for recording in recorded
            if (refused := findings.advice_refused(recording)) is not None
        ],
    }


def _engine_settings(run: Run, rows: Mapping[str, Row | None], loop: Loop) -> tuple[sweep.Recorder, Settings]:
    """The engine with the run's own options, and those of each setting; raises `OverlaplabError`."""
    from overlaplab import findings

    need_engine()
    options = {name: () if row is None else tuple(findings.record_options(row, loop)) for name, row in rows.items()}
    return engine.Engine(engine.recorded_options(run)), options


def _script_settings(run: Run, rows: Mapping[str, Row | None], command: list[str]) -> tuple[sweep.Recorder, Settings]:
    """The user's command, which takes a cap, and the cap of each setting; raises `OverlaplabError`."""
    from overlaplab.words import cap_digits

    present = run.manifest.bucket_cap_mb if run.manifest else None
    if present is None or any(row["option"] != "cap" for row in rows.values() if row is not None):
        raise OverlaplabError("a command can verify only another bucket_cap_mb, and none is advised", path=run.path)
    script.require_names(command, [script.CAP])
    caps = {name: present if row is None else row["bucket_cap_mb"] for name, row in rows.items()}
    return script.Script(command), {name: script.setting({script.CAP: cap_digits(cap)}) for name, cap in caps.items()}


def _recordings(rounds: list[list[sweep.PlannedRecording]], name: str, opening: Opening) -> list[Run]:
    """The recordings of one setting."""
    folders = [recording.out for recordings in rounds for recording in recordings]
    return load([str(folder) for folder in folders if folder.name.partition("-")[0] == name], opening)


def _spans(run: Run) -> Any:
    """How long the steps took that nothing disturbed, in ms."""
    from overlaplab.simulate import undisturbed_spans_ns
    from overlaplab.words import to_ms

    return to_ms(undisturbed_spans_ns(run))
