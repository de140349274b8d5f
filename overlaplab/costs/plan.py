"""A training run before there is one: what was asked, completed by a recording, and where the two differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import asdict

from overlaplab.costs.batch import Batch, planned_batch
from overlaplab.costs.states import PRECISIONS, HeldBytes, Precision, fits_from, held_bytes
from overlaplab.costs.transformer import Attention, Transformer
from overlaplab.errors import OverlaplabError
from overlaplab.manifest import Manifest, Model

T = TypeVar("T")

_ROUNDED = 0.01
"""The share by which a given number of parameters may miss the recorded one: it may be rounded, as in 6.8M."""
_MOST_UNLIKE = 2
"""How many times that of the model's sizes it may be, or the reverse: a gated or wide MLP makes models unlike GPT-2."""
_SIZES = ("layers", "width", "heads", "vocab")
_USUAL = Batch(seq=2048, microbatch=1, accumulate=1, ranks=8)
"""What a plan has where nothing is said and nothing recorded."""


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be trained, and on what. Raises `OverlaplabError` for what cannot be."""

    parameters: int
    batch: Batch
    model: Transformer | None = None
    """None where only the number of parameters is known: no activations then, and operations are an estimate."""
    precision_name: str = "bf16"
    """One of `PRECISIONS`."""
    attention: Attention = field(default_factory=Attention)
    checkpointing: bool = False
    gpu_bytes: int | None = None
    """Memory of a GPU."""

    def __post_init__(self) -> None:
        if self.precision_name not in PRECISIONS:
            remedy = f"There are {', '.join(PRECISIONS)}."
            raise OverlaplabError(f"--precision {self.precision_name}: not known", remedy=remedy)
        if self.parameters < 1:
            raise OverlaplabError(f"--params {self.parameters}: not a positive number")

    @property
    def precision(self) -> Precision:
        """Bytes per parameter and activation."""
        return PRECISIONS[self.precision_name]

    @property
    def activations(self) -> int:
        """Bytes that a rank keeps of a microbatch; 0 where the model's sizes are unknown."""
        if self.model is None:
            return 0
        each, recomputes = self.precision.activation, self.checkpointing
        return self.model.activations(self.batch.microbatch, each, self.attention, checkpointing=recomputes)

    @property
    def step_flops(self) -> int:
        """Operations of one step on all ranks; 6 per parameter and token where the model's sizes are unknown.

        The estimate is that of Kaplan et al. 2020 (arXiv 2001.08361, §2.1); with checkpointing it is 8.
        """
        if self.model is None:
            return (8 if self.checkpointing else 6) * self.parameters * self.batch.tokens
        return self.model.step_flops(self.batch.samples, checkpointing=self.checkpointing)

    def held_bytes(self, stage: int, ranks: int) -> HeldBytes:
        """Bytes on each of so many ranks in a stage of ZeRO."""
        return held_bytes(self.parameters, self.precision, stage, ranks, self.activations)

    def fits_from(self, stage: int) -> int | None:
        """The smallest number of GPUs whose memory suffices; None where none does, or their memory is unknown."""
        if self.gpu_bytes is None:
            return None
        return fits_from(self.parameters, self.precision, stage, self.gpu_bytes, self.activations)


class RecordedPlan(Struct, frozen=True, kw_only=True):
    """What run.json says of what a plan consists of."""

    parameters: int
    batch: Batch
    model: Transformer | None
    """None where its parameters are not those of such a transformer."""
    checkpointing: bool
    precision_name: str | None
    """None where it is none of a plan's."""

    def differences(self, plan: Plan) -> Iterator[tuple[str, int | str, int | str]]:
        """What makes it another step: (name, recorded, planned). Not ranks and accumulation: they are predicted."""
        pairs: list[tuple[str, int | str, int | str]] = []
        if self.model is not None and plan.model is not None:
            pairs += [(name, getattr(self.model, name), getattr(plan.model, name)) for name in _SIZES]
            pairs += [("output", _output(self.model), _output(plan.model))]
        if abs(plan.parameters - self.parameters) > _ROUNDED * self.parameters:
            pairs += [("parameters", self.parameters, plan.parameters)]
        pairs += [("seq", self.batch.seq, plan.batch.seq), ("microbatch", self.batch.microbatch, plan.batch.microbatch)]
        pairs += [("checkpointing", _switch_word(self.checkpointing), _switch_word(plan.checkpointing))]
        if self.precision_name is not None:
            pairs += [("precision", self.precision_name, plan.precision_name)]
        return (pair for pair in pairs if pair[1] != pair[2])


def _output(model: Transformer) -> str:
    return "tied" if model.tied else "untied"


def _switch_word(is_on: bool) -> str:
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
        batch=Batch(
            seq=model.seq, microbatch=model.batch, accumulate=manifest.accumulate or 1, ranks=manifest.world_size
        ),
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


class AskedPlan(Struct, frozen=True, kw_only=True):
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
        usual = _USUAL if recording is None else recording.batch
        seq, microbatch = _or_usual(self.seq, usual.seq), _or_usual(self.microbatch, usual.microbatch)
        ranks = _or_usual(self.ranks, usual.ranks)
        tokens = _or_usual(self.tokens, seq * microbatch * ranks * usual.accumulate)
        model = self._model(recording, seq)
        parameters = self.parameters
        if self._stated_sizes():
            if model is None and (parameters is not None or recording is not None):
                raise OverlaplabError("the model's sizes are incomplete", remedy="Give --layers and --width together.")
            if model and parameters and not 1 / _MOST_UNLIKE <= parameters / model.parameters <= _MOST_UNLIKE:
                what = f"--params {parameters:,}: the model's sizes make {model.parameters:,}"
                raise OverlaplabError(what, remedy="Leave --params or the sizes out.")
        if parameters is None:
            described = recording if model is None else model
            if described is None:
                raise OverlaplabError("the model is unknown", remedy="Give --params 7B, or --layers 32 --width 4096.")
            parameters = described.parameters
        precision_name = None if recording is None else recording.precision_name
        return Plan(
            parameters=parameters,
            batch=planned_batch(tokens=tokens, seq=seq, microbatch=microbatch, ranks=ranks),
            model=model,
            precision_name=_or_usual(self.precision_name, precision_name or "bf16"),
            attention=self.attention,
            checkpointing=_or_usual(self.checkpointing, recording is not None and recording.checkpointing),
            gpu_bytes=self.gpu_bytes,
        )

    def _model(self, recording: RecordedPlan | None, seq: int) -> Transformer | None:
        """None where its layers or their width are unknown."""
        recorded = asdict(recording.model) if recording and recording.model else {}
        sizes: dict[str, Any] = {"vocab": 50_257, "tied": False} | recorded
        sizes |= self._stated_sizes() | {"seq": seq}
        if "layers" not in sizes or "width" not in sizes:
            return None
        return Transformer(**{"heads": max(sizes["width"] // 128, 1)} | sizes)

    def _stated_sizes(self) -> dict[str, Any]:
        return {name: size for name in (*_SIZES, "tied") if (size := getattr(self, name)) is not None}


def _or_usual(stated: T | None, usual: T) -> T:
    return usual if stated is None else stated
