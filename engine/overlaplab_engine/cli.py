"""The command line of `python -m overlaplab_engine`, which `overlaplab record` forwards to."""

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperOption

from overlaplab_engine.config import AUTO_LINK, ON_GPUS, Config, Device
from overlaplab_engine.devices import gpus, should_use_gpus
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.link import HOST_LINK, Link, LinkWait
from overlaplab_engine.schedules import Schedule, cut, parse_stages, ranks_for, require_microbatches
from overlaplab_engine.strategy_names import StrategyName

_COMPLETION = "_OVERLAPLAB_COMPLETE"
"""The environment variable in which a shell asks for completions."""
_PANELS = {
    "Model and precision": "heads seq vocab tied dtype main_grad param_dtype reduce_dtype clip_norm lr seed",
    "Ranks": "dp pp tp hsdp communicators",
    "Steps and files": "warmup trace trace_ranks save resume",
    "Memory": "memory_limit largest_batch offload host_link checkpointing",
    "Sharding: zero1, zero2, zero3, torch-fsdp2": "units overlap_param_gather keep_last reshard_after_forward",
    "Pipelines": "schedule stages microbatches",
    "Other strategies": "sequence_parallel asynchronous max_staleness every background",
    "Emulation: the link, layers that sleep": "link_wait attempts compute slow_rank pause_ms",
}
"""The help's groups behind the common options, and the fields of `Config` in each."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code: 0 done, 2 bad input or a fault, with one line on stderr."""
    if _COMPLETION in os.environ:  # a shell asks `overlaplab`, which hands the question on as it got it
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # it is slow, and only strips markup here
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    try:
        app(argv, standalone_mode=False, prog_name="overlaplab record", complete_var=_COMPLETION, obj=argv)
    except EngineError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted")
    except Exception as error:
        if hasattr(error, "format_message"):  # the command line's own errors, typer's or click's by version
            return _complain(error.format_message())
        raise
    return 0


def _complain(message: str) -> int:
    if os.environ.get("RANK", "0") == "0":  # under torchrun every rank reads the same command line
        print(f"overlaplab record: {message}", file=sys.stderr)
    return 2


class _Record(TyperCommand):
    """A command whose help groups the options, and shows no type of Python's beside switches and whole numbers."""

    def get_params(self, ctx: Any) -> list[Any]:
        panels = {name: panel for panel, names in _PANELS.items() for name in names.split()}
        parameters: list[Any] = super().get_params(ctx)
        for parameter in parameters:
            if isinstance(parameter, TyperOption):
                parameter.rich_help_panel = panels.get(str(parameter.name))
                parameter.metavar = {"bool": "", "int": "N"}.get(parameter.bare_type())
        return parameters


def _parameter(field: Field[Any]) -> inspect.Parameter:
    """The command line's option for a field of `Config`."""
    kind, option, *_ = get_args(field.type)
    names = option.names
    if kind is bool and names is None:
        words = field.name.replace("_", "-")
        names = f"--{words}/--no-{words}" if field.default else f"--{words}"
    help_, default = option.help, option.default or field.default
    if field.name in ON_GPUS:
        help_ = f"{help_.removesuffix('.')}; default {field.default}, on GPUs {ON_GPUS[field.name]}."
        kind, default = kind | None, None
    if not set(get_args(kind) or (kind,)) <= {str, int, float, bool, Path, type(None)}:
        kind = str if default is not None else str | None  # `_config` parses it, so that errors are ours
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[kind, typer.Option(*filter(None, [names]), help=help_)],
    )


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of `Config`, which it gets as keywords; its own come after `out`."""
    command_parameters = [
        p for p in inspect.signature(command).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    strategy, out, *more = [_parameter(field) for field in fields(Config)]
    parameters = [strategy, out, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in command_parameters), *more]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


@app.command(
    cls=_Record,
    epilog="Example: overlaplab record --strategy bucketed --bucket-cap-mb 4 --link auto --out runs/bucketed",
)
@_with_options
def record(
    context: typer.Context,
    nproc: Annotated[
        int | None,
        typer.Option(
            help="Ranks to start here; default 2, on GPUs one for each, or as many as --dp, --pp, --tp, --hsdp need. "
            "torchrun starts its own."
        ),
    ] = None,
    **options: Any,
) -> None:
    """Train a small transformer with data parallelism, and record a trace per rank.

    Starts the ranks itself; under torchrun, on one machine or several, this process is one rank.
    """
    device = options["device"] = _member(Device, options["device"], "--device")
    options["hsdp"] = None if options["hsdp"] is None else _hsdp(options["hsdp"])
    under_torchrun = "RANK" in os.environ
    ranks = int(os.environ.get("WORLD_SIZE", 1)) if under_torchrun else _ranks(nproc, device, _ranks_needed(options))
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if under_torchrun else ranks
    cuda = should_use_gpus(device, ranks_here, ranks)
    config = _config(options, ranks, cuda)
    config.mesh(ranks)  # refuses sizes that do not fit
    _require_possible(config, ranks, cuda)
    if under_torchrun:
        from overlaplab_engine.worker import work

        work(config, context.obj)
        return
    from overlaplab_engine.launch import launch

    launch(ranks, context.obj, config.out)
    alone = config.link is not None and config.link.stands_alone(ranks)
    what = f"one rank of an emulated group of {config.link.world_size}" if alone and config.link else f"{ranks} ranks"
    print(f"overlaplab record: {config.strategy}, {config.steps} steps on {what} → {config.out}", file=sys.stderr)


def _config(options: dict[str, Any], ranks: int, cuda: bool) -> Config:
    """The recording that the options ask for; those left out are None, or have their default."""
    values = (ON_GPUS if cuda else {}) | {name: value for name, value in options.items() if value is not None}
    values["link"] = _link(values["link"], cuda)
    values["compute"] = None if values["compute"] == "real" else values["compute"]
    if "slow_rank" in values:
        values["slow_rank"] = _slow_rank(values["slow_rank"], ranks)
    if "stages" in values:
        values["stages"] = parse_stages(values["stages"])
    if "trace_ranks" in values:
        values["trace_ranks"] = _trace_ranks(values["trace_ranks"], ranks)
    for field in fields(Config):
        if isinstance(values.get(field.name), str):
            values[field.name] = _parse(field, values[field.name])
    return Config(**values)


def _parse(field: Field[Any], text: str) -> Any:
    """The value of a field whose type is an enumeration, or has a `parse`; other texts stay."""
    kind = get_args(field.type)[0]
    kind = next(iter(get_args(kind)), kind)  # of `int | None` the first
    if issubclass(kind, StrEnum):
        return _member(kind, text, f"--{field.name.replace('_', '-')}")
    return kind.parse(text) if hasattr(kind, "parse") else text


def _require_possible(config: Config, ranks: int, cuda: bool) -> None:
    """EngineError, before the ranks start, for what these ranks cannot do and for checkpoints that are amiss."""
    if config.strategy == StrategyName.PIPELINE:
        pp = config.mesh(ranks).pp
        cut(config.layers, pp, config.schedule, config.stages)
        require_microbatches(config.microbatches, pp, config.schedule)
    if config.compute is not None and cuda:
        raise EngineError("--compute sleep is for the CPU; add --device cpu")
    if config.link_wait is LinkWait.HOST and (config.link is None or not cuda):
        raise EngineError("--link-wait host is for an emulated link on a GPU; leave it out")
    if config.communicators == 2 and not cuda:
        raise EngineError("--communicators 2 is for NCCL, and these ranks are to run on the CPU; leave it out")
    alone = config.link is not None and config.link.stands_alone(ranks)
    if config.asynchronous and (cuda or alone):
        raise EngineError("--asynchronous is for ranks on the CPU, each a process: add --device cpu, or leave it out")
    if config.host_link != HOST_LINK and cuda:
        raise EngineError("--host-link is emulated where the device is a CPU, and a GPU has a link: leave it out")
    if config.max_staleness is not None and config.max_staleness < ranks - 1:
        raise EngineError(f"--max-staleness must be {ranks - 1} or more with {ranks} ranks")
    if config.save is None and config.resume is None:
        return
    if alone:
        raise EngineError(
            "the losses and parameters of one rank of an emulated group are meaningless: leave --save and --resume out"
        )
    from overlaplab_engine.checkpoint import require_checkpoint, require_place

    if config.save is not None:
        require_place(config.save)
    if config.resume is not None:
        require_checkpoint(config.resume)


def _member(kind: Any, value: str, option: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise EngineError(f"{option} {value!r} is none of {', '.join(kind)}") from None


def _trace_ranks(text: str, ranks: int) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise EngineError(f"--trace-ranks {text!r} is not a list of ranks such as 0,8")
    chosen = sorted({int(word) for word in words})
    if chosen[-1] >= ranks:
        raise EngineError(f"--trace-ranks {text}: there is no rank {chosen[-1]}, ranks count from 0 to {ranks - 1}")
    return tuple(chosen)


def _slow_rank(text: str, ranks: int) -> tuple[int, float]:
    rank, _, factor = text.partition(":")
    if not rank.isdecimal() or len(rank) > 9 or not factor.replace(".", "", 1).isdecimal():
        raise EngineError(f"--slow-rank {text!r} is not RANK:FACTOR such as 1:1.5")
    if int(rank) >= ranks:
        raise EngineError(f"--slow-rank {text}: there is no rank {rank}, ranks count from 0 to {ranks - 1}")
    return int(rank), float(factor)


def _link(text: str, cuda: bool) -> Link | None:
    if text == "none" or (text == "auto" and cuda):
        return None
    if text == "auto":
        return AUTO_LINK
    return _link_of_run(Path(text)) if Path(text).is_dir() else Link.parse(text)


def _link_of_run(run: Path) -> Link | None:
    """The emulated link that a run was recorded with, so that runs can be compared."""
    try:
        manifest = json.loads((run / "run.json").read_bytes())
        link, phantoms = manifest["link"], manifest.get("phantom_ranks")
        if link is None:
            return None
        rate, latency = float(link["bandwidth_gbps"]), float(link["latency_us"])
        world = int(link["world_size"]) if phantoms else None
        return Link.parse(str(Link(bandwidth_gbps=rate, latency_us=latency, world_size=world)))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        raise EngineError(f"--link {run}: its run.json does not say which link it was recorded with") from None


def _hsdp(text: str) -> tuple[int, int]:
    replicas, _, shards = text.partition("x")
    if not all(word.isdecimal() and len(word) < 10 for word in (replicas, shards)):
        raise EngineError(f"--hsdp {text!r} is not REPLICASxSHARDS such as 2x2")
    return int(replicas), int(shards)


def _ranks_needed(options: Mapping[str, Any]) -> int:
    """The ranks that the mesh's sizes need, as far as they are given."""
    dp, pp = options["dp"] or prod(options["hsdp"] or (1,)), options["pp"]
    if pp is None and options["stages"] is not None:
        pp = ranks_for(parse_stages(options["stages"]), _member(Schedule, options["schedule"], "--schedule"))
    return dp * (pp or 1) * (options["tp"] or 1)


def _ranks(nproc: int | None, device: Device, needed: int) -> int:
    if nproc is not None and nproc < 1:
        raise EngineError("--nproc must be 1 or more")
    count = 0 if device is Device.CPU else gpus(device)  # with --nproc, too: it raises where there are none
    if nproc is None and needed > 1:
        return needed
    return nproc or (count if device is Device.CUDA or count >= 2 else 2)
