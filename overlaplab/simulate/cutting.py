"""The best cutting of a backward pass's gradients into buckets, of all cuttings.

[Note: why one end per gradient suffices]
Buckets hold gradients that arrived one after the other, and leave in that order. A bucket starts once its last gradient
is there and the bucket before it has left the link. So the earliest end of all buckets up to a gradient follows from
the earliest ends up to the gradients before it: an earlier end never makes a later bucket end later. MG-WFBP (Shi, Chu,
Li, INFOCOM 2019) asks the same question of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

    def took(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.array([times.get(size) or times.setdefault(size, transfer_ns(size)) for size in sizes.tolist()])

    ends, counts, cut = ([0] * (len(num_bytes) + 1) for _ in range(3))
    ready = 0
    for last in range(1, len(num_bytes) + 1):
        ready = max(ready, ready_ns[last - 1])
        ended = np.maximum(np.array(ends[:last]), ready) + took(sums[last] - sums[:last])
        best = np.lexsort((counts[:last], ended))[0]
        ends[last], counts[last], cut[last] = int(ended[best]), counts[best] + 1, int(best)
    held: list[int] = []
    last = len(num_bytes)
    while last:
        held.append(last - cut[last])
        last = cut[last]
    return ends[-1], tuple(reversed(held))
