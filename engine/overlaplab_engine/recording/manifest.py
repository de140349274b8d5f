"""run.json of `overlaplab record`: what was recorded, with which options, and on which machines."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from overlaplab_engine.config import Config
from overlaplab_engine.models.sleeping import unit_times
from overlaplab_engine.models.units import policy
from overlaplab_engine.network.carrier import Carried
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Link
from overlaplab_engine.recording.attained import LinkStep, attained_steps, is_attained
from overlaplab_engine.recording.borders import BACKWARD, FORWARD
from overlaplab_engine.recording.calibration import Idle
from overlaplab_engine.recording.facts import FORMAT_VERSION, hardware, named_parameters, named_units, versions
from overlaplab_engine.recording.machine import MachineStep, mark_busy
from overlaplab_engine.strategies import Strategy


@dataclass(frozen=True, slots=True)
class Before:
    """What one rank measured before its first step, see `overlaplab_engine.recording.calibration`; times in ns."""

    probe_ns: int
    passes: dict[tuple[str, str], int]
    saved_bytes: int | None
    """What autograd saves of a microbatch; None on a sleeping device."""
    idle: list[Idle]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recording of the steps."""

    attempt: int
    """Its number, from 1."""
    link: Link | None
    """The emulated link."""
    losses: list[float]
    """One per recorded step; none on a rank that computes none."""
    carried: list[list[Carried]]
    """The link's collectives on this rank, by the recorded step that launched them."""
    link_steps: list[LinkStep]
    """All ranks' recorded steps; empty without an emulated link."""
    machine: list[MachineStep]
    """This rank's steps, before `mark_busy`."""

    @property
    def quality(self) -> tuple[int, int]:
        """The higher, the better the link was attained: by steps, then by how late it was in all."""
        late_ns = sum(row.occupied_ns - row.modelled_ns for row in self.link_steps)
        return len(attained_steps(self.link_steps)), -late_ns


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one rank's training."""

    recorded: Recorded
    held: dict[str, int]
    """Bytes of parameters, gradients and optimizer states, see `overlaplab_engine.recording.memory`."""
    peak_allocated: int | None
    """The CUDA allocator's peak in the recorded steps in bytes, without `scratch`; on a CPU that of the rehearsal, see
    `overlaplab_engine.recording.peak`, None without one."""
    scratch: int
    """Bytes that phantoms use."""
    counts: bool
    """Whether its kernel counts how long threads wait for a core, see `overlaplab_engine.recording.processor`."""
    before: Before | None
    """None on a GPU."""
    probe_after_ns: int | None
    """The probe after the last step."""
    updates: dict[str, int]
    """How long the update of what it owns of each unit takes, in ns."""
    hardware: dict[str, Any]
    """Its machine, see `overlaplab_engine.recording.facts`."""


def manifest(
    config: Config,
    comm: Communicator,
    strategy: Strategy,
    outcomes: Sequence[Outcome],
    *,
    attempts: int,
    floor_ns: int | None,
    command: str,
    started_at: str,
) -> dict[str, Any]:
    """The manifest of a run, the best of `attempts` recordings; `outcomes` are in order of rank.

    `floor_ns` was measured for `--link auto`.
    """
    recorded = outcomes[0].recorded
    link, link_steps = recorded.link, recorded.link_steps
    emulated, on_cpu = link is not None, comm.device.type == "cpu"
    return {
        "format_version": FORMAT_VERSION,
        "strategy": strategy.name,
        "traits": asdict(strategy.traits),
        "device": comm.device.type,
        "backend": _backend(comm),
        "world_size": comm.world_size,
        "mesh": asdict(config.mesh(comm.world_size)),
        "phantom_ranks": comm.phantom_ranks,
        "numerics_meant": not comm.phantom_ranks and config.compute is None,
        "model": config.model() | {"parameters": sum(p.numel() for _, p in strategy.named_parameters())},
        **_settings(config, strategy),
        "compute": "real" if config.compute is None else "sleep",
        "sleep": None if config.compute is None else _sleep_document(config, strategy),
        "link": _link_document(link, comm.world_size),
        "link_wait": config.link_wait if emulated and comm.device.type == "cuda" else None,
        "link_attained": is_attained(link_steps) if emulated else None,
        "link_steps": [asdict(row) | {"attained": row.attained} for row in link_steps] if emulated else None,
        "attempt": recorded.attempt,
        "attempts": attempts,
        "link_floor_ns": floor_ns,
        "versions": versions(),
        "hardware": hardware(comm.device),
        "hardware_per_rank": [o.hardware for o in outcomes],
        "processor_counts": all(o.counts for o in outcomes) if on_cpu and config.compute is None else None,
        "machine": _machine(outcomes) if on_cpu else None,
        "calibration": calibration(outcomes, _owners(strategy)),
        "warmup": config.warmup,
        "steps": config.steps,
        "trace_ranks": config.trace_ranks,
        "command": command,
        "started_at": started_at,
        "parameters": named_parameters(strategy.named_parameters(), strategy.units(), strategy.dtypes),
        "buckets": [{"index": i, "bytes": size, "parameters": ps} for i, (size, ps) in enumerate(strategy.buckets)],
        "unit_policy": config.units,
        "units": named_units(strategy.units(), strategy.options.param_dtype),
        "losses": [
            _mean(losses) for losses in zip(*(o.recorded.losses for o in outcomes if o.recorded.losses), strict=True)
        ],
        "memory": [
            {
                "rank": rank,
                **outcome.held,
                "activations": outcome.before and outcome.before.saved_bytes,
                "peak_allocated": outcome.peak_allocated,
                "scratch": outcome.scratch,
            }
            for rank, outcome in enumerate(outcomes)
        ],
        "collectives": collectives([o.recorded.carried for o in outcomes], config.warmup) if emulated else None,
    }


def _settings(config: Config, strategy: Strategy) -> dict[str, Any]:
    """The options that matter to the strategy; None for the others."""
    traits = strategy.traits
    has_caps = traits.buckets or (traits.stages and bool(strategy.buckets))
    return {
        "bucket_cap_mb": config.bucket_cap_mb if has_caps else None,
        "first_bucket_mb": config.first_bucket_mb if has_caps else None,
        "prefetch": config.prefetch if traits.gathers == "units" else None,
        "overlap_param_gather": config.overlap_param_gather if traits.gathers == "updated_parameters" else None,
        "keep_last": strategy.keeps_last,
        "offload": config.offload,
        "host_link": _link_document(config.host_link, 2)
        if config.offload and strategy.comm.device.type == "cpu"
        else None,
        "asynchronous": config.asynchronous if traits.gradients == "server" else None,
        "max_staleness": config.max_staleness,
        "every": config.every if traits.averages_parameters else None,
        "background": config.background if traits.averages_parameters else None,
        "reshard_after_forward": config.reshard_after_forward if traits.gathers == "units" else None,
        "checkpointing": config.checkpoint_every if config.checkpoint_every > 1 else bool(config.checkpoint_every),
        "main_grad": config.main_grad,
        "param_dtype": config.param_dtype,
        "reduce_dtype": config.reduce_dtype,
        "accumulate": config.accumulate,
        "pipeline": _pipeline(config, strategy),
        "memory_limit": config.memory_limit,
        "largest_batch": config.largest_batch,
        "seed": config.seed,
        "communicators": config.communicators,
    }


def _owners(strategy: Strategy) -> int | None:
    """How many ranks together update each parameter once; None where each rank updates all of them."""
    if strategy.traits.gradients == "server":
        return strategy.comm.world_size
    return strategy.comm.shards.world_size if "optimizer" in strategy.traits.sharded else None


def _pipeline(config: Config, strategy: Strategy) -> dict[str, Any] | None:
    if strategy.stages is None:
        return None
    return {"schedule": config.schedule, "microbatches": config.microbatches, "stages": strategy.stages}


def _mean(values: Sequence[float]) -> float | None:
    """The mean; None if it is not finite, which JSON cannot express."""
    mean = sum(values) / len(values)
    return mean if math.isfinite(mean) else None


def collectives(carried: Sequence[Sequence[Sequence[Carried]]], first_step: int) -> dict[str, list[Any]]:
    """The collectives that the emulated link carried, given by rank and step, as columns."""
    rows = [
        (rank, step, c)
        for rank, log in enumerate(carried)
        for step, launched in enumerate(log, first_step)
        for c in launched
    ]
    return {
        "rank": [rank for rank, _, _ in rows],
        "step": [step for _, step, _ in rows],
        "group": [c.group for _, _, c in rows],
        "seq": [c.seq for _, _, c in rows],
        "kind": [c.kind for _, _, c in rows],
        "bytes": [c.nbytes for _, _, c in rows],
        "modelled_ns": [c.modelled_ns for _, _, c in rows],
        "occupied_ns": [c.occupied_ns for _, _, c in rows],
        "overran": [c.overran for _, _, c in rows],
        "queued_ns": [c.queued_ns for _, _, c in rows],
        "arrived_ns": [c.arrived_ns for _, _, c in rows],
        "moved_ns": [c.moved_ns for _, _, c in rows],
    }


def _machine(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    hosts = {rank: str(o.hardware["hostname"]) for rank, o in enumerate(outcomes)}
    return [asdict(row) for row in mark_busy([row for o in outcomes for row in o.recorded.machine], hosts)]


def calibration(outcomes: Sequence[Outcome], owners: int | None) -> dict[str, Any] | None:
    """run.json's `calibration`, measured before the first step; `owners` ranks share a unit's update, or each does it.

    A unit's time is the median over the ranks, a collective's that of the rank that waited least for the others; what
    it used of cores is the mean.
    """
    before = [o.before for o in outcomes if o.before is not None]
    if not before:
        return None

    def median(unit: str, phase: str) -> int:
        return int(statistics.median(b.passes.get((unit, phase), 0) for b in before))

    return {
        "units": [
            {
                "name": unit,
                "forward_ns": median(unit, FORWARD),
                "backward_ns": median(unit, BACKWARD),
                "update_ns": int((owners or 1) * statistics.mean(o.updates.get(unit, 0) for o in outcomes)),
            }
            for unit in dict.fromkeys(unit for unit, _ in before[0].passes)
        ],
        "collectives": [
            {
                "kind": same[0].kind,
                "bytes": same[0].bytes,
                "took_ns": [min(took) for took in zip(*(idle.took_ns for idle in same), strict=True)],
                "used_ns": [
                    round(statistics.fmean(used)) for used in zip(*(idle.used_ns for idle in same), strict=True)
                ],
            }
            for same in zip(*(b.idle for b in before), strict=True)
        ],
        "probe_ns": [[b.probe_ns, o.probe_after_ns or 0] for b, o in zip(before, outcomes, strict=True)],
    }


def sleeps_on_schedule(config: Config) -> bool:
    """Whether a sleeping device makes up for what the host takes; see [Note: on schedule] of `models.sleeping`."""
    return not config.asynchronous


def _sleep_document(config: Config, strategy: Strategy) -> dict[str, Any]:
    assert config.compute is not None
    times = unit_times(config.compute, policy(config.units)(strategy.model), config.batch * config.seq)
    return {
        "units": [{"name": name, **asdict(time)} for name, time in times.items()],
        "slow_rank": config.slow_rank,
        "pause_ms": config.pause_ms,
        "on_schedule": sleeps_on_schedule(config),
    }


def _backend(comm: Communicator) -> str:
    """The library that really moves the data."""
    if comm.phantom_ranks:
        return "phantoms"
    return "nccl" if comm.device.type == "cuda" else "gloo"


def _link_document(link: Link | None, world_size: int) -> dict[str, Any] | None:
    if link is None:
        return None
    return {
        "emulated": True,
        "bandwidth_gbps": link.bandwidth_gbps,
        "latency_us": link.latency_us,
        "world_size": world_size,
    }
