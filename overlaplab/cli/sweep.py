"""`overlaplab sweep`: one recording after the other, each by a process of its own: the engine, or a user's script."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Protocol

from msgspec import Struct

from overlaplab.cli.shared import progress_bar
from overlaplab.errors import OverlaplabError
from overlaplab.words import shorten

ENDING_S = 30.0
"""How long an interrupted recording may take to end its ranks."""


class PlannedRecording(Struct, frozen=True, kw_only=True):
    """One run of a sweep, still to be made."""

    setting: tuple[str, ...]
    """In what it differs from others: the engine's options, `("--bucket-cap-mb", "25")`, or `("lr=0.1",)`."""
    out: Path
    """`DIR/cap-<M>`; the second and later recordings of a setting are `DIR/cap-<M>-2` and so on."""

    @property
    def name(self) -> str:
        """Its folder's."""
        return self.out.name


class Recorder(Protocol):
    """Who makes the recordings of a sweep."""

    def is_there(self, recording: PlannedRecording) -> bool:
        """Whether it was made already; raises `OverlaplabError` where its folder holds another run."""

    def record(self, recording: PlannedRecording, every: Sequence[PlannedRecording]) -> str | None:
        """Make it, one of `every`; what went wrong in one line, None where nothing did."""


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


def in_rounds(
    settings: Mapping[str, tuple[str, ...]], repeats: int, out: Path, seed: int
) -> list[list[PlannedRecording]]:
    """`repeats` rounds, each with every setting, by its folder's name, once in an order of its own.

    What drifts while the sweep runs, such as a machine that gets warm, so falls on all settings alike.
    """
    dice = random.Random(seed)
    rounds = [
        [
            PlannedRecording(setting=settings[name], out=out / (name if number == 1 else f"{name}-{number}"))
            for name in dice.sample(list(settings), len(settings))
        ]
        for number in range(1, repeats + 1)
    ]
    names = Counter(recording.name for recordings in rounds for recording in recordings)
    if twice := [name for name, number in names.items() if number > 1]:
        remedy = "Give values of which none is another one with such a number at its end, or --repeats 1."
        raise OverlaplabError(f"two recordings would share the folder {twice[0]}", path=out, remedy=remedy)
    return rounds


def record_all(rounds: Sequence[Sequence[PlannedRecording]], recorder: Recorder) -> list[str]:
    """Record what is not there yet, and say so on stderr; returns a line for each setting that failed.

    A setting that failed is not tried again in later rounds, and the others go on; if the first two fail alike, so
    would the rest, and the sweep ends. Raises `OverlaplabError` where a folder holds a run that was recorded otherwise.
    """
    from rich.markup import escape

    every = [recording for recordings in rounds for recording in recordings]
    todo = [recording for recording in every if not recorder.is_there(recording)]
    if len(todo) < len(every):
        _report(f"{len(every) - len(todo)} of {len(every)} recordings are there already")
    failed: dict[tuple[str, ...], str] = {}
    with _signals_interrupt(), progress_bar() as bar:
        task = bar.add_task("", total=len(todo))
        for done, recording in enumerate(todo):
            bar.update(task, completed=done, description=escape(recording.name))
            if recording.setting in failed:
                continue
            began = time.monotonic()
            try:
                problem = recorder.record(recording, every)
            except KeyboardInterrupt:
                bar.stop()
                there = sum(map(recorder.is_there, todo))
                _report(f"interrupted: {there} of {len(todo)} recorded. The same command goes on from here.")
                raise
            if problem is None:
                if bar.disable:
                    _report(f"{recording.name} recorded in {time.monotonic() - began:.0f} s ({done + 1}/{len(todo)})")
                continue
            failed[recording.setting] = f"{recording.name} failed: {problem}"
            if len(failed) == done + 1 == 2 and len({line.partition(": ")[2] for line in failed.values()}) == 1:
                break
    return list(failed.values())


def run_to_end(
    words: Sequence[str],
    output: IO[bytes],
    environment: Mapping[str, str] | None = None,
    *,
    group: bool = False,
    timeout_s: float | None = None,
) -> int:
    """Run a program to its end, with what it writes in `output`; its exit code, below 0 the signal that killed it.

    If this process is interrupted, the program is asked to end its ranks in order, and with `group` those that it
    started are asked, too: a shell would leave them behind. What is left after a while is killed. The same happens
    after `timeout_s` seconds, which raise `subprocess.TimeoutExpired`.
    """
    # A session of its own: Ctrl-C reaches the engine once, through here, and its ranks end in order.
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=True,
    )
    try:
        return process.wait(timeout_s)
    except BaseException:
        _end(process, os.killpg if group else os.kill)
        raise


def _end(process: subprocess.Popen[bytes], send: Callable[[int, int], None]) -> None:
    with suppress(ProcessLookupError, KeyboardInterrupt):
        send(process.pid, signal.SIGTERM)
        until = time.monotonic() + ENDING_S
        while time.monotonic() < until:
            process.poll()
            os.killpg(process.pid, 0)  # until nobody is left
            time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
