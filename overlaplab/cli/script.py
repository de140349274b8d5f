"""`overlaplab sweep … -- COMMAND`: recordings by a user's own script, which has a Recorder (docs/recorder.md)."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from msgspec import Struct

from overlaplab.cli.sweep import PlannedRecording, parse_caps, run_to_end
from overlaplab.errors import OverlaplabError
from overlaplab.folders import MANIFEST_NAME
from overlaplab.words import shorten

RECORD = "OVERLAPLAB_RECORD"
"""The environment variable that tells a Recorder where to write."""
CAP = "bucket_cap_mb"
OUT = "out"
"""`{out}` in a command is the run's folder, for programs that do not read the variable."""
_TOLD_BY_NAME = ("prefetch", "accumulate")
"""Settings of a run that a Recorder does not see, and run.json has a place for."""
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?(\S*(?:Error|Exception)\b.*|.*\berror: .*)$", re.MULTILINE)
_LAUNCHER_ERROR = "ChildFailedError"
"""What torchrun ends with, whatever its ranks said before."""
_CAP_TOLERANCE_MB = 0.001
"""MiB by which run.json's cap may differ from the one that was given."""


def settings(command: Sequence[str], caps: str | None, assignments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """All combinations of the values of `--bucket-cap-mb` and of each `--set NAME=A,B`, by their folders' names.

    Each is a tuple of `NAME=VALUE`. Raises `OverlaplabError`, also where the command does not take a name.
    """
    values = _values(caps, assignments)
    if not values:
        raise OverlaplabError("nothing varies", remedy="Give --bucket-cap-mb 1,5,25, or --set NAME=A,B.")
    require_names(command, values)
    combinations = [setting(dict(zip(values, chosen, strict=True))) for chosen in itertools.product(*values.values())]
    named = {_folder_name(chosen_words): chosen_words for chosen_words in combinations}
    if len(named) < len(combinations):
        raise OverlaplabError("two settings would share one folder: their values differ only in special characters")
    return named


def require_names(command: Sequence[str], names: Iterable[str]) -> None:
    """Raises `OverlaplabError` for a command that does not take a value for each name, or cannot be found."""
    for name in names:
        if not any(f"{{{name}}}" in word for word in command):
            raise OverlaplabError(
                f"the command has no {{{name}}}, which would be replaced by the values of {name}",
                remedy=f"As in: -- torchrun train.py --{name.replace('_', '-')} {{{name}}}",
            )
    if shutil.which(command[0]) is None:
        raise OverlaplabError(f"{shorten(command[0])}: no such command", remedy="After -- comes what starts training.")


def _values(caps: str | None, assignments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    values = {} if caps is None else {CAP: parse_caps(caps)}
    for text in assignments:
        name, equals, listed = text.partition("=")
        words = tuple(word.strip() for word in listed.split(","))
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name) or not all(words) or name == OUT:
            raise OverlaplabError(f"--set {shorten(text)}: not NAME=A,B,…", remedy="As in --set lr=0.1,0.2.")
        if name in values or len({*words}) < len(words):
            raise OverlaplabError(f"--set {shorten(text)}: given twice", remedy="Use --repeats to record it again.")
        values[name] = parse_caps(listed) if name == CAP else words
    return values


def setting(values: Mapping[str, object]) -> tuple[str, ...]:
    """One setting, as a recording has it."""
    return tuple(f"{name}={value}" for name, value in values.items())


def _folder_name(setting: tuple[str, ...]) -> str:
    """`cap-5`, `cap-5_lr-0.1`."""
    named = "_".join(word.replace(CAP, "cap").replace("=", "-", 1) for word in setting)
    return re.sub(r"[^\w.+-]", "_", named)


class Script(Struct, frozen=True):
    """Records with a user's command, in whose words `{NAME}` stands for a value."""

    command: Sequence[str]

    def is_there(self, recording: PlannedRecording) -> bool:
        """Whether the run was recorded already; raises `OverlaplabError` if that was by something else."""
        file = recording.out / MANIFEST_NAME
        if not file.is_file():
            return False
        swept = _read(file).get("swept")
        if swept == self._swept(recording):
            return True
        raise OverlaplabError(
            "holds a run that was recorded otherwise", path=recording.out, remedy="Name another --out, or remove it."
        )

    def record(self, recording: PlannedRecording, every: Sequence[PlannedRecording]) -> str | None:
        """Let the script record; what went wrong in one line, None where nothing did.

        A run comes to its folder when it is whole. What a script said that failed is beside it, in `cap-5.log`.
        """
        from overlaplab.manifest import Swept

        part, log = (recording.out.with_name(name) for name in (f".{recording.name}.part", f"{recording.name}.log"))
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        swept = self._swept(recording)
        words = Swept(**swept).words(**{OUT: str(part.absolute())})
        problem = None
        try:
            with log.open("wb") as output:
                code = run_to_end(words, output, os.environ | {RECORD: str(part.absolute())}, group=True)
            output_text = log.read_text(errors="replace")
            problem = (
                _failure(code, output_text) or _not_recorded(part, output_text) or _adopt(part / MANIFEST_NAME, swept)
            )
            if problem is None:
                part.rename(recording.out)
            return problem
        finally:
            shutil.rmtree(part, ignore_errors=True)
            if problem is None:
                log.unlink(missing_ok=True)

    def _swept(self, recording: PlannedRecording) -> dict[str, Any]:
        """What run.json has of the sweep: the fields of `manifest.Swept`."""
        values = dict(word.split("=", 1) for word in recording.setting)
        return {"settings": {name: _number(value) for name, value in values.items()}, "command": [*self.command]}


def _number(text: str) -> int | float | str:
    """A value as JSON tells it; one whose text would change, such as `1e-3` or `007`, and `inf` stay text."""
    for kind in (int, float):
        try:
            if str(value := kind(text)) == text and -inf < value < inf:
                return value
        except ValueError:
            continue
    return text


def _failure(code: int, text: str) -> str | None:
    """Why the script failed: what its ranks say of it, before what their launcher says."""
    if code == 0:
        return None
    errors = [line for line in _ERROR.findall(text) if _LAUNCHER_ERROR not in line]
    last = errors[0] if errors else text.strip().rpartition("\n")[2]
    return shorten(last, 400) or (f"ended with exit code {code}" if code > 0 else f"killed by signal {-code}")


def _not_recorded(part: Path, text: str) -> str | None:
    """Why there is no run; None where there is one."""
    if (part / MANIFEST_NAME).is_file():
        return None
    if any(part.glob(f"*/{MANIFEST_NAME}")):
        return "the script made several recordings: leave out every= and on_signal="
    match = re.search(rf"no run in {re.escape(str(part.absolute()))}: (.*)", text)
    why = f": {shorten(match[1], 300)}" if match else ""
    return f"the script recorded nothing{why}. It needs overlaplab's Recorder around its loop (docs/recorder.md)"


def _adopt(file: Path, swept: Mapping[str, Any]) -> str | None:
    """Write the swept values into run.json; why they cannot be those of the run, None where they can."""
    manifest, values = _read(file), swept["settings"]
    swept_cap, cap = values.get(CAP), manifest.get(CAP)
    if swept_cap is not None and cap is not None and abs(cap - swept_cap) > _CAP_TOLERANCE_MB:
        return f"the script was given {CAP} {swept_cap:g}, and its model has {cap:g}"
    swept_values = {name: values[name] for name in _TOLD_BY_NAME if isinstance(values.get(name), int)}
    if swept_cap is not None:
        swept_values[CAP] = swept_cap
    missing = {name: value for name, value in swept_values.items() if manifest.get(name) is None}
    file.write_text(json.dumps(manifest | missing | {"swept": swept}))
    return None


def _read(file: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(file.read_bytes())
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
