"""`overlaplab plan`: batch, memory and operations of a training run before there is one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from overlaplab.cli.options import Json
from overlaplab.cli.shared import print_json, show
from overlaplab.errors import OverlaplabError

if TYPE_CHECKING:
    from overlaplab.costs.plan import Plan

__all__ = ["app"]

app = typer.Typer()

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_BINARY = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_MEMORY = {"": 1, "mb": 10**6, "gb": 10**9, "mib": 2**20, "gib": 2**30}


@app.command(epilog="Example: overlaplab plan --layers 32 --width 4096 --seq 4k --microbatch 2 --tokens 4M --gpus 128")
def plan(
    params: Annotated[str | None, typer.Option(metavar="N", help="Parameters, as in 7B; or give --layers.")] = None,
    layers: Annotated[int | None, typer.Option(help="Of a transformer like GPT-2, with --width.")] = None,
    width: Annotated[int | None, typer.Option(help="Features of a token.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads; one per 128 features unless given.")] = None,
    vocab: Annotated[int, typer.Option(help="Words.")] = 50_257,
    tied: Annotated[bool, typer.Option(help="The output projection is the table of words.")] = False,
    seq: Annotated[str, typer.Option(metavar="TOKENS", help="Of a sample; k is 1,024.")] = "2k",
    microbatch: Annotated[int, typer.Option(help="Samples that a GPU computes with at once.")] = 1,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Per step on all GPUs; k is 1,024, M is 1,024². Default: one each."),
    ] = None,
    gpus: Annotated[int, typer.Option(help="Data-parallel GPUs.")] = 8,
    gpu_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Of a GPU, as in 80GB or 64GiB.")] = None,
    precision: Annotated[
        str, typer.Option(help="fp32, bf16, bf16-fp32-gradients (18 bytes per parameter) or bf16-main-grad (20).")
    ] = "bf16",
    checkpointing: Annotated[bool, typer.Option(help="Layers keep their inputs alone.")] = False,
    keep_scores: Annotated[bool, typer.Option(help="Attention keeps all scores: no FlashAttention.")] = False,
    dropout: Annotated[bool, typer.Option(help="There is dropout.")] = False,
    as_json: Json = False,
) -> None:
    """Batch, memory and operations of a training run, before anything runs: what fits from how many GPUs on."""
    from overlaplab.costs.batch import planned_batch
    from overlaplab.costs.plan import Plan
    from overlaplab.costs.transformer import Attention, Transformer

    length = _number("--seq", seq, _BINARY)
    wanted = length * microbatch * gpus if tokens is None else _number("--tokens", tokens, _BINARY)
    batch = planned_batch(tokens=wanted, seq=length, microbatch=microbatch, ranks=gpus)
    model = None
    if layers is not None and width is not None:
        heads = max(width // 128, 1) if heads is None else heads
        model = Transformer(layers=layers, width=width, heads=heads, vocab=vocab, seq=length, tied=tied)
    elif params is None:
        raise OverlaplabError("the model is unknown", remedy="Give --params 7B, or --layers 32 --width 4096.")
    _print(
        Plan(
            parameters=model.parameters if params is None and model else _number("--params", params or "0", _DECIMAL),
            batch=batch,
            model=model,
            precision_name=precision,
            attention=Attention(keeps_scores=keep_scores, dropout=dropout),
            checkpointing=checkpointing,
            gpu_bytes=None if gpu_memory is None else _number("--gpu-memory", gpu_memory, _MEMORY),
        ),
        as_json=as_json,
    )


def _print(found: Plan, *, as_json: bool) -> None:
    from overlaplab import findings
    from overlaplab.report.documents import plan_document
    from overlaplab.report.terminal import terminal_table
    from overlaplab.sections.plan import plan_rows

    if as_json:
        print_json(plan_document(found))
        return
    rows = plan_rows(found)
    show(findings.plan_lead(found), terminal_table(rows), findings.plan_advice(found), rows.note)


def _number(option: str, text: str, units: Mapping[str, int]) -> int:
    """`7B` or `4k` as a number; raises `OverlaplabError`."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise OverlaplabError(f"{option} {text}: not a number", remedy=f"As in {option} 4, or with one of {known}.")
    return round(float(match[1]) * units[match[2]])
