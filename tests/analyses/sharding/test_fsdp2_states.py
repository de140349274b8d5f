"""What FSDP2 holds over time, from its ranges, against the states that torch itself gives its units, on real ranks."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from ranks.warm_ranks import run_warm

import overlaplab
from overlaplab.analyses import gathered_bytes, schedule_steps
from overlaplab.findings import schedule_notes

PROGRAM = Path(__file__).parents[2] / "support" / "programs" / "fsdp2_states.py"
ONE_ROOT = {
    **dict.fromkeys(("freed", "kept", "twice", "late", "judged first"), 0),
    **dict.fromkeys(("halves", "late halves", "replicas"), 8),  # four layers, two microbatches
    "whole halves": 10,
    "twice halves": 16,
}
"""Kinds of recordings with one root, and after how many gathers of a step torch keeps half of the unit."""
SEVERAL = {
    "roots": {"root 0", "root 1", "root 2"},
    "roots freed": {"root 0", "root 1", "root 2"},
    "roots halves": {"root 0", "root 1", "root 2"},
    "adversaries": {"root 0", "root 1", "layers.0", "layers.1"},
    "two": {f"root {root}{unit}" for root in (0, 1) for unit in ("", ".layers.0", ".layers.1")},
    "two bare": {f"root {root}.layers.{layer}" for root in (0, 1) for layer in (0, 1)},
    "two, one of layers": {"root 0", "root 1", "layers.0", "layers.1"},
}
"""Kinds with several roots, and the names of their units."""
UNCLEAR = ("alike adversaries", "two apart")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("states")
    ended = run_warm(4, str(PROGRAM), str(out), *ONE_ROOT, *SEVERAL, *UNCLEAR, "taught")
    assert [rank.code for rank in ended] == [0] * 4, ended[0].stderr
    return out


def states(folder: Path) -> list[list[int]]:
    """The bytes that torch holds in each step, one after the other, without those that it holds all the time."""
    events = json.loads((folder / "rank0.pt.trace.json").read_text())["traceEvents"]
    named = sorted((e["ts"], e["name"]) for e in events if e.get("cat") == "user_annotation")
    starts = [at for at, name in named if name.startswith("ProfilerStep")]
    held = [(at, int(name.split()[1])) for at, name in named if name.startswith("held ")]
    steps = [[size for at, size in held if start <= at < end] for start, end in pairwise([*starts, float("inf")])]
    return [changes([size - step[-1] for size in step]) for step in steps]


def changes(sizes: list[int]) -> list[int]:
    return [0, *(size for before, size in pairwise([0, *sizes]) if size != before)]


@pytest.mark.parametrize("kind", [*ONE_ROOT, *SEVERAL, "taught"])
def test_what_is_held_is_what_torch_holds(recordings: Path, kind: str) -> None:
    """Gather by gather, in both recorded steps."""
    table, truth = overlaplab.schedule(overlaplab.load_run(recordings / kind)), states(recordings / kind)
    assert [changes(curve) for curve in gathered_bytes(table).groupby("step")["bytes"].agg(list)] == truth
    assert schedule_steps(table)["peak_gathered_bytes"].tolist() == [*map(max, truth)]
    assert (table["resharded_bytes"] <= table["bytes"]).all()
    assert (schedule_steps(table)["partial_frees"] == ONE_ROOT.get(kind, 6 if kind == "roots halves" else 0)).all()


@pytest.mark.parametrize("kind", SEVERAL)
def test_units_of_several_roots_have_names_of_their_own(recordings: Path, kind: str) -> None:
    table = overlaplab.schedule(overlaplab.load_run(recordings / kind))
    assert set(table["unit"]) == SEVERAL[kind]
    assert any("FSDP2 roots of their own" in note for note in schedule_notes(table)) == (len(SEVERAL[kind]) > 1)


def test_roots_are_gathered_once_for_each_microbatch(recordings: Path) -> None:
    """And freed in the backward pass."""
    table = overlaplab.schedule(overlaplab.load_run(recordings / "roots"))
    counted = schedule_steps(table)
    assert (counted[["microbatches", "gathers", "frees"]] == [2, 6, 6]).all(axis=None)
    assert set(table["phase"]) == {"forward"}
    assert set(table["free_phase"]) == {"backward"}


@pytest.mark.parametrize("kind", UNCLEAR)
def test_where_roots_cannot_be_told_apart_there_is_no_number(recordings: Path, kind: str) -> None:
    """As if one unit were gathered twice for the forward passes and not for the backward pass."""
    table = overlaplab.schedule(overlaplab.load_run(recordings / kind))
    assert schedule_steps(table)["peak_gathered_bytes"].isna().all()
    assert gathered_bytes(table)["bytes"].isna().all()
    assert any("(root) it cannot be told when they were freed" in note for note in schedule_notes(table))
    unclear = table[table["unit"] == "root"]
    assert pd.isna(unclear["free_ns"]).any()
