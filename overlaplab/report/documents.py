"""The documents that `--json` prints. Their keys are a contract: more may come, these stay (docs/design.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd
from msgspec.structs import asdict, replace

from overlaplab import analyses, findings
from overlaplab.analyses.across_runs.compare import MEASURES
from overlaplab.analyses.across_runs.settings import is_emulated
from overlaplab.analyses.collectives import OF_RANK
from overlaplab.analyses.systems.plan import plan_stages
from overlaplab.causes import Cause
from overlaplab.costs.batch import Training
from overlaplab.costs.plan import Plan
from overlaplab.costs.states import quick_look
from overlaplab.events import Run
from overlaplab.evidence.clocks import clocks
from overlaplab.findings import Diagnosis
from overlaplab.sections.run_tables import RunTables
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.simulate.predictions.error import Interval, gain_half_ns
from overlaplab.simulate.predictions.predict import Prediction
from overlaplab.simulate.predictions.what_if import PlannedStep
from overlaplab.simulate.undisturbed import mean_over_steps

Document: TypeAlias = dict[str, Any]

_BLOCKING = ("blocking_ns", "not_blocking_ns", "unresolved_ns")
_IDLE = ("idle_ns", "host_wait_ns", "kernel_wait_ns", "preempted_ns", "other_ns")


def summary_document(of: RunTables) -> Document:
    """Per rank and step where time went, the rank's total, and delays; also of ranks in which no step was found."""
    sums = {total.pop("rank"): total for total in records(of.totals)}
    by_rank = _rank_documents((row.pop("rank"), row) for row in records(of.summary))
    steps = {document["rank"]: document["steps"] for document in by_rank}
    ranks_out = []
    for trace in of.run.traces:
        if of.selection.ranks is not None and trace.rank not in of.selection.ranks:
            continue
        total = sums.get(trace.rank)
        ranks_out.append(
            {
                "rank": trace.rank,
                "outside_ns": total.pop("outside_ns") if total else None,
                "steps": steps.get(trace.rank, []),
                "total": {"step": None, "start_ns": None} | total if total else None,
            }
        )
    return {
        "run": of.manifest.raw if of.manifest else None,
        "warnings": list(of.warnings),
        "ranks": ranks_out,
        "predicted": _prediction(of),
        "delays": records(analyses.delays(of.run, of.selection)),
    }


def _end(of: RunTables, notes: Iterable[str] = ()) -> Document:
    """The last keys of several documents: what is real of the run, and what a reader must know."""
    return {"emulated": is_emulated(of.run), "predicted": _prediction(of), "warnings": [*of.warnings, *notes]}


def _prediction(of: RunTables) -> Document | None:
    """What run.json says of the prediction: from what, and how far it may be off; None of recordings."""
    return of.manifest.predicted if of.manifest else None


def predict_document(prediction: Prediction, recorded: Run, predicted: Run) -> Document:
    """The means over all ranks' steps that nothing disturbed, recorded and predicted, and the interval around the
    predicted step.
    """

    def means(run: Run) -> dict[str, int]:
        by_step = analyses.summary(run).groupby("step", dropna=False)[["span_ns", "exposed_comm_ns"]].mean()
        spans, exposed = (mean_over_steps(recorded, by_step[name].to_numpy()) for name in by_step)
        return {"step_ns": round(spans), "exposed_comm_ns": round(exposed)}

    figures = {"recorded": means(recorded), "predicted": means(predicted)}
    hops = recorded.manifest and findings.hops_unknown(recorded.manifest, prediction.manifest.get("strategy"))
    return {
        "run": recorded.path,
        "changes": prediction.manifest["predicted"]["changes"],
        **figures,
        "interval": _interval(prediction.interval),
        "gain": {
            "gain_ns": figures["recorded"]["step_ns"] - figures["predicted"]["step_ns"],
            "half_ns": gain_half_ns(prediction.recorded_step_ns, prediction.step_ns, prediction.interval),
        },
        "extrapolated": prediction.times_as_far,
        "warnings": [*findings.run_warnings(recorded), *([hops] if hops else [])],
    }


def _interval(interval: Interval) -> Document:
    return asdict(interval) | {"half_ns": interval.half_ns}


def pipeline_document(of: RunTables) -> Document:
    """Each step's bubble and its parts, what each rank did, every action, and what other settings gain."""
    return {
        "pipeline": (of.manifest.raw or {}).get("pipeline") if of.manifest else None,
        "steps": records(of.pipeline_steps),
        "ranks": records(of.pipeline_ranks),
        "waits": records(of.pipeline_waits),
        "actions": records(of.pipeline),
        "played": records(of.pipeline_remedies),
        "warnings": list(of.warnings),
    }


def advice_document(of: RunTables, verified: Document | None = None) -> Document:
    """The run's advice, the best setting of each kind, what every cap gains, the lines to change, what was verified."""
    diagnosis, table = of.diagnosis, of.advice
    chosen = findings.choose_setting(table, diagnosis)
    return {
        "advice": "" if diagnosis is None else diagnosis.advice,
        "actions": _actions(diagnosis),
        "advised": None if chosen is None else {name: _plain_value(value) for name, value in chosen.items()},
        "settings": records(table[table["best"]]),
        "caps": records(table.loc[table["option"] == "cap", ["bucket_cap_mb", "buckets", "gain_ns", "step_ns"]]),
        "no_cutting_gains_more_than_ns": None if diagnosis is None else findings.cutting_limit_ns(table, diagnosis),
        "sentences": [] if diagnosis is None else list(findings.advice_sentences(table, diagnosis)),
        "lines": [] if diagnosis is None else list(findings.advice_lines(table, of.loop, diagnosis)),
        "verified": verified,
        "emulated": is_emulated(of.run),
        "warnings": list(of.warnings),
    }


def exposed_document(of: RunTables) -> Document:
    """Per rank and step each cause and collective, and why the rank was idle; in words, and what to do about it."""
    causes, steps = _records_by_step(of.exposed), []
    tables = (records(table) for table in (of.summary, of.idle, of.blocking))
    for window, idle_row, waits in zip(*tables, strict=True):
        keys = ("step", "start_ns", "span_ns", "exposed_comm_ns", "exposed_wait_ns", "exposed_transfer_ns")
        step = {name: window[name] for name in keys} | {"idle": {name: idle_row[name] for name in _IDLE}}
        step["blocking"] = {name: waits[name] for name in _BLOCKING}
        steps.append((window["rank"], step | {"causes": causes.get((window["rank"], window["step"]), [])}))
    diagnosis = of.diagnosis
    bound = None if diagnosis is None else diagnosis.bound
    return {
        "verdict": of.verdict,
        "advice": "" if diagnosis is None else diagnosis.advice,
        "bound": None if bound is None else {name: _plain_value(value) for name, value in bound.items()},
        "worst": None if diagnosis is None else {"rank": diagnosis.rank, "step": diagnosis.step},
        "diagnosis": None if diagnosis is None else _diagnosis(diagnosis),
        "actions": _actions(diagnosis),
        "causes": {cause.value: cause.meaning for cause in Cause},
        "ranks": _rank_documents(steps),
    } | _end(of)


def _diagnosis(diagnosis: Diagnosis) -> Document:
    """What is said of one rank's step, with its causes in words."""
    figures = ("rank", "step", "chosen", "span_ns", "comm_ns", "hidden_ns", "exposed_ns")
    words = ("headline", "advice", "gain_ns")
    of_cause = ("cause", "late_rank", "label", "exposed_ns", "what", "remedy", "gain_ns", "replayed")
    causes = [{name: getattr(share, name) for name in of_cause} for share in diagnosis.causes]
    context = ("late_rank", "waited_ns", "outliers", "kinds", "late_reason", "blocks_nothing")
    named = {name: getattr(diagnosis, name) for name in (*figures, *words)}
    return named | {"causes": causes} | {name: getattr(diagnosis, name) for name in context}


def _actions(diagnosis: Diagnosis | None) -> list[Document]:
    """What would help, the most valuable first."""
    figures = ("text", "setting", "what", "gain_ns", "half_ns", "step_ns", "memory_bytes", "why")
    return [
        {"action": each.action.name, "certain": each.is_certain} | {name: getattr(each, name) for name in figures}
        for each in (() if diagnosis is None else diagnosis.actions)
    ]


def buckets_document(of: RunTables) -> Document:
    """Per rank and step each bucket's readiness and collective, in launch order.

    Where some of a step's buckets have labels and others have not, each of the step's own figures is about both.
    """
    steps = []
    for _, group in of.buckets.groupby(["rank", "step"], dropna=False, sort=False):
        rows = records(group)
        first = rows[0]
        shared = ("rank", "step", "backward_start_ns", "backward_end_ns", "passes", "gradients")
        step = {
            "step": first["step"],
            "backward_start_ns": min(row["backward_start_ns"] for row in rows),
            "backward_end_ns": max(row["backward_end_ns"] for row in rows),
            "passes": max(row["passes"] for row in rows),
            "gradients": sum({row["source"]: row["gradients"] for row in rows}.values()),
        }
        step["buckets"] = [{key: value for key, value in row.items() if key not in shared} for row in rows]
        steps.append((first["rank"], step))
    return {"ranks": _rank_documents(steps)} | _end(of, findings.bucket_notes(of.buckets))


def schedule_document(of: RunTables) -> Document:
    """Per rank and step the counts, every gather and reduce-scatter, and what was sent; beside it theory and memory."""
    tables = {"events": of.schedule, "scatters": of.scatters, "volume": of.volume}
    details = {name: _records_by_step(table) for name, table in tables.items()}
    counts = analyses.schedule_steps(of.schedule)
    counted = {(row.pop("rank"), row["step"]): row for row in records(counts)}
    nothing = dict.fromkeys(counts.columns.drop("rank"), 0) | {"peak_ns": None}
    steps = []
    for rank, step in sorted({*counted, *details["volume"]}, key=_sort_key):  # those that only sent something, too
        row = counted.get((rank, step), nothing | {"step": step})
        steps.append((rank, row | {name: rows.get((rank, step), []) for name, rows in details.items()}))
    return {
        "ranks": _rank_documents(steps),
        "volume_theory": asdict(of.theory) if of.theory else None,
        "memory": records(of.memory),
        "memory_peaks": records(of.peaks),
    } | _end(of, findings.schedule_notes(of.schedule))


def collectives_document(of: RunTables) -> Document:
    """Every collective with its ranks, those without a counterpart apart; clocks, stragglers, time by group and kind.

    Times in ns from the run's start, by the first rank's clock. `step` is null where ranks launched it in different
    ones; each rank tells its own.
    """
    documents: dict[bool, list[Document]] = {True: [], False: []}
    for row in records(of.collectives):
        rank_row = {key: row.pop(key) for key in OF_RANK}
        reason = row.pop("unmatched")
        listed = documents[reason is None]
        if not listed or listed[-1]["index"] != row["index"]:
            document = {"index": row["index"], "step": rank_row["step"], **row, "ranks": []}
            listed.append(document if reason is None else document | {"reason": reason})
        listed[-1]["ranks"].append(rank_row)
        if listed[-1]["step"] != rank_row["step"]:
            listed[-1]["step"] = None
    return {
        "collectives": documents[True],
        "unmatched": documents[False],
        "stragglers": records(analyses.stragglers(of.run, replace(of.selection, ranks=None))),
        "by_group_and_kind": records(of.communication_by),
        "lines": records(of.transfer_lines),
        "slowdowns": records(of.slowdowns),
        "clocks": records(clocks(of.run)),
    } | _end(of)


def plan_document(plan: Plan, step: PlannedStep | None = None, training: Training | None = None) -> Document:
    """The batch, the model's arithmetic, and what each GPU holds by stage of ZeRO; with a recording the predicted step,
    and what training takes with it.
    """
    model, batch = plan.model, plan.batch
    return {
        "parameters": plan.parameters,
        "layer_parameters": model and model.layer_parameters,
        "forward_flops": model and model.forward_flops(batch.samples),
        "cache_bytes_per_token": model and model.cache_bytes(1, plan.precision.activation),
        "step_flops": plan.step_flops,
        "quick_look_bytes": quick_look(plan.parameters),
        "batch": asdict(batch) | {"samples": batch.samples, "tokens": batch.tokens},
        "precision": plan.precision_name,
        "gpu_bytes": plan.gpu_bytes,
        "stages": records(plan_stages(plan)),
        "advice": findings.plan_advice(plan),
        "predicted": None if step is None or training is None else _planned_document(step, training),
        "warnings": [*findings.plan_notes(plan), *(findings.run_warnings(step.run) if step else ())],
    }


def _planned_document(step: PlannedStep, training: Training) -> Document:
    """The predicted step, its interval, and time and cost of the training; null where unknown."""
    return {
        "run": step.run.path,
        "step_ns": step.step_ns,
        "interval": _interval(step.interval),
        "extrapolated": step.times_as_far,
        "tokens_per_s": training.tokens_per_s,
        "train_tokens": training.tokens,
        "hours": training.hours,
        "gpu_hours": training.gpu_hours,
        "price_per_gpu_hour": training.price,
        "cost": training.cost,
    }


def _sort_key(window: tuple[int | None, int | None]) -> tuple[int, ...]:
    """The rank and step as numbers: unknown ones come first."""
    return tuple(-1 if number is None else number for number in window)


def compare_document(runs: Sequence[Run], selection: Selection = EVERYTHING) -> Document:
    """The runs side by side, the path of the fastest, or why none is, and the caps where they are a sweep."""
    table = analyses.compare(runs, selection)
    rows = records(table)
    fastest = next((row["path"] for row in rows if row["fastest"]), None)
    for row in rows:
        del row["fastest"]
        for figure in MEASURES:
            row[figure] = {"median": row.pop(f"{figure}_median"), "iqr": row.pop(f"{figure}_iqr")}
    warnings = [f"{run.path}: {warning}" for run in runs for warning in findings.run_warnings(run)]
    sweep_part = _sweep_document(runs, selection) if analyses.is_sweep(runs) else None
    return {
        "runs": rows,
        "fastest": fastest,
        "no_fastest": findings.no_fastest(table),
        "finding": findings.compare_finding(table),
        "sweep": sweep_part,
        "largest_batches": records(analyses.largest_batches(runs, selection)),
        "warnings": warnings,
    }


def _sweep_document(runs: Sequence[Run], selection: Selection) -> Document:
    """`sweep`'s rows by cap, each with its buckets on the link: ns from the start of the step that stands for it."""
    table, links = analyses.sweep(runs, selection), analyses.sweep_links(runs, selection)
    of_cap = {cap: links[links["bucket_cap_mb"].eq(cap)] for cap in table["bucket_cap_mb"]}
    return {
        "varies": "bucket_cap_mb",
        "finding": findings.sweep_finding(table),
        "notes": list(findings.sweep_notes(table)),
        "caps": [row | {"links": _bucket_links(of_cap[row["bucket_cap_mb"]])} for row in records(table)],
    }


def _bucket_links(links: pd.DataFrame) -> Document | None:
    """The step that stands for a cap, and from when to when each of its buckets was sent; None where it is unknown."""
    if links.empty:
        return None
    links = links.assign(exposed_ns=(links["end_ns"] - links["start_ns"]).where(links["part"] == "exposed", 0))
    how = {"bytes": "first", "start_ns": "min", "end_ns": "max", "exposed_ns": "sum"}
    by_bucket = links.groupby("bucket", sort=False).agg(how)
    first = links.iloc[0]
    return {
        "path": first["path"],
        "rank": _plain_value(first["rank"]),
        "step": _plain_value(first["step"]),
        "buckets": records(by_bucket.reset_index()),
    }


def bench_document(measured: Mapping[str, Any], table: pd.DataFrame) -> Document:
    """What `bench_collectives` made of what was measured."""
    return {**{name: measured[name] for name in ("ranks", "device", "link")}, "rows": records(table)}


def records(table: pd.DataFrame) -> list[Document]:
    """The rows as plain Python values, null for what is missing."""
    columns = {str(name): [_plain_value(value) for value in table[name]] for name in table}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain_value(value: Any) -> Any:
    """A cell as a plain Python value, a tuple as a list, null for what is missing."""
    if isinstance(value, tuple):
        return [_plain_value(member) for member in value]
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def _records_by_step(table: pd.DataFrame) -> dict[tuple[int | None, int | None], list[Document]]:
    by_window: dict[tuple[int | None, int | None], list[Document]] = {}
    for record in records(table):
        by_window.setdefault((record.pop("rank"), record.pop("step")), []).append(record)
    return by_window


def _rank_documents(steps: Iterable[tuple[int | None, Document]]) -> list[Document]:
    """A document per rank, from pairs of a rank and a step's document."""
    of_rank: dict[int | None, list[Document]] = {}
    for rank, step in steps:
        of_rank.setdefault(rank, []).append(step)
    return [{"rank": rank, "steps": rank_steps} for rank, rank_steps in of_rank.items()]
