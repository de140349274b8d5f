"""Other buckets for the gradients of a recorded run: its programs with these, and everything else as recorded; and the
edits that ask for them.

[Note: costs]: docs/design/plays.md, Other caps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from math import inf
from statistics import fmean

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, missing_ranks, once_per_run
from overlaplab.evidence.by_hand import averaged_by_hand
from overlaplab.evidence.passes import ddp_gradients
from overlaplab.manifest import Link, Manifest, strategy_traits
from overlaplab.simulate.displaced import with_displaced
from overlaplab.simulate.edits.model import wait_at_pass_end
from overlaplab.simulate.fill_buckets import CAP_MB, MIB, assign
from overlaplab.simulate.play_errors import refusal
from overlaplab.simulate.player import Launch, Mark, Program, StuckError, find_launches, play
from overlaplab.simulate.programs.models import find_models, keep_model, model_name, named_buckets
from overlaplab.simulate.programs.profile import wake_ns
from overlaplab.simulate.programs.times import transfer_times
from overlaplab.simulate.programs.without_buckets import WithoutBuckets, without_buckets
from overlaplab.simulate.recorded import Recorded, plain_programs
from overlaplab.simulate.transfers import no_less, times_beyond
from overlaplab.traits import TRAITS, Traits
from overlaplab.words import known_names

Buckets = Sequence[Sequence[str]]
"""The gradients of each bucket by their names, in order of launch."""


class Recutting(Struct, frozen=True, kw_only=True):
    """A recorded run whose gradients can be sent in other buckets."""

    recorded: Recorded
    buckets: tuple[tuple[str, ...], ...] | None
    """The recorded buckets; None where the strategy has none, or where backward passes have different ones."""
    alone: tuple[WithoutBuckets, ...]
    """Its programs without buckets, as if collectives displaced nothing."""
    order: tuple[str, ...]
    """The gradients as buckets take them: in the order that DDP learnt, else as they arrive on the first rank."""
    sizes: Mapping[str, int]
    """Their bytes."""
    sent: Mapping[str, int]
    """The bytes sent for each gradient: its own and its flag's."""
    takes: Callable[[int], int]
    """T of an all-reduce of so many bytes."""
    measured: tuple[int, int] | None
    """The smallest and the largest of all models' recorded buckets in bytes, where T is a line through these."""
    host_ns: int
    """What launching a bucket costs the host before it is out, and as much again after: the mean."""
    displaces: Callable[[int], int]
    """How much computation an all-reduce of so many bytes displaces."""
    wake_ns: int
    """What waking up at the end of the backward pass costs the host: the mean."""
    ddp_cap: int | None = None
    """The cap in bytes of torch's DDP; None of other strategies."""
    first_cap: int | None = None
    """The first bucket's own cap in bytes; None where it has none."""

    @property
    def takes_least(self) -> Callable[[int], int]:
        """A lower limit of T of an all-reduce of so many bytes: see `no_less`."""
        return no_less(self.takes, self.measured) if self.measured else self.takes

    def cut(self, *caps: int) -> tuple[tuple[str, ...], ...]:
        """The buckets by these caps in bytes; the last one applies to all further buckets."""
        return tuple(map(tuple, assign(self.order, self.sizes, caps)))

    def cut_by_arrival(self) -> tuple[tuple[str, ...], ...] | None:
        """DDP's buckets once it has learnt how gradients arrive; None where they are as recorded, or not DDP's."""
        arrived = _arrived_gradients(self.recorded)
        if self.buckets is None or self.ddp_cap is None or set(arrived) != set(self.sizes):
            return None
        cap = self.ddp_cap
        small, alike = (assign(arrived, self.sizes, [first, cap]) for first in (min(cap, MIB), cap))
        if [set(names) for names in self.buckets] in ([set(names) for names in cut] for cut in (small, alike)):
            return None
        # In torch the first bucket has an asked cap, too, but else 1 MiB; nothing tells whether 25 MiB was asked for.
        return tuple(map(tuple, small if cap == CAP_MB * MIB else alike))

    def with_programs(self, run: Run, programs: Sequence[Program], link: Link | None) -> Recutting:
        """The same of these programs, and behind this link where one is given."""
        return replace(
            self,
            recorded=replace(self.recorded, programs=tuple(map(tuple, programs))),
            alone=without_buckets(programs),
            takes=_takes_behind(run, self.recorded, link) if link else self.takes,
            measured=None if link else self.measured,
        )

    def knows(self, buckets: Buckets) -> bool:
        """Whether T of these buckets is no extrapolation."""
        held = [sum(self.sent[name] for name in names) for names in buckets]
        return self.measured is None or times_beyond(held, self.measured) is None

    def spans_ns(self, buckets: Buckets) -> npt.NDArray[np.int64]:
        """How long the steps would take with these buckets, of shape (ranks, steps). Raises `StuckError`."""
        return play(self.programs(buckets)).all_spans_ns()

    def programs(self, buckets: Buckets) -> list[Program]:
        """All ranks' programs with these buckets; as recorded with the recorded ones."""
        if tuple(map(tuple, buckets)) == self.buckets:
            return list(self.recorded.programs)
        others = {launch.what for each in self.alone for launch in find_launches(each.moves, "bucket")}
        numbers = (number for number in count() if str(number) not in others)
        launches = [self._launch(number, names) for number, names in zip(numbers, buckets, strict=False)]
        changed = (each.add(launches, host_ns=self.host_ns, wake_ns=self.wake_ns) for each in self.alone)
        return [with_displaced(program) for program in changed]

    def _launch(self, number: int, names: Sequence[str]) -> Launch:
        num_bytes = sum(self.sent[name] for name in names)
        return Launch(
            None,
            self.takes(num_bytes),
            "all_reduce",
            num_bytes,
            role="bucket",
            what=str(number),
            host_ns=self.host_ns,
            displaced_ns=self.displaces(num_bytes),
            parameters=tuple(names),
            gradient_bytes=sum(self.sizes[name] for name in names),
        )


def find_recutting(run: Run, link: Link | None = None) -> Recutting | None:
    """None unless all-reduces average known gradients of one model, no rank is missing, and the run can be played.

    `link`: one whose formula says how long all-reduces of other sizes take, in place of the recorded one or what was
    measured.
    """
    models = recuttings(run, link)
    return models[0] if len(models) == 1 else None


def recuttings(run: Run, link: Link | None = None) -> tuple[Recutting, ...]:
    """The recutting of each model, in which other models' buckets stay as recorded; see `find_recutting`."""
    return _recuttings(run, link or (run.manifest.link if run.manifest else None))


@once_per_run
def _recuttings(run: Run, link: Link | None) -> tuple[Recutting, ...]:
    if missing_ranks(run):
        return ()
    recorded, traits = plain_programs(run), strategy_traits(run.manifest) or _traits_seen(run)
    if recorded is None or traits is None or traits.gradients != "all_reduce" or not recorded.gradients:
        return ()
    if traits.buckets and wait_at_pass_end(recorded.programs) is not None:  # a hook would wait for other buckets, too
        return ()
    models = find_models(recorded.programs[0])
    apart = [recorded] if len(models) == 1 else [keep_model(recorded, names) for names in models]
    cuts = [_find_model_recutting(run, each, traits, link) for each in apart]
    return () if None in cuts else tuple(cut for cut in cuts if cut is not None)


def _find_model_recutting(run: Run, recorded: Recorded, traits: Traits, link: Link | None) -> Recutting | None:
    if (order := _order(run, recorded)) is None:
        return None
    takes = _takes_behind(run, recorded, link)
    try:
        play(recorded.programs)
        takes(0)
    except (StuckError, OverlaplabError):  # collectives of several groups; transfers that follow no line
        return None
    launches = [launch for program in recorded.programs for launch in named_buckets(program)]
    sizes = [launch.bytes for program in recorded.programs for launch in find_launches(program, "bucket")]
    return Recutting(
        recorded=recorded,
        buckets=_recorded_buckets(recorded) if traits.buckets else None,
        alone=without_buckets(recorded.programs),
        order=order,
        sizes={name: size for name, (size, _) in recorded.gradients.items()},
        sent={name: size for name, (_, size) in recorded.gradients.items()},
        takes=takes,
        measured=None if link else (min(sizes), max(sizes)),
        host_ns=round(fmean(launch.host_ns for launch in launches)),
        displaces=partial(recorded.displaced, "all_reduce"),
        wake_ns=wake_ns(recorded.programs),
        ddp_cap=_ddp_cap(run.manifest),
        first_cap=_first_cap(run.manifest),
    )


def _traits_seen(run: Run) -> Traits | None:
    """The traits of DDP, or of a loop that averages by hand, as traces show, where run.json names no strategy."""
    if run.manifest is not None and run.manifest.strategy is not None:
        return None
    if all(ddp_gradients(trace) for trace in run.traces):
        return TRAITS["torch-ddp"]
    return TRAITS["naive"] if all(map(averaged_by_hand, run.traces)) else None


def _ddp_cap(manifest: Manifest | None) -> int | None:
    if manifest is None or manifest.strategy != "torch-ddp":
        return None
    return int((manifest.bucket_cap_mb or CAP_MB) * MIB)


def _first_cap(manifest: Manifest | None) -> int | None:
    first_mb = None if manifest is None or manifest.strategy == "torch-ddp" else manifest.raw.get("first_bucket_mb")
    return int(first_mb * MIB) if isinstance(first_mb, int | float) and 0 < first_mb < inf else None


def _takes_behind(run: Run, recorded: Recorded, link: Link | None) -> Callable[[int], int]:
    """T of an all-reduce of so many bytes behind a link; without one by what was measured, see `transfer_times`."""
    return partial(transfer_times(run, recorded.programs, link), "all_reduce")


def _order(run: Run, recorded: Recorded) -> tuple[str, ...] | None:
    """See `Recutting.order`; None where the gradients that arrive are not those that the buckets send."""
    order = _arrived_gradients(recorded)
    manifest = run.manifest
    if manifest is not None and manifest.strategy == "torch-ddp":
        learnt = tuple(name for bucket in manifest.buckets for name in bucket.parameters if name in order)
        order = learnt if set(learnt) == set(order) else order
    return order if set(order) == set(recorded.gradients) else None


def _arrived_gradients(recorded: Recorded) -> tuple[str, ...]:
    """The gradients in the order in which they first arrive on the first rank."""
    marks = (move for move in recorded.programs[0] if isinstance(move, Mark) and move.word == "gradient")
    return tuple(dict.fromkeys(mark.name for mark in marks))


def _recorded_buckets(recorded: Recorded) -> tuple[tuple[str, ...], ...] | None:
    """The buckets of a backward pass; None where they differ from one pass to another."""
    passes: list[list[tuple[str, ...]]] = [[]]
    for move in recorded.programs[0]:
        if isinstance(move, Launch) and move.role == "bucket" and move.parameters:
            passes[-1].append(move.parameters)
        elif isinstance(move, Mark) and move.word == "backward" and passes[-1]:
            passes.append([])
    sent = {tuple(buckets) for buckets in passes if buckets}
    return sent.pop() if len(sent) == 1 else None


def cut_by_arrival(
    run: Run, programs: Sequence[Program], _value: str | None, link: Link | None
) -> list[Program] | None:
    """Gradients in their order of arrival, in DDP's buckets; None where they are so, or their buckets are unknown."""
    if (cut := find_recutting(run)) is None or (buckets := cut.cut_by_arrival()) is None:
        return None
    return _cut_behind(run, cut, programs, link).programs(buckets)


def cut_model(run: Run, programs: Sequence[Program], value: str | None, link: Link | None) -> list[Program] | None:
    """One model's gradients in buckets of another cap: the value is `MODEL:MB`."""
    name, _, text = (value or "").rpartition(":")
    cuts = {model_name(cut.order): cut for cut in recuttings(run)}
    if name not in cuts:
        raise refusal(
            run, f"no model whose buckets are known is called {name}", known_names(name, cuts) if cuts else None
        )
    try:
        cap_bytes = int(float(text) * MIB)
    except (ValueError, OverflowError):
        cap_bytes = 0
    if cap_bytes <= 0:
        raise refusal(run, f"{text} is no cap in MiB", f"As in --edit model-cap={name}:25")
    cut = cuts[name]
    recorded = keep_model(replace(cut.recorded, programs=tuple(map(tuple, programs))), set(cut.order))
    return _cut_behind(run, cut, recorded.programs, link).programs(cut.cut(cap_bytes))


def _cut_behind(run: Run, cut: Recutting, programs: Sequence[Program], link: Link | None) -> Recutting:
    """The model's cutting of these programs, behind this link. Raises `OverlaplabError` where its buckets are others
    than those recorded, as an edit before has changed them.
    """
    before, after = (
        [(launch.parameters, launch.bytes) for program in each for launch in named_buckets(program)]
        for each in (cut.recorded.programs[: len(programs)], programs)
    )
    if before != after:
        what = "its buckets are no longer as recorded"
        raise refusal(run, what, "Ask for this edit before others of the buckets, and for the cap of one model")
    return cut.with_programs(run, programs, link)
