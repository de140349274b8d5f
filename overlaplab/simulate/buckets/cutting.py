"""The best cutting of a backward pass's gradients into buckets, of all cuttings.

[Note: why one end per gradient suffices]
Buckets hold gradients that arrived one after the other, and leave in that order. A bucket starts once its last gradient
is there and the bucket before it has left the link. So the earliest end of all buckets up to a gradient follows from
the earliest ends up to the gradients before it: an earlier end never makes a later bucket end later. MG-WFBP (Shi, Chu,
Li, INFOCOM 2019) asks the same question of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt


def best_cutting(
    ready_ns: Sequence[int], num_bytes: Sequence[int], transfer_ns: Callable[[int], int]
) -> tuple[int, tuple[int, ...]]:
    """When the last bucket ends at the earliest, in ns, and how many gradients each of its buckets holds.

    Takes the gradients in their order of arrival: when each is ready, its bytes, and T of so many bytes. Of cuttings
    that end equally early it chooses one with few buckets. `(0, ())` without gradients.
    """
    sums = np.concatenate(([0], np.cumsum(np.asarray(num_bytes, np.int64))))
    times: dict[int, int] = {}

    def times_ns(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.array([times.get(size) or times.setdefault(size, transfer_ns(size)) for size in sizes.tolist()])

    ends, counts, cut = ([0] * (len(num_bytes) + 1) for _ in range(3))
    ready = 0
    for last in range(1, len(num_bytes) + 1):
        ready = max(ready, ready_ns[last - 1])
        ended = np.maximum(np.array(ends[:last]), ready) + times_ns(sums[last] - sums[:last])
        best = np.lexsort((counts[:last], ended))[0]
        ends[last], counts[last], cut[last] = int(ended[best]), counts[best] + 1, int(best)
    return ends[-1], _counts([np.array(cut)] * counts[-1], len(num_bytes))


def transfer_table(num_bytes: Sequence[int], transfer_ns: Callable[[int], int]) -> npt.NDArray[np.int64]:
    """T in ns of the gradients from `first` up to `last` in one bucket, at `[first, last]`; elsewhere very long."""
    number = len(num_bytes)
    sums = np.concatenate(([0], np.cumsum(np.asarray(num_bytes, np.int64))))
    times_ns = np.full((number + 1, number + 1), np.iinfo(np.int64).max // 4)
    for last in range(1, number + 1):
        times_ns[:last, last] = [transfer_ns(int(size)) for size in sums[last] - sums[:last]]
    return times_ns


def best_cuttings(
    ready_ns: Sequence[int], took_ns: npt.NDArray[np.int64], launch_ns: int, *, most: int = 64
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """What `best_cutting` gives, of the cuttings into one bucket, into two, …, into at most so many.

    Takes the gradients in their order of arrival: when each is ready, and `transfer_table`. Each launch delays later
    gradients by `launch_ns`: what that costs depends on the number of buckets alone, so for each number the earliest
    end follows as in the note above.
    """
    number = len(ready_ns)
    ready = np.concatenate(([0], np.maximum.accumulate(np.asarray(ready_ns, np.int64)))) if number else np.zeros(1)
    ends = np.full(number + 1, took_ns[-1, -1])
    ends[0] = 0
    borders: list[npt.NDArray[np.int64]] = []
    for count in range(1, min(number, most) + 1):
        ended = np.maximum(ends[:, None], ready + count * launch_ns) + took_ns
        borders.append(ended.argmin(axis=0))
        ends = np.minimum(ended.min(axis=0), took_ns[-1, -1])
        yield int(ends[-1]), _counts(borders, number)


def _counts(borders: Sequence[npt.NDArray[np.int64]], last: int) -> tuple[int, ...]:
    """How many gradients each bucket holds, from where the last one begins by where it ends, `last`, and so on back."""
    counts: list[int] = []
    for border in reversed(borders):
        counts.append(last - int(border[last]))
        last = int(border[last])
    return tuple(reversed(counts))


def last_end(
    ready_ns: Sequence[int], num_bytes: Sequence[int], counts: Sequence[int], transfer_ns: Callable[[int], int]
) -> int:
    """When the last of these buckets ends, which hold so many gradients each; arguments as of `best_cutting`."""
    first = free_ns = 0
    for count in counts:
        ready = max(ready_ns[: first + count])
        free_ns = max(ready, free_ns) + transfer_ns(sum(num_bytes[first : first + count]))
        first += count
    return free_ns
