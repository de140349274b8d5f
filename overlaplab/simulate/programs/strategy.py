"""What strategies' programs share: a rank's work profile walked through, and a strategy's hooks called at its marks.

docs/design/plays.md, Another strategy's programs. The hooks are those that the engine's strategies have in training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

from overlaplab.simulate.displaced import with_displaced
from overlaplab.simulate.player import End, Launch, Mark, Move, Program, Wait, Work
from overlaplab.simulate.programs.model import RecordedModel
from overlaplab.simulate.programs.options import Options
from overlaplab.simulate.programs.profile import Profile, StepProfile
from overlaplab.simulate.programs.times import Transfer

Lane: TypeAlias = tuple[int, int] | None
"""A message's sender and receiver; None: the collectives of all ranks."""
FLAG_BYTES = 4
"""The bytes of what says of one parameter whether it has a gradient."""
NORM_BYTES = 4
"""The bytes of the norm of all gradients (`Strategy.clip` in engine/overlaplab_engine/strategies/base.py)."""


class Strategy:
    """One rank's program: hooks, for subclasses, that add moves where a training step calls them."""

    sends_every_microbatch = False
    """Whether each microbatch's gradients are sent; else the last one's alone."""
    hops: str | None = None
    """`ring` or `tree`: how its own messages add up buckets; None: the library's collectives do."""

    def __init__(self, options: Options, model: RecordedModel, profile: Profile, transfer: Transfer, rank: int) -> None:
        """All ranks must get the same arguments, except `rank`."""
        self.options, self.model, self.profile, self.rank = options, model, profile, rank
        self.moves: list[Move] = []
        self.step = self.microbatch = 0
        self._transfer = transfer
        self._sends = True
        self._launched: Counter[Lane] = Counter()

    # Hooks

    def begin_forward(self) -> None:
        """The model is called."""

    def before_forward(self, unit: str) -> None:
        """A unit is about to be used."""

    def after_forward(self, unit: str) -> None:
        """A unit was used."""

    def begin_backward(self) -> None:
        """The backward pass begins."""

    def before_backward(self, unit: str) -> None:
        """The gradient of a unit's output is there."""

    def after_backward(self, unit: str) -> None:
        """All of a unit's gradients are there."""

    def after_gradient(self, gradient: str) -> None:
        """A gradient is there, and will be sent."""

    def finish(self) -> None:
        """A backward pass whose gradients are sent is over."""

    def after_update(self) -> None:
        """The optimizer has updated the parameters."""

    def settle(self) -> None:
        """The last recorded step ends: nothing may be left in flight."""

    def share(self, unit: str) -> float:
        """The part of a unit's elements that this rank updates; for "", of all parameters."""
        return 1.0

    # Moves

    def launch(
        self, kind: str, size: int, role: str = "", what: str | None = None, names: Sequence[str] = (), on: Lane = None
    ) -> Hashable:
        """Launch a collective, or a message `on` a lane, perhaps of the gradients with these names; returns its key.

        `role` and `what`: see `player.Launch`.
        """
        self._launched[on] += 1  # all ranks launch in the same order
        key, host_ns = (*(on or ()), self._launched[on]), self.profile.host_ns
        hops = self.hops if names else None
        launch = Launch(
            key,
            self._transfer(kind, size, hops),
            kind,
            size,
            role,
            what,
            host_ns=host_ns,
            displaced_ns=self.profile.displaced(kind, size),
            parameters=tuple(names),
            gradient_bytes=sum(map(self.model.gradient_bytes, names)),
            hops=hops,
            group=tuple(sorted(on)) if on else None,
            lane=on,
        )
        self.moves += [Work(host_ns), launch, Work(host_ns)]  # a launch costs the host as much again after it
        return key

    def wait(self, *keys: Hashable) -> None:
        self.moves += [Wait(key, self.profile.wake_ns) for key in keys]

    def usage(self) -> Hashable:
        """Ask which parameters have gradients somewhere: a number for each."""
        return self.launch("all_reduce", FLAG_BYTES * len(self.model.parameters))

    # The walk

    def program(self, steps: Sequence[StepProfile]) -> Program:
        self.moves.append(End())
        for self.step, step in enumerate(steps):
            self.moves += step.lead
            last = self.options.accumulate - 1
            for self.microbatch in range(last + 1):
                self._sends = self.sends_every_microbatch or self.microbatch == last
                # The last microbatch replays the last recorded pass, the others the earlier ones in turn.
                pass_index = -1 if self.microbatch == last else self.microbatch % max(len(step.passes) - 1, 1)
                for move in step.passes[pass_index]:
                    self._add_move(move)
            if self.options.clips:
                self.wait(self.launch("all_reduce", NORM_BYTES))
            self._update(step.updates_ns, step.overhead_ns)
            self.after_update()
            self.moves += step.after_optimizer
            if self.step == len(steps) - 1:
                self.settle()
            self.moves.append(End())
        return with_displaced(self.moves)

    def _add_move(self, move: Move) -> None:
        """Add a recorded move, and call its hook; marks of a unit are named `UNIT MICROBATCH PHASE`."""
        match move:
            case Mark("use" | "last_use" as word, name):
                unit, _, phase = name.rsplit(" ", 2)
                if word == "use":
                    self.before_forward(unit) if phase == "forward" else self.before_backward(unit)
                self.moves.append(Mark(word, f"{unit} {self.microbatch} {phase}"))
                if word == "last_use":
                    self.after_forward(unit) if phase == "forward" else self.after_backward(unit)
            case Mark("forward"):
                self.moves.append(Mark("forward", str(self.microbatch)))
                self.begin_forward()
            case Mark("backward"):
                self.moves.append(Mark("backward", str(self.microbatch)))
                self.begin_backward()
            case Mark("gradient", name):
                self.moves.append(move if self._sends else Mark("kept_gradient", name))  # accumulated, not sent
                if self._sends:
                    self.after_gradient(name)
            case Mark("backward_end", name):
                self.moves.append(move if self._sends else Mark("kept_end", name))
                if self._sends:
                    self.finish()
            case _:
                self.moves.append(move)

    def _update(self, updates_ns: Mapping[str, int], overhead_ns: int) -> None:
        self.moves += [Mark("optimizer"), Work(overhead_ns)]
        for unit, ns in updates_ns.items():
            share_ns = round(ns * self.share(unit))
            if share_ns:
                self.moves += [Mark("update", unit), Work(share_ns), Mark("update_end", unit)]
        self.moves.append(Mark("optimizer_end"))
