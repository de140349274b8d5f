"""What each rank sends per step (docs/design.md, "The engine's strategies")."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from overlaplab.costs.link import ROUNDS, ring_factor
from overlaplab.costs.memory import gathered_bytes, gathered_once, reduced_bytes
from overlaplab.dtypes import dtype_bytes
from overlaplab.manifest import Manifest
from overlaplab.traits import Traits


class Theory(Struct, frozen=True, kw_only=True):
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

    Also None of a pipeline, whose ranks send activations and hold different layers, and if it depends on the number of
    microbatches and that is unknown, as in loops other than the engine's. Of a server it is the mean of the ranks.
    """
    gathers_units, sends_each = traits.gathers == "units", traits.sends_every_microbatch
    if traits.stages or not manifest.parameters or (manifest.accumulate is None and (gathers_units or sends_each)):
        return None
    gathered, reduced = gathered_bytes(manifest), reduced_bytes(manifest)
    if gathered is None or reduced is None:
        return None
    microbatches = manifest.accumulate or 1
    if traits.gradients == "server":
        return _server_theory(gathered, reduced, manifest)
    if traits.gradients is None:
        return _parameter_theory(gathered, manifest)
    gradient_rounds = ROUNDS[traits.gradients]
    stays_gathered = manifest.reshard_after_forward is False
    all_gathers = {None: 0, "updated_parameters": 1, "units": 1 if stays_gathered else 2}
    parameter_rounds = all_gathers[traits.gathers]
    once = gathered_once(manifest, traits) if gathers_units and not stays_gathered else []
    upper = gradient_rounds * reduced * (microbatches if sends_each else 1)
    upper += parameter_rounds * gathered * (microbatches if gathers_units else 1)
    sent = upper - microbatches * sum(unit.bytes for unit in once)
    repeated = gradient_rounds * sends_each + parameter_rounds * gathers_units  # with each microbatch; others per step
    single = gradient_rounds + parameter_rounds - repeated
    beside, beside_text = _other_axes_volume(manifest, reduced, microbatches)
    note = beside_text + _note(manifest)
    n = manifest.axes.owners
    return Theory(
        sent_bytes=round(sent * (n - 1) / n + beside),
        formula=_formula(repeated, single, microbatches, [unit.name for unit in once]) + note,
        upper_sent_bytes=round(upper * (n - 1) / n + beside),
        upper_formula=_formula(repeated, single, microbatches, []) + note,
    )


def _server_theory(parameters: int, gradients: int, manifest: Manifest) -> Theory:
    """All ranks but the server send it their gradients, and it sends each of them the parameters."""
    others = manifest.world_size - 1
    mean = round(others * (parameters + gradients) / manifest.world_size)
    formula = "2Ψ in the mean of the ranks; rank 0 sends (n−1)Ψ, as much as it receives, the others Ψ" + _note(manifest)
    return Theory(sent_bytes=mean, formula=formula, upper_sent_bytes=mean, upper_formula=formula)


def _parameter_theory(parameters: int, manifest: Manifest) -> Theory:
    """Ranks send no gradients; they all-reduce the parameters every `manifest.every` steps, or never."""
    n, every = manifest.axes.owners, manifest.every
    sent = round(ROUNDS["all_reduce"] * parameters * (n - 1) / n / every) if every else 0
    formula = "0" if every is None else "2Ψ" if every == 1 else f"2Ψ/{every}"
    return Theory(sent_bytes=sent, formula=formula, upper_sent_bytes=sent, upper_formula=formula)


def _other_axes_volume(manifest: Manifest, reduced: int, microbatches: int) -> tuple[float, str]:
    """What is sent along other axes than that of the shards, or of data parallelism, and how that reads in a formula.

    HSDP: each rank's shard of the gradients is all-reduced over the replicas. Tensor parallelism: four all-reduces of a
    layer's activations (Shoeybi et al. 2019, arXiv 1909.08053, §3), twice as many forward with checkpointing.
    """
    mesh, sent, text = manifest.axes, 0.0, ""
    if mesh.replicate is not None:
        sent += ring_factor("all_reduce", mesh.replicate) * (reduced / mesh.owners) * microbatches
        text += " + 2AΨ/S over replicas" if microbatches > 1 else " + 2Ψ/S over replicas"
    if mesh.tp > 1 and (activations := _activation_bytes(manifest)) is not None:
        passes = 6 if manifest.checkpointing else 4
        sent += ring_factor("all_reduce", mesh.tp) * passes * activations * microbatches
        text += f" + {2 * passes}{'A' if microbatches > 1 else ''}L·bsh over tp"
    return sent, text


def _activation_bytes(manifest: Manifest) -> int | None:
    """What all layers pass on, of one microbatch, each batch × sequence × width; None where run.json does not tell."""
    model = manifest.model
    if model is None or model.dtype is None or not (model.batch and model.seq and model.width):
        return None
    size = dtype_bytes(model.dtype)
    return None if size is None else (model.layers or 0) * model.batch * model.seq * model.width * size


def _note(manifest: Manifest) -> str:
    """The types of parameters and gradients as they are sent, where run.json tells them."""
    parameters = f", parameters in {manifest.param_dtype}" if manifest.param_dtype else ""
    reduced = manifest.reduce_dtype or ("fp32" if manifest.main_grad else manifest.param_dtype)
    return parameters + (f", gradients in {reduced}" if reduced else "")


def _formula(repeated: int, single: int, microbatches: int, once: Sequence[str]) -> str:
    """`repeated` Ψ with each of A microbatches, minus the units gathered once, and `single` Ψ per step.

    As in `3Ψ − root`, `A(2Ψ − head) + 1Ψ`, `(2A+1)Ψ`.
    """
    if microbatches == 1:
        return " − ".join([f"{repeated + single}Ψ", *once])
    if once:
        return f"A({' − '.join([f'{repeated}Ψ', *once])})" + (f" + {single}Ψ" if single else "")
    if not repeated:
        return f"{single}Ψ"
    times = "A" if repeated == 1 else f"{repeated}A"
    return f"({times}+{single})Ψ" if single else f"{times}Ψ"
