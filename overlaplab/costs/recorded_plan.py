"""What a plan takes from a recorded run, and where the two differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from overlaplab.costs.plan import Plan
from overlaplab.costs.transformer import Transformer
from overlaplab.errors import OverlaplabError
from overlaplab.manifest import Manifest, Model

_ROUNDED = 0.01
"""How far a number of parameters may be from the recorded one where it is given, rounded, as in 6.8M."""


_SIZES = ("layers", "width", "heads", "vocab")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that was recorded otherwise than it is planned."""

    name: str
    recorded: int | str
    planned: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """What run.json says that a plan asks for."""

    parameters: int
    seq: int
    microbatch: int
    accumulate: int
    ranks: int
    model: Transformer | None
    """None where its parameters are not those of such a transformer."""
    checkpointing: bool
    precision_name: str | None
    """None where it is none of a plan's."""

    def differences(self, plan: Plan) -> Iterator[Difference]:
        """What makes a step of the plan another one; ranks and accumulation, which are predicted, do not."""
        pairs: list[tuple[str, int | str, int | str]] = []
        if self.model is not None and plan.model is not None:
            pairs += [(name, getattr(self.model, name), getattr(plan.model, name)) for name in _SIZES]
            pairs += [("output", _output(self.model), _output(plan.model))]
        if abs(plan.parameters - self.parameters) > _ROUNDED * self.parameters:
            pairs += [("parameters", self.parameters, plan.parameters)]
        pairs += [("seq", self.seq, plan.batch.seq), ("microbatch", self.microbatch, plan.batch.microbatch)]
        pairs += [("checkpointing", _on_or_off(self.checkpointing), _on_or_off(plan.checkpointing))]
        if self.precision_name is not None:
            pairs += [("precision", self.precision_name, plan.precision_name)]
        for name, recorded, planned in pairs:
            if recorded != planned:
                yield Difference(name=name, recorded=recorded, planned=planned)


def _output(model: Transformer) -> str:
    return "tied" if model.tied else "untied"


def _on_or_off(is_on: bool) -> str:
    return "on" if is_on else "off"


def recorded_plan(manifest: Manifest | None) -> RecordedPlan | None:
    """None where run.json does not say what is trained: parameters, tokens per sample, samples per microbatch."""
    if manifest is None or manifest.model is None:
        return None
    model = manifest.model
    if not (model.parameters and model.seq and model.batch):
        return None
    return RecordedPlan(
        parameters=model.parameters,
        seq=model.seq,
        microbatch=model.batch,
        accumulate=manifest.accumulate or 1,
        ranks=manifest.world_size,
        model=_transformer(model),
        checkpointing=bool(manifest.checkpointing),
        precision_name=_precision(manifest),
    )


def _transformer(model: Model) -> Transformer | None:
    sizes = {name: getattr(model, name) for name in (*_SIZES, "seq")}
    if not all(sizes.values()):
        return None
    try:
        transformer = Transformer(**sizes, tied=bool(model.tied))
    except OverlaplabError:
        return None
    return transformer if transformer.parameters == model.parameters else None


def _precision(manifest: Manifest) -> str | None:
    dtype = manifest.model.dtype if manifest.model else None
    if manifest.param_dtype is not None or manifest.reduce_dtype is not None:
        return None
    if dtype == "bfloat16":
        return "bf16-main-grad" if manifest.main_grad else "bf16"
    return "fp32" if dtype == "float32" else None
