"""What ranks would do beside sending buckets, where they send none."""

from __future__ import annotations

from dataclasses import replace

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.manifest import Link
from overlaplab.simulate.player import find_launches
from overlaplab.simulate.programs import all_programs
from overlaplab.simulate.programs.buckets import Recutting
from overlaplab.simulate.programs.profile import wake_ns
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.without_buckets import without_made_buckets
from overlaplab.traits import TRAITS


def with_bucketed_moves(run: Run, cut: Recutting, link: Link | None = None) -> Recutting:
    """The cutting, but all that ranks do as `bucketed` does it, where the recorded strategy sends no buckets."""
    traits = TRAITS.get(run.manifest.strategy or "") if run.manifest else None
    if traits is None or traits.buckets:
        return cut
    try:
        programs = all_programs(run, Setting(strategy="bucketed", link=link))
    except OverlaplabError:  # that strategy cannot be made anew from the run
        return cut
    launches = find_launches(programs[0], "bucket")
    flags: dict[str, int] = {}  # the bytes that go with each gradient
    for each in launches:
        flags |= dict.fromkeys(each.parameters, (each.bytes - each.gradient_bytes) // len(each.parameters))
    return replace(
        cut,
        alone=without_made_buckets(programs),
        sent={name: size + flags.get(name, 0) for name, size in cut.sizes.items()},
        host_ns=launches[0].host_ns,  # the same of all buckets
        wake_ns=wake_ns(programs),
    )
