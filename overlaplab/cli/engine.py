"""The engine as `overlaplab` starts it: its command, the options of a sweep, and recordings of runs made before."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from msgspec import Struct

from overlaplab.cli.sweep import PlannedRecording, run_to_end
from overlaplab.errors import OverlaplabError
from overlaplab.folders import MANIFEST_NAME
from overlaplab.traits import TRAITS
from overlaplab.words import shorten

if TYPE_CHECKING:
    from overlaplab.events import Run

ENGINE = (sys.executable, "-P", "-m", "overlaplab_engine")
"""The command that records. -P: no module is taken from the current folder, whatever its files are called."""

CAPPED = tuple(name for name, traits in TRAITS.items() if traits.buckets)
"""The strategies whose buckets have a cap."""

DEFAULTS = {"--strategy": "bucketed", "--warmup": "3", "--steps": "5"}
"""What a sweep tells the engine where the user says nothing; warm-up steps are run and not recorded."""

AUTO = "auto"
"""The value of `--link` for which the engine measures."""

REFUSED = {
    "--save": "every recording would write the same checkpoint",
    "--no-trace": "nothing would be recorded",
}
"""Options of record that make no sense here, and why."""


def with_defaults(options: Sequence[str]) -> list[str]:
    """Record's options, with a sweep's defaults where they say nothing; raises `OverlaplabError` for unfit ones."""
    pairs = _pairs(options)
    for option, why in REFUSED.items():
        if option in pairs:
            raise OverlaplabError(f"{option}: {why}", remedy="Leave it out.")
    strategy = pairs.get("--strategy", DEFAULTS["--strategy"])
    if strategy not in CAPPED:
        raise OverlaplabError(
            f"--strategy {shorten(strategy)} has no buckets with a cap", remedy=f"These have: {', '.join(CAPPED)}."
        )
    return [*(word for pair in DEFAULTS.items() if pair[0] not in pairs for word in pair), *options]


def settings(caps: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The options of each cap, by its folder's name."""
    return {f"cap-{cap}": ("--bucket-cap-mb", cap) for cap in caps}


class Engine(Struct, frozen=True):
    """Records with these options of `overlaplab record`, beside those of each setting."""

    options: Sequence[str]

    def is_there(self, recording: PlannedRecording) -> bool:
        """Whether the run was recorded already; raises `OverlaplabError` if that was with other options."""
        file = recording.out / MANIFEST_NAME
        if not file.is_file():
            return False
        try:
            command = shlex.split(json.loads(file.read_bytes())["command"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            command = []
        recorded, wanted = (_pairs(words) for words in (command[2:], _arguments(recording, self.options)))
        if wanted.get("--link") == AUTO and _is_beside(recorded.get("--link", ""), recording.out):
            recorded["--link"] = AUTO  # see `_same_link`
        options = (recorded.keys() | wanted.keys()) - {"--out"}
        changed = sorted(option for option in options if recorded.get(option) != wanted.get(option))
        if not changed:
            return True
        raise OverlaplabError(
            f"holds a run that was recorded otherwise ({shorten(', '.join(changed), 200)})",
            path=recording.out,
            remedy="Name another --out, or remove it.",
        )

    def record(self, recording: PlannedRecording, every: Sequence[PlannedRecording]) -> str | None:
        """Let the engine record; what went wrong in one line, None where nothing did."""
        recording.out.parent.mkdir(parents=True, exist_ok=True)
        words = [*ENGINE, *_arguments(recording, _same_link(self.options, every))]
        with tempfile.TemporaryFile() as output:
            try:
                code = run_to_end(words, output)
            except BaseException:
                _remove_unfinished(recording.out)
                raise
            if code == 0:
                return None
            _remove_unfinished(recording.out)
            return _last_line(output) or (f"ended with exit code {code}" if code > 0 else f"killed by signal {-code}")


def _same_link(options: Sequence[str], every: Sequence[PlannedRecording]) -> list[str]:
    """The options; `--link auto` is measured for the first recording, and the others take the first one's link."""
    first_link = next((str(recording.out) for recording in every if (recording.out / MANIFEST_NAME).is_file()), None)
    if _pairs(options).get("--link") != AUTO or first_link is None:
        return list(options)
    return [*options, "--link", first_link]


def _is_beside(link: str, out: Path) -> bool:
    """Whether this value of `--link` is a run in the same folder as `out`, however both are spelled; not `GBPS,US`."""
    name = Path(link).name
    return name not in ("", "none") and "," not in name and Path(link).resolve().parent == out.resolve().parent


def _arguments(recording: PlannedRecording, options: Sequence[str]) -> list[str]:
    return [*options, *recording.setting, "--out", str(recording.out)]


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


def recorded_options(run: Run) -> list[str]:
    """The options of `overlaplab record` that recorded a run, without where it wrote; raises `OverlaplabError`.

    A link that was measured becomes the run's own.
    """
    command = str(run.manifest.raw.get("command", "")) if run.manifest else ""
    words = shlex.split(command)
    if words[:2] != ["overlaplab", "record"]:
        how = f"recorded by {shorten(command, 80)}" if command else "how it was recorded is unknown"
        raise OverlaplabError(
            f"{how}, which cannot be repeated here",
            path=run.path,
            remedy="Give its command after --, with {bucket_cap_mb} in it, or record both settings and compare.",
        )
    options = [
        word if not value else f"{word}={value}" for word, value in _pairs(words[2:]).items() if word not in _OUTPUTS
    ]
    return [*options, "--link", run.path] if _pairs(options).get("--link") == AUTO else options


_OUTPUTS = ("--out", "--save")


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Options and their values, empty for a switch; `--a 1` and `--a=1` are the same."""
    pairs: dict[str, str] = {}
    option = ""
    for word in words:
        if word.startswith("--"):
            option, _, value = word.partition("=")
            pairs[option] = value
        elif option:
            pairs[option] = word
    return pairs
