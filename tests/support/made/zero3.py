"""A step of ZeRO-3 made by rule: when a rank with prefetch P does what, and when its link, as the tables
that analyses make of it, and as the events of a trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from made.traces import event, op, step

LAYER, EMBEDDING, HEAD = 400_000, 100_000, 50_000  # bytes gathered
USE = {"forward": 1500, "backward": 3000}  # µs that a layer computes
GATHER, SCATTER = 1800, 1200  # µs on the link


@dataclass
class Step:
    """What happened in a step, times in µs from its start."""

    gathers: list[dict[str, Any]] = field(default_factory=list)
    scatters: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    now: int = 0
    link_free: int = 0
    seq: int = 0

    def label(self, text: str, start: int, end: int | None = None, tid: int = 1) -> None:
        self.events.append(event(f"engine::{text}", start, end or start + 1, cat="user_annotation", tid=tid))

    def send(self, kind: str, size: int, took: int, call: str) -> tuple[int, int, int]:
        """When a collective was launched, started and ended."""
        launch, start = self.now, max(self.now + 3, self.link_free)
        self.label(call, launch, launch + 4)
        self.label(f"launch seq={self.seq}", launch + 1, launch + 2)
        text = f"comm seq={self.seq} kind={kind} dtype=float32 bytes={size} group=0 link=1Gbps,200us modelled_ns=1"
        self.label(text, start, start + took, tid=7)
        self.seq += 1
        self.now, self.link_free = launch + 5, start + took
        return launch, start, start + took

    def gather(self, unit: str, phase: str, microbatch: int, kept: bool) -> dict[str, Any]:
        size = sizes(unit)
        call = f"gather_launch unit={unit} phase={phase} microbatch={microbatch} bytes={size}"
        launch, start, end = self.send("all_gather", size, GATHER * size // LAYER, call)
        row = {"unit": unit, "microbatch": microbatch, "phase": phase, "bytes": size, "kept": kept}
        row |= {"gather_launch": launch, "gather_start": start, "gather_end": end}
        self.gathers.append(row)
        return row

    def wait(self, row: dict[str, Any]) -> None:
        begin, self.now = self.now, max(self.now + 2, row["gather_end"])
        row["wait"] = max(0, row["gather_end"] - begin)
        text = f"gather_wait unit={row['unit']} phase={row['phase']} microbatch={row['microbatch']}"
        self.label(text, begin, self.now)

    def use(self, row: dict[str, Any], phase: str) -> None:
        first, took = self.now + 1, USE[phase] * row["bytes"] // LAYER
        again = "backward_" if phase != row["phase"] else ""
        row[f"{again}first_use"], row[f"{again}last_use"] = first, first + took
        where = f"unit={row['unit']} phase={phase} microbatch={row['microbatch']}"
        self.label(f"first_use {where}", first)
        self.events.append(op("mm", first + 1, first + took, tid=1 if phase == "forward" else 2))
        self.label(f"last_use {where}", first + took)
        self.now = first + took + 2

    def free(self, row: dict[str, Any], phase: str) -> None:
        row["free"], row["free_phase"] = self.now, phase
        where = f"unit={row['unit']} phase={phase} microbatch={row['microbatch']} bytes={row['bytes']}"
        self.label(f"free {where}", self.now)
        self.now += 2

    def scatter(self, unit: str, microbatch: int) -> None:
        size = sizes(unit)
        call = f"scatter_launch unit={unit} microbatch={microbatch} bytes={size}"
        launch, start, end = self.send("reduce_scatter", size, SCATTER * size // LAYER, call)
        row = {"unit": unit, "microbatch": microbatch, "bytes": size}
        self.scatters.append(row | {"launch": launch, "start": start, "end": end})


def sizes(unit: str) -> int:
    return {"embedding": EMBEDDING, "head": HEAD}.get(unit, LAYER)


def made_step(layers: int, prefetch: int, microbatches: int = 1, *, seq: int = 0) -> Step:
    """What a rank does in one step: `layers` layers between an embedding and a head; `seq` numbers its collectives."""
    made = Step(seq=seq)
    for microbatch in range(microbatches):
        kept = {f"layers.{layers - 1}", "head"}
        forward = ["embedding", *(f"layers.{layer}" for layer in range(layers)), "head"]
        began, rows = made.now, _pass(made, forward, "forward", microbatch, prefetch, {}, kept)
        made.label(f"forward microbatch={microbatch}", began, made.now)
        began = made.now
        backward = [unit for unit in reversed(forward) if unit != "embedding"]
        held = {unit: rows[unit] for unit in kept}
        _pass(made, backward, "backward", microbatch, prefetch, held, set())
        made.scatter("embedding", microbatch)
        made.label(f"backward microbatch={microbatch} sync=1", began, made.now)
    began, made.now = made.now, max(made.now, made.link_free)
    made.label("wait", began, made.now)
    for row in made.scatters:
        made.label(f"scatter_done unit={row['unit']} microbatch={row['microbatch']}", made.now)
        made.now += 2
    made.label("optimizer", made.now, made.now + 2000)
    made.events.append(op("add_", made.now, made.now + 2000))
    made.now += 2100
    return made


def _pass(
    made: Step,
    units: list[str],
    phase: str,
    microbatch: int,
    prefetch: int,
    held: dict[str, dict[str, Any]],
    kept: set[str],
) -> dict[str, dict[str, Any]]:
    rows = dict(held)
    for place, unit in enumerate(units):
        for ahead in units[place : place + prefetch + 1]:
            if ahead not in rows:
                rows[ahead] = made.gather(ahead, phase, microbatch, ahead in kept)
        if unit not in held:
            made.wait(rows[unit])
        made.use(rows[unit], phase)
        if unit not in kept:
            made.free(rows[unit], phase)
        if phase == "backward":
            made.scatter(unit, microbatch)
    return rows


def schedule_table(made: Step, rank: int = 0, number: int = 3) -> pd.DataFrame:
    """What `overlaplab.schedule` finds in the step."""
    rows = [
        {"rank": rank, "step": number, "unit": row["unit"], "layer": layer_number(row["unit"])}
        | {key: row[key] for key in ("microbatch", "phase")}
        | {
            f"{time}_ns": row[time] * 1000 if time in row else None
            for time in (
                "gather_launch", "gather_start", "gather_end", "first_use", "last_use", "backward_first_use",
                "backward_last_use", "free",
            )
        }
        | {"free_phase": row["free_phase"], "wait_ns": row["wait"] * 1000, "bytes": row["bytes"]}
        | {"resharded_bytes": 0, "resharded_until_ns": None}
        | {"held_ns": row["gather_launch"] * 1000, "source": "engine"}
        for row in made.gathers
    ]  # fmt: skip
    return integers(pd.DataFrame(rows))


def scatters_table(made: Step, rank: int = 0, number: int = 3) -> pd.DataFrame:
    """What `overlaplab.analyses.scatters` finds in the step."""
    rows = [
        {"rank": rank, "step": number, "unit": row["unit"], "layer": layer_number(row["unit"])}
        | {"microbatch": row["microbatch"], "bytes": row["bytes"]}
        | {f"{time}_ns": row[time] * 1000 for time in ("launch", "start", "end")}
        for row in made.scatters
    ]
    return integers(pd.DataFrame(rows))


def integers(table: pd.DataFrame) -> pd.DataFrame:
    return table.astype(
        dict.fromkeys((c for c in table if c not in ("unit", "phase", "free_phase", "source")), "Int64")
    )


def layer_number(unit: str) -> int | None:
    last = unit.rpartition(".")[2]
    return int(last) if last.isdecimal() else None


def zero3_events(layers: int, prefetch: int, *, microbatches: int = 1, steps: int = 2) -> list[dict[str, Any]]:
    """The trace of a rank that takes so many steps."""
    events, at = [], 0
    seq = 0
    for number in range(steps):
        made = made_step(layers, prefetch, microbatches, seq=seq)
        events.append(step(number + 3, at, at + made.now))
        events += [one | {"ts": one["ts"] + at} for one in made.events]
        at, seq = at + made.now, made.seq
    return events
