"""Edits that cut a model's gradients into other buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from overlaplab.events import Run
from overlaplab.manifest import Link
from overlaplab.simulate.fill_buckets import MIB
from overlaplab.simulate.play_errors import refusal
from overlaplab.simulate.player import Program
from overlaplab.simulate.programs.buckets import Recutting, find_recutting, recuttings
from overlaplab.simulate.programs.models import keep_model, model_name, named_buckets
from overlaplab.words import known_names


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
