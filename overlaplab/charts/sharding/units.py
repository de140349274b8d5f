"""Units as the rows of a chart: their order, their labels, and which labels have room."""

from __future__ import annotations

import pandas as pd

from overlaplab.words import unit_name

_LABEL_HEIGHT_PX = 13  # pixels


def unit_rows(table: pd.DataFrame, scatters: pd.DataFrame) -> dict[str, str]:
    """The units from top to bottom, and the label of each row.

    Layers come in their order, units gathered before the first layer above them, other units below.
    """
    order = table.sort_values("gather_launch_ns", kind="stable").drop_duplicates("unit")
    layers = order[order["layer"].notna()].sort_values("layer", kind="stable")
    others = [unit for unit in order["unit"] if unit not in set(layers["unit"])]
    if "unit" in scatters:
        others += [unit for unit in dict.fromkeys(scatters["unit"]) if unit not in set(order["unit"])]
    places = {unit: place for place, unit in enumerate(order["unit"])}
    first = min((places[unit] for unit in layers["unit"]), default=0)
    above = [unit for unit in others if places.get(unit, len(places)) < first]
    numbers = {unit: str(number) for unit, number in zip(layers["unit"], layers["layer"], strict=True)}
    if len(set(numbers.values())) < len(numbers):
        numbers = {}
    rows: dict[str, str] = {}
    for unit in [*above, *layers["unit"], *(unit for unit in others if unit not in above)]:
        label = numbers.get(unit) or unit_name(unit, 12)
        rows[unit] = label if label not in rows.values() else f"{label} {len(rows)}"
    return rows


def shown_rows(table: pd.DataFrame, names: dict[str, str], step: int) -> list[str]:
    """The labels with room, preferred in this order: units that are no layers, the first and last layer, every n-th."""
    rows = list(names.values())
    layers = {names[unit] for unit in table.loc[table["layer"].notna(), "unit"]}
    numbered = [row for row in rows if row in layers]
    every = 1 if len(numbered) <= 12 else 4 if len(numbered) <= 48 else 8
    wanted = [row for row in rows if row not in layers] + numbered[:1] + numbered[-1:] + numbered[::every]
    shown: list[int] = []
    for place in (rows.index(row) for row in wanted):
        if all(abs(place - other) * step >= _LABEL_HEIGHT_PX for other in shown):
            shown.append(place)
    return [rows[place] for place in sorted(shown)]
