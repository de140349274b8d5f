"""How long the units of a sleeping device take: what `--compute sleep` asks for."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from overlaplab_engine.errors import EngineError

GFLOPS = 50
"""Times that are not given are those of a processor with so many GFLOP/s."""
UPDATE_NS_PER_PARAMETER = 3
"""AdamW moves 28 bytes, at about 10 GB/s."""

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>us|ms|s)")
_UNITS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTime:
    """How long one unit takes, in ns."""

    forward_ns: int
    backward_ns: int
    update_ns: int = 0
    """By the optimizer, for the whole unit; a rank that owns a part of it takes a part of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Every unit takes a time without a core. Without times they follow from the units' sizes."""

    each: UnitTime | None = None
    """What each unit takes, if that is given."""
    units: Mapping[str, UnitTime] | None = None
    """What each unit took in another run, by name, if one is given."""
    run: Path | None = None
    """That run."""

    @classmethod
    def parse(cls, text: str) -> "Sleep":
        """Read `sleep`, `sleep:FORWARD,BACKWARD[,UPDATE]`, such as `sleep:20ms,40ms`, or `sleep:RUN`. EngineError
        otherwise.
        """
        if text == "sleep":
            return cls()
        spec = text.removeprefix("sleep:")
        if spec != text and Path(spec).is_dir():
            return cls._from_run(Path(spec))
        words = spec.split(",")
        if not text.startswith("sleep:") or len(words) not in (2, 3):
            raise EngineError(
                f"--compute {text!r} is none of real, sleep, sleep:FORWARD,BACKWARD such as sleep:20ms,40ms, sleep:RUN"
            )
        return cls(each=UnitTime(**dict(zip(_NAMES, (_duration_ns(word) for word in words), strict=False))))

    @classmethod
    def _from_run(cls, run: Path) -> "Sleep":
        """What the units took in a run: what they slept, or what was measured before its first step."""
        try:
            manifest = json.loads((run / "run.json").read_bytes())
            rows = (manifest.get("sleep") or manifest["calibration"])["units"]
            units = {row["name"]: UnitTime(**{name: int(row[name]) for name in _NAMES}) for row in rows}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise EngineError(
                f"--compute sleep:{run}: its run.json does not say how long units take; record it anew, on a CPU"
            ) from None
        return cls(units=units, run=run)

    def unit_time(self, name: str, parameters: int, tokens: int) -> UnitTime:
        """The time of a unit that has so many `parameters`, for so many `tokens` per pass.

        EngineError if it is not in the run that the times are from.
        """
        if self.each is not None:
            return self.each
        if self.units is not None:
            if name not in self.units:
                raise EngineError(
                    f"--compute sleep:{self.run}: it has no unit {name}; record the same model with the same --units"
                )
            return self.units[name]
        forward_ns = 2 * parameters * tokens // GFLOPS
        return UnitTime(
            forward_ns=forward_ns, backward_ns=2 * forward_ns, update_ns=UPDATE_NS_PER_PARAMETER * parameters
        )


_NAMES = ("forward_ns", "backward_ns", "update_ns")


def _duration_ns(text: str) -> int:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise EngineError(f"--compute: {text!r} is not a time such as 20ms, 500us or 1.5s")
    return round(float(match["number"]) * _UNITS[match["unit"]])
