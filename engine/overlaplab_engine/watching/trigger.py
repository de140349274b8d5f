"""When a watch asks for a recording: bursts exceed what bursts used to be."""

import re
from collections import deque
from collections.abc import Sequence
from statistics import median

from overlaplab_engine.errors import EngineError

MIN_BURSTS = 3
"""With fewer earlier bursts nothing is usual yet."""
MAX_BURSTS = 100
"""What is usual is the median of at most so many bursts, the last ones."""
IN_A_ROW = 2
"""So many bursts in a row must exceed what is usual: one alone may be chance."""
_CONDITION = re.compile(r"\s*(exposed|step)\s*>\s*(\d+(?:\.\d+)?)\s*\*\s*median\s*")


class Trigger:
    """A condition on bursts, such as `exposed > 1.5 * median` or `step > 1.3 * median`.

    A burst's value is the median of its steps: a checkpoint in one of them does not move it. After it has triggered,
    what it triggered on is what is usual.
    """

    def __init__(self, condition: str) -> None:
        """EngineError for a condition that is not understood."""
        parts = _CONDITION.fullmatch(condition)
        if parts is None or not float(parts[2]) > 1:
            raise EngineError(
                f"record_when is such as 'exposed > 1.5 * median' or 'step > 1.3 * median', not {condition!r}"
            )
        self._figure, self._factor = parts[1], float(parts[2])
        self._usual: deque[float] = deque(maxlen=MAX_BURSTS)
        self._exceeding: list[float] = []

    def observe(self, step_ns: Sequence[int], exposed_ns: Sequence[int]) -> str | None:
        """Take a burst's step times, and its known exposed times; returns why to record now, or None."""
        values = step_ns if self._figure == "step" else exposed_ns
        if not values:
            return None
        value = float(median(values))
        usual = median(self._usual) if len(self._usual) >= MIN_BURSTS else None
        if usual is None or value <= self._factor * usual:
            self._usual.extend([*self._exceeding, value])
            self._exceeding = []
            return None
        self._exceeding.append(value)
        if len(self._exceeding) < IN_A_ROW:
            return None
        self.restart()
        return f"{self._figure} {value / 1e6:.1f} ms, usually {usual / 1e6:.1f} ms"

    def restart(self) -> None:
        """What is usual is learned anew, beginning with the bursts that exceeded it."""
        self._usual.clear()
        self._usual.extend(self._exceeding)
        self._exceeding = []
