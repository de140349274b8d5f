"""A plan of what was asked for; what was not is as recorded, or else usual."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from overlaplab.costs.batch import Batch, planned_batch
from overlaplab.costs.plan import Plan
from overlaplab.costs.recorded_plan import RecordedPlan
from overlaplab.costs.transformer import Attention, Transformer
from overlaplab.errors import OverlaplabError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPlan:
    """What a reader wants to train, and on what; None for what was not said."""

    parameters: int | None = None
    """Those of the model's sizes where not given."""
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    """One per 128 features where not given."""
    vocab: int | None = None
    tied: bool | None = None
    seq: int | None = None
    microbatch: int | None = None
    tokens: int | None = None
    """Tokens of a step on all ranks; those of the recorded accumulation, or of one microbatch each, where not given."""
    ranks: int | None = None
    precision_name: str | None = None
    checkpointing: bool | None = None
    attention: Attention = field(default_factory=Attention)
    gpu_bytes: int | None = None

    def plan(self, recording: RecordedPlan | None = None) -> Plan:
        """The plan, completed by a recording of the model. Raises `OverlaplabError` where it makes none."""
        seq = _or_recorded(self.seq, recording, "seq", 2048)
        model = self._model(recording, seq)
        parameters = self.parameters
        if parameters is None:
            parameters = _or_recorded(None if model is None else model.parameters, recording, "parameters", 0)
            if not parameters:
                raise OverlaplabError("the model is unknown", remedy="Give --params 7B, or --layers 32 --width 4096.")
        return Plan(
            parameters=parameters,
            batch=self._batch(recording, seq),
            model=model,
            precision_name=_or_recorded(self.precision_name, recording, "precision_name", "bf16"),
            attention=self.attention,
            checkpointing=_or_recorded(self.checkpointing, recording, "checkpointing", False),
            gpu_bytes=self.gpu_bytes,
        )

    def _model(self, recording: RecordedPlan | None, seq: int) -> Transformer | None:
        """None where its layers or their width are unknown."""
        stated = {name: getattr(self, name) for name in ("layers", "width", "heads", "vocab", "tied")}
        recorded = asdict(recording.model) if recording and recording.model else {}
        sizes: dict[str, Any] = {"vocab": 50_257, "tied": False} | recorded
        sizes |= {name: size for name, size in stated.items() if size is not None} | {"seq": seq}
        if "layers" not in sizes or "width" not in sizes:
            return None
        return Transformer(**{"heads": max(sizes["width"] // 128, 1)} | sizes)

    def _batch(self, recording: RecordedPlan | None, seq: int) -> Batch:
        each, ranks = (
            _or_recorded(self.microbatch, recording, "microbatch", 1),
            _or_recorded(self.ranks, recording, "ranks", 8),
        )
        tokens = self.tokens
        if tokens is None:
            tokens = seq * each * ranks * _or_recorded(None, recording, "accumulate", 1)
        return planned_batch(tokens=tokens, seq=seq, microbatch=each, ranks=ranks)


def _or_recorded(stated: T | None, recording: RecordedPlan | None, name: str, usual: T) -> T:
    """What was given, or else recorded by this name, or else usual."""
    recorded: T | None = getattr(recording, name, None)
    if stated is not None:
        return stated
    return usual if recorded is None else recorded
