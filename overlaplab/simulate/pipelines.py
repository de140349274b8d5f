"""A recorded pipeline played under another schedule, with other microbatches, or with its layers shared out otherwise.

Each recorded step is played with its own times: actions take what they took in the mean of their stage and kind, and
between two actions the host takes its mean. Messages take their recorded time, as long as they are as large and the
link is the same; else it changes as the link's formula does. In which order a rank posts and waits for them is torch's
(`_step_microbatches` in torch/distributed/pipelining/schedules.py): GPipe waits for what it receives; 1F1B, once the
pipeline is full, also for what it has sent.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from overlaplab.costs.link import message_ns
from overlaplab.costs.pipeline import BACKWARD, FORWARD, Action, order
from overlaplab.manifest import Link
from overlaplab.simulate.player import End, Launch, Mark, Move, Played, Program, Wait, Work, play

__all__ = ["PLAYED", "UPDATE", "Shape", "pipeline_moves", "play_pipeline", "step_ns"]

PLAYED = ("gpipe", "1f1b")
"""Schedules with a stage on each rank."""
UPDATE = "update"
"""Beside the kinds of actions: the optimizer's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is played: a step of a pipeline with a stage on each rank."""

    schedule: str
    microbatches: int
    took_ns: tuple[Mapping[str, int], ...]
    """Of each stage, how long its actions take, by kind, and the optimizer's updates (`update`)."""
    idle_ns: tuple[Mapping[str, int], ...]
    """What of each action nothing is computed in, by kind: the host's own."""
    between_ns: tuple[int, ...]
    """Of each rank, what the host takes between two actions."""
    around_ns: tuple[tuple[int, int], ...]
    """Of each rank, what it does in the step before the first action, and beside the updates after the last one."""
    hop_ns: int
    """How long a message is on its way."""
    bytes: int
    """Of a message."""
    link: Link | None = None
    layers: tuple[int, ...] = ()
    """Of each stage; empty where that, or what a layer takes, is not known."""
    layer_ns: tuple[Mapping[str, int], ...] = ()
    """Of each stage, what one of its layers takes, by the keys of `took_ns`."""

    def with_microbatches(self, number: int) -> Shape:
        """As many samples in other microbatches: computation and messages change in proportion."""
        scale = self.microbatches / number
        size = round(self.bytes * scale)
        return replace(
            self,
            microbatches=number,
            took_ns=tuple(_scaled(own, idle, scale) for own, idle in zip(self.took_ns, self.idle_ns, strict=True)),
            layer_ns=tuple(_scaled(own, {}, scale) for own in self.layer_ns),
            hop_ns=self._hop_ns(size, self.link),
            bytes=size,
        )

    def with_link(self, link: Link) -> Shape:
        """Behind another link."""
        return replace(self, hop_ns=self._hop_ns(self.bytes, link), link=link)

    def with_layers(self, layers: Sequence[int]) -> Shape:
        """Other numbers of layers in the stages; a layer takes as long as the others of its new stage."""
        took = tuple(
            {kind: max(ns + (new - old) * layer[kind], 0) for kind, ns in own.items()}
            for own, layer, new, old in zip(self.took_ns, self.layer_ns, layers, self.layers, strict=True)
        )
        return replace(self, took_ns=took, layers=tuple(layers))

    @property
    def even(self) -> tuple[int, ...]:
        """The numbers of layers with which the slowest stage is fastest; one layer after the other moves there."""
        layers = list(self.layers)
        per_layer = [_acts(own) for own in self.layer_ns]
        while True:
            times = [_acts(own) for own in self.with_layers(layers).took_ns]
            slow = times.index(max(times))
            fast = min(range(len(layers)), key=lambda stage: times[stage] + per_layer[stage])
            if layers[slow] == 1 or times[fast] + per_layer[fast] >= times[slow]:
                return tuple(layers)
            layers[slow] -= 1
            layers[fast] += 1

    def _hop_ns(self, size: int, link: Link | None) -> int:
        """What a message of this size takes behind this link, as late as those recorded."""
        if self.link is None or link is None:
            return self.hop_ns
        return max(self.hop_ns - message_ns(self.bytes, self.link) + message_ns(size, link), 0)


def _scaled(own: Mapping[str, int], idle: Mapping[str, int], scale: float) -> dict[str, int]:
    """Without the optimizer's updates and what is idle, which are as before."""
    fixed = {kind: ns if kind == UPDATE else idle.get(kind, 0) for kind, ns in own.items()}
    return {kind: fixed[kind] + round((ns - fixed[kind]) * scale) for kind, ns in own.items()}


def _acts(own: Mapping[str, int]) -> int:
    return own[FORWARD] + own[BACKWARD]


def play_pipeline(shapes: Sequence[Shape]) -> Played:
    """Play these steps one after another."""
    return play([pipeline_moves(shapes, rank) for rank in range(len(shapes[0].took_ns))])


def step_ns(shapes: Sequence[Shape]) -> int:
    """The mean step of all ranks, without the first, as the pipeline was full of the step before it."""
    played = play_pipeline((shapes[0], *shapes))
    return round(fmean(span for rank in range(len(played.ends_ns)) for span in played.spans_ns(rank)[1:]))


def pipeline_moves(shapes: Sequence[Shape], rank: int, begins_ns: int = 0) -> Program:
    """One rank's program over the steps; its first step begins so late."""
    moves: list[Move] = [_idle(begins_ns), End()]
    for step, shape in enumerate(shapes):
        before, after = shape.around_ns[rank]
        own = order(shape.schedule, len(shape.took_ns), shape.microbatches)[rank]
        moves += [_idle(before), *_step(shape, rank, own, step), Mark("optimizer")]
        moves += [Work(shape.took_ns[rank][UPDATE]), Mark("optimizer_end"), _idle(after), End()]
    return moves


def _idle(ns: int) -> Work:
    return Work(ns, idle_ns=ns)


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
        yield Mark(f"stage_{action.kind}", f"{action.stage} {action.microbatch}")
        yield Work(shape.took_ns[rank][action.kind], idle_ns=shape.idle_ns[rank][action.kind])
        yield Mark(f"stage_{action.kind}_end")
        if place + 1 < len(own):
            yield _idle(shape.between_ns[rank])
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
