"""Bursts: which steps are measured in detail, and what a burst was as a whole."""

from collections import Counter, defaultdict

from overlaplab_engine.errors import EngineError
from overlaplab_engine.watching.log import CellKind

FIRST_BURST_STEP = 10
"""Steps before it warm up, and by default a Recorder profiles them."""
_GOLDEN_RATIO = 0.618
"""The fractions of its multiples lie evenly between 0 and 1."""
_EXPOSED = (CellKind.EXPOSED_GRADIENTS, CellKind.EXPOSED_GATHERS, CellKind.EXPOSED_OTHER, CellKind.EXPOSED_DDP)


class Bursts:
    """`burst` steps of each `every`: the same on all ranks, now these and now those, evenly over time."""

    def __init__(self, every: int, burst: int) -> None:
        """EngineError unless 1 ≤ `burst` ≤ `every`."""
        if not 1 <= burst <= every:
            raise EngineError(f"watch cannot measure {burst} of each {every} steps")
        self.every, self.burst = every, burst
        self._step_ns: dict[int, int] = {}
        self._exposed_ns: dict[int, Counter[CellKind]] = defaultdict(Counter)

    def holds(self, step: int) -> bool:
        """Whether the step is one of a burst."""
        period, place = divmod(step, self.every)
        places = self.every - self.burst + 1  # of a period's steps, at which its burst may begin
        first = (min(FIRST_BURST_STEP, places - 1) + round(period * _GOLDEN_RATIO * places)) % places
        return step >= 0 and first <= place < first + self.burst

    def add_step(self, step: int, duration_ns: int) -> None:
        """Add a step of the burst under way."""
        self._step_ns[step] = duration_ns

    def add(self, kind: CellKind, step: int, duration_ns: int) -> None:
        """Add what is known of a step."""
        if kind in _EXPOSED:
            self._exposed_ns[step][kind] += duration_ns

    def take(self, *, ddp: bool) -> tuple[list[int], list[int]]:
        """Forget the burst that is over; returns its steps' times, and what was exposed in those where that is known.

        With a model in DDP it is known where DDP's waits are. On a GPU the last steps' may come too late.
        """
        exposed_ns = [
            by_kind.total()
            for step, by_kind in self._exposed_ns.items()
            if step in self._step_ns and (CellKind.EXPOSED_DDP in by_kind or not ddp)
        ]
        step_ns = list(self._step_ns.values())
        self._step_ns.clear()
        self._exposed_ns.clear()
        return step_ns, exposed_ns
