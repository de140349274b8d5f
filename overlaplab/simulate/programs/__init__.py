"""The programs of all ranks under another setting, from one recorded run of the engine on a CPU.

What was recorded is taken apart into work and communication (`profile`), and the strategy asked for makes its own
communication around the same work (`strategy`, and a file for each family). Where only the link changes, the recorded
moves stay, and T alone is changed.

[Note: ranks]
Ranks beyond those recorded draw each step from these ranks' programs (`further`). Where ranks own parts, those who draw
update as large a part as the rank whose step they drew.
"""

from __future__ import annotations

from dataclasses import replace

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, rule_of
from overlaplab.manifest import Manifest, traits_of
from overlaplab.simulate.further import with_further
from overlaplab.simulate.player import Program, StuckError
from overlaplab.simulate.programs.model import Model
from overlaplab.simulate.programs.options import Options, options_of
from overlaplab.simulate.programs.partitioned import Zero1, Zero2
from overlaplab.simulate.programs.pipelined import pipeline_programs
from overlaplab.simulate.programs.profile import Profile, median_rank, profile_of
from overlaplab.simulate.programs.replicated import Bucketed, Naive, PerParam, TorchDDP
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.strategy import Strategy
from overlaplab.simulate.programs.times import behind, transfer_of
from overlaplab.simulate.programs.units import TorchFSDP2, Zero3
from overlaplab.simulate.recorded import MOST_RANKS, recorded_programs
from overlaplab.traits import TRAITS, Traits
from overlaplab.vocabulary import Rule

__all__ = ["made_programs", "programs_of"]

_STRATEGIES: dict[str, type[Strategy]] = {
    "naive": Naive,
    "per-param": PerParam,
    "bucketed": Bucketed,
    "torch-ddp": TorchDDP,
    "zero1": Zero1,
    "zero2": Zero2,
    "zero3": Zero3,
    "torch-fsdp2": TorchFSDP2,
}


def programs_of(run: Run, setting: Setting) -> tuple[Program, ...]:
    """One program per rank, over all recorded steps; without changes those of the recorded run itself.

    Raises `OverlaplabError` where the run cannot tell, or where the setting has an option that its strategy lacks.
    """
    if run.manifest is not None and run.manifest.pipeline is not None:
        return pipeline_programs(run, setting)
    made = made_programs(run, setting)
    if setting.ranks is None or run.manifest is None or setting.ranks == run.manifest.world_size:
        return made
    if setting.ranks > MOST_RANKS:
        raise OverlaplabError(f"no more than {MOST_RANKS} ranks are played one by one", path=run.path)
    try:
        return with_further(made, setting.ranks)
    except StuckError as error:
        raise OverlaplabError(str(error), path=run.path) from None


def made_programs(run: Run, setting: Setting) -> tuple[Program, ...]:
    """The programs of the recorded ranks alone, or of the first of them, as they are among the setting's ranks.

    Raises as `programs_of`, of which the further ranks draw from these.
    """
    manifest, programs = _recorded(run)
    before, after = options_of(run, manifest, Setting()), options_of(run, manifest, setting)
    link = setting.link or manifest.link
    link = link and replace(link, world_size=after.ranks)
    median = median_rank(programs)
    if after != before:
        _require(run, manifest, after)
    if after == (before if _traits(manifest).sharded else replace(before, ranks=after.ranks)):
        chosen = (programs if setting.straggler else [programs[median]] * len(programs))[: after.ranks]
        return tuple(chosen if link == manifest.link else (behind(each, manifest.link, link) for each in chosen))
    profile = profile_of(programs, sharded="optimizer" in _traits(manifest).sharded)
    ranks = profile.ranks if setting.straggler else (profile.ranks[median],) * len(programs)
    model = _model(run, manifest, profile, after)
    transfer = transfer_of(run, programs, link)
    make = _STRATEGIES[after.strategy]
    return tuple(
        tuple(make(after, model, profile, transfer, rank).program(steps))
        for rank, steps in enumerate(ranks[: after.ranks])
    )


def _recorded(run: Run) -> tuple[Manifest, tuple[Program, ...]]:
    """What must be there; raises `OverlaplabError` with the reason if it is not."""
    if any(rule_of(trace) is not Rule.CPU for trace in run.traces):
        raise OverlaplabError("only runs on a CPU are predicted", path=run.path)
    if len(run.traces) > MOST_RANKS:
        raise OverlaplabError(f"runs of more than {MOST_RANKS} ranks are not predicted", path=run.path)
    manifest = run.manifest
    if manifest is None or manifest.strategy is None:
        raise OverlaplabError(
            "only runs of the engine are predicted", path=run.path, remedy="Record one with overlaplab record"
        )
    if _traits(manifest).hops is not None:
        raise OverlaplabError(
            f"{manifest.strategy} makes its collectives by hand, and their hops are not predicted",
            path=run.path,
            remedy="Predict from a run of bucketed",
        )
    if _traits(manifest).gradients == "server":
        raise OverlaplabError(
            f"{manifest.strategy} sends all gradients to a server, which is not predicted",
            path=run.path,
            remedy="Predict from a run of bucketed",
        )
    if manifest.pipeline is not None:
        raise OverlaplabError(
            "its ranks are stages of a pipeline",
            path=run.path,
            remedy="overlaplab predict takes --schedule, --microbatches, --stages and --link of it",
        )
    if len(run.traces) + len(manifest.phantom_ranks) < manifest.world_size:
        raise OverlaplabError(
            f"{len(run.traces)} of {manifest.world_size} ranks are there",
            path=run.path,
            remedy="A prediction needs all ranks' traces",
        )
    if not manifest.axes.is_one_axis:
        raise OverlaplabError(f"only data parallelism is predicted, not {manifest.axes}", path=run.path)
    recorded = recorded_programs(run)
    if recorded is None:
        raise OverlaplabError(
            "its traces do not tell what every rank launched and waited for, and in which order",
            path=run.path,
            remedy="Record it behind an emulated link (--link auto)",
        )
    return manifest, recorded.programs


def _require(run: Run, manifest: Manifest, options: Options) -> None:
    """Raises `OverlaplabError` for what cannot be made anew from the run."""
    if manifest.phantom_ranks:
        raise OverlaplabError("its other ranks are phantoms, whose work is not known", path=run.path)
    if manifest.strategy not in _STRATEGIES:
        raise OverlaplabError(
            f"only the link can be changed of a strategy of one's own, {manifest.strategy}", path=run.path
        )
    if options.ranks != manifest.world_size and manifest.link is None:
        raise OverlaplabError(
            "how long collectives of other numbers of ranks take is not known without a link",
            path=run.path,
            remedy="Name one with --link",
        )
    if not manifest.parameters or not manifest.units:
        raise OverlaplabError("its run.json does not name the parameters and units", path=run.path)


def _model(run: Run, manifest: Manifest, profile: Profile, options: Options) -> Model:
    learnt = manifest.buckets if _traits(manifest) == TRAITS["torch-ddp"] else ()
    arrived = [name for bucket in learnt for name in bucket.parameters] or profile.order
    if TRAITS[options.strategy].gathers and not profile.uses:
        raise OverlaplabError(
            "its traces do not tell where units' passes begin and end", path=run.path, remedy="Record it anew"
        )
    policy = (manifest.raw or {}).get("unit_policy") or "by_block"
    if TRAITS[options.strategy].gathers == "units" and policy != "by_block":
        raise OverlaplabError(f"which units of the policy {policy} stay gathered is not known", path=run.path)
    return Model.of(manifest, profile.uses, arrived)


def _traits(manifest: Manifest) -> Traits:
    return traits_of(manifest) or Traits()
