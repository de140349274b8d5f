"""Predicted steps against recorded ones, on the sleeping device: how far the programs of another setting are right.

    python benchmarks/predictions.py OUT               all targets
    python benchmarks/predictions.py OUT --targets 6   the first six
    python benchmarks/predictions.py OUT --stretch 4   work and transfers of four times the length
    python benchmarks/predictions.py OUT --source ring another source, with targets of its own: see SOURCES

One source is recorded. The predictions for all targets are written to OUT/predicted.json before the first target is
recorded. Each target's line: median step predicted and recorded, and the error; at the end the mean and the worst, raw,
without targets whose recording did not attain its link.
What a strategy costs the host per launch is not in a recording of another; stretched steps show how much of the error
that is. Run it on an idle machine.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import typer
from _shared import record, recorded_ms, setting_options

import overlaplab
from overlaplab.costs import link_attained
from overlaplab.manifest import Link
from overlaplab.simulate.player import Program, play
from overlaplab.simulate.programs import all_programs
from overlaplab.simulate.programs.setting import Setting

COMMON = (*("--layers", "6", "--width", "64", "--vocab", "320", "--seq", "8", "--batch", "1"),)
"""Six layers of 200 kB, an embedding and a head of 80 kB."""
SLEEP_MS = (8, 16, 1)
"""Each of eight units takes so long forward, backward and by the optimizer: 200 ms of work."""
LINK = (0.1, 500)
"""Gbit/s and µs."""
CAP_MB = 0.2
CHANGES = (
    *({"bucket_cap_mb": cap} for cap in (0.05, 0.1, 0.5, 25.0)),
    *({"first_bucket_mb": first} for first in (0.02, 0.6)),
    {"strategy": "naive"},
    {"strategy": "per-param"},
    *({"strategy": "torch-ddp", "bucket_cap_mb": cap} for cap in (0.2, 25.0)),
    *({"strategy": name, "bucket_cap_mb": cap} for name in ("zero1", "zero2") for cap in (0.2, 0.5)),
    *({"strategy": "zero3", "prefetch": depth} for depth in (0, 1, 2)),
    *({"strategy": "torch-fsdp2", "prefetch": depth} for depth in (0, 1)),
    *({"link": link} for link in ((0.05, 500), (0.4, 500), (0.1, 200), (0.1, 5000))),
    *({"ranks": ranks} for ranks in (3, 4, 8)),
    {"strategy": "zero3", "ranks": 4},
    {"strategy": "zero2", "ranks": 4},
    *({"accumulate": microbatches} for microbatches in (2, 4)),
    {"strategy": "zero3", "accumulate": 2},
)
LINKS = tuple({"link": link} for link in ((0.05, 500), (0.4, 500), (0.1, 200), (0.1, 5000)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is recorded first, and what is predicted from it."""

    setting: Mapping[str, Any] = field(default_factory=dict)
    """Its setting, as far as it is not the usual one."""
    mesh: tuple[str, ...] = ()
    """Options that make the mesh, of which nothing but the link is changed."""
    changes: tuple[Mapping[str, Any], ...]


SOURCES = {
    "bucketed": Source(changes=CHANGES),
    "bucketed-to-messages": Source(
        changes=(
            *({"strategy": name, "ranks": ranks} for name in ("ring", "tree") for ranks in (2, 3, 4)),
            *({"strategy": "parameter-server", "ranks": ranks} for ranks in (2, 4)),
        )
    ),
    "ring": Source(
        setting={"strategy": "ring"},
        changes=(
            *LINKS,
            *({"ranks": ranks} for ranks in (3, 4)),
            *({"bucket_cap_mb": cap} for cap in (0.05, 0.5)),
            *({"strategy": name} for name in ("tree", "bucketed", "parameter-server")),
        ),
    ),
    "parameter-server": Source(
        setting={"strategy": "parameter-server"}, changes=(*LINKS, *({"ranks": ranks} for ranks in (3, 4)))
    ),
    "tensor": Source(setting={"strategy": "tensor"}, mesh=("--tp", "2"), changes=LINKS),
    "dp-tp": Source(
        setting={"strategy": "tensor", "ranks": 4, "bucket_cap_mb": CAP_MB},
        mesh=("--dp", "2", "--tp", "2"),
        changes=LINKS,
    ),
    "hsdp": Source(setting={"strategy": "zero3", "ranks": 4}, mesh=("--hsdp", "2x2"), changes=LINKS),
}


def main(
    out: Path,
    source: Annotated[str, typer.Option(help=f"One of {', '.join(SOURCES)}.")] = "bucketed",
    targets: Annotated[int | None, typer.Option(help="How many; all without it.")] = None,
    stretch: Annotated[int, typer.Option(help="How many times longer work and transfers take.")] = 1,
) -> None:
    """Record, predict, record, compare."""
    origin = SOURCES[source]
    changes = origin.changes[:targets]
    chosen = [target(origin, change, stretch) for change in changes]
    recorded = recording(target(origin, {}, stretch), out / "source", origin.mesh, stretch)
    predicted = [step_ms(all_programs(recorded, predicted_setting(origin, setting))) for setting in chosen]
    (out / "predicted.json").write_text(json.dumps(predicted))
    replayed, took = step_ms(all_programs(recorded, Setting())), recorded_ms(recorded)
    print(f"replay of the source: {replayed:.1f} ms, recorded {took:.1f} ms, {replayed / took - 1:+.2%}")
    errors = []
    for number, (setting, expected) in enumerate(zip(chosen, predicted, strict=True)):
        run = recording(setting, out / str(number), origin.mesh, stretch)
        really, attained = recorded_ms(run), run.manifest is None or link_attained(run.manifest) is not False
        if attained:
            errors.append(expected / really - 1)
        words = " ".join(f"{name}={value}" for name, value in changes[number].items())
        missed = "" if attained else "; link not attained, not counted"
        print(f"{expected:8.1f} {really:8.1f} ms {expected / really - 1:+7.2%}  {words}{missed}", flush=True)
    print(f"mean {fmean(map(abs, errors)):.2%}, worst {max(map(abs, errors)):.2%}")


def target(source: Source, change: Mapping[str, Any], stretch: int) -> Setting:
    """The source's setting with a change; a link is given as bandwidth and latency."""
    values = {"strategy": "bucketed", "link": LINK, "ranks": 2} | dict(source.setting) | dict(change)
    gbps, latency_us = values["link"]
    values["link"] = Link(
        emulated=True, bandwidth_gbps=gbps / stretch, latency_us=latency_us * stretch, world_size=values["ranks"]
    )
    if values["strategy"] in ("bucketed", "ring", "tree", "zero2"):
        values.setdefault("bucket_cap_mb", CAP_MB)
    return Setting(**values)


def predicted_setting(source: Source, setting: Setting) -> Setting:
    """The setting that is predicted; of a mesh only its link."""
    return Setting(link=setting.link) if source.mesh else setting


def recording(setting: Setting, out: Path, mesh: Sequence[str], stretch: int) -> overlaplab.Run:
    """The engine with this setting, asleep."""
    sleep = "sleep:" + ",".join(f"{ms * stretch}ms" for ms in SLEEP_MS)
    return record(out, *setting_options(setting), *COMMON, *mesh, "--steps", "6", "--compute", sleep)


def step_ms(programs: tuple[Program, ...]) -> float:
    """The median step of all ranks."""
    played = play(programs)
    return median(ns for rank in range(len(programs)) for ns in played.spans_ns(rank)) / 1e6


if __name__ == "__main__":
    typer.run(main)
