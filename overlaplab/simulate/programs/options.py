"""What a strategy is told: the recorded run's options, with a setting's changes."""

from __future__ import annotations

from math import inf
from typing import Any

from msgspec import Struct

from overlaplab.events import Run
from overlaplab.manifest import Manifest, strategy_traits
from overlaplab.simulate.fill_buckets import CAP_MB, MIB
from overlaplab.simulate.play_errors import refusal
from overlaplab.simulate.programs.setting import Setting
from overlaplab.traits import TRAITS, Traits
from overlaplab.words import known_names

DDP_FIRST_MB = 1.0
"""The first bucket of torch's DDP where no cap is given (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES)."""


class Options(Struct, frozen=True, kw_only=True):
    """A strategy and its options; those that it does not have are at their defaults."""

    strategy: str
    caps: tuple[int, ...] = ()
    """Bytes at which buckets close, in order of launch; the last cap serves on."""
    prefetch: int = 1
    """Units gathered ahead of the one in use."""
    overlap_param_gather: bool = True
    """Gather updated parameters during the next forward pass, or else before it."""
    keep_last: bool = False
    """Whether the last layer of torch-fsdp2 stays gathered into the backward pass."""
    reshard_after_forward: bool = True
    """Whether torch-fsdp2 frees layers between their forward and backward passes."""
    accumulate: int = 1
    """Microbatches per step."""
    ranks: int = 1
    clips: bool = False
    """Whether ranks that hold parts of the gradients add up their norms before each update."""


def has_first_bucket(strategy: str, traits: Traits) -> bool:
    """Whether the first bucket can have a cap of its own: torch's DDP has no option for it."""
    return traits.buckets and strategy != "torch-ddp"


def strategy_options(run: Run, manifest: Manifest, setting: Setting) -> Options:
    """The recorded options, but for what is set. Raises `OverlaplabError` for an option that the strategy lacks."""
    strategy = setting.strategy or manifest.strategy or ""
    traits = TRAITS.get(strategy) or (strategy_traits(manifest) if strategy == manifest.strategy else None)
    if traits is None:
        raise refusal(run, f"no strategy {strategy} is known", known_names(strategy, TRAITS))
    _check_setting(run, setting, strategy, traits)
    options: dict[str, Any] = {"strategy": strategy}
    if traits.buckets:
        options["caps"] = _caps(manifest, setting, strategy)
    if traits.gathers == "units":
        options["prefetch"] = _first(setting.prefetch, manifest.prefetch, 1)
    if traits.gathers == "updated_parameters":
        options["overlap_param_gather"] = _first(manifest.overlap_param_gather, True)
    if strategy == "torch-fsdp2":
        options["keep_last"] = strategy == manifest.strategy and bool(manifest.keep_last)
        options["reshard_after_forward"] = strategy != manifest.strategy or manifest.reshard_after_forward is not False
    options["clips"] = "optimizer" in traits.sharded and _clips(manifest)
    options["accumulate"] = _first(setting.accumulate, manifest.accumulate, 1)
    options["ranks"] = _first(setting.ranks, manifest.world_size)
    return Options(**options)


def _clips(manifest: Manifest | None) -> bool:
    return manifest is not None and "--clip-norm" in str(manifest.raw.get("command"))


def require_one_kind_of_caps(run: Run, setting: Setting) -> None:
    """Raises `OverlaplabError` where one cap is asked for beside a list of caps."""
    if setting.caps_mb is not None and (setting.bucket_cap_mb, setting.first_bucket_mb) != (None, None):
        raise refusal(run, "a list of caps leaves no room for another cap", "Name either the list or the cap")


def _check_setting(run: Run, setting: Setting, strategy: str, traits: Traits) -> None:
    def refuse(problem: str) -> None:
        raise refusal(run, f"{strategy} {problem}")

    if traits.cuts_layers:
        refuse("cuts layers: from its recording only another link is predicted. Record it anew")
    if traits.gradients == "server" and _clips(run.manifest):
        refuse("also sends the norm by which gradients are clipped, which is not predicted")
    if traits.averages_parameters and setting.strategy not in (None, run.manifest and run.manifest.strategy):
        refuse("is not predicted from other strategies: record it")
    if traits.stages:
        refuse("is predicted from recordings of pipelines alone")
    if setting.schedule or setting.microbatches is not None or setting.stages:
        refuse("is no pipeline: it has neither schedule nor stages, and takes accumulate for microbatches")
    caps = (setting.bucket_cap_mb, setting.first_bucket_mb, setting.caps_mb)
    if not traits.buckets and any(cap is not None for cap in caps):
        refuse("sends no buckets: it has no cap")
    require_one_kind_of_caps(run, setting)
    if traits.buckets and setting.first_bucket_mb is not None and not has_first_bucket(strategy, traits):
        refuse("has no option for its first bucket")
    if traits.gathers != "units" and setting.prefetch is not None:
        refuse("gathers no units ahead: it has no prefetch")
    for name in ("bucket_cap_mb", "first_bucket_mb", "ranks", "accumulate"):
        value = getattr(setting, name)
        if value is not None and not 0 < value < inf:
            raise refusal(run, f"{name} must be above 0, not {value}")
    if not all(0 < cap < inf for cap in setting.caps_mb or ()):
        raise refusal(run, "caps must be above 0")
    if setting.prefetch is not None and setting.prefetch < 0:
        raise refusal(run, f"prefetch must be 0 or more, not {setting.prefetch}")


def _caps(manifest: Manifest, setting: Setting, strategy: str) -> tuple[int, ...]:
    if setting.caps_mb is not None:
        return tuple(int(cap * MIB) for cap in setting.caps_mb)
    cap_mb = _first(setting.bucket_cap_mb, manifest.bucket_cap_mb)
    cap = CAP_MB if cap_mb is None else cap_mb
    if strategy == "torch-ddp":
        first = DDP_FIRST_MB if cap_mb is None else cap
    else:
        first = _first(setting.first_bucket_mb, (manifest.raw or {}).get("first_bucket_mb"), cap)
    return tuple(dict.fromkeys((int(first * MIB), int(cap * MIB))))


def _first(*values: Any) -> Any:
    """The first that is given."""
    return next((value for value in values if value is not None), None)
