"""From the table of gathers: counts per step, and the bytes held gathered over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_COUNTS = (
    *("microbatches", "gathers", "frees", "layer_gathers", "layer_frees"),
    *("forward_layer_gathers", "backward_layer_gathers"),
)
_STEP_COLUMNS = ("rank", "step", *_COUNTS, "peak_gathered_bytes", "peak_ns", "peak_layers", "wait_ns")
_CURVE_COLUMNS = ("rank", "step", "time_ns", "bytes", "layers")


def schedule_steps(table: pd.DataFrame) -> pd.DataFrame:
    """One row per rank and step of `schedule`'s table, in Int64.

    Columns: `rank`, `step`, `microbatches` (that gathered), `gathers`, `frees` (recorded), `layer_gathers`,
    `layer_frees` (of units with a layer's number), `forward_layer_gathers`, `backward_layer_gathers` (by the phase
    gathered for), `peak_gathered_bytes` (null where a gather's bytes are unknown), `peak_ns` (when it was first
    reached), `peak_layers` (gathered then), `wait_ns` (the sum of the known waits, null if none is known).
    """
    place, identity = _places(table)
    layers = table["layer"].notna()
    figures = pd.DataFrame(
        {
            "gathers": 1,
            "frees": table["free_ns"].notna(),
            "layer_gathers": layers,
            "layer_frees": layers & table["free_ns"].notna(),
            "forward_layer_gathers": layers & (table["phase"] == "forward"),
            "backward_layer_gathers": layers & (table["phase"] == "backward"),
        },
        index=table.index,
    )
    counts = figures.astype("int64").groupby(place).sum()
    counts["microbatches"] = table.groupby(place)["microbatch"].nunique()
    counts["wait_ns"] = table.groupby(place)["wait_ns"].sum(min_count=1)
    steps = identity.join(counts).join(_peaks(_curves(table, place)))
    return steps[list(_STEP_COLUMNS)].astype("Int64").reset_index(drop=True)


def gathered_bytes(table: pd.DataFrame) -> pd.DataFrame:
    """The bytes of gathered parameters over time, as a step function for each rank and step of `schedule`'s table.

    Columns, in Int64: `rank`, `step`, `time_ns` (from the window's start), `bytes` (held from this moment on; null
    where a gather's bytes are unknown), `layers` (gathers of layers held from then on). Every step starts with a row of
    zeros, at 0 or at its first gather, whichever is earlier. Bytes are held from `held_ns` to `free_ns`, or to the end
    if no free was recorded.
    """
    place, identity = _places(table)
    curves = _curves(table, place).join(identity, on="place")
    return curves[list(_CURVE_COLUMNS)].astype("Int64").reset_index(drop=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLimit:
    """The most that may be held in full at once."""

    prefetch: int
    units: int
    kept: int
    """How many of these stay gathered from their forward into their backward."""
    bytes: int


def held_limit(table: pd.DataFrame, prefetch: int) -> HeldLimit | None:
    """What may be held at once with so many units gathered ahead; None where a unit's bytes are unknown.

    Takes rows of `schedule` of one rank and step. In use is one unit, and so many are ahead of it. Beside these are
    those that stay gathered from their forward into their backward: a root unit while all others are used; the last
    ones at the turn, where one of them is in use itself.
    """
    sizes = table.groupby("unit")["bytes"].max()
    if sizes.isna().any():
        return None
    kept, lasting = kept_units(table), _lasting_units(table)
    others = sizes.drop(list(kept)).astype("int64").sort_values(ascending=False)
    passing = (sorted(lasting), others.head(prefetch + 1))
    at_the_turn = (sorted(kept), others.head(prefetch))
    held = [(len(own), [*sizes[own].astype("int64"), *ahead]) for own, ahead in (passing, at_the_turn)]
    number, most = max(held, key=lambda found: sum(found[1]))
    return HeldLimit(prefetch=prefetch, units=len(most), kept=number, bytes=int(sum(most)))


def kept_units(table: pd.DataFrame) -> set[str]:
    """The units that stay gathered from their forward into their backward, from rows of `schedule`."""
    forward = table[table["phase"] == "forward"]
    kept = (forward["free_phase"] == "backward").fillna(False) | forward["backward_first_use_ns"].notna()
    return set(forward.loc[kept.to_numpy(dtype=bool), "unit"])


def _lasting_units(table: pd.DataFrame) -> set[str]:
    """Of `kept_units` those that are held for as long as another unit's second gather, such as FSDP2's root."""
    kept = kept_units(table)
    again = table[(table["phase"] == "backward") & ~table["unit"].isin(kept)]
    own = table[(table["phase"] == "forward") & table["unit"].isin(kept)]
    return {
        unit
        for unit, begin, end in zip(own["unit"], own["held_ns"], own["free_ns"], strict=True)
        if ((again["held_ns"] >= begin) & (pd.isna(end) | (again["free_ns"] <= end))).fillna(False).any()
    }


def _places(table: pd.DataFrame) -> tuple[NDArray[np.int64], pd.DataFrame]:
    """For each row the number of its rank and step, in order of appearance; and `rank` and `step` by that number."""
    numbers = table.groupby(["rank", "step"], dropna=False, sort=False).ngroup()
    place = np.asarray(numbers, dtype=np.int64)
    identity = table[["rank", "step"]].assign(place=place).drop_duplicates("place").set_index("place")
    return place, identity


def _curves(table: pd.DataFrame, place: NDArray[np.int64]) -> pd.DataFrame:
    """`place`, `time_ns`, `bytes`, `layers`: for each rank and step a first row of zeros, then one row per change."""
    freed = table["free_ns"].notna().to_numpy(dtype=bool)
    begun, ended = (table[name].to_numpy(np.int64, na_value=0) for name in ("held_ns", "free_ns"))
    size, layer = table["bytes"].to_numpy(np.int64, na_value=0), table["layer"].notna().astype("int64").to_numpy()
    changes = pd.DataFrame(
        {
            "place": np.append(place, place[freed]),
            "time_ns": np.append(begun, ended[freed]),
            "bytes": np.append(size, -size[freed]),
            "layers": np.append(layer, -layer[freed]),
        }
    )
    held = changes.groupby(["place", "time_ns"]).sum().groupby("place").cumsum().reset_index()
    first = changes.groupby("place", as_index=False)["time_ns"].min()
    zeros = first.assign(time_ns=first["time_ns"].clip(upper=0), bytes=0, layers=0)
    curves: pd.DataFrame = (
        pd.concat((zeros, held)).sort_values("place", kind="stable", ignore_index=True).astype("Int64")
    )
    unknown = np.unique(place[table["bytes"].isna().to_numpy()])
    curves["bytes"] = curves["bytes"].mask(curves["place"].isin(unknown))
    return curves


def _peaks(curves: pd.DataFrame) -> pd.DataFrame:
    """The first maximum of each curve, by `place`: by bytes, or by layers where bytes are unknown."""
    by = curves["bytes"].fillna(curves["layers"]).to_numpy(np.int64)
    top = curves.loc[pd.Series(by).groupby(curves["place"].to_numpy(np.int64)).idxmax()].set_index("place")
    return top.rename(columns={"bytes": "peak_gathered_bytes", "time_ns": "peak_ns", "layers": "peak_layers"})
