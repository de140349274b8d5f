"""Programs of more ranks than were recorded: what each further rank does is drawn from the recorded ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from overlaplab.simulate.player import End, Launch, Move, Program, Wait, find_launches
from overlaplab.simulate.vector_player import Times, WideProgram, separate_columns, widen

Skew: TypeAlias = Literal["recorded", "lognormal"]
_SEED = 0


def draw_ranks(program: WideProgram, ranks: int, *, skew: Skew = "recorded") -> WideProgram:
    """The same moves by so many ranks, each of which does in each step what was drawn for it.

    `recorded`: the ranks that there are stay, and each further one works and wakes up as one of them did in one of the
    steps with the same moves (a bootstrap: each is equally likely, and nothing is slower than what was seen).
    `lognormal`: a rank's work is the median of these, stretched to a sum that is drawn from the log-normal distribution
    fitted to their sums, so that the slowest of many ranks is slower than any that was seen. Draws are independent: no
    further rank is slow in all steps.
    """
    choices = list(draws([shape for shape, _ in program.steps], program.ranks, ranks))
    if skew == "lognormal":
        return _draw_lognormal(program, choices, ranks, np.random.default_rng(_SEED))
    recorded = [_times_in_steps(program, same) for same, _ in choices]
    width = max((work.shape[1] for work, _ in recorded), default=0)
    work_ns, wake_ns = (np.zeros((len(program.moves), width), dtype=np.int64) for _ in range(2))
    for (_, step_slice), (work, wake) in zip(program.steps, recorded, strict=True):
        work_ns[step_slice, : work.shape[1]], wake_ns[step_slice, : wake.shape[1]] = work, wake
    columns = np.array([chosen for _, chosen in choices], dtype=np.int64).reshape(-1, ranks)
    return replace(program, work_ns=work_ns, wake_ns=wake_ns, columns=columns)


def _draw_lognormal(
    program: WideProgram, choices: Sequence[tuple[list[int], Times]], ranks: int, rng: np.random.Generator
) -> WideProgram:
    """`draw_ranks` from a distribution; `choices` by `draws`. What comes before and after the steps is as recorded."""
    work_ns, wake_ns = (np.empty((len(program.moves), ranks), dtype=np.int64) for _ in range(2))
    for place, ((_, step_slice), (same, chosen)) in enumerate(zip(program.steps, choices, strict=True)):
        work, wake = _times_in_steps(program, same)
        if place == 0 or not isinstance(program.moves[step_slice.stop - 1], End):
            work_ns[step_slice], wake_ns[step_slice] = work[:, chosen], wake[:, chosen]
            continue
        usual = np.median(work, axis=1, keepdims=True)
        sums = _lognormal(work.sum(axis=0), rng, ranks)
        work_ns[step_slice] = np.rint(usual * sums / max(usual.sum(), 1))
        wake_ns[step_slice] = np.rint(np.median(wake, axis=1, keepdims=True))
    columns = separate_columns(len(program.steps), ranks)
    return replace(program, work_ns=work_ns, wake_ns=wake_ns, columns=columns)


def _times_in_steps(program: WideProgram, steps: Sequence[int]) -> tuple[Times, Times]:
    """How long each recorded rank works and wakes up in these steps: (moves of one, steps × ranks)."""
    places = [program.steps[step][1] for step in steps]
    beside = [[times[place] for place in places] for times in (program.work_ns, program.wake_ns)]
    return np.concatenate(beside[0], axis=1), np.concatenate(beside[1], axis=1)


def draws(shapes: Sequence[Hashable], recorded: int, ranks: int) -> Iterator[tuple[list[int], Times]]:
    """What each of so many ranks does in each step, of what the recorded ones did in the steps of the same shape.

    For each step the places of these steps, and for each rank a number: of a step among them, times the recorded ranks,
    and of one of those. The recorded ranks themselves stay.
    """
    rng = np.random.default_rng(_SEED)
    same: dict[Hashable, list[int]] = {}
    for place, shape in enumerate(shapes):
        same.setdefault(shape, []).append(place)
    stay = min(ranks, recorded)
    for place, shape in enumerate(shapes):
        chosen = rng.integers(len(same[shape]) * recorded, size=ranks)
        chosen[:stay] = same[shape].index(place) * recorded + np.arange(stay)
        yield same[shape], chosen


def _lognormal(values: Times, rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """So many draws from the distribution fitted to the values."""
    logs = np.log(np.maximum(values, 1))
    return rng.lognormal(float(logs.mean()), float(logs.std(ddof=1)) if len(logs) > 1 else 0.0, count)


def with_further(programs: Sequence[Program], ranks: int) -> tuple[Program, ...]:
    """So many ranks: the first of these, and further ones, which play to the nanosecond as `draw_ranks` of these.

    Raises `StuckError` where these launch different collectives, or in another order.
    """
    if ranks <= len(programs):
        return tuple(programs[:ranks])
    choices = list(draws([shape for shape, _ in widen(programs).steps], len(programs), ranks))
    steps = [list(_moves_by_step(program)) for program in programs]
    launches = [find_launches(step) for step in steps[0]]
    order = [launch for step_launches in launches for launch in step_launches]
    begun = [sum(map(len, launches[:place])) for place in range(len(launches))]
    number = {launch.key: place for place, launch in enumerate(order)}
    further: list[Program] = []
    for rank in range(len(programs), ranks):
        moves: list[Move] = []
        for place, (same, chosen) in enumerate(choices):
            step, other = divmod(int(chosen[rank]), len(programs))
            ahead = begun[place] - begun[same[step]]
            moves += (_shift_move(move, ahead, order, number) for move in steps[other][same[step]])
        further.append(moves)
    return (*programs, *further)


def _moves_by_step(program: Program) -> Iterator[list[Move]]:
    """The moves up to each end of a step.

    Where its collective was waited for before, or one that queues behind it, a wait does nothing. It is left out if
    its collective is an earlier step's: among other steps it may do something, or there may be no such collective.
    """
    numbers: dict[Hashable, int] = {}
    unqueued: dict[Hashable, bool] = {}  # by key, of those that do not queue: whether no wait for it came yet
    waited, begun = -1, 0
    step: list[Move] = []
    for move in program:
        if isinstance(move, Launch):
            numbers[move.key] = len(numbers)
            if not move.queues:
                unqueued[move.key] = True
        if isinstance(move, Wait):
            if numbers[move.key] < begun and not unqueued.get(move.key, numbers[move.key] > waited):
                continue
            if move.key in unqueued:
                unqueued[move.key] = False
            else:
                waited = max(waited, numbers[move.key])
        step.append(move)
        if isinstance(move, End):
            yield step
            step, begun = [], len(numbers)
    yield step


def _shift_move(move: Move, ahead: int, order: Sequence[Launch], number: Mapping[Hashable, int]) -> Move:
    """A move in a step whose collectives come so many launches later."""
    if isinstance(move, Launch):
        return replace(order[number[move.key] + ahead], host_ns=move.host_ns, displaced_ns=move.displaced_ns)
    if isinstance(move, Wait):
        return replace(move, key=order[number[move.key] + ahead].key)
    return move
