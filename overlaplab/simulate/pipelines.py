"""A recorded pipeline played under another schedule, with other microbatches, or with its layers shared out otherwise.

Actions take what they took in the mean of their stage and kind, and between two actions the host takes its recorded
mean. Messages take their recorded time, as long as they are as large; else it changes as the link's formula does. In
which order a rank posts and waits for them is torch's (`_step_microbatches` in
torch/distributed/pipelining/schedules.py): GPipe waits for what it receives; 1F1B, once the pipeline is full, also for
what it has sent.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import pandas as pd

from overlaplab.analyses.systems.pipeline import pipeline
from overlaplab.costs.pipeline import BACKWARD, FORWARD, Action, held, order
from overlaplab.events import Run, once_per_run, step_windows
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.pipelines import pipelines
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.waits import arrivals
from overlaplab.intervals import clip, subtract, total, union
from overlaplab.manifest import Link
from overlaplab.simulate.player import End, Launch, Move, Played, Program, Wait, Work, play

__all__ = ["Shape", "pipeline_remedies", "play_pipeline", "recorded_shape"]

_STEPS = 4
"""So many are played, of which the first, which no step precedes, does not count."""
_PLAYED = ("gpipe", "1f1b")
"""Schedules with a stage on each rank."""
_MORE = (2, 4)
"""Times as many microbatches."""
COLUMNS = ("remedy", "setting", "bubble", "held", "step_ns", "recorded_ns", "gain_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is played: a pipeline with a stage on each rank."""

    schedule: str
    microbatches: int
    took_ns: tuple[Mapping[str, int], ...]
    """Of each stage, how long its actions take, by kind."""
    between_ns: tuple[int, ...]
    """Of each rank, what the host takes between two actions."""
    around_ns: tuple[int, ...]
    """Of each rank, what it does in a step before the first action and after the last."""
    hop_ns: int
    """How long a message is on its way."""
    bytes: int
    """Of a message."""
    link: Link | None = None
    layers: tuple[int, ...] = ()
    """Of each stage, where run.json tells."""

    def with_microbatches(self, number: int) -> Shape:
        """As many samples in other microbatches: actions and messages change in proportion."""
        scale = self.microbatches / number
        size = round(self.bytes * scale)
        faster_ns = 0 if self.link is None else round((self.bytes - size) * 8 / self.link.bandwidth_gbps)
        took = tuple({kind: round(ns * scale) for kind, ns in own.items()} for own in self.took_ns)
        return replace(self, microbatches=number, took_ns=took, hop_ns=max(self.hop_ns - faster_ns, 0), bytes=size)

    def with_layers(self, layers: Sequence[int]) -> Shape:
        """Other numbers of layers in the stages; a layer takes as long as the others of its new stage."""
        took = tuple(
            {kind: round(ns * new / old) for kind, ns in own.items()}
            for own, new, old in zip(self.took_ns, layers, self.layers, strict=True)
        )
        return replace(self, took_ns=took, layers=tuple(layers))

    @property
    def even(self) -> tuple[int, ...]:
        """The numbers of layers with which the slowest stage is fastest; one layer after the other moves there."""
        per_layer = [sum(own.values()) / count for own, count in zip(self.took_ns, self.layers, strict=True)]
        layers = list(self.layers)
        while True:
            times = [count * ns for count, ns in zip(layers, per_layer, strict=True)]
            slow = times.index(max(times))
            fast = min(range(len(layers)), key=lambda stage: times[stage] + per_layer[stage])
            if layers[slow] == 1 or times[fast] + per_layer[fast] >= times[slow]:
                return tuple(layers)
            layers[slow] -= 1
            layers[fast] += 1


@once_per_run
def recorded_shape(run: Run) -> Shape | None:
    """The shape of the run's first pipeline; None where it cannot be played: several stages on a rank, a stage's trace
    missing, or messages whose ends are not known.
    """
    places = next(iter(pipelines(run)), [])
    known = run.manifest.pipeline if run.manifest else None
    if known is None or known.schedule not in _PLAYED or len(known.stages) != len(places):
        return None
    table = pipeline(run)
    table = table[table["pipeline"] == 0]
    hops = arrivals(run)
    hops = hops[hops["message"] & (hops["wait_ns"] != UNKNOWN_NS) & (hops["start_ns"] != UNKNOWN_NS)]
    if table["wait_ns"].isna().any() or hops.empty:
        return None
    means = table.groupby(["stage", "action"])["took_ns"].mean()
    hosts = [_host(run, place, table[table["rank"] == run.traces[place].rank]) for place in places]
    return Shape(
        schedule=known.schedule,
        microbatches=known.microbatches,
        took_ns=tuple(
            {kind: round(means[stage, kind]) for kind in (FORWARD, BACKWARD)} for stage in range(len(places))
        ),
        between_ns=tuple(between for between, _ in hosts),
        around_ns=tuple(around for _, around in hosts),
        hop_ns=round(float((hops["end_ns"] - hops["last_ns"]).mean())),
        bytes=int(hops["bytes"].max()),
        link=run.manifest.emulated_link if run.manifest else None,
        layers=tuple(sum(unit.startswith("layers.") for unit in stage.units) for stage in known.stages),
    )


def _host(run: Run, place: int, own: pd.DataFrame) -> tuple[int, int]:
    """What a rank's host takes between two actions, and around a step's actions, in the mean of its steps."""
    trace, rows = run.traces[place], arrivals(run)
    own_rows = rows[(rows["trace"] == place) & rows["message"] & (rows["start_ns"] != UNKNOWN_NS)]
    offset = int(corrections(run)[place])
    blocked = union(own_rows["start_ns"] + offset, own_rows["end_ns"] + offset)
    between, around = [], []
    for window in step_windows(trace):
        step = own[own["step"] == window.step].sort_values("start_ns")
        inner = int(step["overhead_ns"].iloc[1:].sum())
        whole = subtract(union([window.start_ns], [window.end_ns]), clip(blocked, window.start_ns, window.end_ns))
        free = total(whole)
        busy = int(step["took_ns"].sum())
        between.append(inner / max(len(step) - 1, 1))
        around.append(max(free - busy - inner, 0))
    return round(fmean(between)), round(fmean(around))


def play_pipeline(shape: Shape) -> Played:
    """Play some steps of it."""
    orders = order(shape.schedule, len(shape.took_ns), shape.microbatches)
    return play([_program(shape, rank, orders) for rank in range(len(orders))])


def step_ns(shape: Shape) -> int:
    """The mean step of all ranks, once the pipeline goes."""
    played = play_pipeline(shape)
    return round(fmean(span for rank in range(len(played.ends_ns)) for span in played.spans_ns(rank)[1:]))


def _program(shape: Shape, rank: int, orders: Sequence[Sequence[Action]]) -> Program:
    """One rank's moves over the steps."""
    moves: list[Move] = [End()]
    for step in range(_STEPS):
        moves.append(Work(shape.around_ns[rank]))
        moves += _step(shape, rank, orders[rank], step)
        moves.append(End())
    return moves


def _step(shape: Shape, rank: int, own: Sequence[Action], step: int) -> Iterator[Move]:
    """Torch's order of posting and waiting."""
    last = len(shape.took_ns) - 1
    blocks = shape.schedule == "1f1b"
    sent: list[Hashable] = []  # not waited for yet
    behind: Launch | None = None  # a send that goes out together with the next receive
    for place, action in enumerate(own):
        source = rank - 1 if action.kind == FORWARD else rank + 1
        posted = [behind] if behind is not None else []
        if 0 <= source <= last:
            posted.append(_message(shape, step, action.needs[0], source, rank))
        yield from posted
        yield from (Wait(move.key) for move in posted)
        behind = None
        yield Work(shape.took_ns[rank][action.kind])
        yield Work(shape.between_ns[rank])
        target = rank + 1 if action.kind == FORWARD else rank - 1
        if blocks:
            yield from (Wait(key) for key in sent)
            sent = []
        if 0 <= target <= last:
            message = _message(shape, step, action, rank, target)
            following = own[place + 1] if place + 1 < len(own) else None
            if blocks and following is not None and following.kind != action.kind:
                behind = message
            else:
                yield message
                sent.append(message.key)
        if not blocks and place + 1 < len(own) and own[place + 1].kind != action.kind:
            yield from (Wait(key) for key in sent)
            sent = []
    yield from (Wait(key) for key in sent)


def _message(shape: Shape, step: int, action: Action, sender: int, receiver: int) -> Launch:
    key = (step, action)
    return Launch(key, shape.hop_ns, "send_recv", shape.bytes, lane=(sender, receiver))


def _rows(shape: Shape) -> Iterator[tuple[str, str, Shape]]:
    """The remedies: what is called what, and the shape."""
    for times in _MORE:
        number = shape.microbatches * times
        yield "microbatches", str(number), shape.with_microbatches(number)
    for other in _PLAYED:
        if other != shape.schedule:
            yield "schedule", other, replace(shape, schedule=other)
    if all(shape.layers) and shape.even != shape.layers:
        yield "split", ",".join(map(str, shape.even)), shape.with_layers(shape.even)


@once_per_run
def pipeline_remedies(run: Run) -> pd.DataFrame:
    """One row per setting that was played, the one that gains most first; empty where none can be.

    Columns: `remedy` (`microbatches`, `schedule`, `split`), `setting` (the number, the schedule's name, the layers of
    each stage), `bubble` (its share of the stages' time), `held` (the most microbatches that a stage holds),
    `step_ns` (played), `recorded_ns` (as recorded, played), `gain_ns`.
    """
    shape = recorded_shape(run)
    if shape is None:
        return pd.DataFrame(columns=list(COLUMNS))
    before = step_ns(shape)
    rows = []
    for remedy, setting, changed in _rows(shape):
        after = step_ns(changed)
        orders = order(changed.schedule, len(changed.took_ns), changed.microbatches)
        most = max(max(held(own)) for own in orders)
        rows.append((remedy, setting, _bubble(changed, after), most, after, before, before - after))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values("gain_ns", ascending=False, kind="stable", ignore_index=True)


def _bubble(shape: Shape, whole_ns: int) -> float:
    """Without an action, of the step less what is done around the actions."""
    busy = fmean(shape.microbatches * sum(own.values()) for own in shape.took_ns)
    return 1 - busy / max(whole_ns - fmean(shape.around_ns), 1)
