"""Slices of one track must lie side by side or within each other; what only overlaps needs a track more."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def nesting_tracks(starts: Integers, ends: Integers) -> Integers:
    """For each slice, in order of start and of those with one start the longest first, the number of its track.

    Each goes to the first track in which every slice that is still open when it starts also outlasts it.
    """
    tracks = np.zeros(len(starts), dtype=np.int64)
    if _side_by_side(starts, ends):
        return tracks
    open_ends: list[list[int]] = [[]]
    for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        for number, stack in enumerate(open_ends):
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                stack.append(end)
                tracks[place] = number
                break
        else:
            tracks[place] = len(open_ends)
            open_ends.append([end])
    return tracks


def _side_by_side(starts: Integers, ends: Integers) -> bool:
    """Whether no slice begins before the one before it ends: most streams are so."""
    return bool(np.all(starts[1:] >= ends[:-1]))
