"""Checkpoints: a run's whole state, saved sharded, from which another run continues bit for bit.

The state consists of parameters, buffers, AdamW's fp32 masters and moments, and each parameter's number of updates. All
go by the parameters' names, so a state can be loaded with another strategy, bucket size or world size. Buffers are
rank 0's. Gradients are not saved, since a checkpoint lies between two updates.

A checkpoint is a directory that the ranks write and read with torch.distributed.checkpoint, each rank only the parts
that it owns. Tensors are flattened there, because a rank's part of a flat shard may begin and end amid a row.

[Note: one order of addition]
Floating-point sums of three or more numbers depend on the order of addition. A ring all-reduce adds in an order that
depends on the position in the buffer, so other buckets give losses that differ in the last bits. Therefore `bucketed`
saves its order. torch-ddp rebuilds its buckets, so with 3 or more ranks its first step may differ in the last bits.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import dtype_name
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.optimizer import MOMENTS, AdamW
from overlaplab_engine.recording.trace_file import write_json
from overlaplab_engine.strategies import Strategy
from overlaplab_engine.strategies.sharding.sharded import Sharded
from overlaplab_engine.strategies.sharding.shards import OwnedPart

FORMAT_VERSION = 1
HEADER = "checkpoint.json"
"""The engine's own file in a checkpoint, beside torch.distributed.checkpoint's; written last."""
PARAMETERS, BUFFERS, MASTERS = "parameters", "buffers", "masters"
"""With `MOMENTS` the kinds of tensors; a tensor's key is `kind.name`."""
REMEDY = "resume with the model options that it was saved with"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Spec:
    """Shape and dtype of a whole tensor of the state."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{list(self.shape)} {self.dtype}"

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    def zeros(self, count: int) -> torch.Tensor:
        """`count` of its elements, flat, as zeros."""
        return torch.zeros(count, dtype=getattr(torch, self.dtype))


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far the run has come."""

    step: int
    """Training steps done."""
    updates: dict[str, int]
    """Updates of each parameter that has had any."""
    order: list[str] | None
    """See [Note: one order of addition]."""

    def document(self) -> dict[str, Any]:
        return {"format_version": FORMAT_VERSION, "step": self.step, "updates": self.updates, "order": self.order}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "_Progress":
        """The inverse of `document`. ValueError, KeyError or TypeError for anything else."""
        if document["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format_version is {document['format_version']}, but only {FORMAT_VERSION} can be read")
        order = document["order"]
        return cls(int(document["step"]), dict(document["updates"]), None if order is None else list(order))


@dataclass(frozen=True, slots=True)
class _Slice:
    """Elements of a flattened tensor of the state."""

    begin: int
    values: torch.Tensor
    """(elements,)"""


def save_sharded(path: Path, strategy: Strategy, optimizer: AdamW, step: int) -> None:
    """Write the state after `step` training steps to a directory, complete or absent; each rank writes its own part.

    An older checkpoint there is replaced. EngineError on all ranks if it cannot be written.
    """
    comm, path = strategy.comm, path.resolve()
    temporary, old = path.with_name(f".{path.name}.tmp"), path.with_name(f".{path.name}.old")
    progress, specs = _describe(strategy, optimizer, step)
    document = progress.document() | {"tensors": {key: [list(s.shape), s.dtype] for key, s in specs.items()}}

    def begin() -> None:
        require_place(path)
        if comm.rank == 0:
            with _explain_write_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                if old.exists() and not path.exists():  # a job was killed between the two renames of `end`
                    old.rename(path)
                for leftover in (temporary, old):
                    if leftover.exists():
                        shutil.rmtree(leftover)

    def end() -> None:
        if comm.rank == 0:
            with _explain_write_errors(path):
                write_json(temporary / HEADER, document)
                if path.exists():
                    path.rename(old)
                temporary.rename(path)
                shutil.rmtree(old, ignore_errors=True)

    _run_on_all_ranks(comm, begin)
    try:
        save(
            {},
            storage_writer=FileSystemWriter(temporary),
            planner=_Saver(_slices(strategy, optimizer), specs),
            process_group=comm.object_group,
        )
    except CheckpointException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise EngineError(f"{path} cannot be written: {_first_failure(error)}") from None
    _run_on_all_ranks(comm, end)


def load_sharded(path: Path, strategy: Strategy, optimizer: AdamW) -> int:
    """Load what `save_sharded` wrote, with any world size; returns the number of training steps done.

    If it is missing, damaged or another model's, EngineError is raised on all ranks, and nothing is changed.
    """
    _require_savable(strategy)

    def check() -> tuple[_Progress, dict[str, _Spec]]:
        progress, offered = _read(path)
        return progress, _match_specs(strategy, progress, offered, path)

    progress, specs = _run_on_all_ranks(strategy.comm, check)
    slices = _empty_slices(strategy, specs)
    try:
        load(
            {},
            storage_reader=FileSystemReader(path),
            planner=_Loader(slices, specs),
            process_group=strategy.comm.object_group,
        )
    except CheckpointException as error:
        raise EngineError(f"{path} is damaged: {_first_failure(error)}; resume from another") from None
    _adopt(strategy, optimizer, progress, slices)
    return progress.step


def require_place(path: Path) -> None:
    """EngineError if saving a checkpoint as `path` would overwrite something else."""
    if path.is_dir() and ((path / HEADER).is_file() or not any(path.iterdir())):
        return
    if path.exists():
        raise EngineError(f"{path} exists and is not a checkpoint; save to a new directory")


def require_checkpoint(path: Path) -> None:
    """EngineError if there is no checkpoint, or if its table of contents cannot be read."""
    _read(path)


class _Saver(DefaultSavePlanner):
    """Writes slices."""

    def __init__(self, slices: Mapping[str, _Slice], specs: Mapping[str, _Spec]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._slices, self._specs = slices, specs

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([self._item(key, part) for key, part in self._slices.items()])
        return self.plan

    def _item(self, key: str, part: _Slice) -> WriteItem:
        chunk = ChunkStorageMetadata(torch.Size([part.begin]), part.values.shape)
        size = torch.Size([self._specs[key].numel])
        data = TensorWriteData(chunk, TensorProperties.create_from_tensor(part.values), size)
        return WriteItem(MetadataIndex(key, chunk.offsets), WriteItemType.SHARD, tensor_data=data)

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        return self._slices[index.fqn].values


class _Loader(DefaultLoadPlanner):
    """Reads slices, however they were divided when they were written."""

    def __init__(self, slices: Mapping[str, _Slice], specs: Mapping[str, _Spec]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._slices, self._specs = slices, specs

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items = []
        for key, part in self._slices.items():
            if not part.values.numel():  # nothing of it is saved
                continue
            stored = self.metadata.state_dict_metadata.get(key)
            if not isinstance(stored, TensorStorageMetadata) or list(stored.size) != [self._specs[key].numel]:
                raise ValueError(f"its parts do not add up to {key}")
            wanted = ChunkStorageMetadata(torch.Size([part.begin]), part.values.shape)
            items += create_read_items_for_chunk_list(key, stored, [wanted])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self._slices[index.fqn].values


def _read(path: Path) -> tuple[_Progress, dict[str, _Spec]]:
    if not path.is_dir():
        raise EngineError(f"{path} does not exist; name a directory that --save wrote")
    if not (path / HEADER).is_file():
        raise EngineError(f"{path} is not a complete checkpoint, {HEADER} is missing; name one that --save wrote")
    try:
        document = json.loads((path / HEADER).read_text())
        tensors = {key: _Spec(tuple(shape), str(dtype)) for key, (shape, dtype) in document["tensors"].items()}
        FileSystemReader(path).read_metadata()
        return _Progress.read(document), tensors
    except Exception as error:  # from json, pickle or the file system
        raise EngineError(f"{path} is damaged: {_one_line(error)}; resume from another") from None


# The state and this rank's part of it


def _require_savable(strategy: Strategy) -> None:
    if "save" in strategy.refuses:
        raise EngineError(strategy.refuses["save"])


def _describe(strategy: Strategy, optimizer: AdamW, step: int) -> tuple[_Progress, dict[str, _Spec]]:
    """The run's progress, and all tensors of its state by key; the same on all ranks."""
    _require_savable(strategy)
    strategy.settle()
    mine = {
        part.name: optimizer.updates_of(part.optimized)
        for _, part in _owned_parts(strategy)
        if part.optimized is not None
    }
    updates: dict[str, int] = {}
    for theirs in strategy.comm.gather_objects({name: count for name, count in mine.items() if count}):
        updates |= theirs
    progress = _Progress(step, updates, strategy.order)
    return progress, _specs(strategy, updates)


def _specs(strategy: Strategy, updates: Mapping[str, int]) -> dict[str, _Spec]:
    """All tensors of a state with these numbers of updates, by key."""
    specs = {}
    for name, parameter in strategy.model.named_parameters():
        dtype = strategy.dtypes[name]
        spec = specs[f"{PARAMETERS}.{name}"] = _Spec(tuple(parameter.shape), dtype_name(dtype))
        if parameter.requires_grad:
            exact = _Spec(spec.shape, dtype_name(AdamW.exact(dtype)))
            kinds = (() if exact == spec else (MASTERS,)) + (MOMENTS if updates.get(name) else ())
            specs |= {f"{kind}.{name}": exact for kind in kinds}
    for name, buffer in strategy.model.named_buffers():
        specs[f"{BUFFERS}.{name}"] = _Spec(tuple(buffer.shape), dtype_name(buffer.dtype))
    return specs


def _owned_parts(strategy: Strategy) -> list[tuple[str, OwnedPart]]:
    """This rank's parts of all parameters and buffers, each with its kind."""
    sharded, optimized = _sharded_names(strategy), dict(strategy.named_optimized())
    parts = [part for flat in strategy.flats for part in flat.parts] if isinstance(strategy, Sharded) else []
    parts += [
        OwnedPart(name, 0, p.detach(), optimized.get(name))
        for name, p in strategy.model.named_parameters()
        if name not in sharded
    ]
    buffers = [OwnedPart(name, 0, buffer, None) for name, buffer in strategy.model.named_buffers()]
    return [(PARAMETERS, part) for part in parts] + [(BUFFERS, part) for part in buffers]


def _sharded_names(strategy: Strategy) -> set[str]:
    """Parameters of which each rank owns a part; every rank has all of the others."""
    return {name for flat in strategy.flats for name in flat.names} if isinstance(strategy, Sharded) else set()


def _slices(strategy: Strategy, optimizer: AdamW) -> dict[str, _Slice]:
    """The slices that this rank saves, by key. Rank 0 saves what all ranks have, as its buffers are the valid ones."""
    sharded = _sharded_names(strategy)
    slices: dict[str, _Slice] = {}
    for owned_kind, part in _owned_parts(strategy):
        if part.name in sharded or strategy.comm.rank == 0:
            tensors = {owned_kind: part.values} | ({} if part.optimized is None else optimizer.state_of(part.optimized))
            slices |= {f"{kind}.{part.name}": _Slice(part.begin, t.detach().reshape(-1)) for kind, t in tensors.items()}
    return {key: each for key, each in slices.items() if each.values.numel()}


def _empty_slices(strategy: Strategy, specs: Mapping[str, _Spec]) -> dict[str, _Slice]:
    """Make empty slices for this rank's parts of these tensors; on the CPU, so that a GPU does not hold them twice."""
    return {
        key: _Slice(part.begin, specs[key].zeros(part.values.numel()))
        for owned_kind, part in _owned_parts(strategy)
        for key in (
            f"{kind}.{part.name}" for kind in (owned_kind, *(() if part.optimized is None else (MASTERS, *MOMENTS)))
        )
        if key in specs
    }


@torch.no_grad()
def _adopt(strategy: Strategy, optimizer: AdamW, progress: _Progress, slices: Mapping[str, _Slice]) -> None:
    """Make the loaded slices the state; gradients are discarded."""
    strategy.settle()
    strategy.zero_grad()
    for owned_kind, part in _owned_parts(strategy):
        part.values.copy_(slices[f"{owned_kind}.{part.name}"].values.view(part.values.shape))
        if part.optimized is not None:
            keys = {kind: f"{kind}.{part.name}" for kind in (MASTERS, *MOMENTS)}
            state = {kind: slices[key].values for kind, key in keys.items() if key in slices}
            optimizer.restore(part.optimized, state, progress.updates.get(part.name, 0))
    if progress.order is not None and set(progress.order) == set(strategy.names):
        strategy.rebuild_as(progress.order)
    strategy.updated()
    strategy.settle()


def _match_specs(
    strategy: Strategy, progress: _Progress, offered: Mapping[str, _Spec], source: Path
) -> dict[str, _Spec]:
    """Return the tensors that this model needs. EngineError if the offered ones differ."""
    needed = _specs(strategy, progress.updates)
    for key, spec in needed.items():
        kind, _, name = key.partition(".")
        what = name if kind in (PARAMETERS, BUFFERS) else key
        if key not in offered:
            raise EngineError(f"{source} lacks the model's {what}; {REMEDY}")
        if offered[key] != spec:
            raise EngineError(f"{source} has {what} {offered[key]}, the model has {spec}; {REMEDY}")
    for key in offered:
        kind, _, name = key.partition(".")
        if kind in (PARAMETERS, BUFFERS) and key not in needed:
            raise EngineError(f"{source} has {name}, which the model lacks; {REMEDY}")
    return needed


# Errors


def _run_on_all_ranks(comm: Communicator, run: Callable[[], T]) -> T:
    """Call `run` and return its value; if it raises EngineError on some rank, all ranks raise it."""
    value: T | None = None
    message = ""
    try:
        value = run()
    except EngineError as error:
        message = str(error)
    for ranks_message in comm.gather_objects(message):
        if ranks_message:
            raise EngineError(ranks_message)
    return value  # type: ignore[return-value]  # without an error it is set


@contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into EngineError."""
    try:
        yield
    except OSError as error:
        raise EngineError(f"{path} cannot be written: {_one_line(error)}") from None


def _first_failure(error: CheckpointException) -> str:
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {_one_line(cause)}"


def _one_line(error: BaseException) -> str:
    """The error's type and first line; torch's messages continue with advice."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
