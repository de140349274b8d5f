"""When parameters were gathered, what that cost, held and may hold, and what of reduce-scatters is exposed."""

from __future__ import annotations

import pandas as pd
from msgspec import Struct

from overlaplab.analyses import HeldLimit, gathered_bytes, kept_units, schedule_steps
from overlaplab.findings.thresholds import MOST_UNITS_LISTED
from overlaplab.formats import digits, text
from overlaplab.vocabulary import root_number
from overlaplab.words import capitalise, count, join_names, ms, percent, size_exact, unit_name


class GatherCost(Struct, frozen=True, kw_only=True):
    """What gathering costs a run, in the median over its ranks' steps."""

    name: str
    strategy: str | None
    """None if unknown."""
    prefetch: int | None
    """Units gathered ahead; None if unknown."""
    wait_ns: float | None
    """How long compute waits for gathers per step; None if unknown."""
    step_ns: float
    setting: tuple[object, ...] | None
    """The other settings: only if they are equal, a difference is due to prefetching. None if unknown."""


def gathers_lead(table: pd.DataFrame, where: str) -> str:
    """How many gathers there were, and what they held and cost.

    Takes rows of `overlaplab.schedule` of one rank and step; `where` names these.
    """
    counted = schedule_steps(table).iloc[0]
    counts = f"{count(counted['gathers'], 'gather')} and {count(counted['frees'], 'free')}"
    if counted["layer_gathers"]:
        layers = count(table.loc[table["layer"].notna(), "unit"].nunique(), "layer")
        counts = f"{count(counted['layer_gathers'], 'gather')} and {count(counted['layer_frees'], 'free')} of {layers}"
        if counted["gathers"] > counted["layer_gathers"]:
            others = count(counted["gathers"] - counted["layer_gathers"], "gather")
            counts += f", and {others} of other units"
    if counted["partial_frees"]:
        counts += f"; {count(counted['partial_frees'], 'free')} in part"
    peak = _peak_sentence(counted, gathered_bytes(table))
    wait = "How long compute waited for them is unknown."
    if not pd.isna(counted["wait_ns"]):
        wait = f"Compute waited {ms(counted['wait_ns'])} for gathers{_longest_wait(table)}."
    begin = f"{capitalise(where)}: " if where else ""
    return f"{begin}{counts}. {peak} {wait}"


def _longest_wait(table: pd.DataFrame) -> str:
    """For which unit compute waited longest; empty where it waited for one gather or none."""
    waits = table[table["wait_ns"] > 0]
    if len(waits) < 2:
        return ""
    longest = waits.sort_values("wait_ns", ascending=False, kind="stable").iloc[0]
    return f", longest for {unit_name(longest['unit'])} ({ms(longest['wait_ns'])})"


def _peak_sentence(counted: pd.Series, curve: pd.DataFrame) -> str:
    """The most that was held at a time, by a row of `schedule_steps` and its rows of `gathered_bytes`."""
    if pd.isna(counted["peak_layers"]):
        return "How much was held at a time is unknown."
    if pd.isna(counted["peak_gathered_bytes"]):
        return f"At most {count(counted['peak_layers'], 'layer')} held in full at a time, bytes unknown."
    peak, most = f"At most {size_exact(counted['peak_gathered_bytes'])}", int(curve["layers"].max())
    held = "held" if (curve["resharded_bytes"] > 0).any() else "held in full"
    parts = ", with the parts of resharded units" if held == "held" else ""
    if not counted["layer_gathers"]:
        return f"{peak} {held} at a time{parts}."
    if most == counted["peak_layers"]:
        return f"{peak} ({count(most, 'layer')}{' in full' if parts else ''}) {held} at a time{parts}."
    # more, but smaller, layers at another moment
    return f"{peak} {held} at a time{parts}, and at most {count(most, 'layer')}{' in full' if parts else ''}."


def prefetch_gain(first: GatherCost, second: GatherCost) -> str:
    """The waits and step times of two runs, and what the deeper prefetch hides if the runs differ in nothing else."""
    settings, other_settings = ((cost.strategy, cost.setting) for cost in (first, second))
    same = settings == other_settings and None not in settings
    if same and first.prefetch is not None and second.prefetch is not None and first.prefetch != second.prefetch:
        deep, shallow = (first, second) if first.prefetch > second.prefetch else (second, first)
        names = (f"prefetch {deep.prefetch}", f"prefetch {shallow.prefetch}")
        gain = "Prefetching hides {} of gathering per step."
    else:
        deep, shallow, names = first, second, (first.name, second.name)
        gain = f"{first.name} waits {{}} less per step."
    medians = f"Medians over all ranks' steps: {_waits(names[0], deep)}, {_waits(names[1], shallow)}."
    if deep.wait_ns is None or shallow.wait_ns is None:
        return medians
    less = shallow.wait_ns - deep.wait_ns
    if less == 0:
        return f"{medians} Both wait the same."
    return f"{medians} {gain.format(ms(less)) if less > 0 else f'{names[1]} waits {ms(-less)} less per step.'}"


def _waits(name: str, cost: GatherCost) -> str:
    wait = "an unknown time" if cost.wait_ns is None else ms(cost.wait_ns)
    return f"{name} waits {wait} for gathers in a step of {ms(cost.step_ns)}"


def schedule_line(step: pd.Series, layers: int) -> str:
    """One row of `schedule_steps` in a line; `layers`: how many layers have gathers."""
    places = digits(step[["peak_ns", "wait_ns"]], one_digit_from=100)
    peak, waited = (text(step[name], "ns", places) for name in ("peak_ns", "wait_ns"))
    rank, number = (text(step[name], "count") for name in ("rank", "step"))
    counts = f"{count(int(step['gathers']), 'gather')}, {step['frees']} freed"
    held = "" if pd.isna(step["peak_layers"]) else f"peak {text(step['peak_gathered_bytes'], 'MB', 2)} MB"
    if layers:
        counts = (
            f"{count(int(step['layer_gathers']), 'gather')} of {count(layers, 'layer')}"
            f" = {step['forward_layer_gathers']} forward + {step['backward_layer_gathers']} backward,"
            f" {step['layer_frees']} freed; {step['gathers']} gathers in all"
        )
        held = held and f"{held} ({step['peak_layers']} layers)"
    counts += f", {step['partial_frees']} freed in part" if step["partial_frees"] else ""
    peak = f"{held} at {peak} ms" if held else "peak unknown"
    return f"rank {rank}, step {number}: {counts}; {peak}; waited {waited} ms"


def schedule_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """What a reader of `overlaplab.schedule`'s table must know, a line each."""
    if table.empty:
        return (
            "no gathers were found: they show in the engine's labels or FSDP2's ranges, and on a GPU in its activity;"
            " buckets of gradients are in `overlaplab buckets`",
        )
    notes = []
    if (table["source"] == "fsdp2").any():
        notes.append(
            "read from FSDP2's ranges: a unit that is gathered again was freed after its forward, others after backward"
        )
    notes += [*_roots_note(table), *_parts_note(table)]
    unclear = table["resharded_bytes"].isna()
    if (mixed := unclear & table["free_ns"].isna()).any():
        notes.append(
            f"of {int(mixed.sum())} of {len(table)} gathers ({_few_names([*table.loc[mixed, 'unit'].unique()])}) it"
            " cannot be told when they were freed, as units share a name: what was held is unknown"
        )
    if number := int((unclear & ~mixed & table["bytes"].notna()).sum()):
        notes.append(f"for {number} of {len(table)} gathers no event shows whether a part stayed held: unknown")
    lacks = table.assign(free_ns=table["free_ns"].mask(mixed, 0))
    for column, what in (("free_ns", "when they were freed"), ("bytes", "their bytes"), ("gather_end_ns", "their end")):
        if number := int(lacks[column].isna().sum()):
            notes.append(f"for {number} of {len(table)} gathers no event shows {what}: unknown")
    return tuple(notes)


def _roots_note(table: pd.DataFrame) -> list[str]:
    """What it means that several modules are roots of FSDP2."""
    roots = {root for unit in table["unit"].unique() if (root := root_number(unit)) is not None}
    if len(roots) < 2:
        return []
    return [
        f"{len(roots)} modules are FSDP2 roots of their own, numbered in order of first use: by default each stays"
        " gathered from its forward into its backward, and none is gathered ahead; one root over all of them, by"
        " fully_shard on the module that contains them, changes that"
    ]


def _parts_note(table: pd.DataFrame) -> list[str]:
    """What resharding to fewer ranks leaves held."""
    parts = table[table["resharded_bytes"] > 0]
    if parts.empty:
        return []
    ranks = sorted((parts["bytes"] / parts["resharded_bytes"]).round().astype("int64").unique())
    shares = join_names([f"1/{number}" for number in ranks])
    setting = join_names([f"reshard_after_forward={number}" for number in ranks])
    return [
        f"after {count(len(parts), 'gather')} the unit was freed but for {shares} of it, which each rank holds until"
        f" the next gather ({setting})"
    ]


def schedule_title(table: pd.DataFrame) -> str:
    """How often layers, or units if there are no layers, were gathered, and for which pass."""
    counted, what = _layers_or_units(table)
    forward = int((counted["phase"] == "forward").sum())
    microbatches = table["microbatch"].nunique()
    among = f" in {microbatches} microbatches" if microbatches > 1 else ""
    return (
        f"Gather and free schedule: {count(len(counted), 'gather')} for {count(counted['unit'].nunique(), what)}{among}"
        f" ({forward} forward + {len(counted) - forward} backward)"
    )


def schedule_remarks(table: pd.DataFrame, prefetch: int | None, undrawn: pd.DataFrame) -> list[str]:
    """What the chart does not show, and what the trace does not hold; `undrawn` rows have a use that is not drawn."""
    counted, what = _layers_or_units(table)
    remarks = [] if prefetch is None else [f"Prefetch depth {prefetch}."]
    if table["wait_ns"].notna().any():
        remarks.append(f"Compute waited {ms(table['wait_ns'].sum())} for gathers.")
    if table["free_ns"].notna().any():
        remarks.append(f"Tick: {what} freed.")
    if what == "layer" and len(counted) < len(table):
        remarks.append(f"With {_unit_names(table[table['layer'].isna()])}: {len(table)} gathers.")
    if len(undrawn):
        remarks.append(f"Compute of {_unit_names(undrawn)} surrounds that of the layers and is not drawn.")
    if (table["source"] == "fsdp2").any():
        remarks.append("Read from FSDP2's ranges: a unit that is gathered again was freed after its forward.")
    if (table["resharded_bytes"] > 0).any():
        remarks.append("Thin: a part stays held, as the unit was resharded to fewer ranks.")
    return [" ".join(remarks), _unknown_facts(table)]


def turn_label(table: pd.DataFrame) -> str:
    """What stays gathered from its forward into its backward, for the line where the forward pass ends."""
    staying = table[table["unit"].isin(kept_units(table))]
    units = [
        f"layer {layer}" if not pd.isna(layer) else unit_name(unit, 20)
        for unit, layer in staying.drop_duplicates("unit")[["unit", "layer"]].itertuples(index=False)
    ]
    return f"turn: {_few_names(units)} {'stays' if len(units) == 1 else 'stay'} gathered" if units else "turn"


def gathered_title(curve: pd.DataFrame) -> str:
    """The most that was held at a time, from rows of `overlaplab.analyses.gathered_bytes`."""
    if curve["bytes"].isna().any():
        unknown = curve["layers"].isna().any()
        return "How much was held is unknown" if unknown else f"At most {_most_held(curve)[0]} held in full"
    parts = (curve["resharded_bytes"] > 0).any()
    how = ", with the parts of resharded units" if parts else " in full"
    return f"At most {_most_held(curve)[0]} of parameters held{how}"


def gathered_peak(curve: pd.DataFrame) -> str:
    """The same as a label for the point on the curve, with the number of layers."""
    most, layers = _most_held(curve)
    return f"peak {most}{layers}"


def _most_held(curve: pd.DataFrame) -> tuple[str, str]:
    """The most bytes held, and how many layers these are; or the most layers, where bytes are unknown."""
    if curve["bytes"].isna().any():
        return count(int(curve["layers"].max()), "layer"), ""
    peak = curve.iloc[int(curve["bytes"].argmax())]
    layers = "" if pd.isna(peak["layers"]) else f" ({count(int(peak['layers']), 'layer')})"
    return size_exact(int(peak["bytes"])), layers


def _layers_or_units(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows of layers, or all rows if no unit is a layer, and which of the two."""
    layers = table[table["layer"].notna()]
    return (layers, "layer") if len(layers) else (table, "unit")


def _unknown_facts(table: pd.DataFrame) -> str:
    """What the trace does not hold, in one line; empty if it holds everything."""
    lacks = {
        "gather_end_ns": "when gathers ran",
        "first_use_ns": "when units were used",
        "wait_ns": "how long compute waited",
        "free_ns": "when units were freed",
        "bytes": "how large units are",
    }
    missing = {word: int(table[column].isna().sum()) for column, word in lacks.items()}
    everywhere = [word for word, number in missing.items() if number == len(table)]
    some = [f"{word} ({number} of {len(table)} gathers)" for word, number in missing.items() if 0 < number < len(table)]
    return f"Unknown from this trace: {', '.join([*everywhere, *some])}." if everywhere or some else ""


def _unit_names(table: pd.DataFrame) -> str:
    return _few_names([unit_name(unit, 24) for unit in table["unit"].unique()])


def _few_names(units: list[str]) -> str:
    return f"{len(units)} units" if len(units) > MOST_UNITS_LISTED else join_names(units)


def held_limit(limit: HeldLimit, peak_bytes: int) -> str:
    """What the chart's dashed line shows, and whether the peak passed it, for the subtitle."""
    passed = " More was held: gathers began further ahead." if peak_bytes > limit.bytes else ""
    staying = f", {limit.staying} of them kept from the forward pass" if limit.staying else ""
    return f"Dashed: prefetch {limit.prefetch} may hold {count(limit.units, 'unit')}{staying}.{passed}"


def gather_waits_title(steps: pd.DataFrame) -> str:
    """How long compute waited for gathers at most: rows of `schedule_steps` whose wait is known."""
    if steps.empty:
        return "How long compute waited for gathers is unknown"
    return f"Compute waited for gathers for {_at_most(steps['wait_ns'])}"


CHOOSE_A_CELL = "Click a cell to see its rank and step."
"""The hint at a strip of ranks by steps, on pages that can follow a click."""


def scatters_exposed_title(steps: pd.DataFrame) -> str:
    """How long reduce-scatters were exposed at most: rows of `analyses.scatter_steps`."""
    if not steps["exposed_ns"].any():
        return "No reduce-scatter is exposed"
    return f"Reduce-scatters were exposed for {_at_most(steps['exposed_ns'])}"


def _at_most(times: pd.Series) -> str:
    return f"{ms(int(times.max()))} at most in a rank's step"


def gathers_exposed(table: pd.DataFrame, exposed: pd.DataFrame) -> str | None:
    """How much of a step's gathers is exposed, where that is more than compute waited for them.

    Takes rows of `analyses.schedule` and of `overlaplab.exposed` about one rank and step.
    """
    of_units = (exposed["kind"] == "all_gather") & exposed["what"].isin(table["unit"])
    bare = int(exposed.loc[of_units, "exposed_ns"].sum())
    if table["wait_ns"].isna().any() or bare <= table["wait_ns"].sum():
        return None
    return f"Gathers are exposed for {ms(bare)}: also while compute paused for another reason."


def scatters_exposed(scatters: pd.DataFrame, exposed: pd.DataFrame) -> str | None:
    """How much of a step's reduce-scatters is exposed; None without any.

    Takes rows of `analyses.scatters` and of `overlaplab.exposed` about one rank and step.
    """
    timed = scatters.dropna(subset=["start_ns", "end_ns"])
    if timed.empty:
        return None
    took = int((timed["end_ns"] - timed["start_ns"]).sum())
    scatter_rows = exposed[exposed["kind"] == "reduce_scatter"]
    bare = int(scatter_rows["exposed_ns"].sum())
    if bare == 0:
        return f"Of {ms(took)} of reduce-scatters nothing is exposed."
    worst = scatter_rows.groupby("what")["exposed_ns"].sum()
    most = f", the largest part of {worst.idxmax()} ({ms(int(worst.max()))})" if len(worst) > 1 else ""
    return f"Of {ms(took)} of reduce-scatters {ms(bare)} is exposed ({percent(bare, took)} of their time){most}."
