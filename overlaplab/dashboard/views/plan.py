"""The Plan page: batch, memory and operations of a training run before there is one; time and cost from a recording."""

from __future__ import annotations

import streamlit as st
from msgspec import Struct
from msgspec.structs import replace

from overlaplab import findings
from overlaplab.costs.batch import Training
from overlaplab.costs.plan import AskedPlan, Plan, RecordedPlan
from overlaplab.costs.states import PRECISIONS, STAGES
from overlaplab.costs.transformer import Attention
from overlaplab.dashboard.beside import caps_beside
from overlaplab.dashboard.data import Opened, open_run
from overlaplab.dashboard.folder import run_word
from overlaplab.dashboard.head import error_line, page_head
from overlaplab.dashboard.widgets import show_advice, show_blocks, show_lead, show_warnings
from overlaplab.errors import OverlaplabError
from overlaplab.sections.plan import plan_section, planned_training, require_recorded
from overlaplab.simulate.predictions.what_if import PlannedStep, message_without_path

_MEMORY = {"24 GB": 24, "40 GB": 40, "80 GB": 80, "141 GB": 141, "192 GB": 192}  # of usual GPUs, in decimal GB
_WIDTH = 175
_SEQ, _MICROBATCH = "Tokens in a sequence", "Sequences per microbatch"
_MOST_GPUS = 10**5


class _Recording(Struct, frozen=True, kw_only=True):
    """A run from which a step is predicted, and what for."""

    opened: Opened
    plan: RecordedPlan
    tokens: int | None
    """To train on."""
    price: float | None
    """What a GPU-hour costs."""


def page() -> None:
    page_head(
        "Plan",
        "What a training run would take before there is one: its batch, its memory and its operations; from a recording"
        " of the model also its time and its cost.",
    )
    recording = _recording()
    try:
        plan, stage = _ask(None if recording is None else recording.plan)
    except OverlaplabError as error:
        error_line(error)
        return
    section = plan_section(plan, stage)
    show_lead(section.lead)
    if recording is not None:
        _show_prediction(recording, plan)
    show_blocks(section.blocks)
    show_advice(section.advice)


def _recording() -> _Recording | None:
    """The recording that the reader chose; None for none, and where no step is predicted from it, which a line says."""
    names: list[str] = st.session_state.get("names", [])
    if not names:
        return None
    with st.container(key="recording", horizontal=True):
        name = st.selectbox(
            "Recording of the model",
            [None, *names],
            format_func=_word,
            help="The step is predicted from this run; sizes and microbatch are as recorded.",
            width=2 * _WIDTH + 16,
        )
        opened = None if name is None else open_run(st.session_state["folder"], name)
        if name is None or opened is None:
            return None
        problem = opened if isinstance(opened, OverlaplabError) else _problem(opened)
        if isinstance(opened, Opened) and problem is None:
            tokens = _tokens()
            price = _price(disabled=tokens is None)
            return _Recording(opened=opened, plan=require_recorded(opened.run), tokens=tokens, price=price)
    if problem is not None:
        error_line(problem, _word(name))
    return None


def _problem(opened: Opened) -> OverlaplabError | None:
    """Why no step is predicted from the run, not even the recorded one; None where one is."""
    try:
        _predict(opened, AskedPlan().plan(require_recorded(opened.run)))
    except OverlaplabError as error:
        return OverlaplabError(message_without_path(opened.run, error))
    return None


def _predict(
    opened: Opened, plan: Plan, tokens: int | None = None, price: float | None = None
) -> tuple[PlannedStep, Training]:
    return planned_training(opened.run, plan, tokens=tokens, price=price, recorded=caps_beside(opened))


def _word(name: str | None) -> str:
    return "none" if name is None else run_word(name)


def _tokens() -> int | None:
    billions = st.number_input(
        "Tokens to train on, in billions", 0.0, 10.0**9, None, 1.0, "%g", placeholder="300", width=_WIDTH + 60
    )
    return None if billions is None else round(billions * 10**9)


def _price(*, disabled: bool) -> float | None:
    return st.number_input(
        "Price of a GPU-hour", 0.0, 10.0**9, None, 0.1, "%g", placeholder="2.5", disabled=disabled, width=_WIDTH
    )


def _show_prediction(recording: _Recording, plan: Plan) -> None:
    """What the step, and training on the tokens, is predicted to take; or in a line why it is not known."""
    opened = recording.opened
    with st.container(key="predicted"):
        try:
            predicted = _predict(opened, plan, recording.tokens, recording.price)
        except OverlaplabError as error:
            error_line(OverlaplabError(message_without_path(opened.run, error)), _word(opened.name))
            return
        st.text(findings.plan_predicted(*predicted, _word(opened.name)))
    show_warnings(opened)


def _ask(recorded: RecordedPlan | None) -> tuple[Plan, int]:
    """What the reader entered, and for which stage of ZeRO; raises `OverlaplabError` where it makes no plan."""
    with st.container(key="plan_fields", horizontal=True):
        entered = _free() if recorded is None else _as_recorded(recorded)
        gpu_bytes = _MEMORY[st.selectbox("Memory of a GPU", list(_MEMORY), index=2, width=_WIDTH)] * 10**9
        precision = _precision(None if recorded is None else recorded.precision_name)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        stage = st.segmented_control("ZeRO stage of the chart", STAGES, default=3, required=True, width="content")
        checkpointing = st.toggle(
            "Checkpointing",
            recorded is not None and recorded.checkpointing,
            help="Layers keep only their inputs, and run their forward pass twice.",
            disabled=recorded is not None,
            width="content",
        )
        scores = st.toggle(
            "Keep scores", help="Attention keeps all of its scores, without FlashAttention.", width="content"
        )
        dropout = st.toggle("Dropout", width="content")
    entered = replace(
        entered,
        precision_name=precision,
        attention=Attention(keeps_scores=scores, dropout=dropout),
        checkpointing=checkpointing,
        gpu_bytes=gpu_bytes,
    )
    return entered.plan(recorded), stage


def _free() -> AskedPlan:
    """Sizes and batch, without a recording."""
    return AskedPlan(
        layers=st.number_input("Layers", 1, 1000, 32, width=_WIDTH),
        width=st.number_input("Width", 1, 65536, 4096, width=_WIDTH),
        heads=st.number_input("Heads", 1, 1024, 32, width=_WIDTH),
        vocab=st.number_input("Vocabulary", 1, 10**6, 50257, width=_WIDTH),
        seq=(seq := st.number_input(_SEQ, 1, 2**20, 4096, width=_WIDTH)),
        microbatch=st.number_input(_MICROBATCH, 1, 4096, 2, width=_WIDTH),
        tokens=seq * st.number_input("Sequences per step", 1, 10**7, 1024, width=_WIDTH),
        ranks=st.number_input("GPUs", 1, _MOST_GPUS, 128, width=_WIDTH),
    )


def _as_recorded(recorded: RecordedPlan) -> AskedPlan:
    """Ranks and accumulation, which begin as recorded; what no step is predicted with stands there to be read."""
    model, batch = recorded.model, recorded.batch
    sizes = {"Parameters": recorded.parameters}
    if model is not None:
        sizes = {"Layers": model.layers, "Width": model.width, "Heads": model.heads, "Vocabulary": model.vocab}
    for label, size in (sizes | {_SEQ: batch.seq, _MICROBATCH: batch.microbatch}).items():
        st.text_input(label, f"{size:,}", disabled=True, width=_WIDTH)
    microbatches = st.number_input("Microbatches per step", 1, 2**20, batch.accumulate, width=_WIDTH)
    ranks = st.number_input("GPUs", 1, max(_MOST_GPUS, batch.ranks), batch.ranks, width=_WIDTH)
    return AskedPlan(tokens=batch.seq * batch.microbatch * microbatches * ranks, ranks=ranks)


def _precision(recorded_name: str | None) -> str:
    """The recorded precision, which stands fixed; the reader's choice where that is None."""
    names = list(PRECISIONS)
    place = names.index(recorded_name or "bf16")
    return st.selectbox("Precision", names, place, disabled=recorded_name is not None, width=_WIDTH)


page()
