"""The one error that a user can cause."""

from __future__ import annotations


class OverlaplabError(Exception):
    """Something that the user gave cannot be used: its text is one line for the user, without a traceback.

    Raised by loading, analyses and the command line; caught once in the command line and once in the dashboard.
    """

    def __init__(
        self, problem: str, *, path: object = None, rank: int | None = None, remedy: str | None = None
    ) -> None:
        where = [str(path)] if path is not None else []
        where += [f"rank {rank}"] if rank is not None else []
        text = ": ".join([*where, problem]) + (f". {remedy}" if remedy else "")
        super().__init__(" ".join(text.split()))
