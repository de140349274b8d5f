"""A recorded pipeline played under another schedule, with other microbatches, or with its layers shared out otherwise.

Each recorded step is played with its own times: actions take what they took in the mean of their stage and kind, and
before each action and each message that it posts the host takes its mean (`Host`). Messages take their recorded time
once both links are free, as long as they are as large and the link is the same; else it changes as the link's formula
does. In which order a rank posts and waits for them is torch's
(`_step_microbatches` in torch/distributed/pipelining/schedules.py): GPipe waits for what it receives; 1F1B, once the
pipeline is full, also for what it has sent. Where ranks hold several stages they post what they receive as soon as the
sender's turn comes (`costs.pipeline.turns`), and wait for it alone.

[Note: another number of stages]
A layer takes as long as the others of its rank, and what a stage takes beside its layers stays: the embedding with the
first stage, the head with the last, and with those between the mean of theirs. The halves of a backward pass take half
of the computation each, as on the sleeping device, and each all that the host does in an action; the first stage's
inputs need no gradient, so that all of it is the weights'. Both add up to a whole one, which has the host's time once.

[Note: a device that keeps a schedule]
A sleeping device makes up for what its host took since the last action. So an action and the host's time before it are
what the device takes by itself, however the two share it: that is what is halved, put together and scaled.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from overlaplab.costs.link import message_ns, transfer_ns
from overlaplab.costs.pipeline import (
    ACTS,
    BACKWARD,
    FORWARD,
    INPUT,
    PER_RANK,
    SENDS,
    WEIGHT,
    Action,
    order,
    rank_of,
    turns,
)
from overlaplab.manifest import Link
from overlaplab.simulate.player import End, Launch, Mark, Move, Played, Program, Wait, Work, play

__all__ = [
    "PLAYED",
    "UPDATE",
    "Bucket",
    "Host",
    "Labelled",
    "Replica",
    "Shape",
    "bare_moves",
    "pipeline_moves",
    "play_pipeline",
    "step_ns",
]

PLAYED = tuple(PER_RANK)
"""The schedules that can be played."""
UPDATE = "update"
"""Beside the kinds of actions: the optimizer's work."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that a rank averages with its replicas, after the last action."""

    bytes: int
    transfer_ns: int


@dataclass(frozen=True, slots=True)
class Host:
    """What a rank's host takes between two actions, each from what was before: an action or a post."""

    post_ns: int = 0
    """Until it has posted a message."""
    begin_ns: int = 0
    """Until an action begins."""
    wake_ns: int = 0
    """Until either, where it was blocked before: from the end of the message that it waited for."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """What labels tell of a rank's layers, in the mean, by kind of action; of updates as well."""

    layer_ns: Mapping[str, int]
    """What one of them takes."""
    beside_ns: Mapping[str, int]
    """What of an action is no unit's: the host's own, before the first and after the last."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One of several pipelines side by side."""

    number: int
    ranks: tuple[int, ...]
    """Those of all that are its own, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is played: a step of a pipeline."""

    schedule: str
    microbatches: int
    took_ns: tuple[Mapping[str, int], ...]
    """Of each stage, how long its actions take, by kind, and the optimizer's updates (`update`)."""
    idle_ns: tuple[Mapping[str, int], ...]
    """What of each action nothing is computed in, by kind: the host's own."""
    hosts: tuple[Host, ...]
    """Of each rank."""
    around_ns: tuple[tuple[int, int], ...]
    """Of each rank, what it does in the step before the first post or action, and beside the updates at the end."""
    hop_ns: int
    """How long a message occupies the link."""
    bytes: int
    """Of a message."""
    link: Link | None = None
    layers: tuple[int, ...] = ()
    """Of each stage; empty where that, or what a layer takes, is not known."""
    layer_ns: tuple[Mapping[str, int], ...] = ()
    """Of each stage, what one of its layers takes, by the keys of `took_ns`; backward passes are whole."""
    hides_host: bool = False
    """Whether the device makes up for what the host takes; see [Note: a device that keeps a schedule]."""
    buckets: tuple[tuple[Bucket, ...], ...] = ()
    """Of each rank; empty without replicas."""

    @property
    def ranks(self) -> int:
        """How many ranks it has."""
        return len(self.hosts)

    @property
    def holders(self) -> list[int]:
        """Of each stage its rank."""
        return rank_of(self.schedule, self.ranks, len(self.took_ns))

    def with_schedule(self, schedule: str, layers: Sequence[int]) -> Shape:
        """Under another schedule, and with so many layers in its stages; see [Note: another number of stages].

        `layers` may be empty where the stages stay as they are.
        """
        cut = bool(layers) and tuple(layers) != self.layers
        if schedule == self.schedule and not cut:
            return self
        shape = self._by_itself()
        if cut or schedule != "zbv":
            shape = shape._halved(False)
        if cut and len(layers) == len(self.took_ns):
            shape = shape.with_layers(layers)
        elif cut:
            shape = shape._cut_anew(rank_of(schedule, self.ranks, len(layers)), layers)
        return replace(shape._halved(schedule == "zbv"), schedule=schedule)._by_itself(-1)

    def with_labelled_layers(
        self, counts: tuple[int, ...], labelled: Sequence[Labelled], outer: Sequence[tuple[bool, bool]]
    ) -> Shape:
        """With `layers` and `layer_ns` from what labels say of each stage's rank.

        `outer`: whether a stage's first and last unit are layers. On a device that keeps a schedule the first unit of
        an action makes up for the host, before the action and in it. Where labels tell no backward passes, a rank's
        layers have the same share of those as of its forward passes.
        """
        whole, holders, hosts = self._by_itself()._halved(False), self.holders, self._host_ns()
        layer_ns = []
        for stage, holder in enumerate(holders):
            own = [other for other, rank in enumerate(holders) if rank == holder]
            number, layer = sum(counts[other] for other in own), dict(labelled[stage].layer_ns)
            for kind, end in ((FORWARD, 0), (BACKWARD, 1)):
                if self.hides_host and kind in layer:
                    host_ns = hosts[stage] + labelled[stage].beside_ns[kind]
                    layer[kind] += sum(outer[other][end] for other in own) * host_ns // number
            forward, backward = (sum(whole.took_ns[other][kind] for other in own) for kind in (FORWARD, BACKWARD))
            layer.setdefault(BACKWARD, round(layer[FORWARD] * backward / max(forward, 1)))
            layer_ns.append({UPDATE: 0} | layer)
        return replace(self, layers=counts, layer_ns=tuple(layer_ns))

    def _host_ns(self) -> list[int]:
        """Of each stage, what its rank's host takes between two actions in the mean, without waits."""
        holders = self.holders
        posts, actions = ([0] * self.ranks for _ in range(2))
        for stage, (rank, took) in enumerate(zip(holders, self.took_ns, strict=True)):
            neighbours = [holders[other] for other in (stage - 1, stage + 1) if 0 <= other < len(holders)]
            posts[rank] += 2 * sum(other != rank for other in neighbours)
            actions[rank] += len(took) - (UPDATE in took)
        means = [
            host.begin_ns + host.post_ns * sent // max(own, 1)
            for host, sent, own in zip(self.hosts, posts, actions, strict=True)
        ]
        return [means[rank] for rank in holders]

    def _by_itself(self, sign: int = 1) -> Shape:
        """With what the device takes by itself as actions; `sign` -1: the other way round."""
        if not self.hides_host:
            return self
        took_ns = []
        for own, host in zip(self.took_ns, self._host_ns(), strict=True):
            took = {kind: ns if kind == UPDATE else ns + sign * host for kind, ns in own.items()}
            if took.get(INPUT, 0) < 0:  # of the first stage, which makes up for it in the other half
                took[WEIGHT] += took[INPUT]
            took_ns.append({kind: max(ns, 0) for kind, ns in took.items()})
        idle_ns = tuple(
            {kind: min(ns, took[kind]) for kind, ns in own.items()}
            for own, took in zip(self.idle_ns, took_ns, strict=True)
        )
        return replace(self, took_ns=tuple(took_ns), idle_ns=idle_ns)

    def _halved(self, halves: bool) -> Shape:
        """With whole backward passes, or their halves."""
        parts = [
            _in_parts(took, idle, halves, stage == 0, hidden=self.hides_host)
            for stage, (took, idle) in enumerate(zip(self.took_ns, self.idle_ns, strict=True))
        ]
        took_ns, idle_ns = zip(*parts, strict=True)
        return replace(self, took_ns=took_ns, idle_ns=idle_ns)

    def _cut_anew(self, holders: Sequence[int], layers: Sequence[int]) -> Shape:
        """With another number of stages."""
        layer_of = dict(zip(self.holders, self.layer_ns, strict=True))  # of each rank
        rests = [
            {kind: ns - count * layer.get(kind, 0) for kind, ns in own.items()}
            for own, layer, count in zip(self.took_ns, self.layer_ns, self.layers, strict=True)
        ]
        idle = _mean([dict.fromkeys(own, 0) if self.hides_host else own for own in self.idle_ns])
        between = _mean(rests[1:-1]) if len(rests) > 2 else idle | {UPDATE: 0}
        took, idles = [], []
        for stage, (holder, count) in enumerate(zip(holders, layers, strict=True)):
            rest = rests[0] if stage == 0 else rests[-1] if stage == len(layers) - 1 else between
            layer = layer_of[holder]
            took.append({kind: max(ns + count * layer.get(kind, 0), 0) for kind, ns in rest.items()})
            idles.append({kind: min(ns, took[-1][kind]) for kind, ns in idle.items()})
        return replace(
            self,
            took_ns=tuple(took),
            idle_ns=tuple(idles),
            layers=tuple(layers),
            layer_ns=tuple(layer_of[holder] for holder in holders),
        )

    def with_microbatches(self, number: int) -> Shape:
        """As many samples in other microbatches: computation and messages change in proportion."""
        scale = self.microbatches / number
        size = round(self.bytes * scale)
        own = self._by_itself()
        fixed = [{} for _ in own.idle_ns] if self.hides_host else own.idle_ns
        took = tuple(_scaled(times, idle, scale) for times, idle in zip(own.took_ns, fixed, strict=True))
        return replace(
            own,
            microbatches=number,
            took_ns=took,
            layer_ns=tuple(_scaled(times, {}, scale) for times in self.layer_ns),
            hop_ns=self._hop_ns(size, self.link),
            bytes=size,
        )._by_itself(-1)

    def with_link(self, link: Link) -> Shape:
        """Behind another link."""
        return replace(
            self,
            hop_ns=self._hop_ns(self.bytes, link),
            link=link,
            buckets=tuple(tuple(self._averaged(bucket, link) for bucket in own) for own in self.buckets),
        )

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

    def _averaged(self, bucket: Bucket, link: Link) -> Bucket:
        """Behind another link, as late as it was. `world_size` of links is the number of replicas."""
        if self.link is None:
            return bucket
        before, after = (transfer_ns("all_reduce", bucket.bytes, each) for each in (self.link, link))
        return replace(bucket, transfer_ns=max(bucket.transfer_ns - before + after, 0))


def _mean(tables: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {kind: round(fmean(own[kind] for own in tables)) for kind in tables[0]}


_Times = Mapping[str, int]


def _in_parts(took: _Times, idle: _Times, halves: bool, first: bool, *, hidden: bool) -> tuple[_Times, _Times]:
    """The times of a stage's actions whose backward passes are whole, or in halves, each with as much of the host's.

    `hidden`: the device makes up for the host's.
    """
    if halves and BACKWARD in took:
        own = 0 if hidden else idle[BACKWARD]
        inputs = 0 if first else (took[BACKWARD] - own) // 2 + own
        rest = took[BACKWARD] - inputs + (0 if first else own)
        return (
            _without(took, BACKWARD) | {INPUT: inputs, WEIGHT: rest},
            _without(idle, BACKWARD) | {INPUT: min(idle[BACKWARD], inputs), WEIGHT: min(idle[BACKWARD], rest)},
        )
    if not halves and INPUT in took:
        own = idle[WEIGHT if first else INPUT]
        both = took[INPUT] + took[WEIGHT]
        whole = both if hidden else both - idle[INPUT] - idle[WEIGHT] + own
        return _without(took, INPUT, WEIGHT) | {BACKWARD: whole}, _without(idle, INPUT, WEIGHT) | {BACKWARD: own}
    return took, idle


def _without(own: _Times, *kinds: str) -> dict[str, int]:
    return {kind: ns for kind, ns in own.items() if kind not in kinds}


def _scaled(own: Mapping[str, int], idle: Mapping[str, int], scale: float) -> dict[str, int]:
    """Without the optimizer's updates and what is idle, which are as before."""
    fixed = {kind: ns if kind == UPDATE else idle.get(kind, 0) for kind, ns in own.items()}
    return {kind: fixed[kind] + round((ns - fixed[kind]) * scale) for kind, ns in own.items()}


def _acts(own: Mapping[str, int]) -> int:
    return sum(ns for kind, ns in own.items() if kind != UPDATE)


def play_pipeline(shapes: Sequence[Shape]) -> Played:
    """Play these steps one after another."""
    return play([pipeline_moves(shapes, rank) for rank in range(shapes[0].ranks)])


def step_ns(shapes: Sequence[Shape]) -> int:
    """The mean step of all ranks, without the first, as the pipeline was full of the step before it."""
    played = play_pipeline((shapes[0], *shapes))
    return round(fmean(span for rank in range(len(played.ends_ns)) for span in played.spans_ns(rank)[1:]))


def pipeline_moves(shapes: Sequence[Shape], rank: int, begins_ns: int = 0, replica: Replica | None = None) -> Program:
    """One rank's program over the steps; its first step begins so late."""
    replica = replica or Replica(0, tuple(range(shapes[0].ranks)))
    moves: list[Move] = [_idle(begins_ns), End()]
    for step, shape in enumerate(shapes):
        before, after = shape.around_ns[rank]
        at = _At(shape, replica, rank, step)
        moves += [*_hosted(_bare(at), shape.hosts[rank], before), *_average(at), Mark("optimizer")]
        updates = sum(own[UPDATE] for own, holder in zip(shape.took_ns, shape.holders, strict=True) if holder == rank)
        moves += [Work(updates), Mark("optimizer_end"), _idle(after), End()]
    return moves


def bare_moves(shape: Shape, rank: int) -> list[Move]:
    """A rank's actions, posts and waits in a step, in order, without what the host takes."""
    return list(_bare(_At(shape, Replica(0, tuple(range(shape.ranks))), rank, 0)))


def _bare(at: _At) -> Iterator[Move]:
    shape = at.shape
    make = _step if PER_RANK[shape.schedule] == 1 else _step_of_several
    return make(at, order(shape.schedule, shape.ranks, shape.microbatches, len(shape.took_ns)))


def _hosted(moves: Iterator[Move], host: Host, before_ns: int) -> Iterator[Move]:
    """With the host's time before posts and actions, the first of which begins so late in the step.

    What it takes from a message's end on follows the wait for it; the rest, if any, is done while it waits.
    """
    waits: list[Wait] = []
    first: int | None = before_ns
    for move in moves:
        if isinstance(move, Wait):
            waits.append(move)
            continue
        if isinstance(move, Launch) or (isinstance(move, Mark) and not move.word.endswith("_end")):
            ns = host.post_ns if isinstance(move, Launch) else host.begin_ns
            if first is not None:
                ns, first = first, None
            after = min(host.wake_ns, ns) if waits else 0
            yield _idle(ns - after)
            yield from (Wait(wait.key, host.wake_ns - after) for wait in waits)
            yield _idle(after)
            waits.clear()
        yield move
    yield from waits


@dataclass(frozen=True, slots=True)
class _At:
    """Whose moves of which step."""

    shape: Shape
    replica: Replica
    rank: int
    """Along the pipeline."""
    step: int

    def act(self, action: Action) -> Iterator[Move]:
        """Do it."""
        yield Mark(f"stage_{action.kind}", f"{action.stage} {action.microbatch}")
        took, idle = self.shape.took_ns[action.stage], self.shape.idle_ns[action.stage]
        yield Work(took[action.kind], idle_ns=idle[action.kind])
        yield Mark(f"stage_{action.kind}_end")

    def message(self, action: Action, sender: int, receiver: int) -> Launch:
        """What comes of an action, on its way."""
        key, ranks = (self.replica.number, self.step, action), self.replica.ranks
        lane = ranks[sender], ranks[receiver]
        return Launch(key, self.shape.hop_ns, "send_recv", self.shape.bytes, lane=lane)


def _average(at: _At) -> Iterator[Move]:
    """Gradients with the replicas, once they are all there."""
    launches = [
        Launch(
            ("bucket", at.step, at.rank, number), bucket.transfer_ns, "all_reduce", bucket.bytes, "bucket", str(number)
        )
        for number, bucket in enumerate(at.shape.buckets[at.rank] if at.shape.buckets else ())
    ]
    yield from launches
    yield from (Wait(launch.key) for launch in launches)


def _step_of_several(at: _At, orders: Sequence[Sequence[Action]]) -> Iterator[Move]:
    """Torch's order of posting and waiting where ranks hold several stages."""
    holders, sent = at.shape.holders, list[Hashable]()
    for turn in turns(orders, holders)[at.rank]:
        action = turn.action
        if turn.does == ACTS:
            for needed in action.needs:
                if 0 <= needed.stage < len(holders) and holders[needed.stage] != at.rank and _is_made(needed, at.shape):
                    yield Wait((at.replica.number, at.step, needed))
            yield from at.act(action)
            continue
        target = holders[action.stage + (1 if action.kind == FORWARD else -1)]
        message = at.message(action, holders[action.stage], target)
        yield message
        if turn.does == SENDS:
            sent.append(message.key)
    yield from (Wait(key) for key in reversed(sent))


def _is_made(action: Action, shape: Shape) -> bool:
    """Whether the schedule has such actions: a backward pass is whole, or in halves."""
    return action.kind in shape.took_ns[action.stage]


def _step(at: _At, orders: Sequence[Sequence[Action]]) -> Iterator[Move]:
    """Torch's order of posting and waiting with a stage on each rank."""
    rank, own, last = at.rank, orders[at.rank], at.shape.ranks - 1
    blocks = at.shape.schedule == "1f1b"
    sent: list[Hashable] = []  # not waited for yet
    behind: Launch | None = None  # a send that goes out together with the next receive
    for place, action in enumerate(own):
        source = rank - 1 if action.kind == FORWARD else rank + 1
        posted = [behind] if behind is not None else []
        if 0 <= source <= last:
            posted.append(at.message(action.needs[0], source, rank))
        yield from posted
        yield from (Wait(move.key) for move in posted)
        behind = None
        yield from at.act(action)
        target = rank + 1 if action.kind == FORWARD else rank - 1
        if blocks:
            yield from (Wait(key) for key in sent)
            sent = []
        if 0 <= target <= last:
            message = at.message(action, rank, target)
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


def _idle(ns: int) -> Work:
    return Work(ns, idle_ns=ns)
