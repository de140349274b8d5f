"""The programs of all ranks under another setting, from one recorded run of the engine on a CPU.

docs/design/plays.md, Another strategy's programs: `profile` takes the recorded programs apart, and `strategy`, with a
file for each family, makes the communication of the one asked for around the same work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import TypeAlias

from msgspec.structs import replace

from overlaplab.dtypes import dtype_bytes
from overlaplab.events import Run, rule_of
from overlaplab.evidence.passes import bucket_labels
from overlaplab.manifest import Manifest, strategy_traits
from overlaplab.simulate.displaced import Displaced
from overlaplab.simulate.fill_buckets import MIB
from overlaplab.simulate.further import with_further
from overlaplab.simulate.play_errors import refusal
from overlaplab.simulate.player import Mark, Program, StuckError, find_launches, split_steps
from overlaplab.simulate.programs import bucketed
from overlaplab.simulate.programs.buckets import find_recutting, recuttings
from overlaplab.simulate.programs.edits import apply_edits
from overlaplab.simulate.programs.model import RecordedModel
from overlaplab.simulate.programs.models import find_models
from overlaplab.simulate.programs.options import Options, require_one_kind_of_caps, strategy_options
from overlaplab.simulate.programs.pipelined import is_pipelined, pipeline_programs
from overlaplab.simulate.programs.profile import Profile, StepProfile, median_rank, work_profile
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.strategy import Strategy
from overlaplab.simulate.programs.times import retime_program, transfer_times
from overlaplab.simulate.programs.units import TorchFSDP2, Zero3
from overlaplab.simulate.recorded import MOST_RANKS, recorded_programs
from overlaplab.traits import TRAITS, Traits
from overlaplab.vocabulary import Rule
from overlaplab.words import known_names, shorten

Programs: TypeAlias = tuple[Program, ...]
"""One of each rank."""
_STRATEGIES: dict[str, type[Strategy]] = {
    "naive": bucketed.Naive,
    "per-param": bucketed.PerParam,
    "bucketed": bucketed.Bucketed,
    "ring": bucketed.Ring,
    "tree": bucketed.Tree,
    "parameter-server": bucketed.ParameterServer,
    "torch-ddp": bucketed.Buckets,
    "zero1": bucketed.Zero1,
    "zero2": bucketed.Zero2,
    "zero3": Zero3,
    "torch-fsdp2": TorchFSDP2,
}


def all_programs(run: Run, setting: Setting) -> Programs:
    """One program per rank, over all recorded steps. Raises `OverlaplabError` where the run cannot tell."""
    if is_pipelined(run, setting):
        return pipeline_programs(run, setting)
    if run.manifest is not None and not run.manifest.axes.is_one_axis:
        return _behind_link(run, setting)
    programs = _edited_programs(run, setting)
    if setting.ranks is None or len(programs) == setting.ranks:
        return programs
    if setting.ranks > MOST_RANKS:
        raise refusal(run, f"no more than {MOST_RANKS} ranks are played one by one")
    try:
        return with_further(programs, setting.ranks)
    except StuckError as error:
        raise refusal(run, str(error)) from None


def made_programs(run: Run, setting: Setting) -> Programs:
    """The programs of the recorded ranks alone, or of the first ones, as among as many ranks as the setting has.

    Raises as `all_programs`.
    """
    manifest = run.manifest
    if manifest is not None and not manifest.axes.is_one_axis and manifest.pipeline is None:
        what = f"its ranks share the model ({manifest.axes})"
        raise refusal(run, what, "overlaplab predict takes --link of it, and no other change")
    if is_served(run, setting) and not (manifest and manifest.asynchronous):
        what = "messages to a server are not played for many ranks at once"
        raise refusal(run, what, "overlaplab predict takes --link and --ranks of a parameter server")
    return _edited_programs(run, setting)


def _edited_programs(run: Run, setting: Setting) -> Programs:
    """The programs under the setting, its edits last."""
    programs = _unedited_programs(run, setting)
    if not setting.edits:
        return programs
    link = setting.link or (run.manifest.link if run.manifest else None)
    ranks = setting.ranks or (run.manifest.world_size if run.manifest else len(programs))
    return apply_edits(run, programs, setting.edits, link and replace(link, world_size=ranks))


def _unedited_programs(run: Run, setting: Setting) -> Programs:
    manifest, programs, displaced = _require_recorded(run, setting)
    if manifest.strategy is None:
        return _unnamed_programs(run, setting, manifest, programs)
    before, after = strategy_options(run, manifest, Setting()), strategy_options(run, manifest, setting)
    link = setting.link or manifest.link
    link = link and replace(link, world_size=after.ranks)
    median = median_rank(programs)
    if after.ranks != before.ranks:
        _require_no_phantoms(run, manifest)
        if not is_served(run, Setting()) and any(launch.group for launch in find_launches(programs[0])):
            what = "it has collectives among a part of its ranks, and how others would form such groups is not known"
            raise refusal(run, what, "overlaplab predict takes --link and --edit of it")
        if link is None:
            what = "how long collectives of other numbers of ranks take is not known without a link"
            raise refusal(run, what, "Name one (--link; on the page What if: Link)")
    if (recut := _recut(run, setting, before, after)) is not None:
        chosen = (recut if setting.straggler else [recut[median]] * len(recut))[: after.ranks]
        return tuple(retime_program(each, manifest.link, link) for each in chosen)
    if after != before:
        _require_strategy(run, manifest)
    if replace(after, ranks=before.ranks) != before and manifest.accumulate is None:
        if _changes_caps_alone(before, after) and find_models(programs[0]):
            transfer_times(run, programs, link)("all_reduce", 0)  # raises where caps need another link to be known
        _require_plain_steps(run, programs)
    served = is_served(run, Setting())
    have_parts = served or _traits(manifest).sharded  # ranks' programs then depend on how many they are
    if after == (before if have_parts else replace(before, ranks=after.ranks)) and (setting.straggler or not served):
        chosen = [*(programs if setting.straggler else [programs[median]] * len(programs))][: after.ranks]
        return tuple(retime_program(each, manifest.link, link) for each in chosen)
    profile = work_profile(programs, displaced, sharded="optimizer" in _traits(manifest).sharded, served=served)
    ranks: Sequence[Sequence[StepProfile]] = (
        profile.ranks if setting.straggler else (profile.ranks[median],) * len(programs)
    )
    if is_served(run, setting):
        ranks = _each_in_turn(run, ranks, after.ranks)
    model = _model(run, manifest, profile, after)
    transfer = transfer_times(run, programs, link)
    make = _STRATEGIES[after.strategy]
    ranks = ranks[: after.ranks]
    makers = [make(after, model, profile, transfer, rank) for rank in range(len(ranks))]
    return tuple(tuple(maker.program(steps)) for maker, steps in zip(makers, ranks, strict=True))


def _unnamed_programs(run: Run, setting: Setting, manifest: Manifest, programs: Programs) -> Programs:
    """The recorded moves behind another link, and with other caps where traces show DDP's buckets."""
    require_one_kind_of_caps(run, setting)
    caps_mb = setting.caps_mb or ((setting.bucket_cap_mb,) if setting.bucket_cap_mb is not None else ())
    cut = find_recutting(run) if caps_mb else None
    if cut is not None and all(0 < cap < inf for cap in caps_mb):
        programs = tuple(map(tuple, cut.programs(cut.cut(*(int(cap * MIB) for cap in caps_mb)))))
        setting = replace(setting, caps_mb=None, bucket_cap_mb=None)
    if caps_mb and cut is None and all(map(bucket_labels, run.traces)):
        what = "which gradients its buckets send, or how long all-reduces of other sizes take, is not known"
        raise refusal(run, what, "Record with record_shapes=True, and buckets of several sizes")
    if setting != Setting(link=setting.link, edits=setting.edits) or (setting.link and manifest.link is None):
        raise refusal(
            run,
            "what its strategy is has not been recorded, so that its options are not predicted",
            "overlaplab predict takes --edit of it; overlaplab record and the Recorder name a strategy",
        )
    link = setting.link and replace(setting.link, world_size=manifest.world_size)
    return tuple(retime_program(each, manifest.link, link) for each in programs)


def _changes_caps_alone(before: Options, after: Options) -> bool:
    """Whether nothing but caps and ranks differs."""
    return replace(after, caps=before.caps, ranks=before.ranks) == before


def _recut(run: Run, setting: Setting, before: Options, after: Options) -> list[Program] | None:
    """The recorded moves with other buckets, where the caps change or a parameter is left out, if that can be."""
    name, cut = setting.without_parameter, find_recutting(run)
    other_caps = after.caps != before.caps
    if cut is None and setting.link is not None:
        cut = find_recutting(run, setting.link)
    if not _changes_caps_alone(before, after):
        cut = None
    if name is None:
        return cut.programs(cut.cut(*after.caps)) if cut is not None and other_caps else None
    if cut is None or (not other_caps and cut.buckets is None):
        raise refusal(run, "which bucket sends which gradient is not known")
    if name not in cut.sizes:
        raise refusal(run, f"it sends no gradient of {name}", known_names(name, cut.order, most=5))
    buckets = cut.cut(*after.caps) if other_caps else cut.buckets or ()
    left = [[each for each in names if each != name] for names in buckets]
    return cut.programs([names for names in left if names])


def _each_in_turn(run: Run, ranks: Sequence[Sequence[StepProfile]], count: int) -> list[Sequence[StepProfile]]:
    """So many ranks' steps: those beyond the recorded ones work as these in turn, but none as the first, a server."""
    if count > MOST_RANKS:
        raise refusal(run, f"no more than {MOST_RANKS} ranks are played one by one")
    others = ranks[1:] or ranks
    return [*ranks, *(others[place % len(others)] for place in range(max(count - len(ranks), 0)))]


def _behind_link(run: Run, setting: Setting) -> Programs:
    """The recorded moves of a mesh of several axes: a link changes T alone, by each group's own size."""
    assert run.manifest is not None  # who calls has seen its mesh
    if setting != Setting(link=setting.link):
        what = f"its ranks share the model ({run.manifest.axes}): of such a run another link is predicted, nothing else"
        raise refusal(run, what)
    manifest, programs, _ = _require_recorded(run, setting)
    return tuple(retime_program(each, manifest.link, setting.link) for each in programs)


def _require_strategy(run: Run, manifest: Manifest) -> None:
    """Raises `OverlaplabError` for what cannot be made anew from the run."""
    _require_no_phantoms(run, manifest)
    if manifest.strategy not in _STRATEGIES:
        raise refusal(run, f"only the link can be changed of {manifest.strategy}, whose steps are not made anew")
    if not manifest.parameters or not manifest.units:
        raise refusal(run, "its run.json does not name the parameters and units")


def _model(run: Run, manifest: Manifest, profile: Profile, options: Options) -> RecordedModel:
    learnt = manifest.buckets if _traits(manifest) == TRAITS["torch-ddp"] else ()
    arrived = [name for bucket in learnt for name in bucket.parameters] or profile.order
    if TRAITS[options.strategy].gathers and not profile.uses:
        raise refusal(run, "its traces do not show where units' passes begin and end", "Record it anew")
    policy = (manifest.raw or {}).get("unit_policy") or "by_block"
    if TRAITS[options.strategy].gathers == "units" and policy != "by_block":
        raise refusal(run, f"which units of the policy {policy} stay gathered is not known")
    for dtype in filter(None, (manifest.param_dtype, manifest.reduce_dtype)):
        if dtype_bytes(dtype) is None:
            raise refusal(run, f"how large its type {shorten(dtype)} is, is not known")
    return RecordedModel.from_manifest(manifest, profile.uses, arrived)


def is_served(run: Run, setting: Setting) -> bool:
    """Whether the first rank is a server, which none of the others works as."""
    traits = TRAITS.get(setting.strategy) if setting.strategy else strategy_traits(run.manifest)
    return traits is not None and traits.gradients == "server"


def _traits(manifest: Manifest) -> Traits:
    return strategy_traits(manifest) or Traits()


def _require_recorded(run: Run, setting: Setting) -> tuple[Manifest, Programs, Displaced]:
    """run.json, programs and displacement, of all ranks unless edits alone are asked for. Raises `OverlaplabError`."""
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
    if len(run.traces) > manifest.world_size:
        raise refusal(run, f"run.json says {manifest.world_size}, and there are traces of {len(run.traces)} ranks")
    recorded = recorded_programs(run)
    if recorded is None:
        what = "its traces do not show what every rank launched and waited for, and in which order"
        raise refusal(run, what, "Record it behind an emulated link (--link auto)")
    return manifest, recorded.programs, recorded.displaced


def _require_no_phantoms(run: Run, manifest: Manifest) -> None:
    if manifest.phantom_ranks:
        raise refusal(run, "its other ranks are phantoms, whose work is not known")


def _require_plain_steps(run: Run, programs: Sequence[Program]) -> None:
    """Raises `OverlaplabError` for a Recorder's loop whose steps do more than those that strategies make anew."""
    if len(recuttings(run)) > 1:
        what = "it trains several models, each with a cap of its own"
        raise refusal(run, what, "overlaplab predict takes --link of it, and --edit model-cap=MODEL:MB")
    for program in programs:
        for moves in split_steps(program):
            marks = Counter(move.word for move in moves if isinstance(move, Mark))
            if marks["forward"] != 1:
                reason = f"a step has {marks['forward']} forward passes"
            elif marks["backward_end"] != 1:
                reason = "in some steps no gradients are sent"
            elif any(launch.role != "bucket" for launch in find_launches(moves)):
                reason = "its steps have collectives beside those of gradients"
            else:
                continue
            takes = "--link, --ranks and --bucket-cap-mb" if find_recutting(run) else "--link and --ranks"
            raise refusal(run, f"{reason}: its strategy is not made anew", f"overlaplab predict takes {takes} of it")
