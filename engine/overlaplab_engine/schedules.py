"""Pipelines: the schedules by name, and which layers each stage holds; without torch, for the command line."""

from collections.abc import Sequence
from enum import StrEnum

from overlaplab_engine.errors import EngineError


class Schedule(StrEnum):
    """The order in which a rank works on microbatches; torch.distributed.pipelining has each."""

    GPIPE = "gpipe"
    """All forward, then all backward (Huang et al. 2019, arXiv 1811.06965)."""
    ONE_F_ONE_B = "1f1b"
    """One forward, one backward, once the pipeline is full (Narayanan et al. 2021, arXiv 2006.09503)."""
    INTERLEAVED = "interleaved-1f1b"
    """The same with several stages on each rank (Narayanan et al. 2021, arXiv 2104.04473)."""
    ZBV = "zbv"
    """Backward in halves, for inputs and for weights; two stages on each rank, in a V (Qi et al. 2024, arXiv
    2401.10241, section 6)."""

    @property
    def per_rank(self) -> int:
        """How many stages a rank holds, at least."""
        return 2 if self in (Schedule.INTERLEAVED, Schedule.ZBV) else 1


def parse_stages(text: str) -> tuple[int, ...]:
    """Read `4`, a number of stages, or `3,3,2`, the layers of each. EngineError for anything else."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and len(word) < 10 and int(word) > 0 for word in words):
        raise EngineError(f"--stages {text!r} is neither a number such as 4 nor the layers of each stage such as 3,3,2")
    return tuple(int(word) for word in words)


def ranks_for(stages: Sequence[int], schedule: Schedule) -> int:
    """On how many ranks so many stages are, with as few on each as the schedule takes."""
    return max(_count(stages) // schedule.per_rank, 1)


def _count(stages: Sequence[int]) -> int:
    return stages[0] if len(stages) == 1 else len(stages)


def cut(layers: int, ranks: int, schedule: Schedule, stages: Sequence[int] | None) -> list[range]:
    """The layers of each stage, for a pipeline of so many ranks.

    `stages`: their number, or the layers of each if there are several numbers; None: as few as the schedule takes.
    EngineError for what cannot be.
    """
    if ranks < 2:
        raise EngineError("a pipeline needs two ranks or more, such as --nproc 4")
    count = ranks * schedule.per_rank if stages is None else _count(stages)
    _require_stages(count, ranks, schedule)
    if stages is not None and len(stages) > 1:
        if sum(stages) != layers:
            numbers = ",".join(map(str, stages))
            raise EngineError(f"--stages {numbers} are {sum(stages)} layers, and --layers is {layers}")
        sizes = list(stages)
    else:
        if count > layers:
            raise EngineError(f"{count} stages need as many layers, and --layers is {layers}")
        if layers % count:
            even = [layers // count + (stage < layers % count) for stage in range(count)]
            raise EngineError(
                f"{count} stages do not divide --layers {layers}; say how many each has: --stages "
                + ",".join(map(str, even))
            )
        sizes = [layers // count] * count
    return [range(sum(sizes[:stage]), sum(sizes[: stage + 1])) for stage in range(count)]


def stages_of_rank(rank: int, ranks: int, stages: int, schedule: Schedule) -> list[int]:
    """The stages that a rank holds: every `ranks`-th, or in a V the first and last of those that remain."""
    if schedule is Schedule.ZBV:
        return [rank, stages - 1 - rank]
    return list(range(rank, stages, ranks))


def require_microbatches(microbatches: int, ranks: int, schedule: Schedule) -> None:
    """EngineError if the schedule cannot take so many."""
    if schedule is Schedule.ONE_F_ONE_B and microbatches < ranks:
        raise EngineError(
            f"--schedule 1f1b takes as many microbatches as stages or more: --microbatches {microbatches} is less than "
            f"{ranks}; use --schedule gpipe"
        )
    rounds = max(1, microbatches // ranks)
    if schedule is Schedule.INTERLEAVED and microbatches % rounds:
        raise EngineError(
            f"--schedule {schedule} takes rounds of {ranks} microbatches: --microbatches {microbatches} does not fit "
            f"{ranks} ranks, {rounds * ranks} does"
        )


def _require_stages(count: int, ranks: int, schedule: Schedule) -> None:
    wanted = {
        Schedule.INTERLEAVED: (count % ranks == 0 and count >= 2 * ranks, "two or more stages on each rank"),
        Schedule.ZBV: (count == 2 * ranks, "two stages on each rank"),
    }
    fits, what = wanted.get(schedule, (count == ranks, "one stage on each rank"))
    if not fits:
        raise EngineError(f"--schedule {schedule} has {what}: {count} stages do not fit {ranks} ranks")
