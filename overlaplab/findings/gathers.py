"""What the tables of gathers say, as sentences: plain text, not Markdown, not HTML."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from overlaplab.analyses import gathered_bytes, schedule_steps
from overlaplab.words import count, ms, size_exact

__all__ = ["GatherCost", "gathers_seen", "prefetch_gain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherCost:
    """What gathering costs a run, in the median over its ranks' steps."""

    name: str
    strategy: str | None
    """None where nothing tells."""
    prefetch: int | None
    """Units gathered ahead; None where nothing tells."""
    wait_ns: float | None
    """How long compute waits for gathers per step; None where the trace does not tell."""
    step_ns: float
    setting: tuple[object, ...] | None = None
    """What else must be equal before a difference is put down to prefetching; None where nothing tells."""


def gathers_seen(table: pd.DataFrame, where: str) -> str:
    """What was counted in `overlaplab.schedule`'s rows of one rank and step (`where`, in words), in a few sentences."""
    found = schedule_steps(table).iloc[0]
    counts = f"{count(found['gathers'], 'gather')} and {count(found['frees'], 'free')}"
    if found["layer_gathers"]:
        layers = count(table.loc[table["layer"].notna(), "unit"].nunique(), "layer")
        counts = f"{count(found['layer_gathers'], 'gather')} and {count(found['layer_frees'], 'free')} of {layers}"
        if found["gathers"] > found["layer_gathers"]:
            others = count(found["gathers"] - found["layer_gathers"], "gather")
            counts += f", and {others} of other units"
    if pd.isna(found["peak_gathered_bytes"]):
        peak = f"At most {count(found['peak_layers'], 'layer')} held in full at a time, bytes unknown."
    else:
        peak = f"At most {size_exact(found['peak_gathered_bytes'])}"
        most = int(gathered_bytes(table)["layers"].max())
        if not found["layer_gathers"]:
            peak += " held in full at a time."
        elif most == found["peak_layers"]:
            peak += f" ({count(most, 'layer')}) held in full at a time."
        else:  # smaller layers at another moment
            peak += f" held in full at a time, and at most {count(most, 'layer')}."
    wait = "How long compute waited for them is unknown."
    if not pd.isna(found["wait_ns"]):
        wait = f"Compute waited {ms(found['wait_ns'])} for gathers."
    begin = f"{where[0].upper()}{where[1:]}: " if where else ""
    return f"{begin}{counts}. {peak} {wait}"


def prefetch_gain(one: GatherCost, other: GatherCost) -> str:
    """Both runs' waits and step times, and what the deeper prefetch hides if the runs differ in nothing else."""
    same = (
        one.strategy is not None
        and one.strategy == other.strategy
        and one.setting is not None
        and one.setting == other.setting
    )
    if same and one.prefetch is not None and other.prefetch is not None and one.prefetch != other.prefetch:
        deep, shallow = (one, other) if one.prefetch > other.prefetch else (other, one)
        names = (f"prefetch {deep.prefetch}", f"prefetch {shallow.prefetch}")
        gain = "Prefetching hides {} of gathering per step."
    else:
        deep, shallow, names = one, other, (one.name, other.name)
        gain = f"{one.name} waits {{}} less per step."
    told = f"Medians over all ranks' steps: {_told(names[0], deep)}, {_told(names[1], shallow)}."
    if deep.wait_ns is None or shallow.wait_ns is None:
        return told
    less = shallow.wait_ns - deep.wait_ns
    if less == 0:
        return f"{told} Both wait the same."
    return f"{told} {gain.format(ms(less)) if less > 0 else f'{names[1]} waits {ms(-less)} less per step.'}"


def _told(name: str, cost: GatherCost) -> str:
    wait = "an unknown time" if cost.wait_ns is None else ms(cost.wait_ns)
    return f"{name} waits {wait} for gathers in a step of {ms(cost.step_ns)}"
