"""The mesh: which rank is where, which ranks form a group, and what cannot be."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest
import torch
from overlaplab_engine.cli import _hsdp, _ranks_needed
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.mesh import Mesh

import overlaplab.manifest


def test_ranks_of_all_axes() -> None:
    mesh = Mesh(dp=2, pp=2, tp=3)
    assert mesh.size == 12
    assert mesh.coordinates(7) == {"pp": 1, "dp": 0, "tp": 1}
    assert mesh.groups("tp") == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert mesh.groups("dp") == [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]]
    assert mesh.groups("pp") == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]


def test_hsdp_splits_the_data_parallel_axis() -> None:
    mesh = Mesh.of(8, tp=2, hsdp=(2, 2))
    assert mesh == Mesh(dp=4, tp=2, replicate=2, shard=2)
    assert mesh.axes == {"pp": 1, "replicate": 2, "shard": 2, "tp": 2}
    assert mesh.groups("shard") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("replicate") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups("dp") == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_groups_are_those_of_torch() -> None:
    """As DeviceMesh forms them: the ranks laid out in order of the axes, and read along one of them."""
    mesh = Mesh(dp=6, pp=2, tp=2, replicate=3, shard=2)
    ranks = torch.arange(mesh.size).view(*mesh.axes.values())
    for place, axis in enumerate(mesh.axes):
        assert mesh.groups(axis) == ranks.movedim(place, -1).flatten(0, -2).tolist()


def test_what_is_left_out_is_data_parallel() -> None:
    assert Mesh.of(4) == Mesh(dp=4)
    assert Mesh.of(4, tp=2) == Mesh(dp=2, tp=2)
    assert Mesh.of(4, dp=2, pp=2) == Mesh(dp=2, pp=2)
    assert str(Mesh.of(8, dp=2, tp=4)) == "dp 2 × tp 4"


@pytest.mark.parametrize(
    ("ranks", "sizes", "message"),
    [
        (2, {"dp": 2, "tp": 2}, "the mesh dp 2 × tp 2 needs 4 ranks, and there are 2"),
        (8, {"dp": 2, "tp": 2}, "the mesh dp 2 × tp 2 has 4 ranks, and there are 8"),
        (4, {"tp": 3}, "the mesh tp 3 does not divide 4 ranks"),
        (2, {"tp": 0}, "the mesh's size along tp must be 1 or more, not 0"),
        (2, {"dp": -1}, "the mesh's size along dp must be 1 or more, not -1"),
        (4, {"dp": 2, "hsdp": (2, 2)}, "--hsdp 2x2 does not make --dp 2"),
        (4, {"hsdp": (0, 2)}, "the mesh's size along replicate must be 1 or more, not 0"),
    ],
)
def test_what_cannot_be_is_one_line(ranks: int, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(EngineError, match=f"^{re.escape(message)}$"):
        Mesh.of(ranks, **sizes)


def test_the_command_line() -> None:
    sizes = {"dp": None, "pp": None, "tp": None, "hsdp": None, "stages": None, "schedule": "gpipe"}
    assert _ranks_needed(sizes) == 1
    assert _ranks_needed(sizes | {"dp": 2, "tp": 2}) == 4
    assert _ranks_needed(sizes | {"hsdp": _hsdp("2x3"), "pp": 2}) == 12
    assert _ranks_needed(sizes | {"dp": 2, "stages": "3"}) == 6
    assert _ranks_needed(sizes | {"stages": "4", "schedule": "interleaved-1f1b"}) == 2
    with pytest.raises(EngineError, match="--hsdp '2' is not REPLICASxSHARDS such as 2x2"):
        _hsdp("2")


@pytest.mark.parametrize("mesh", [Mesh(dp=2, pp=2, tp=3), Mesh(dp=4, replicate=2, shard=2)])
def test_the_analyser_reads_the_same_mesh(mesh: Mesh) -> None:
    read = overlaplab.manifest.Mesh(**asdict(mesh))
    assert (read.size, read.axes) == (mesh.size, mesh.axes)
    assert all(read.coordinates(rank) == mesh.coordinates(rank) for rank in range(mesh.size))
