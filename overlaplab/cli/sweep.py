"""`overlaplab sweep`: one recording after the other, each by the engine as a process of its own."""

from __future__ import annotations

import json
import math
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

from overlaplab.cli.shared import progress_bar
from overlaplab.errors import OverlaplabError
from overlaplab.folders import MANIFEST_NAME
from overlaplab.traits import TRAITS
from overlaplab.words import shorten

if TYPE_CHECKING:
    from overlaplab.events import Run

__all__ = [
    "CAPPED",
    "ENGINE",
    "Recording",
    "in_rounds",
    "options_of",
    "parse_caps",
    "plan",
    "record_all",
    "with_defaults",
]

ENGINE = (sys.executable, "-P", "-m", "overlaplab_engine")
"""The command that records. -P: no module is taken from the current folder, whatever its files are called."""

CAPPED = tuple(name for name, traits in TRAITS.items() if traits.buckets)
"""The strategies whose buckets have a cap."""

DEFAULTS = {"--strategy": "bucketed", "--warmup": "3", "--steps": "5"}
"""What a sweep tells the engine where the user says nothing; warm-up steps are run and not recorded."""

AUTO = "auto"
"""The value of `--link` for which the engine measures."""

OWN = {
    "--save": "every recording would write the same checkpoint",
    "--no-trace": "nothing would be recorded",
}
"""Options of record that make no sense here, and why."""

ENDING_S = 30.0
"""How long an interrupted recording may take to end its ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run of a sweep, still to be made."""

    setting: tuple[str, ...]
    """The options in which it differs from others, as in `("--bucket-cap-mb", "25")`."""
    out: Path
    """`DIR/cap-<M>`; the second and later recordings of a setting are `DIR/cap-<M>-2` and so on."""


def parse_caps(text: str) -> tuple[str, ...]:
    """`1,5,25` as the caps' names, in the given order; raises `OverlaplabError`."""
    caps: list[str] = []
    for word in text.split(","):
        try:
            cap = float(word)
        except ValueError:
            cap = math.nan
        if not 0 < cap < math.inf:
            raise OverlaplabError(
                f"--bucket-cap-mb {shorten(text)}: {shorten(word.strip()) or 'nothing'} is no cap",
                remedy="Numbers above 0 with commas between them, in MiB, as in --bucket-cap-mb 1,5,25,100.",
            )
        caps.append(str(int(cap)) if cap.is_integer() else repr(cap))
    if len(set(caps)) < len(caps):
        raise OverlaplabError(f"--bucket-cap-mb {shorten(text)}: the same cap twice", remedy="Use --repeats.")
    return tuple(caps)


def plan(caps: Sequence[str], repeats: int, out: Path, seed: int) -> list[list[Recording]]:
    """`repeats` rounds, each with every cap once in an order of its own.

    What drifts while the sweep runs, such as a machine that gets warm, so falls on all caps alike.
    """
    return in_rounds({f"cap-{cap}": ("--bucket-cap-mb", cap) for cap in caps}, repeats, out, seed)


def in_rounds(settings: Mapping[str, tuple[str, ...]], repeats: int, out: Path, seed: int) -> list[list[Recording]]:
    """As `plan`, of any settings by the names of their folders."""
    dice = random.Random(seed)
    return [
        [
            Recording(setting=settings[name], out=out / (name if number == 1 else f"{name}-{number}"))
            for name in dice.sample(list(settings), len(settings))
        ]
        for number in range(1, repeats + 1)
    ]


def with_defaults(options: Sequence[str]) -> list[str]:
    """Record's options, with a sweep's defaults where they say nothing; raises `OverlaplabError` for unfit ones."""
    given = _pairs(options)
    for option, why in OWN.items():
        if option in given:
            raise OverlaplabError(f"{option}: {why}", remedy="Leave it out.")
    strategy = given.get("--strategy", DEFAULTS["--strategy"])
    if strategy not in CAPPED:
        raise OverlaplabError(
            f"--strategy {shorten(strategy)} has no buckets with a cap", remedy=f"These have: {', '.join(CAPPED)}."
        )
    return [*(word for pair in DEFAULTS.items() if pair[0] not in given for word in pair), *options]


def record_all(rounds: Sequence[Sequence[Recording]], options: Sequence[str]) -> list[str]:
    """Record what is not there yet, and say so on stderr; returns a line for each setting that failed.

    A setting that failed is not tried again in later rounds, and the others go on; if the first two fail alike, so
    would the rest, and the sweep ends. Raises `OverlaplabError` where a folder holds a run that was recorded otherwise.
    """
    from rich.markup import escape

    every = [recording for recordings in rounds for recording in recordings]
    todo = [recording for recording in every if not _is_there(recording, options)]
    if len(todo) < len(every):
        _report(f"{len(every) - len(todo)} of {len(every)} recordings are there already")
    failed: dict[tuple[str, ...], str] = {}
    with _signals_interrupt(), progress_bar() as bar:
        task = bar.add_task("", total=len(todo))
        for done, recording in enumerate(todo):
            bar.update(task, completed=done, description=escape(recording.out.name))
            if recording.setting in failed:
                continue
            began = time.monotonic()
            try:
                problem = _record(recording, _same_link(options, every))
            except KeyboardInterrupt:
                bar.stop()
                _report(f"interrupted: {done} of {len(todo)} recorded. The same command goes on from here.")
                raise
            if problem is None:
                if bar.disable:
                    _report(
                        f"{recording.out.name} recorded in {time.monotonic() - began:.0f} s ({done + 1}/{len(todo)})"
                    )
                continue
            failed[recording.setting] = f"{recording.out.name} failed: {problem}"
            if len(failed) == done + 1 == 2 and len({line.partition(": ")[2] for line in failed.values()}) == 1:
                break
    return list(failed.values())


def _same_link(options: Sequence[str], every: Sequence[Recording]) -> list[str]:
    """The options; `--link auto` is measured for the first recording, and the others take the first one's link."""
    made = next((str(recording.out) for recording in every if (recording.out / MANIFEST_NAME).is_file()), None)
    if _pairs(options).get("--link") != AUTO or made is None:
        return list(options)
    return [*options, "--link", made]


def _record(recording: Recording, options: Sequence[str]) -> str | None:
    """Let the engine record; what went wrong in one line, None where nothing did."""
    recording.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as output:
        # A session of its own: Ctrl-C reaches the engine once, through here, and its ranks end in order.
        process = subprocess.Popen(
            [*ENGINE, *_arguments(recording, options)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait()
        except BaseException:
            _end(process)
            _remove_unfinished(recording.out)
            raise
        if code == 0:
            return None
        _remove_unfinished(recording.out)
        return _last_line(output) or (f"ended with exit code {code}" if code > 0 else f"killed by signal {-code}")


def _arguments(recording: Recording, options: Sequence[str]) -> list[str]:
    return [*options, *recording.setting, "--out", str(recording.out)]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the engine end its ranks; it and what is left of its group are killed if it does not."""
    process.terminate()
    try:
        process.wait(timeout=ENDING_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _remove_unfinished(out: Path) -> None:
    """Take away what a recording without an end left: traces without a manifest would look like a run."""
    if (out / MANIFEST_NAME).exists():
        return
    for file in out.glob("rank*.pt.trace.json.gz"):
        file.unlink(missing_ok=True)
    with suppress(OSError):  # it is not there, or holds something else
        out.rmdir()


def _last_line(output: IO[bytes]) -> str:
    """The engine's last words, without its name."""
    output.seek(0)
    last = output.read().decode(errors="replace").strip().rpartition("\n")[2]
    return shorten(last.removeprefix("overlaplab record: "), 400)


def _is_there(recording: Recording, options: Sequence[str]) -> bool:
    """Whether the run was recorded already; raises `OverlaplabError` if that was with other options."""
    file = recording.out / MANIFEST_NAME
    if not file.is_file():
        return False
    try:
        command = shlex.split(json.loads(file.read_bytes())["command"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        command = []
    found, wanted = (_pairs(words) for words in (command[2:], _arguments(recording, options)))
    if wanted.get("--link") == AUTO and Path(found.get("--link", "")).parent == recording.out.parent:
        found["--link"] = AUTO  # see `_same_link`
    if {**found, "--out": ""} == {**wanted, "--out": ""}:
        return True
    changed = sorted(word for word in found.keys() | wanted.keys() if found.get(word) != wanted.get(word))
    raise OverlaplabError(
        f"holds a run that was recorded otherwise ({shorten(', '.join({*changed} - {'--out'}), 200)})",
        path=recording.out,
        remedy="Name another --out, or remove it.",
    )


def options_of(run: Run) -> list[str]:
    """The options of `overlaplab record` that recorded a run, without what names files; raises `OverlaplabError`.

    A link that was measured becomes the run's own.
    """
    command = str(run.manifest.raw.get("command", "")) if run.manifest else ""
    words = shlex.split(command)
    if words[:2] != ["overlaplab", "record"]:
        how = f"recorded by {shorten(command, 80)}" if command else "nothing tells how it was recorded"
        raise OverlaplabError(
            f"{how}, which cannot be repeated here", path=run.path, remedy="Record both settings yourself, and compare."
        )
    options = [
        word if not value else f"{word}={value}" for word, value in _pairs(words[2:]).items() if word not in _FILES
    ]
    return [*options, "--link", run.path] if _pairs(options).get("--link") == AUTO else options


_FILES = ("--out", "--save")


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Options and their values, empty for a switch; `--a 1` and `--a=1` are the same."""
    found: dict[str, str] = {}
    option = ""
    for word in words:
        if word.startswith("--"):
            option, _, value = word.partition("=")
            found[option] = value
        elif option:
            found[option] = word
    return found


def _report(line: str) -> None:
    print(f"overlaplab: {line}", file=sys.stderr, flush=True)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end a sweep as Ctrl-C does: no ranks are left behind."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    names = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(name, interrupt) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
