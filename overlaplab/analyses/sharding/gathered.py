"""From the table of gathers: counts per step, and the bytes held gathered over time."""

from __future__ import annotations

import numpy as np
import pandas as pd
from msgspec import Struct

from overlaplab.intervals import Integers

_STEP_COLUMNS = (
    *("rank", "step", "microbatches", "gathers", "frees", "partial_frees", "layer_gathers", "layer_frees"),
    *("forward_layer_gathers", "backward_layer_gathers", "peak_gathered_bytes", "peak_ns", "peak_layers", "wait_ns"),
)
_CURVE_COLUMNS = ("rank", "step", "time_ns", "bytes", "resharded_bytes", "layers")


def schedule_steps(table: pd.DataFrame) -> pd.DataFrame:
    """One row per rank and step of `schedule`'s table, in Int64.

    Columns: `rank`, `step`, `microbatches` (that gathered), `gathers`, `frees` (recorded), `partial_frees` (those after
    which a part stays held), `layer_gathers`, `layer_frees` (of units with a layer's number), `forward_layer_gathers`,
    `backward_layer_gathers` (by the phase gathered for), `peak_gathered_bytes` (null where a gather's bytes, or what
    was freed, are unknown), `peak_ns` (when it was first reached), `peak_layers` (gathered then; both null where it is
    unknown when layers were freed), `wait_ns` (the sum of the known waits, null if none is known).
    """
    place, identity = _places(table)
    layers = table["layer"].notna()
    figures = pd.DataFrame(
        {
            "gathers": 1,
            "frees": table["free_ns"].notna(),
            "partial_frees": (table["resharded_bytes"] > 0).fillna(False),
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
    where a gather's bytes, or what was freed, are unknown), `resharded_bytes` (those among them that are parts of
    resharded units), `layers` (layers held in full from then on; null where it is unknown when they were freed). Every
    step starts with a row of zeros, at 0 or at its first gather, whichever is earlier. Bytes are held from `held_ns` to
    `free_ns`, or to the end if no free was recorded; `resharded_bytes` of them from then to `resharded_until_ns`.
    """
    place, identity = _places(table)
    curves = _curves(table, place).join(identity, on="place")
    return curves[list(_CURVE_COLUMNS)].astype("Int64").reset_index(drop=True)


class HeldLimit(Struct, frozen=True, kw_only=True):
    """The most that may be held in full at once."""

    prefetch: int
    units: int
    staying: int
    """How many of these stay gathered from their forward into their backward."""
    bytes: int


def held_limit(table: pd.DataFrame, prefetch: int) -> HeldLimit | None:
    """What may be held at once with so many units gathered ahead; None where a unit's bytes are unknown.

    None also where units are resharded to fewer ranks, whose parts stay held, or what is freed is unknown.

    Takes rows of `schedule` of one rank and step. The fullest moment is amid a pass (one unit in use, those ahead, and
    the kept ones that last, such as a root) or at the turn (all kept units, one of them in use, and those ahead).
    """
    sizes = table.groupby("unit")["bytes"].max()
    if sizes.isna().any() or (table["resharded_bytes"].fillna(1) > 0).any():
        return None
    staying = kept_units(table)
    others = sizes.drop(list(staying)).astype("int64").sort_values(ascending=False)
    passing = (sorted(_lasting_units(table, staying)), others.head(prefetch + 1))
    at_the_turn = (sorted(staying), others.head(prefetch))
    held = [(len(names), [*sizes[names].astype("int64"), *ahead]) for names, ahead in (passing, at_the_turn)]
    number_staying, held_sizes = max(held, key=lambda choice: sum(choice[1]))
    return HeldLimit(prefetch=prefetch, units=len(held_sizes), staying=number_staying, bytes=int(sum(held_sizes)))


def kept_units(table: pd.DataFrame) -> set[str]:
    """The units that stay gathered from their forward into their backward, from rows of `schedule`."""
    forward = table[table["phase"] == "forward"]
    stays = (forward["free_phase"] == "backward").fillna(False) | forward["backward_first_use_ns"].notna()
    return set(forward.loc[stays.to_numpy(dtype=bool), "unit"])


def _lasting_units(table: pd.DataFrame, staying: set[str]) -> set[str]:
    """Those of the `kept_units` that are held for as long as another unit's second gather, such as FSDP2's root."""
    stays = table["unit"].isin(staying)
    regathers = table[(table["phase"] == "backward") & ~stays]
    first_gathers = table[(table["phase"] == "forward") & stays]
    return {
        unit
        for unit, begin, end in first_gathers[["unit", "held_ns", "free_ns"]].itertuples(index=False)
        if ((regathers["held_ns"] >= begin) & (pd.isna(end) | (regathers["free_ns"] <= end))).fillna(False).any()
    }


def _places(table: pd.DataFrame) -> tuple[Integers, pd.DataFrame]:
    """For each row the number of its rank and step, in order of appearance; and `rank` and `step` by that number."""
    numbers = table.groupby(["rank", "step"], dropna=False, sort=False).ngroup()
    place = np.asarray(numbers, dtype=np.int64)
    identity = table[["rank", "step"]].assign(place=place).drop_duplicates("place").set_index("place")
    return place, identity


def _curves(table: pd.DataFrame, place: Integers) -> pd.DataFrame:
    """For each rank and step a first row of zeros, then one row per change.

    Columns: `place`, `time_ns`, `bytes`, `resharded_bytes`, `layers`.
    """
    in_full, resharded = table["bytes"], table["resharded_bytes"]
    layer, freed_unknown = table["layer"].notna().astype("int64"), resharded.isna()
    freed, in_part = table["free_ns"].notna(), (resharded > 0).fillna(False)

    changes = (  # when which rows change what is held: bytes, those of them in parts, layers in full
        ("held_ns", table["held_ns"].notna(), in_full, 0, layer),
        ("free_ns", freed, -in_full, 0, -layer),
        ("free_ns", in_part, resharded, resharded, 0),
        ("resharded_until_ns", in_part, -resharded, -resharded, 0),
    )
    every = pd.concat(
        pd.DataFrame({"place": place, "time_ns": table[at], "bytes": more, "resharded_bytes": parts, "layers": layers})[
            rows
        ]
        for at, rows, more, parts, layers in changes
    )
    every = every.fillna(0).astype("int64")
    held = every.groupby(["place", "time_ns"]).sum().groupby("place").cumsum().reset_index()
    first = every.groupby("place", as_index=False)["time_ns"].min()
    zeros = first.assign(time_ns=first["time_ns"].clip(upper=0), bytes=0, resharded_bytes=0, layers=0)
    curves: pd.DataFrame = pd.concat((zeros, held)).sort_values("place", kind="stable", ignore_index=True)
    curves = curves.astype("Int64")
    unsized = np.unique(place[(in_full.isna() | freed_unknown).to_numpy(dtype=bool)])
    uncounted = np.unique(place[(freed_unknown & ~freed & (layer > 0)).to_numpy(dtype=bool)])
    for name, unknown in (("bytes", unsized), ("resharded_bytes", unsized), ("layers", uncounted)):
        curves[name] = curves[name].mask(curves["place"].isin(unknown))
    return curves


def _peaks(curves: pd.DataFrame) -> pd.DataFrame:
    """The first maximum of each curve, by `place`: of bytes, else of layers; none where both are unknown."""
    drawn = curves[curves["bytes"].notna() | curves["layers"].notna()]
    height = drawn["bytes"].fillna(drawn["layers"]).astype("int64")
    top = drawn.loc[height.groupby(drawn["place"].to_numpy(np.int64)).idxmax()].set_index("place")
    return top.rename(columns={"bytes": "peak_gathered_bytes", "time_ns": "peak_ns", "layers": "peak_layers"})
