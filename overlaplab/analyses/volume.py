"""What each rank sent, from its trace, beside what theory says (docs/design.md, "The engine's strategies")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from overlaplab.costs.elements import gradient_bytes, parameter_bytes
from overlaplab.costs.link import ring_factor
from overlaplab.events import Run, Trace, Window, rule_of
from overlaplab.evidence.fsdp2 import sized, unit_sizes
from overlaplab.evidence.labels import fsdp2_ranges_of
from overlaplab.evidence.launches import Launch, bytes_of, launches
from overlaplab.evidence.selection import launched_in, selected_traces, selected_windows
from overlaplab.manifest import Manifest
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import Rule, layer_of

__all__ = ["Theory", "volume", "volume_theory"]

_COLUMNS = ("rank", "step", "kind", "count", "bytes", "sent_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """What a strategy sends per rank and step, Ψ being the bytes of all parameters."""

    sent_bytes: int
    """By the ring's factor (n-1)/n."""
    formula: str
    """Before that factor, such as `2Ψ`."""
    upper_sent_bytes: int
    """What the strategy is usually said to send; the same but for zero3, which gathers some units only once."""
    upper_formula: str


def volume(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step and kind of collective that the step launched, in order of first launch.

    Columns, numbers in Int64: `rank`, `step`, `kind` (`unknown` where nothing tells), `count`, `bytes` (of the full
    tensors), `sent_bytes` (as a ring sends them: all-reduce 2(n-1)/n, all-gather, reduce-scatter and all-to-all
    (n-1)/n, others 1); both null where one of them is unknown: bytes are told by the engine's labels, and for
    FSDP2's by the manifest. Empty where nothing
    is launched, or device activity was not recorded. Raises `OverlaplabError` for an unknown rank or step.
    """
    rows: list[dict[str, Any]] = []
    for trace in selected_traces(run, selection):
        chosen = selected_windows(trace, selection)
        rows += (row | {"rank": trace.rank} for row in _of_trace(run, trace, chosen))
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype({c: "Int64" for c in _COLUMNS if c != "kind"})


def volume_theory(run: Run) -> Theory | None:
    """What the run's strategy should send; None without a manifest, or for a strategy without a formula.

    None, too, where it depends on how many microbatches there are, and nothing tells: in a loop that is not the
    engine's.
    """
    manifest = run.manifest
    if manifest is None or not manifest.parameters or manifest.strategy not in _FORMULAS:
        return None
    if manifest.accumulate is None and _FORMULAS[manifest.strategy] in (_zero2, _sharded):
        return None
    full, formula, upper, upper_formula = _FORMULAS[manifest.strategy](manifest)
    note = ", gradients in fp32" if manifest.main_grad else ""
    n = manifest.world_size
    return Theory(
        sent_bytes=_sent(full, n),
        formula=formula + note,
        upper_sent_bytes=_sent(upper, n),
        upper_formula=upper_formula + note,
    )


def _of_trace(run: Run, trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    if rule_of(trace) is Rule.UNRECORDED:
        return
    world_size = _world_size(run, trace)
    ranges = fsdp2_ranges_of(trace)
    found = sized(launches(trace), ranges, unit_sizes(run.manifest, ranges))
    for step in steps:
        by_kind: dict[str, list[Launch]] = {}
        for launch in launched_in(found, step):
            by_kind.setdefault(launch.kind or "unknown", []).append(launch)
        for kind, own in by_kind.items():
            full = bytes_of(own)
            sent = None if full is None else round(full * ring_factor(kind, world_size))
            yield {"step": step.step, "kind": kind, "count": len(own), "bytes": full, "sent_bytes": sent}


def _world_size(run: Run, trace: Trace) -> int:
    return (run.manifest and run.manifest.world_size) or trace.world_size or len(run.traces)


def _sent(full: int, world_size: int) -> int:
    return round(full * (world_size - 1) / world_size)


_Formula = tuple[int, str, int, str]


def _replicated(manifest: Manifest) -> _Formula:
    """An all-reduce of the gradients, with the last microbatch."""
    full = 2 * gradient_bytes(manifest)
    return full, "2Ψ", full, "2Ψ"


def _zero1(manifest: Manifest) -> _Formula:
    """A reduce-scatter of the gradients with the last microbatch, an all-gather of the parameters."""
    full = gradient_bytes(manifest) + parameter_bytes(manifest)
    return full, "2Ψ", full, "2Ψ"


def _zero2(manifest: Manifest) -> _Formula:
    """A reduce-scatter with every microbatch."""
    microbatches = manifest.accumulate or 1
    full = microbatches * gradient_bytes(manifest) + parameter_bytes(manifest)
    formula = "2Ψ" if microbatches == 1 else "(A+1)Ψ"
    return full, formula, full, formula


def _sharded(manifest: Manifest) -> _Formula:
    """Every microbatch gathers each unit for either pass and scatters its gradients, but some are gathered only once.

    Layers are gathered twice, but the last if it is kept. The embedding's backward reads no parameters, and the head,
    or whatever unit holds both, is kept into it.
    """
    microbatches = manifest.accumulate or 1
    layers = {unit.name: layer for unit in manifest.units if (layer := layer_of(unit.name)) is not None}
    last = max(layers, key=lambda name: layers[name], default=None) if manifest.keep_last else None
    once = [unit for unit in manifest.units if unit.name not in layers or unit.name == last]
    parameters = parameter_bytes(manifest)
    twice = 2 * parameters + gradient_bytes(manifest)
    exact = microbatches * (twice - sum(unit.bytes for unit in once))
    formula = " − ".join(["3Ψ", *(unit.name for unit in once)])
    if microbatches > 1:
        return exact, f"A({formula})", microbatches * twice, "3AΨ"
    return exact, formula, twice, "3Ψ"


_FORMULAS: dict[str, Callable[[Manifest], _Formula]] = {
    **dict.fromkeys(("naive", "per-param", "bucketed", "torch-ddp"), _replicated),
    "zero1": _zero1,
    "zero2": _zero2,
    **dict.fromkeys(("zero3", "torch-fsdp2"), _sharded),
}
