"""A recorded pipeline played under another schedule, with other microbatches, or with its layers shared out otherwise.

[Note: another number of stages], [Note: a device that keeps a schedule]: docs/design/plays.md, A pipeline's programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from overlaplab.costs.link import message_ns
from overlaplab.costs.pipeline import BACKWARD, FORWARD, INPUT, PER_RANK, WEIGHT, ranks_of_stages
from overlaplab.manifest import Link
from overlaplab.simulate.player import Launch

PLAYED_SCHEDULES = tuple(PER_RANK)
"""The schedules that can be played."""
UPDATE = "update"
"""Beside the kinds of actions: the optimizer's work."""

_Times: TypeAlias = Mapping[str, int]
"""By kind of action, in ns."""


class Host(Struct, frozen=True):
    """What a rank's host takes between two actions, each from what was before: an action or a post."""

    post_ns: int = 0
    """Until it has posted a message."""
    begin_ns: int = 0
    """Until an action begins."""
    wake_ns: int = 0
    """Until either, where it was blocked before: from the end of the message that it waited for."""


class Labelled(Struct, frozen=True):
    """The mean times of a rank's layers by kind of action, updates included, as labels tell them."""

    layer_ns: Mapping[str, int]
    """What one of them takes."""
    beside_ns: Mapping[str, int]
    """What an action takes outside its units: the host's time before the first unit and after the last."""


class Shape(Struct, frozen=True, kw_only=True):
    """What is played: a step of a pipeline."""

    schedule: str
    microbatches: int
    took_ns: tuple[Mapping[str, int], ...]
    """How long the actions of each stage take, by kind, and the optimizer's updates (`update`)."""
    idle_ns: tuple[Mapping[str, int], ...]
    """The part of each action in which nothing is computed, by kind: the host's time."""
    hosts: tuple[Host, ...]
    """The host of each rank."""
    around_ns: tuple[tuple[int, int], ...]
    """What each rank does in the step before the first post or action, and beside the updates at the end."""
    hop_ns: int = 0
    """How long a message occupies the link."""
    bytes: int = 0
    """The size of a message."""
    link: Link | None = None
    layers: tuple[int, ...] = ()
    """The layers of each stage; empty where that, or what a layer takes, is not known."""
    layer_ns: tuple[Mapping[str, int], ...] = ()
    """What a layer of each stage takes, by the keys of `took_ns`; backward passes are whole."""
    hides_host: bool = False
    """Whether actions take no longer for the host; see [Note: a device that keeps a schedule]."""
    buckets: tuple[tuple[Launch, ...], ...] = ()
    """The buckets that each rank averages with its replicas, after the last action; empty without replicas."""

    @property
    def ranks(self) -> int:
        return len(self.hosts)

    @property
    def holders(self) -> list[int]:
        """The rank of each stage."""
        return ranks_of_stages(self.schedule, self.ranks, len(self.took_ns))

    def with_schedule(self, schedule: str, layers: Sequence[int]) -> Shape:
        """Under another schedule, and numbers of layers, if any are given; see [Note: another number of stages]."""
        cut = bool(layers) and tuple(layers) != self.layers
        if schedule == self.schedule and not cut:
            return self
        shape = self._with_host_time()
        if cut or schedule != "zbv":
            shape = shape._change_halves(_join_halves)
        if cut and len(layers) == len(self.took_ns):
            shape = shape.with_layers(layers)
        elif cut:
            shape = shape._cut_anew(ranks_of_stages(schedule, self.ranks, len(layers)), layers)
        shape = shape._change_halves(_split_halves if schedule == "zbv" else _join_halves)
        return replace(shape, schedule=schedule)._with_host_time(sign=-1)

    def with_labelled_layers(
        self, counts: tuple[int, ...], labelled: Sequence[Labelled], outer: Sequence[tuple[bool, bool]]
    ) -> Shape:
        """With `layers` and `layer_ns` from what labels say of each stage's rank.

        `outer`: whether a stage's first and last unit are layers. On a device that keeps a schedule the first unit of
        an action makes up for the host, before the action and in it. Where labels tell no backward passes, a rank's
        layers have the same share of those as of its forward passes.
        """
        whole, holders, hosts = self._with_host_time()._change_halves(_join_halves), self.holders, self._host_ns()
        layer_ns = []
        for stage, holder in enumerate(holders):
            stages = [other for other, rank in enumerate(holders) if rank == holder]
            number, layer = sum(counts[other] for other in stages), dict(labelled[stage].layer_ns)
            for kind, end in ((FORWARD, 0), (BACKWARD, 1)):
                if self.hides_host and kind in layer:
                    host_ns = hosts[stage] + labelled[stage].beside_ns[kind]
                    layer[kind] += sum(outer[other][end] for other in stages) * host_ns // number
            forward, backward = (sum(whole.took_ns[other][kind] for other in stages) for kind in (FORWARD, BACKWARD))
            layer.setdefault(BACKWARD, round(layer[FORWARD] * backward / max(forward, 1)))
            layer_ns.append({UPDATE: 0} | layer)
        return replace(self, layers=counts, layer_ns=tuple(layer_ns))

    def _host_ns(self) -> list[int]:
        """What the host of each stage's rank takes between two actions in the mean, without waits."""
        holders = self.holders
        posts, actions = ([0] * self.ranks for _ in range(2))
        for stage, (rank, took) in enumerate(zip(holders, self.took_ns, strict=True)):
            neighbours = [holders[other] for other in (stage - 1, stage + 1) if 0 <= other < len(holders)]
            posts[rank] += 2 * sum(other != rank for other in neighbours)
            actions[rank] += len(took) - (UPDATE in took)
        means = [
            host.begin_ns + host.post_ns * sent // max(count, 1)
            for host, sent, count in zip(self.hosts, posts, actions, strict=True)
        ]
        return [means[rank] for rank in holders]

    def _with_host_time(self, sign: int = 1) -> Shape:
        """The host's time counted into actions, or by -1 taken out of them again, on a device that makes up for it."""
        return self._lengthen_actions([sign * ns for ns in self._host_ns()]) if self.hides_host else self

    def _lengthen_actions(self, by_ns: Sequence[int]) -> Shape:
        """Each action of a stage longer by so much."""
        took_ns = []
        for stage_took, more_ns in zip(self.took_ns, by_ns, strict=True):
            took = {kind: ns if kind == UPDATE else ns + more_ns for kind, ns in stage_took.items()}
            if took.get(INPUT, 0) < 0:  # the first stage's inputs take nothing: the other half takes the rest
                took[WEIGHT] += took[INPUT]
            took_ns.append({kind: max(ns, 0) for kind, ns in took.items()})
        idle_ns = tuple(
            {kind: min(ns, took[kind]) for kind, ns in stage_idle.items()}
            for stage_idle, took in zip(self.idle_ns, took_ns, strict=True)
        )
        return replace(self, took_ns=tuple(took_ns), idle_ns=idle_ns)

    def _change_halves(self, change: Callable[..., tuple[_Times, _Times]]) -> Shape:
        """Backward passes in halves, of the inputs and of the weights, or whole again."""
        stages = enumerate(zip(self.took_ns, self.idle_ns, strict=True))
        parts = [change(took, idle, first=stage == 0, hidden=self.hides_host) for stage, (took, idle) in stages]
        took_ns, idle_ns = zip(*parts, strict=True)
        return replace(self, took_ns=took_ns, idle_ns=idle_ns)

    def _cut_anew(self, holders: Sequence[int], layers: Sequence[int]) -> Shape:
        """With another number of stages."""
        layer_of = dict(zip(self.holders, self.layer_ns, strict=True))  # of each rank
        rests = [
            {kind: ns - count * layer.get(kind, 0) for kind, ns in stage_took.items()}
            for stage_took, layer, count in zip(self.took_ns, self.layer_ns, self.layers, strict=True)
        ]
        idle = _mean_times([dict.fromkeys(each, 0) if self.hides_host else each for each in self.idle_ns])
        between = _mean_times(rests[1:-1]) if len(rests) > 2 else idle | {UPDATE: 0}
        took, idles = [], []
        for stage, (holder, count) in enumerate(zip(holders, layers, strict=True)):
            outer_ns = rests[0] if stage == 0 else rests[-1] if stage == len(layers) - 1 else between
            layer = layer_of[holder]
            took.append({kind: max(ns + count * layer.get(kind, 0), 0) for kind, ns in outer_ns.items()})
            idles.append({kind: min(ns, took[-1][kind]) for kind, ns in idle.items()})
        return replace(
            self,
            took_ns=tuple(took),
            idle_ns=tuple(idles),
            layers=tuple(layers),
            layer_ns=tuple(layer_of[holder] for holder in holders),
        )

    def with_microbatches(self, number: int) -> Shape:
        """The same samples in other microbatches: computation and messages change in proportion."""
        scale = self.microbatches / number
        size = round(self.bytes * scale)
        shape = self._with_host_time()
        fixed = [{} for _ in shape.idle_ns] if self.hides_host else shape.idle_ns
        took = tuple(_scaled_times(times, idle, scale) for times, idle in zip(shape.took_ns, fixed, strict=True))
        return replace(
            shape,
            microbatches=number,
            took_ns=took,
            layer_ns=tuple(_scaled_times(times, {}, scale) for times in self.layer_ns),
            hop_ns=self._hop_ns(size),
            bytes=size,
        )._with_host_time(sign=-1)

    def with_layers(self, layers: Sequence[int]) -> Shape:
        """Other numbers of layers in the stages; a layer takes as long as the others of its new stage."""
        took = tuple(
            {kind: max(ns + (new - old) * layer[kind], 0) for kind, ns in stage_took.items()}
            for stage_took, layer, new, old in zip(self.took_ns, self.layer_ns, layers, self.layers, strict=True)
        )
        return replace(self, took_ns=took, layers=tuple(layers))

    @property
    def even_layers(self) -> tuple[int, ...]:
        """The numbers of layers with which the slowest stage is fastest; it gives them away one by one."""
        layers = list(self.layers)
        per_layer = [actions_ns(stage_layer) for stage_layer in self.layer_ns]
        while True:
            times = [actions_ns(stage_took) for stage_took in self.with_layers(layers).took_ns]
            slow = times.index(max(times))
            fast = min(range(len(layers)), key=lambda stage: times[stage] + per_layer[stage])
            if layers[slow] == 1 or times[fast] + per_layer[fast] >= times[slow]:
                return tuple(layers)
            layers[slow] -= 1
            layers[fast] += 1

    def _hop_ns(self, size: int) -> int:
        """What a message of this size takes, as late as those recorded."""
        if self.link is None:
            return self.hop_ns
        return max(self.hop_ns - message_ns(self.bytes, self.link) + message_ns(size, self.link), 0)


def _mean_times(tables: Sequence[_Times]) -> dict[str, int]:
    """The mean of each kind."""
    return {kind: round(fmean(table[kind] for table in tables)) for kind in tables[0]}


def _split_halves(took: _Times, idle: _Times, *, first: bool, hidden: bool) -> tuple[_Times, _Times]:
    """Times of a stage with halved backward passes; `hidden`: the device makes up for the host."""
    if BACKWARD not in took:
        return took, idle
    host_ns = 0 if hidden else idle[BACKWARD]
    inputs = 0 if first else (took[BACKWARD] - host_ns) // 2 + host_ns
    weight_ns = took[BACKWARD] - inputs + (0 if first else host_ns)
    return (
        _drop_kinds(took, BACKWARD) | {INPUT: inputs, WEIGHT: weight_ns},
        _drop_kinds(idle, BACKWARD) | {INPUT: min(idle[BACKWARD], inputs), WEIGHT: min(idle[BACKWARD], weight_ns)},
    )


def _join_halves(took: _Times, idle: _Times, *, first: bool, hidden: bool) -> tuple[_Times, _Times]:
    """Times of a stage with whole backward passes; `hidden` as in `_split_halves`."""
    if INPUT not in took:
        return took, idle
    host_ns = idle[WEIGHT if first else INPUT]
    both = took[INPUT] + took[WEIGHT]
    whole = both if hidden else both - idle[INPUT] - idle[WEIGHT] + host_ns
    others, idle_others = (_drop_kinds(times, INPUT, WEIGHT) for times in (took, idle))
    return others | {BACKWARD: whole}, idle_others | {BACKWARD: host_ns}


def _drop_kinds(took: _Times, *kinds: str) -> dict[str, int]:
    return {kind: ns for kind, ns in took.items() if kind not in kinds}


def _scaled_times(took: _Times, idle: _Times, scale: float) -> dict[str, int]:
    """The times in proportion to `scale`, but for the optimizer's updates and what is idle."""
    fixed = {kind: ns if kind == UPDATE else idle.get(kind, 0) for kind, ns in took.items()}
    return {kind: fixed[kind] + round((ns - fixed[kind]) * scale) for kind, ns in took.items()}


def actions_ns(took: _Times) -> int:
    """One action of each kind, without the optimizer's update."""
    return sum(ns for kind, ns in took.items() if kind != UPDATE)
