"""Train and record on one rank: the loop over steps."""

import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from overlaplab_engine import faults, labels
from overlaplab_engine.alarm import blocked_ns, core_time, note_wait, waited_ns
from overlaplab_engine.checkpoint import load_sharded, save_sharded
from overlaplab_engine.config import Bytes, Config
from overlaplab_engine.devices import gpus, should_use_gpus
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.models.batches import Batches
from overlaplab_engine.models.deferred import defer
from overlaplab_engine.models.sleeping import SleepClock, put_to_sleep, unit_times
from overlaplab_engine.models.transformer import Transformer, initial_values
from overlaplab_engine.models.units import Unit, UnitPolicy, policy, reads_parameters_in_backward
from overlaplab_engine.network.calibration import choose_link, next_slower
from overlaplab_engine.network.communicator import Communicator, LogMark, connect
from overlaplab_engine.optimizer import AdamW, SleepingAdamW
from overlaplab_engine.options import Option, declarations
from overlaplab_engine.recording import processor
from overlaplab_engine.recording.attained import attained_steps, link_step
from overlaplab_engine.recording.borders import UnitBorders
from overlaplab_engine.recording.calibration import idle_collectives, probe_ns, unit_passes
from overlaplab_engine.recording.device_events import nothing_seen_message
from overlaplab_engine.recording.facts import hardware_of_rank
from overlaplab_engine.recording.machine import Reading, machine_step, usable_cores
from overlaplab_engine.recording.manifest import Before, Outcome, Recorded, manifest, sleeps_on_schedule
from overlaplab_engine.recording.memory import held_bytes
from overlaplab_engine.recording.peak import Peak, largest_batch
from overlaplab_engine.recording.trace_file import MANIFEST, TraceFile, clear, label_gradients, write_json
from overlaplab_engine.strategies import Options, Strategy, class_of, make
from overlaplab_engine.strategies.sharding.optimizers import local_part


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where a recorded step ends and the next one begins."""

    log: LogMark
    reading: Reading
    event: Any
    """On a GPU's stream of computation, which the host may be far ahead of; None on a CPU."""

    @classmethod
    def take(cls, comm: Communicator) -> "_Mark":
        event: Any = None
        if comm.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        return cls(comm.mark_log(), Reading.take(), event)

    def ns_until(self, later: "_Mark") -> int:
        """How long the step between them took; waits for the device."""
        if self.event is None:
            return later.reading.at_ns - self.reading.at_ns
        later.event.synchronize()
        took_ms: float = self.event.elapsed_time(later.event)
        return round(took_ms * 1e6)


def train_step(
    strategy: Strategy, optimizer: AdamW, batches: Batches, step: int, *, accumulate: int, clip_norm: float | None
) -> torch.Tensor | None:
    """One update: forward and backward of `accumulate` microbatches, then the optimizer; returns this rank's loss, a
    scalar, or None where it computes none.
    """
    strategy.zero_grad()
    loss = strategy.passes(batches, step, accumulate)
    if clip_norm is not None:
        strategy.clip(clip_norm)
    with labels.span(Word.OPTIMIZER):
        strategy.update(optimizer.step)
    strategy.updated()
    return loss


def record(config: Config, argv: list[str]) -> None:
    """Train on this rank as configured, and write a run to `config.out`. Every rank of the job calls this.

    Raises EngineError for problems that the user can fix.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    device = _device(config)
    comm = connect(device, config.link, wait=config.link_wait, communicators=config.communicators)
    config, peak = _within_limit(config, comm)
    held = _allocated_bytes(comm)
    floor_ns = choose_link(comm) if comm.link is not None and comm.link.auto else None
    if config.trace:
        if int(os.environ["LOCAL_RANK"]) == 0:
            clear(config.out)
        comm.barrier()
    strategy, optimizer, borders = build(config, comm)
    before = _calibrate(config, comm, strategy, borders) if config.trace and device.type == "cpu" else None
    steps_before = 0 if config.resume is None else load_sharded(config.resume, strategy, optimizer)
    best, attempts = _record_steps(config, comm, strategy, optimizer, steps_before)
    strategy.close()
    if config.trace:
        outcome = Outcome(
            recorded=best,
            held=held_bytes(strategy, optimizer),
            peak_allocated=peak if device.type == "cpu" else _peak_allocated(comm, held),
            scratch=comm.scratch_bytes,
            counts=core_time() is not None,
            before=before,
            probe_after_ns=probe_ns() if before is not None else None,
            updates=optimizer.took_ns,
            hardware=hardware_of_rank(comm.device),
        )
        outcomes = comm.gather_objects(outcome)[: comm.process_count]
        if comm.rank == 0:
            document = manifest(
                config,
                comm,
                strategy,
                outcomes,
                attempts=attempts,
                floor_ns=floor_ns,
                command=shlex.join(["overlaplab", "record", *argv]),
                started_at=started_at,
            )
            write_json(config.out / MANIFEST, document)
    if config.save is not None:
        save_sharded(config.save, strategy, optimizer, steps_before + attempts * (config.warmup + config.steps))
    comm.barrier()  # no rank leaves before everything is written
    comm.close()  # not after an error: other ranks may be waiting in a collective, and the process ends anyway


def _within_limit(config: Config, comm: Communicator) -> tuple[Config, int | None]:
    """The recording to make, with the largest batch that fits if that is asked for, and this rank's rehearsed peak.

    The peak is None without a limit. EngineError on all ranks if any rank's peak exceeds it.
    """
    limit = config.memory_limit
    if limit is None:
        return config, None
    peaks: dict[int, int] = {}

    def measure_peak(batch: int) -> int:
        peaks[batch] = _rehearsed_peak(replace(config, batch=batch), comm)
        return int(max(comm.gather_objects(peaks[batch])))

    if config.largest_batch:
        batch, peak = largest_batch(measure_peak, limit)
        config = replace(config, batch=batch)
        comm.say(f"the largest batch within {limit} is {batch} per rank, with a peak of {Bytes(peak)}")
    elif (peak := measure_peak(config.batch)) > limit:
        raise EngineError(f"--memory-limit {limit}: --batch {config.batch} takes {Bytes(peak)} at its peak")
    return config, peaks[config.batch]


def _rehearsed_peak(config: Config, comm: Communicator) -> int:
    """The most memory in bytes that this rank's device holds in two steps, of a model that is then forgotten."""
    cuda = comm.device.type == "cuda"
    held = _allocated_bytes(comm)
    if cuda:
        torch.cuda.reset_peak_memory_stats(comm.device)
    with nullcontext(None) if cuda else Peak() as peak:
        strategy, optimizer = build(config, comm)[:2]
        if peak is not None:
            peak.leave_out(strategy.optimized() if config.offload else [])
            peak.reset_most()
        batches = Batches(seed=config.seed, vocab=config.vocab, seq=config.seq, batch=config.batch)
        for step in range(2):  # the optimizer's states are made in the first
            train_step(
                strategy, optimizer, batches, step, accumulate=config.microbatches_per_step, clip_norm=config.clip_norm
            )
        strategy.settle()
        strategy.close()
        peak_bytes = _peak_allocated(comm, held) if peak is None else peak.most
    del strategy, optimizer
    gc.collect()
    return peak_bytes or 0


def make_model(config: Config) -> Transformer:
    """The untrained model on torch's default device; its weights depend on the seed and the kind of device."""
    return Transformer(
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        seq=config.seq,
        vocab=config.vocab,
        tied=config.tied,
        checkpointing=config.checkpoint_every,
        seed=config.seed,
    ).to(getattr(torch, config.dtype))


def _calibrate(config: Config, comm: Communicator, strategy: Strategy, borders: UnitBorders) -> Before:
    """Measure units, idle collectives and the machine; all ranks call it, and no gradient is left."""
    batches = Batches(seed=config.seed, vocab=config.vocab, seq=config.seq, batch=config.batch)
    sizes = [nbytes for nbytes, _ in strategy.buckets] + [
        sum(p.nbytes for p in unit.parameters.values()) for unit in policy(config.units)(strategy.model)
    ]
    probed_ns = probe_ns()
    passes, saved_bytes = ({}, None) if strategy.traits.stages else unit_passes(strategy, borders, batches)
    return Before(
        probe_ns=probed_ns,
        passes=passes,
        saved_bytes=saved_bytes if config.compute is None else None,
        idle=idle_collectives(comm, max(comm.gather_objects(max(sizes)))),  # stages differ
    )


def build(config: Config, comm: Communicator, model: Transformer | None = None) -> tuple[Strategy, AdamW, UnitBorders]:
    """The strategy around the model, whose gradients are labelled, the optimizer, and what labels the borders of units.

    Without `model` a new one is built on the device; strategies that shard parameters fill and shard it unit by unit.
    `comm` is that of all ranks.
    """
    if model is None:
        with torch.device("meta"):
            model = make_model(config)
        defer(model, comm.device, partial(initial_values, seed=config.seed))
    else:
        model = model.to(comm.device)
    unit_policy = policy(config.units)
    data = comm.along(config.mesh(comm.world_size))
    options = _options(config, unit_policy)
    class_of(config.strategy).cut(model, data, options)
    sleep = _fall_asleep(config, comm, model) if config.compute is not None else None
    counted = comm.device.type == "cpu" and sleep is None  # a sleeping device needs no core that it could wait for
    units = unit_policy(model)
    unit_of = {name: unit.name for unit in units for name in unit.parameters}
    borders = UnitBorders(
        units,
        lambda: strategy.microbatch,
        labelled=lambda unit, phase: _needs_border_labels(strategy, unit, phase),
        counted=counted,
    )
    # Before the strategy's hooks, so that "ready" comes before "launch".
    label_gradients(dict(model.named_parameters()), unit_of if counted else None, borders.gradient_came)
    if counted and processor.mark not in labels.at_borders:
        labels.at_borders.append(processor.mark)
    strategy = make(config.strategy, model, data, options)
    borders.register()
    named = strategy.named_optimized()
    # On a GPU an update per unit would cost launches.
    updated_units = [unit_of[name] for name, _ in named] if comm.device.type == "cpu" else None
    optimized = [tensor for _, tensor in named]
    if sleep is None:
        return strategy, AdamW(optimized, config.lr, updated_units), borders
    return strategy, SleepingAdamW(optimized, config.lr, updated_units or [], partial(sleep, strategy)), borders


def _options(config: Config, unit_policy: UnitPolicy) -> Options:
    """The options of the recording that concern strategies, in torch's terms."""
    values = {name: getattr(config, name) for name in declarations(Options, Option)}
    for name in ("param_dtype", "reduce_dtype"):
        values[name] = values[name] and getattr(torch, values[name])
    shape = (config.batch, config.seq, config.width) if config.compute is not None else None
    return Options(**values | {"units": unit_policy, "activation_shape": shape})


def _needs_border_labels(strategy: Strategy, unit: Unit, phase: str) -> bool:
    """Whether the borders of this phase of the unit are labelled here, and not by the strategy, where it gathers."""
    reads = phase == "forward" or any(reads_parameters_in_backward(module) for module in unit.modules)
    return not (strategy.labels_units and reads)


def _fall_asleep(config: Config, comm: Communicator, model: Transformer) -> Callable[[Strategy, str], None]:
    """Let the model's modules sleep; returns what sleeps in place of an update of what a rank owns of a unit."""
    assert config.compute is not None
    units = policy(config.units)(model)
    times = unit_times(config.compute, units, config.batch * config.seq)
    kind = class_of(config.strategy)
    # Torch's own waits are not noted, and neither are those of gloo's messages.
    has_silent_waits = kind.waits_within_torch or (kind.traits.stages and config.link is None)
    waited = blocked_ns if has_silent_waits else waited_ns
    clock = SleepClock(waited if sleeps_on_schedule(config) else None)
    # A server's threads sleep beside the one that trains.
    updates = SleepClock(None) if config.asynchronous else clock
    slow_rank, factor = config.slow_rank or (comm.rank, 1.0)
    slower = factor if comm.rank == slow_rank else 1.0
    put_to_sleep(model, units, times, clock, slower=slower, pause_ms=config.pause_ms or 0)
    parameters = {unit.name: unit.parameters for unit in units}

    def update(strategy: Strategy, unit: str) -> None:
        owned = sum(
            local_part(tensor).numel() for name, tensor in strategy.named_optimized() if name in parameters[unit]
        )
        whole = sum(p.numel() for p in parameters[unit].values())
        updates.take(round(slower * times[unit].update_ns * owned / whole), labels.operator("sleep::update"))

    return update


def _record_steps(
    config: Config, comm: Communicator, strategy: Strategy, optimizer: AdamW, steps_before: int
) -> tuple[Recorded, int]:
    """Record until the emulated link was attained in all steps, or for the last time; the best is in the trace file.

    Each recording trains on from the one before, the first after `steps_before` steps. With `--link auto`, the next is
    behind a slower link if no more than half the steps were attained. Returns the best, and how many were made.
    """
    may_repeat = comm.link is not None and comm.device.type == "cpu" and config.trace and config.save is None
    best: Recorded | None = None
    for attempt in range(1, (config.attempts if may_repeat else 1) + 1):
        recorder, recorded = _run(config, comm, strategy, optimizer, attempt, steps_before)
        steps_before += config.warmup + config.steps
        attained_count = len(attained_steps(recorded.link_steps))
        if best is None or recorded.quality > best.quality:
            best = recorded
            if recorder is not None:
                recorder.write()
                if recorder.saw_no_device:
                    recorder.discard()  # without kernels and run.json it would look like a recording on a CPU
                    raise EngineError(nothing_seen_message(str(comm.device)))
        link = comm.link
        if attained_count == config.steps or not may_repeat or link is None:
            break
        next_words = f"recording them again ({attempt + 1} of {config.attempts})"
        if attempt == config.attempts:
            next_words = f"the best recording, number {best.attempt}, is kept"
        elif link.auto and 2 * attained_count <= config.steps:
            comm.set_link(next_slower(link))
            next_words += f" behind {comm.link}"
        comm.say(f"the link {link} was attained in {attained_count} of {config.steps} steps; {next_words}")
    assert best is not None
    return best, attempt


def _run(
    config: Config, comm: Communicator, strategy: Strategy, optimizer: AdamW, attempt: int, steps_before: int
) -> tuple[TraceFile | None, Recorded]:
    """Warm-up and recorded steps, after `steps_before` earlier ones; this rank's recorder holds what it recorded."""
    batches = Batches(seed=config.seed, vocab=config.vocab, seq=config.seq, batch=config.batch)
    recorder = _trace_file(config, comm, strategy) if config.traces(comm.rank) else None
    step_marks: list[_Mark] = []
    losses: list[torch.Tensor] = []
    strategy.on_error = faults.tell  # nobody catches the error here
    with recorder or nullcontext(), _progress(config, comm) as advance:
        try:
            for step in range(config.warmup + config.steps):
                if step == config.warmup:
                    step_marks.append(_Mark.take(comm))
                    if comm.device.type == "cuda":
                        torch.cuda.reset_peak_memory_stats(comm.device)
                loss = train_step(
                    strategy,
                    optimizer,
                    batches,
                    steps_before + step,
                    accumulate=config.microbatches_per_step,
                    clip_norm=config.clip_norm,
                )
                losses += [] if loss is None else [loss]
                if step in (config.warmup - 1, config.warmup + config.steps - 1):
                    strategy.settle()  # collectives that a step launched are recorded completely or not at all
                if step >= config.warmup:
                    step_marks.append(_Mark.take(comm))
                advance()
                if recorder is not None:
                    with note_wait():
                        recorder.step()
        except BaseException as error:
            faults.tell(error)  # first, because closing the recording takes a while
            raise
    borders = list(pairwise(step_marks))
    carried = [comm.carried_between(since.log, until.log) for since, until in borders]
    steps = range(config.warmup, config.warmup + config.steps)
    link_steps = [
        link_step(comm.rank, step, launched, since.ns_until(until))
        for step, launched, (since, until) in zip(steps, carried, borders, strict=True)
    ]
    link_steps_of_ranks = comm.gather_objects(link_steps)[: comm.process_count] if comm.link else []
    return recorder, Recorded(
        attempt=attempt,
        link=comm.link,
        losses=[float(loss) for loss in losses[config.warmup :]],
        carried=carried,
        machine=[
            machine_step(comm.rank, step, since.reading, until.reading)
            for step, (since, until) in zip(steps, borders, strict=True)
        ],
        link_steps=[row for rows in link_steps_of_ranks for row in rows],
    )


def _trace_file(config: Config, comm: Communicator, strategy: Strategy) -> TraceFile:
    """This rank's recorder; it records all threads where some beside the training's own label what they do."""
    on_cpu = comm.device.type == "cpu"
    aside = comm.link is not None or strategy.traits.hops is not None or config.asynchronous or config.offload
    return TraceFile(
        config.out,
        comm.rank,
        warmup=config.warmup,
        steps=config.steps,
        gpu=comm.device if comm.device.type == "cuda" else None,
        all_threads=on_cpu and aside,
        hold=True,
    )


def _allocated_bytes(comm: Communicator) -> int:
    """Bytes that the CUDA allocator holds now, without the phantoms' memory; 0 on a CPU.

    Parameters and gradients of a model that was trained before in this process stay, by hooks of autograd that
    Python's collector does not see.
    """
    return torch.cuda.memory_allocated(comm.device) - comm.scratch_bytes if comm.device.type == "cuda" else 0


def _peak_allocated(comm: Communicator, held: int) -> int | None:
    """The CUDA allocator's peak since it was reset in bytes, above `held` (see `_allocated_bytes`); None on a CPU."""
    if comm.device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(comm.device) - comm.scratch_bytes - held


@contextmanager
def _progress(config: Config, comm: Communicator) -> Iterator[Callable[[], None]]:
    """Show a progress bar on rank 0's stderr if that is a terminal; it is redrawn only between steps."""
    if comm.rank != 0 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task(f"{config.strategy}, {comm.world_size} ranks", total=config.warmup + config.steps)
        bar.refresh()

        def advance() -> None:
            bar.advance(task)
            bar.refresh()

        yield advance


def _device(config: Config) -> torch.device:
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if not should_use_gpus(config.device, local_size, int(os.environ["WORLD_SIZE"])):
        # The ranks share the cores; more threads than cores would slow each other down.
        torch.set_num_threads(max(1, len(usable_cores()) // local_size))
        return torch.device("cpu")
    if config.link is not None and int(os.environ["WORLD_SIZE"]) > 1:
        raise EngineError(
            "--link on a GPU emulates a group around a single rank: use --nproc 1 and a WORLD, such as "
            "--link 400Gbps,10us,8; or --link none, or --device cpu"
        )
    count = gpus(config.device)
    if local_rank >= count:
        raise EngineError(
            f"rank {local_rank} of this machine has no GPU of its own ({count} GPUs); use --nproc {count}"
        )
    return torch.device("cuda", local_rank)
