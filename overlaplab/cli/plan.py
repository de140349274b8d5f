"""`overlaplab plan`: batch, memory and operations of a training run before there is one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Annotated

import typer

from overlaplab.cli.completion import runs_like
from overlaplab.cli.options import OPENING, Json, Opening, group_options
from overlaplab.cli.shared import load, print_json, show
from overlaplab.errors import OverlaplabError

if TYPE_CHECKING:
    from overlaplab.costs.batch import Training
    from overlaplab.costs.plan import Plan, RecordedPlan
    from overlaplab.events import Run
    from overlaplab.simulate.predictions.what_if import PlannedStep

app = typer.Typer()

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_BINARY = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_MEMORY = {"": 1, "mb": 10**6, "gb": 10**9, "mib": 2**20, "gib": 2**30}


@app.command(epilog="Example: overlaplab plan --layers 32 --width 4096 --seq 4k --microbatch 2 --tokens 4M --gpus 128")
@group_options
def plan(
    params: Annotated[str | None, typer.Option(metavar="N", help="Parameters, as in 7B; or give --layers.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of a transformer like GPT-2; needs --width.")] = None,
    width: Annotated[int | None, typer.Option(help="Features of a token.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads; one per 128 features unless given.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary size. Default: 50257.")] = None,
    tied: Annotated[bool | None, typer.Option(help="The output projection shares the embedding's weights.")] = None,
    seq: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Tokens per sample; k is 1,024. Default: 2k.")
    ] = None,
    microbatch: Annotated[int | None, typer.Option(help="Samples per microbatch of a GPU. Default: 1.")] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS", help="Tokens per step on all GPUs; k is 1,024, M is 1,024². Default: a microbatch each."
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="Data-parallel GPUs. Default: 8.")] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of a GPU, as in 80GB or 64GiB.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="fp32, bf16, bf16-fp32-gradients (18 bytes per parameter) or bf16-main-grad (20). Default: bf16."
        ),
    ] = None,
    checkpointing: Annotated[
        bool | None, typer.Option(help="Activation checkpointing: layers keep only their inputs.")
    ] = None,
    keep_scores: Annotated[bool, typer.Option(help="Attention keeps all scores, without FlashAttention.")] = False,
    dropout: Annotated[bool, typer.Option(help="The model has dropout.")] = False,
    from_run: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Predict the step from this recording of the model; options left out are as recorded.",
            autocompletion=runs_like,
        ),
    ] = None,
    train_tokens: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Tokens to train on, as in 300B: gives the hours. Needs --from."),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None,
        typer.Option(metavar="PRICE", help="Price of a GPU for an hour: gives the cost. Needs --train-tokens."),
    ] = None,
    as_json: Json = False,
    opening: Opening = OPENING,
) -> None:
    """Batch, memory and operations of a training run, before anything runs: how many GPUs are needed to fit.

    With --from RUN, a recording of the same model, it also predicts a step's time, hours and cost.
    """
    from overlaplab.costs.plan import AskedPlan
    from overlaplab.costs.transformer import Attention
    from overlaplab.sections.plan import planned_training

    goal, price = _goal(from_run, train_tokens, price_per_gpu_hour)
    run, recorded = _recording(from_run, opening)
    planned = AskedPlan(
        parameters=_number("--params", params, _DECIMAL),
        layers=layers,
        width=width,
        heads=heads,
        vocab=vocab,
        tied=tied,
        seq=_number("--seq", seq, _BINARY),
        microbatch=microbatch,
        tokens=_number("--tokens", tokens, _BINARY),
        ranks=gpus,
        precision_name=precision,
        checkpointing=checkpointing,
        attention=Attention(keeps_scores=keep_scores, dropout=dropout),
        gpu_bytes=_number("--gpu-memory", gpu_memory, _MEMORY),
    ).plan(recorded)
    predicted = None if run is None else planned_training(run, planned, tokens=goal, price=price)
    _print(planned, predicted, as_json=as_json)


def _goal(from_run: str | None, train_tokens: str | None, price: float | None) -> tuple[int | None, float | None]:
    """The tokens to train on and the price; raises `OverlaplabError` where nothing can be said of them."""
    if train_tokens is not None and from_run is None:
        raise OverlaplabError("--train-tokens needs a step", remedy="Give a recording of the model: --from RUN.")
    if price is not None and train_tokens is None:
        raise OverlaplabError("--price-per-gpu-hour needs hours", remedy="Give the tokens: --train-tokens 300B.")
    if price is not None and not 0 <= price < inf:
        raise OverlaplabError(f"--price-per-gpu-hour {price:g}: not a price")
    return _number("--train-tokens", train_tokens, _DECIMAL), price


def _recording(path: str | None, opening: Opening) -> tuple[Run | None, RecordedPlan | None]:
    """The run, and what it says that a plan asks for. Raises `OverlaplabError` where it predicts nothing."""
    if path is None:
        return None, None
    from overlaplab.sections.plan import require_recorded

    run = load([path], opening)[0]
    return run, require_recorded(run)


def _print(planned: Plan, predicted: tuple[PlannedStep, Training] | None, *, as_json: bool) -> None:
    from overlaplab import findings
    from overlaplab.report.documents import plan_document
    from overlaplab.report.terminal import terminal_table, warnings_by_run
    from overlaplab.sections.plan import plan_rows

    if as_json:
        print_json(plan_document(planned, *(predicted or ())))
        return
    rows = plan_rows(planned)
    show(findings.plan_lead(planned), terminal_table(rows), findings.plan_advice(planned), rows.note)
    if predicted is not None:
        run = predicted[0].run
        show(findings.plan_predicted(*predicted, run.path), *warnings_by_run([run]))


def _number(option: str, text: str | None, units: Mapping[str, int]) -> int | None:
    """`7B` or `4k` as a number, None where it was not given; raises `OverlaplabError`."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in units:
        named_units = ", ".join(unit for unit in units if unit)
        raise OverlaplabError(
            f"{option} {text}: not a number", remedy=f"As in {option} 4, or with one of {named_units}."
        )
    return round(float(match[1]) * units[match[2]])
