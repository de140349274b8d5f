"""What each rank sends per step (docs/design.md, "The engine's strategies")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlaplab.costs.link import ROUNDS
from overlaplab.costs.memory import gathered_bytes, reduced_bytes
from overlaplab.manifest import Manifest, Unit
from overlaplab.traits import Traits
from overlaplab.vocabulary import layer_of

__all__ = ["Theory", "theory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """What a strategy sends per rank and step; Ψ is the bytes of all parameters."""

    sent_bytes: int
    """With the ring's factor (n-1)/n."""
    formula: str
    """Without that factor, such as `2Ψ`."""
    upper_sent_bytes: int
    """The usual figure for the strategy; larger only if some units are gathered once instead of twice."""
    upper_formula: str


def theory(manifest: Manifest, traits: Traits) -> Theory | None:
    """What a strategy with these traits should send; None where the manifest does not name the parameters.

    Also None if it depends on the number of microbatches and that is unknown, as in loops other than the engine's.
    """
    units, every = traits.gathers == "units", traits.sends_every_microbatch
    if not manifest.parameters or (manifest.accumulate is None and (units or every)):
        return None
    gathered, reduced = gathered_bytes(manifest), reduced_bytes(manifest)
    if gathered is None or reduced is None:
        return None
    microbatches = manifest.accumulate or 1
    gradients = ROUNDS[traits.gradients]
    parameters = {None: 0, "updated_parameters": 1, "units": 2}[traits.gathers]  # all-gathers of all parameters
    once = _gathered_once(manifest) if units else []
    upper = gradients * reduced * (microbatches if every else 1)
    upper += parameters * gathered * (microbatches if units else 1)
    full = upper - microbatches * sum(unit.bytes for unit in once)
    repeated = gradients * every + parameters * units
    single = gradients + parameters - repeated
    note = _note(manifest)
    n = manifest.world_size
    return Theory(
        sent_bytes=round(full * (n - 1) / n),
        formula=_formula(repeated, single, microbatches, [unit.name for unit in once]) + note,
        upper_sent_bytes=round(upper * (n - 1) / n),
        upper_formula=_formula(repeated, single, microbatches, []) + note,
    )


def _gathered_once(manifest: Manifest) -> list[Unit]:
    """Units that a microbatch gathers once, rather than once per pass.

    Layers are gathered twice, except the last if it is kept. The embedding's backward pass reads no parameters, and the
    head, or the unit that holds both, stays gathered for it.
    """
    layers = {unit.name: layer for unit in manifest.units if (layer := layer_of(unit.name)) is not None}
    last = max(layers, key=lambda name: layers[name], default=None) if manifest.keep_last else None
    return [unit for unit in manifest.units if unit.name not in layers or unit.name == last]


def _note(manifest: Manifest) -> str:
    """What is sent in another type than the parameters'."""
    parameters = f", parameters in {manifest.param_dtype}" if manifest.param_dtype else ""
    reduced = manifest.reduce_dtype or ("fp32" if manifest.main_grad else manifest.param_dtype)
    return parameters + (f", gradients in {reduced}" if reduced else "")


def _formula(repeated: int, single: int, microbatches: int, once: Sequence[str]) -> str:
    """`repeated` Ψ with each of A microbatches, minus the units gathered once, and `single` Ψ per step."""
    if microbatches == 1:
        return " − ".join([f"{repeated + single}Ψ", *once])
    if once:
        return f"A({' − '.join([f'{repeated}Ψ', *once])})" + (f" + {single}Ψ" if single else "")
    if not repeated:
        return f"{single}Ψ"
    times = "A" if repeated == 1 else f"{repeated}A"
    return f"({times}+{single})Ψ" if single else f"{times}Ψ"
