"""From the table of gathers: counts per step, and the bytes held gathered over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

_COUNTS = (
    *("microbatches", "gathers", "frees", "partial_frees", "layer_gathers", "layer_frees"),
    *("forward_layer_gathers", "backward_layer_gathers"),
)
_STEP_COLUMNS = ("rank", "step", *_COUNTS, "peak_gathered_bytes", "peak_ns", "peak_layers", "wait_ns")
_CURVE_COLUMNS = ("rank", "step", "time_ns", "bytes", "resharded_bytes", "layers")


def schedule_steps(table: pd.DataFrame) -> pd.DataFrame:
    """One row per rank and step of `schedule`'s table, in Int64.

    Columns: `rank`, `step`, `microbatches` (that gathered), `gathers`, `frees` (recorded), `partial_frees` (those after
    which a part stays held), `layer_gathers`, `layer_frees` (of units with a layer's number), `forward_layer_gathers`,
    `backward_layer_gathers` (by the phase gathered for), `peak_gathered_bytes` (null where a gather's bytes, or what
    was freed, are unknown), `peak_ns` (when it was first reached), `peak_layers` (gathered then; both null where it is
    unknown when layers were freed), `wait_ns` (the sum of the known waits, null if none is known).
    """
    rows = []
    for identity, of_step in _steps(table):
        layers = of_step[of_step["layer"].notna()]
        rows.append(
            {
                **identity,
                "microbatches": of_step["microbatch"].nunique(),
                "gathers": len(of_step),
                "frees": of_step["free_ns"].count(),
                "partial_frees": (of_step["resharded_bytes"] > 0).sum(),
                "layer_gathers": len(layers),
                "layer_frees": layers["free_ns"].count(),
                "forward_layer_gathers": (layers["phase"] == "forward").sum(),
                "backward_layer_gathers": (layers["phase"] == "backward").sum(),
                **_peak(_curve(of_step)),
                "wait_ns": of_step["wait_ns"].sum(min_count=1),
            }
        )
    return pd.DataFrame(rows, columns=list(_STEP_COLUMNS)).astype("Int64")


def gathered_bytes(table: pd.DataFrame) -> pd.DataFrame:
    """The bytes of gathered parameters over time, as a step function for each rank and step of `schedule`'s table.

    Columns, in Int64: `rank`, `step`, `time_ns` (from the window's start), `bytes` (held from this moment on; null
    where a gather's bytes, or what was freed, are unknown), `resharded_bytes` (those among them that are parts of
    resharded units), `layers` (layers held in full from then on; null where it is unknown when they were freed). Every
    step starts with a row of zeros, at 0 or at its first gather, whichever is earlier. Bytes are held from `held_ns` to
    `free_ns`, or to the end if no free was recorded; `resharded_bytes` of them from then to `resharded_until_ns`.
    """
    curves = [_curve(of_step).assign(**identity) for identity, of_step in _steps(table)]
    if not curves:
        return pd.DataFrame(columns=list(_CURVE_COLUMNS)).astype("Int64")
    return pd.concat(curves, ignore_index=True)[list(_CURVE_COLUMNS)].astype("Int64")


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

    None also where units are resharded to fewer ranks, whose parts stay held, or what is freed is unknown.

    Takes rows of `schedule` of one rank and step. In use is one unit, and so many are ahead of it. Beside these are
    those that stay gathered from their forward into their backward: a root unit while all others are used; the last
    ones at the turn, where one of them is in use itself.
    """
    sizes = table.groupby("unit")["bytes"].max()
    if sizes.isna().any() or (table["resharded_bytes"].fillna(1) > 0).any():
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


def _steps(table: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    for (rank, step), of_step in table.groupby(["rank", "step"], dropna=False, sort=False):
        yield {"rank": rank, "step": step}, of_step


def _curve(of_step: pd.DataFrame) -> pd.DataFrame:
    """`time_ns`, `bytes`, `resharded_bytes`, `layers`: a first row of zeros, then one row per change."""
    freed, parts = of_step[of_step["free_ns"].notna()], of_step[of_step["resharded_bytes"] > 0]
    changes = pd.concat(
        (
            _changes(of_step["held_ns"], of_step["bytes"], of_step["layer"].notna()),
            _changes(freed["free_ns"], -freed["bytes"], freed["layer"].notna(), sign=-1),
            _changes(parts["free_ns"], parts["resharded_bytes"], part=True),
            _changes(parts["resharded_until_ns"], -parts["resharded_bytes"], part=True),
        )
    )
    held = changes.groupby("time_ns").sum().cumsum()
    start = pd.DataFrame(dict.fromkeys(held, 0), index=[min(0, int(changes["time_ns"].min()))])
    curve = pd.concat((start, held)).rename_axis("time_ns").reset_index().astype("Int64")
    unknown, unclear = pd.array([pd.NA] * len(curve), dtype="Int64"), of_step["resharded_bytes"].isna()
    if of_step["bytes"].isna().any() or unclear.any():
        curve = curve.assign(bytes=unknown, resharded_bytes=unknown)
    if (unclear & of_step["free_ns"].isna() & of_step["layer"].notna()).any():
        curve = curve.assign(layers=unknown)
    return curve


def _changes(
    at: pd.Series, num_bytes: pd.Series, is_layer: pd.Series | bool = False, *, sign: int = 1, part: bool = False
) -> pd.DataFrame:
    """What is held more from these moments on."""
    change = num_bytes.fillna(0).astype(np.int64)
    layers = sign * (pd.Series(0, index=at.index) + is_layer).astype(np.int64)
    return pd.DataFrame(
        {"time_ns": at.astype(np.int64), "bytes": change, "resharded_bytes": change * part, "layers": layers}
    )


def _peak(curve: pd.DataFrame) -> dict[str, Any]:
    """The first maximum of the curve, by bytes, or by layers where bytes are unknown; null where both are."""
    by = next((name for name in ("bytes", "layers") if curve[name].notna().all()), None)
    if by is None:
        return dict.fromkeys(("peak_gathered_bytes", "peak_ns", "peak_layers"))
    top = curve.iloc[int(curve[by].to_numpy(dtype=np.int64).argmax())]
    return {"peak_gathered_bytes": top["bytes"], "peak_ns": top["time_ns"], "peak_layers": top["layers"]}
