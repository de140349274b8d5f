"""The errors of what a run cannot tell."""

from __future__ import annotations

from collections.abc import Sequence

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, missing_ranks
from overlaplab.simulate.player import Played, Program, StuckError, play


def refusal(run: Run, problem: str, remedy: str | None = None) -> OverlaplabError:
    """To be raised where the run cannot be played as asked."""
    return OverlaplabError(problem, path=run.path, remedy=remedy)


def play_or_refuse(run: Run, programs: Sequence[Program]) -> Played:
    """Play a run's programs. Raises `OverlaplabError` where they are stuck."""
    try:
        return play(programs)
    except StuckError:
        if len(run.traces) > 1:
            raise refusal(run, "its ranks launch collectives in different orders") from None
        missing = missing_ranks(run)
        what = "what its host and streams wait for is not in its trace"
        if missing:
            what = f"{missing} of {missing + 1} ranks have no trace, and {what}"
        raise refusal(run, what, "Open all ranks' traces together." if missing else None) from None
