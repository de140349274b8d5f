"""How long collectives of other sizes, or behind another link, occupy it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Protocol

from msgspec.structs import replace

from overlaplab.costs import Algorithm, collective_ns, hop_count, transfer_ns
from overlaplab.costs.link import MESSAGE, ROUNDS
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.manifest import Link
from overlaplab.simulate.player import Launch, Move, Program, change_launches, find_launches
from overlaplab.simulate.programs.profile import wake_ns
from overlaplab.simulate.transfers import transfers


class Transfer(Protocol):
    """T in ns of a kind of collective and its bytes; `hops` as in `Launch`."""

    def __call__(self, kind: str, num_bytes: int, hops: str | None = None, /) -> int:
        """Raises `OverlaplabError` where too little is known of the kind."""


def transfer_times(run: Run, programs: Sequence[Program], link: Link | None) -> Transfer:
    """By the link's formula, and what those recorded took beyond their link's: the median, of hops that of each hop.

    Where no such hops were recorded, each takes as much longer as a collective did, and until a thread woke up after
    it; what else a hop costs the host is not known then.
    Without a link by a line through what was measured, which tells nothing of hops, and nothing of kinds of which too
    little was measured: then it raises `OverlaplabError`.
    """
    if link is None:
        measured, path = transfers(run, run.traces[0], None), run.path

        def measured_ns(kind: str, num_bytes: int, hops: str | None = None, /) -> int:
            times_by_size = measured.times_by_size(kind) if hops is None else None
            if times_by_size is None:
                what = f"how long its {kind} of other sizes take is not known"
                raise OverlaplabError(what, path=path, remedy="Name a link (--link; on the page What if: Link)")
            return times_by_size(num_bytes)

        return measured_ns
    recorded_link = run.manifest.link if run.manifest else None
    beyond_ns = _late_ns(programs[0], recorded_link) if recorded_link else {}
    usual_ns = beyond_ns.get("collectives", 0.0)
    message_ns, hop_ns = beyond_ns.get("messages", usual_ns), beyond_ns.get("hops", usual_ns + wake_ns(programs))

    def formula_ns(kind: str, num_bytes: int, hops: str | None = None, /) -> int:
        late_ns = message_ns if kind == MESSAGE else usual_ns
        if hops is not None:
            late_ns = hop_ns * hop_count(link.world_size, hops)
        return transfer_ns(kind, num_bytes, link, hops) + round(late_ns)

    return formula_ns


def retime_program(program: Program, recorded: Link | None, link: Link | None) -> tuple[Move, ...]:
    """The recorded moves behind another link: each collective takes as much longer as the formula says.

    Work stays as recorded, with what collectives displaced of it. To displace it anew was worse where it was tried: off
    by 1.6 and 1.9 % on average, not 1.4 and 1.7, in two series of 54 predictions each.
    """
    if link is None or link == recorded:
        return tuple(program)
    return change_launches(program, lambda launch: replace(launch, transfer_ns=elsewhere_ns(launch, recorded, link)))


def elsewhere_ns(launch: Launch, recorded: Link | None, link: Link, algorithm: Algorithm = "ring") -> int:
    """T behind another link: by its formula, with what it took beyond that of the recorded one (of hops as much each).

    Of collectives without a formula as recorded. Messages and hops by hand do not go by the library's algorithm.
    """
    if launch.kind not in (*ROUNDS, MESSAGE):
        return launch.transfer_ns
    if launch.group is not None:
        link = replace(link, world_size=len(launch.group))
        recorded = recorded and replace(recorded, world_size=len(launch.group))
    if launch.hops is None and launch.kind != MESSAGE:
        model_ns = collective_ns(launch.kind, launch.bytes, link, algorithm=algorithm)
    else:
        model_ns = transfer_ns(launch.kind, launch.bytes, link, launch.hops)
    if recorded is None:
        return model_ns
    beyond_ns = launch.transfer_ns - transfer_ns(launch.kind, launch.bytes, recorded, launch.hops)
    if launch.hops is not None:
        before, after = (hop_count(each_link.world_size, launch.hops) for each_link in (recorded, link))
        beyond_ns = round(beyond_ns * after / max(before, 1))
    return max(model_ns + beyond_ns, 0)


def _late_ns(program: Program, link: Link) -> dict[str, float]:
    """What `collectives`, `messages`, and each of `hops` took beyond their link's formula, the median."""
    late_ns: dict[str, list[float]] = defaultdict(list)
    for launch in find_launches(program):
        if launch.kind in (*ROUNDS, MESSAGE):
            what = "messages" if launch.kind == MESSAGE else "hops" if launch.hops else "collectives"
            count = max(hop_count(link.world_size, launch.hops), 1) if launch.hops else 1
            beyond_ns = launch.transfer_ns - transfer_ns(launch.kind, launch.bytes, link, launch.hops)
            late_ns[what].append(beyond_ns / count)
    return {what: max(median(each), 0) for what, each in late_ns.items()}
