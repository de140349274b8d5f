"""Which runs the Compare page begins with."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from overlaplab.analyses.across_runs.settings import settings_differ
from overlaplab.dashboard.beside import runs_beside
from overlaplab.manifest import Manifest

LINK = {"emulated": True, "bandwidth_gbps": 1, "latency_us": 200, "world_size": 2}


def told(strategy: str, **changes: Any) -> Manifest:
    raw = {
        "format_version": 1,
        "strategy": strategy,
        "device": "cpu",
        "backend": "gloo",
        "world_size": 2,
        "model": {"layers": 2, "width": 64, "dtype": "float32"},
        "accumulate": 1,
        "link": LINK,
    } | changes
    return msgspec.convert({**raw, "raw": raw}, type=Manifest)


def swept(cap: float, **changes: Any) -> Manifest:
    return told("bucketed", bucket_cap_mb=cap, **changes)


RUNS = {
    "naive": told("naive"),
    "bucketed": swept(4),
    "serial": told("zero3", prefetch=0),
    "half": told("zero3", prefetch=1, model={"layers": 2, "width": 64, "dtype": "bfloat16"}),
    "deep": told("naive", model={"layers": 8, "width": 64, "dtype": "float32"}),
    "fast": told("naive", link=None),
    "caps/cap-1": swept(1),
    "caps/cap-4": swept(4),
    "caps/cap-4-2": swept(4),
    "caps/zero2": told("zero2"),
    "far/deep": told("zero2", model={"layers": 8, "width": 64, "dtype": "float32"}),
    "foreign": None,
}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("naive", ["bucketed", "half", "naive", "serial"]),  # of its own folder, in any strategy and precision
        ("half", ["bucketed", "half", "naive", "serial"]),
        ("caps/cap-4", ["caps/cap-1", "caps/cap-4", "caps/cap-4-2"]),  # a sweep
        ("caps/zero2", ["caps/cap-1", "caps/cap-4", "caps/cap-4-2", "caps/zero2"]),
        ("deep", ["deep", "far/deep"]),  # there is none in its own folder
    ],
)
def test_runs_of_the_same_work_stand_beside_each_other(run: str, expected: list[str]) -> None:
    assert runs_beside(run, RUNS) == (expected, None)


def test_what_differs_is_said() -> None:
    runs = {name: RUNS[name] for name in ("naive", "deep", "fast", "foreign")}
    assert runs_beside("naive", runs) == (
        ["naive"],
        "No other run here did the same work as naive: deep differs in layers; fast differs in the link;"
        " foreign: model unknown (no run.json).",
    )
    found, why = runs_beside("foreign", runs)
    assert found == ["foreign"]
    assert why == "foreign has no run.json, so which runs did the same work is unknown: choose those to compare."
    assert runs_beside("naive", {"naive": RUNS["naive"]})[1] == "There is no other run to compare naive with."


def test_of_many_runs_the_chosen_one_is_there() -> None:
    many = {f"run-{number}": told("naive") for number in range(30)}
    found, _ = runs_beside("run-29", many)
    assert len(found) == 12
    assert found[-1] == "run-29"


def test_of_a_large_sweep_every_cap_is_there_once_before_any_is_twice() -> None:
    many = {
        f"cap-{cap}" + (f"-{number}" if number > 1 else ""): swept(cap)
        for cap in (1, 2, 5, 10, 25)
        for number in range(1, 7)
    }
    found, _ = runs_beside("cap-1-6", many)
    assert len(found) == 24
    assert {f"cap-{cap}-{number}" for cap in (1, 2, 5, 10, 25) for number in (2, 3, 4)} < set(found)
    assert "cap-1-6" in found


def test_runs_that_differ_in_ranks_do_not_differ_in_their_link() -> None:
    """A link holds its number of ranks, which is `world_size` again."""
    two, four = (
        {"world_size": ranks, "link": {"bandwidth_gbps": 1.0, "latency_us": 10.0, "world_size": ranks}}
        for ranks in (2, 4)
    )
    assert settings_differ(two, four) == ["world_size"]
    assert settings_differ(two, four | {"link": None}) == ["world_size", "link"]
