"""When the best buckets found would arrive, start and end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from overlaplab.simulate.buckets.search import BucketSearch
from overlaplab.simulate.player import End, Launch, Mark, Played, play


def best_rows(search: BucketSearch) -> Iterator[dict[str, int]]:
    """The best buckets found as they were played: a row for each rank, step (both by place) and bucket.

    A row has `index`, `gradients` (how many) and `bytes`, and in ns from the step's start `ready_ns` (when the rank had
    the bucket's last gradient), `start_ns`, `end_ns`, and `last_ns` (when it had the backward pass's last gradient).
    Steps with several passes that send gradients have no rows.
    """
    if search.best_found is None:
        return
    programs = search.cut.programs(search.best_found.buckets)
    played = play(programs)
    for rank, (program, over_ns) in enumerate(zip(programs, played.over_ns, strict=True)):
        arrived: dict[str, int] = {}
        launches: list[Launch] = []
        step, passes = -1, 0
        for move, at_ns in zip(program, over_ns, strict=True):
            if isinstance(move, Mark) and move.word == "gradient":
                arrived[move.name] = at_ns
            elif isinstance(move, Mark) and move.word == "backward_end":
                passes += 1
            elif isinstance(move, Launch) and move.role == "bucket" and move.parameters:
                launches.append(move)
            elif isinstance(move, End):
                if passes == 1:
                    yield from _rows_of_step(rank, step, launches, arrived, played)
                arrived, launches, step, passes = {}, [], step + 1, 0


def _rows_of_step(
    rank: int, step: int, launches: Sequence[Launch], arrived: Mapping[str, int], played: Played
) -> Iterator[dict[str, int]]:
    begun = played.ends_ns[rank][step]
    last_ns = max(arrived.values(), default=begun)
    for index, launch in enumerate(launches):
        start, end = played.carried[launch.key]
        ready_ns = max((arrived[name] for name in launch.parameters if name in arrived), default=begun)
        times = {"ready_ns": ready_ns, "start_ns": start, "end_ns": end, "last_ns": last_ns}
        row = {"rank": rank, "step": step, "index": index, "gradients": len(launch.parameters)}
        yield row | {"bytes": launch.bytes} | {name: at_ns - begun for name, at_ns in times.items()}
