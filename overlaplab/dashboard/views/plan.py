"""The Plan page: batch, memory and operations of a training run before there is one."""

from __future__ import annotations

import streamlit as st

from overlaplab.costs.batch import planned_batch
from overlaplab.costs.plan import Plan
from overlaplab.costs.states import PRECISIONS, STAGES
from overlaplab.costs.transformer import Attention, Transformer
from overlaplab.dashboard.widgets import error_line, lead, page_head, show_blocks, what_to_do
from overlaplab.errors import OverlaplabError
from overlaplab.sections.plan import plan_section

_MEMORY = {"24 GB": 24, "40 GB": 40, "80 GB": 80, "141 GB": 141, "192 GB": 192}  # of usual GPUs, in decimal GB
_WIDTH = 175


def page() -> None:
    """Draw the page."""
    page_head("Plan", "What a training run would take before there is one: its batch, its memory and its operations.")
    try:
        found, stage = _asked()
    except OverlaplabError as error:
        error_line(error)
        return
    section = plan_section(found, stage)
    lead(section.lead, None)
    show_blocks(section.blocks)
    what_to_do(section.advice)


def _asked() -> tuple[Plan, int]:
    """What the reader entered; raises `OverlaplabError` where it makes no plan."""
    with st.container(horizontal=True):
        layers = st.number_input("Layers", 1, 1000, 32, width=_WIDTH)
        width = st.number_input("Width", 1, 65536, 4096, width=_WIDTH)
        heads = st.number_input("Heads", 1, 1024, 32, width=_WIDTH)
        vocab = st.number_input("Vocabulary", 1, 10**6, 50257, width=_WIDTH)
        seq = st.number_input("Tokens in a sequence", 1, 2**20, 4096, width=_WIDTH)
        microbatch = st.number_input("Sequences per microbatch", 1, 4096, 2, width=_WIDTH)
        samples = st.number_input("Sequences per step", 1, 10**7, 1024, width=_WIDTH)
        gpus = st.number_input("GPUs", 1, 10**5, 128, width=_WIDTH)
        memory = st.selectbox("Memory of a GPU", list(_MEMORY), index=2, width=_WIDTH)
        precision = st.selectbox("Precision", list(PRECISIONS), index=1, width=_WIDTH)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        stage = st.segmented_control("ZeRO stage of the chart", STAGES, default=3, required=True, width="content")
        checkpointing = st.toggle(
            "Checkpointing", help="Layers keep their inputs alone and run forward twice.", width="content"
        )
        scores = st.toggle(
            "Keep scores", help="Attention keeps all of its scores, without FlashAttention.", width="content"
        )
        dropout = st.toggle("Dropout", width="content")
    model = Transformer(layers=layers, width=width, heads=heads, vocab=vocab, seq=seq)
    plan = Plan(
        parameters=model.parameters,
        batch=planned_batch(tokens=samples * seq, seq=seq, microbatch=microbatch, ranks=gpus),
        model=model,
        precision_name=precision,
        attention=Attention(keeps_scores=scores, dropout=dropout),
        checkpointing=checkpointing,
        gpu_bytes=_MEMORY[memory] * 10**9,
    )
    return plan, stage


page()
