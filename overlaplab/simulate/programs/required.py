"""What a prediction needs of a run; each function raises `OverlaplabError` with the reason where that is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from overlaplab.events import Run, rule_of
from overlaplab.manifest import Manifest
from overlaplab.simulate.displaced import Displaced
from overlaplab.simulate.player import End, Mark, Program, find_launches
from overlaplab.simulate.programs.options import Options
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.recorded import MOST_RANKS, recorded_programs
from overlaplab.simulate.refusal import refusal
from overlaplab.vocabulary import Rule


def require_recorded(run: Run, setting: Setting) -> tuple[Manifest, tuple[Program, ...], Displaced]:
    """What must be there, of all ranks unless edits alone change. Raises `OverlaplabError` with the reason."""
    if any(rule_of(trace) is not Rule.CPU for trace in run.traces):
        raise refusal(run, "only runs on a CPU are predicted")
    if len(run.traces) > MOST_RANKS:
        raise refusal(run, f"runs of more than {MOST_RANKS} ranks are not predicted")
    world = max([trace.world_size or 1 for trace in run.traces], default=1)
    manifest = run.manifest or Manifest(format_version=1, world_size=world)
    if manifest.asynchronous:
        what = "its workers do not wait for each other, which is not predicted"
        raise refusal(run, what, "Predict from a run of the synchronous parameter-server")
    if manifest.pipeline is not None:
        what = "its ranks are stages of a pipeline"
        raise refusal(run, what, "overlaplab predict takes --schedule, --microbatches, --stages and --link of it")
    is_edited_alone = replace(setting, edits=()) == Setting()
    if len(run.traces) + len(manifest.phantom_ranks) < manifest.world_size and not is_edited_alone:
        what = f"{len(run.traces)} of {manifest.world_size} ranks are there"
        raise refusal(run, what, "Of these overlaplab predict takes --edit; anything else needs all ranks' traces")
    recorded = recorded_programs(run)
    if recorded is None:
        what = "its traces do not show what every rank launched and waited for, and in which order"
        raise refusal(run, what, "Record it behind an emulated link (--link auto)")
    return manifest, recorded.programs, recorded.displaced


def require_ranks(run: Run, manifest: Manifest, options: Options) -> None:
    """Raises `OverlaplabError` where so many ranks cannot be played."""
    if manifest.phantom_ranks:
        raise refusal(run, "its other ranks are phantoms, whose work is not known")
    if options.ranks != manifest.world_size and manifest.link is None:
        what = "how long collectives of other numbers of ranks take is not known without a link"
        raise refusal(run, what, "Name one with --link")


def require_plain_steps(run: Run, programs: Sequence[Program]) -> None:
    """Raises `OverlaplabError` for a Recorder's loop whose steps do more than strategies do, which make them anew: a
    forward and a backward pass, which sends buckets and nothing else.
    """
    for program in programs:
        borders = [place for place, move in enumerate(program) if isinstance(move, End)]
        for begin, end in pairwise(borders):
            moves = program[begin:end]
            marks = Counter(move.word for move in moves if isinstance(move, Mark))
            if marks["forward"] != 1:
                reason = f"a step has {marks['forward']} forward passes"
            elif marks["backward_end"] != 1:
                reason = "in some steps no gradients are sent"
            elif any(launch.role != "bucket" for launch in find_launches(moves)):
                reason = "its steps have collectives beside those of gradients"
            else:
                continue
            what = f"{reason}, so that only another link or cap is predicted"
            raise refusal(run, what, "overlaplab predict takes --link and --bucket-cap-mb of it")
