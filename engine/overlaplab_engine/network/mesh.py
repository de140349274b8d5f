"""The mesh of ranks: how many work together along each axis, and which ranks form a group."""

from dataclasses import dataclass
from math import prod

from overlaplab_engine.errors import EngineError

_SPLIT = ("replicate", "shard")
"""HSDP: the axes that stand for `dp`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Data-parallel, pipeline and tensor-parallel sizes; ranks are counted as in torch's DeviceMesh.

    Neighbouring ranks share a tensor-parallel group, which communicates most; then comes the data-parallel axis, and
    pipeline stages are outermost: rank = (pp · dp_size + dp) · tp_size + tp. With HSDP, parameters are sharded among
    neighbours: dp = replicate · shard_size + shard.
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    replicate: int | None = None
    """HSDP: groups that each hold all shards, `replicate` × `shard` = `dp`; None: the axis is not split."""
    shard: int | None = None
    """HSDP: ranks among which parameters are sharded."""

    def __post_init__(self) -> None:
        for axis, size in self.axes.items():
            if size < 1:
                raise EngineError(f"the mesh's size along {axis} must be 1 or more, not {size}")
        if (self.replicate is None) != (self.shard is None):
            raise EngineError("HSDP needs the numbers of replicas and of shards, such as --hsdp 2x2")
        if self.replicate is not None and self.replicate * (self.shard or 0) != self.dp:
            raise EngineError(f"--hsdp {self.replicate}x{self.shard} does not make --dp {self.dp}")

    @classmethod
    def of(
        cls, ranks: int, *, dp: int | None = None, hsdp: tuple[int, int] | None = None, **sizes: int | None
    ) -> "Mesh":
        """The mesh of so many ranks; other axes left out have 1, and dp what remains. EngineError if they do not fit.

        `hsdp`: replicas, and shards of each.
        """
        others = {axis: size for axis, size in sizes.items() if size is not None}
        replicate, shard = hsdp or (None, None)
        least = cls(dp=prod(hsdp or (1,)) if dp is None else dp, replicate=replicate, shard=shard, **others)
        if least.size == ranks:
            return least
        if least.size > ranks:
            raise EngineError(f"the mesh {least} needs {least.size} ranks, and there are {ranks}")
        if dp is not None or hsdp is not None:
            raise EngineError(f"the mesh {least} has {least.size} ranks, and there are {ranks}")
        if ranks % least.size:
            raise EngineError(f"the mesh {least} does not divide {ranks} ranks")
        return cls(dp=ranks // least.size, **others)

    def __str__(self) -> str:
        return " × ".join(f"{axis} {size}" for axis, size in self.axes.items() if size > 1) or "one rank"

    @property
    def size(self) -> int:
        return prod(self.axes.values())

    @property
    def axes(self) -> dict[str, int]:
        """The size of each axis, outermost first; with HSDP `replicate` and `shard` stand for `dp`."""
        data = ("dp",) if self.replicate is None or self.shard is None else _SPLIT
        return {axis: getattr(self, axis) for axis in ("pp", *data, "tp")}

    @property
    def group_axes(self) -> list[str]:
        """The axes beside `dp` along which ranks form groups; those that split it also where one has a single rank."""
        return [axis for axis, size in self.axes.items() if axis in _SPLIT or (axis != "dp" and size > 1)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """A rank's place along each of the `axes`."""
        places: dict[str, int] = {}
        for axis, size in reversed(self.axes.items()):
            rank, places[axis] = divmod(rank, size)
        return {axis: places[axis] for axis in self.axes}

    def groups(self, axis: str) -> list[list[int]]:
        """The ranks of each group along one of the `axes`, or `dp`: those whose places differ in nothing else."""
        varied = {axis} if axis in self.axes else set(_SPLIT)
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            fixed = tuple(place for name, place in self.coordinates(rank).items() if name not in varied)
            groups.setdefault(fixed, []).append(rank)
        return list(groups.values())
