"""What `gpu.py` has measured, as Markdown; the bound is found from its recorded runs by overlaplab."""

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, Any]

SHARE = 0.7
"""What communication alone is to take of backward alone."""


def pick_link(backward_s: float, buckets: Sequence[int], world: int) -> tuple[float, float]:
    """Gbit/s and µs of a link on which these buckets' all-reduces take `SHARE` of so many seconds.

    Latency takes half of that at most. T is a ring's: see engine/overlaplab_engine/network/link.py.
    """
    rounds, wanted_ns = 2 * (world - 1), SHARE * backward_s * 1e9
    latency_us = next((us for us in (10.0, 5.0, 2.0, 1.0) if len(buckets) * rounds * us * 1e3 <= wanted_ns / 2), 0.0)
    left_ns = wanted_ns - len(buckets) * rounds * latency_us * 1e3
    return float(f"{rounds / world * sum(buckets) * 8 / left_ns:.2g}"), latency_us


def share(alone: Figures) -> float:
    """Communication alone ÷ backward alone."""
    return float(alone["communication"] / alone["backward"])


def best_cap(curve: Figures) -> tuple[float, float]:
    """The cap with the least median step time, and that time in seconds."""
    medians = [statistics.median(times) for times in curve["seconds"]]
    return curve["caps"][medians.index(min(medians))], min(medians)


def tables(out: Path) -> str:
    """All tables of what lies in `out`; what is missing is left out."""
    figures = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    rows = [
        "| what | figure | goal |",
        "|---|---|---|",
        *_passes(figures),
        *_ratios(figures),
        *_peaks(out),
        *_bounds(out, figures),
    ]
    return "\n".join([*_device(figures), "", *rows, *_curves(figures), *_commands(out)])


def _device(figures: dict[str, Figures]) -> Iterator[str]:
    for part in list(figures.values())[:1]:
        wait = f", --link-wait {part['link_wait']}" if "link_wait" in part else ""
        where = f"{part.get('device', 'CPU')}, torch {part['torch']}"
        yield f"{where}; one rank of an emulated group, its peers phantoms{wait}"


def _passes(figures: dict[str, Figures]) -> Iterator[str]:
    if alone := figures.get("alone"):
        passes = ", ".join(f"{name} {alone[name] * 1e3:.1f} ms" for name in ("forward", "backward"))
        yield (
            f"| one pass without communication, {alone['parameters'] / 1e6:.0f}M parameters "
            f"| {passes}; the host takes {alone['host'] * 1e3:.1f} ms | |"
        )
        yield (
            f"| communication alone ÷ backward alone, link {alone['link']}, {len(alone['buckets'])} buckets "
            f"| {share(alone):.3f} ({alone['communication'] * 1e3:.2f} ms; "
            f"modelled {alone['modelled'] * 1e3:.2f} ms) | 0.60 to 0.80 |"
        )


def _ratios(figures: dict[str, Figures]) -> Iterator[str]:
    goals = {"ddp": 1.0, "ddp-best": 1.0, "fsdp2": 1.0, "recording": 1.03}
    pairs = [(figures[name], goal) for name, goal in goals.items() if name in figures]
    pairs += [(sides, 1.01) for sides in figures.get("labels", {}).values() if isinstance(sides, dict)]
    for sides, goal in pairs:
        yield _row(sides, goal)
    if recording := figures.get("recording"):
        if syncs := recording.get("syncs"):
            yield _row(syncs, 1.01)
        before = statistics.median(recording["before"]) * 1e3
        yield f"| its steps before anything was recorded | {before:.2f} ms | |"


def _row(sides: Figures, goal: float) -> str:
    ratios = [a / b for a, b in zip(sides["ours"], sides["theirs"], strict=True)]
    low, middle, high = _quartiles(ratios)
    ours, theirs = (statistics.median(sides[side]) * 1e3 for side in ("ours", "theirs"))
    figure = f"{middle:.3f} ({low:.3f} to {high:.3f}, {len(ratios)} pairs; {ours:.2f} and {theirs:.2f} ms)"
    return f"| {sides['what']} | {figure} | ≤ {goal:.2f} |"


def _quartiles(values: Sequence[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive")


def _peaks(out: Path) -> Iterator[str]:
    """Peak memory as the recorded runs tell it: the allocator's highest mark, less what is lent to phantoms."""
    runs = {name: out / name / "run.json" for name in ("zero3", "torch-fsdp2")}
    if all(path.exists() for path in runs.values()):
        peaks = [json.loads(path.read_text())["memory"][0]["peak_allocated"] for path in runs.values()]
        if None not in peaks:
            ours, theirs = peaks
            figure = f"{ours / theirs:.3f} ({ours / 2**20:.0f} and {theirs / 2**20:.0f} MiB)"
            yield f"| peak memory, zero3 ÷ torch-fsdp2 | {figure} | ≤ 1.00 |"


def _bounds(out: Path, figures: dict[str, Figures]) -> Iterator[str]:
    steps = {}
    if "curve" in figures:
        cap, steps["bucketed"] = best_cap(figures["curve"])
    if "fsdp2" in figures:
        steps["zero3"] = statistics.median(figures["fsdp2"]["ours"])
    for name, seconds in steps.items():
        if not (out / name / "run.json").exists():
            continue
        try:
            import overlaplab
            from overlaplab.simulate import bound
        except ImportError as error:
            yield f"| step time ÷ bound, {name} | {error}: install overlaplab, then `--table` | ≤ 1.05 |"
            continue
        played = bound(overlaplab.load_run(out / name)).median(numeric_only=True)
        what = f"{name}, {cap:g} MiB" if name == "bucketed" else f"{name}, 1 ahead"
        least_ms = played["bound_ns"] / 1e6
        figure = (
            f"{seconds * 1e3 / least_ms:.3f} ({seconds * 1e3:.2f} ms; bound {least_ms:.2f} ms, of computation "
            f"{played['compute_ns'] / 1e6:.2f} ms and T {played['transfer_ns'] / 1e6:.2f} ms; "
            f"as recorded {played['span_ns'] / 1e6:.2f} ms)"
        )
        yield f"| step time ÷ bound, {what} | {figure} | ≤ 1.05 |"


def _curves(figures: dict[str, Figures]) -> Iterator[str]:
    for curve in (figures[name] for name in ("curve", "curve-slow") if name in figures):
        yield ""
        yield f"| bucket_cap_mb, link {curve['link']} | {' | '.join(f'{cap:g}' for cap in curve['caps'])} |"
        yield "|---|" + "---|" * len(curve["caps"])
        yield f"| buckets | {' | '.join(map(str, curve['buckets']))} |"
        for name, place in (("median", 1), ("quartile below", 0), ("quartile above", 2)):
            values = (_quartiles(times)[place] * 1e3 for times in curve["seconds"])
            yield f"| step time, {name}, ms | {' | '.join(f'{value:.2f}' for value in values)} |"


def _commands(out: Path) -> Iterator[str]:
    """What recorded the runs, less where they lie."""
    for path in sorted(out.glob("*/run.json")):
        words = json.loads(path.read_text())["command"].split()
        place = words.index("--out")
        yield f"\n{path.parent.name}: `{' '.join(words[:place] + words[place + 2 :])}`"
