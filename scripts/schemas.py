"""Write docs/schema: what each command's --json prints, as JSON Schema. Types and meanings are those of the columns.

python scripts/schemas.py    # after a change of a document, or of the registry of columns
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from overlaplab.analyses.across_runs.compare import MEASURES
from overlaplab.analyses.collectives import OF_RANK
from overlaplab.cli.shared import SCHEMA_VERSION
from overlaplab.columns import Unit, column

Schema: TypeAlias = dict[str, Any]

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schema"

_TYPES: dict[Unit, str] = {
    **dict.fromkeys(("ns", "count", "bytes"), "integer"),
    **dict.fromkeys(("ms", "GB/s", "ratio"), "number"),
    "text": "string",
    "flag": "boolean",
}
_NUMBERS = {
    **dict.fromkeys(("bucket_cap_mb", "first_bucket_mb", "caps_mb", "sent_bytes"), "number"),
    **dict.fromkeys(("bucket_sizes", "arrived", "missing"), "integer"),
}
"""Types of columns whose unit tells another one: caps in MiB, medians, and lists that a table shows as text."""
TEXT, NUMBER, WHOLE, FLAG, ANY = ({"type": kind} for kind in ("string", "number", "integer", "boolean", "object"))


def null_or(schema: Schema) -> Schema:
    """Also null, where something is unknown or does not apply."""
    return {**schema, "type": [schema["type"], "null"]}


def array(schema: Schema) -> Schema:
    """An array."""
    return {"type": "array", "items": schema}


def keys(**properties: Schema) -> Schema:
    """An object that has all these keys; it may have more, in later versions, too."""
    return {"type": "object", "required": list(properties), "properties": properties}


def describe_columns(table: str, names: str) -> dict[str, Schema]:
    """A table's columns as keys: their names, `?` after those that may be null, `[]` after lists, `[?]` if of nulls."""
    properties = {}
    for word in names.split():
        name = word.rstrip("?[]")
        entry = column(table, name)
        schema: Schema = {"type": _NUMBERS.get(name, _TYPES[entry.unit])}
        if "[?]" in word:
            schema = null_or(schema)
        schema = array(schema) if "[" in word else schema
        properties[name] = (null_or(schema) if word.endswith("?") else schema) | {"description": entry.explanation}
    return properties


def row(table: str, names: str, **more: Schema) -> Schema:
    """A row of a table (see `describe_columns`), and further keys."""
    return keys(**describe_columns(table, names), **more)


def rows(table: str, names: str, **more: Schema) -> Schema:
    """Rows of a table."""
    return array(row(table, names, **more))


_SPENT = (
    "span_ns compute_ns comm_ns overlapped_ns compute_only_ns exposed_comm_ns exposed_wait_ns? exposed_transfer_ns?"
    " memory_only_ns idle_ns preempted_ns? overlap_ratio?"
)
_NOTES = {"emulated": FLAG, "predicted": null_or(ANY), "warnings": array(TEXT)}
"""What is true of a run as a whole."""
_CAUSE = keys(
    cause=TEXT,
    late_rank=null_or(WHOLE),
    label=TEXT,
    exposed_ns=WHOLE,
    what=TEXT,
    remedy=TEXT,
    gain_ns=null_or(WHOLE),
    replayed=FLAG,
)
_DIAGNOSIS = row(
    "",
    "rank? step?",
    chosen=TEXT,
    **describe_columns("", "span_ns comm_ns"),
    hidden_ns=WHOLE,
    exposed_ns=WHOLE,
    headline=TEXT,
    advice=TEXT,
    gain_ns=null_or(WHOLE),
    causes=array(_CAUSE),
    late_rank=null_or(WHOLE),
    waited_ns=WHOLE,
    outliers=null_or(TEXT),
    kinds=null_or(TEXT),
    late_reason=null_or(TEXT),
    blocks_nothing=null_or(TEXT),
)
_ACTION = keys(
    action=TEXT,
    text=TEXT,
    setting=null_or(NUMBER),
    what=null_or(TEXT),
    gain_ns=WHOLE,
    half_ns=null_or(WHOLE),
    step_ns=WHOLE,
    memory_bytes=null_or(WHOLE),
    certain=FLAG,
    why=TEXT,
)
_INTERVAL = keys(
    **dict.fromkeys(("steps_ns", "recordings_ns", "model_ns", "transfers_ns", "extrapolation_ns", "half_ns"), WHOLE)
)
_EXTRAPOLATED: Schema = {"type": "object", "additionalProperties": NUMBER}
_PLANNED = keys(
    run=TEXT,
    step_ns=WHOLE,
    interval=_INTERVAL,
    extrapolated=_EXTRAPOLATED,
    tokens_per_s=null_or(NUMBER),
    train_tokens=null_or(WHOLE),
    hours=null_or(NUMBER),
    gpu_hours=null_or(NUMBER),
    price_per_gpu_hour=null_or(NUMBER),
    cost=null_or(NUMBER),
)
_ADVISED = row(
    "advise",
    "option bucket_cap_mb? first_bucket_mb? prefetch? buckets? bucket_sizes[]? caps_mb[]? gain_ns half_ns? low_ns?"
    " high_ns? step_ns least_ns? memory_bytes replayed best",
)
_VERIFIED = keys(
    confirmed=FLAG,
    sentence=TEXT,
    **dict.fromkeys(("before_ms", "after_ms", "error_ms", "gained_ms"), NUMBER),
    faster=FLAG,
    recordings=WHOLE,
    neighbour_ms=null_or(NUMBER),
    folder=TEXT,
    warnings=array(TEXT),
)
_COLLECTIVE = row(
    "collectives",
    "index step? group? group_description? axis? group_size? kind? dtype? bytes? transfer_ns?"
    " bus_gb_per_s? bus_is_lower_bound skew_ns? within_clock_error? last_rank? doubtful",
    ranks=rows("collectives", "? ".join(OF_RANK) + "?"),
)
_FIGURE = keys(median=null_or(NUMBER), iqr=null_or(NUMBER))
_ON_LINK = keys(
    path=TEXT,
    **describe_columns("", "rank? step?"),
    buckets=rows("sweep_links", "bucket bytes? start_ns end_ns exposed_ns"),
)
_SWEEP = keys(
    varies=TEXT,
    finding=TEXT,
    notes=array(TEXT),
    caps=rows(
        "sweep",
        "bucket_cap_mb runs steps buckets? step_ms spread_ms? lowest_ms highest_ms compute_only_ms hidden_ms"
        " exposed_ms rest_ms overlap_ratio? tier fastest emulated",
        links=null_or(_ON_LINK),
    ),
)
_PLAYED = row(
    "pipeline_steps",
    "bubble held",
    **describe_columns("advise", "setting step_ns gain_ns"),
    remedy={"type": "string", "enum": ["microbatches", "schedule", "split"]},
    recorded_ns=WHOLE | {"description": "The step as recorded, played in the same way."},
)
_MEANS = keys(step_ns=WHOLE, exposed_comm_ns=WHOLE)

DOCUMENTS: dict[str, tuple[str, dict[str, Schema]]] = {
    "summary": (
        "Per rank and step where time went, and the rank's total; times in ns.",
        {
            "run": null_or(ANY) | {"description": "run.json; null where there is none."},
            "warnings": array(TEXT),
            "ranks": rows(
                "summary",
                "rank? outside_ns?",
                steps=rows("summary", f"step? start_ns {_SPENT} damaged step_kind?"),
                total=null_or(row("summary", f"step? start_ns? {_SPENT}")),
            ),
            "predicted": null_or(ANY),
            "delays": rows("delays", "rank? step? unit phase span_ns ran_ns delayed_ns"),
        },
    ),
    "exposed": (
        "Why communication was exposed, and why ranks were idle; times in ns from the run's start.",
        {
            "verdict": TEXT,
            "advice": TEXT,
            "bound": null_or(
                row(
                    "bound",
                    "rank? step? span_ns compute_ns transfer_ns bound_ns any_cap_ns? half_bound_ns? half_transfer_ns?"
                    " found_ns? least_ns? waits_known bytes_explain",
                )
            ),
            "worst": null_or(row("", "rank? step?")),
            "diagnosis": null_or(_DIAGNOSIS),
            "actions": array(_ACTION),
            "causes": {"type": "object", "additionalProperties": TEXT},
            "ranks": rows(
                "",
                "rank?",
                steps=rows(
                    "",
                    "step? start_ns span_ns exposed_comm_ns exposed_wait_ns? exposed_transfer_ns?",
                    idle=row("idle", "idle_ns host_wait_ns kernel_wait_ns preempted_ns? other_ns"),
                    blocking=row("blocking", "blocking_ns not_blocking_ns unresolved_ns"),
                    causes=rows("exposed", "cause collective? kind? what? axis? late_rank? exposed_ns start_ns end_ns"),
                ),
            ),
            **_NOTES,
        },
    ),
    "buckets": (
        "Per rank and step each bucket of gradients; times in ns from the step's start.",
        {
            "ranks": rows(
                "",
                "rank?",
                steps=rows(
                    "buckets",
                    "step? backward_start_ns? backward_end_ns? passes gradients?",
                    buckets=rows(
                        "buckets",
                        "index bytes? parameters[?] gradient_ready_ns[?] last_parameter? ready_ns?"
                        " launch_ns? start_ns? end_ns? exposed_ns? arrivals[?] told_by? source?",
                        shapes=array({"type": ["array", "null"], "items": WHOLE}),
                    ),
                ),
            ),
            **_NOTES,
        },
    ),
    "schedule": (
        "Per rank and step every gather and reduce-scatter of a unit; times in ns from the step's start.",
        {
            "ranks": rows(
                "",
                "rank?",
                steps=rows(
                    "schedule_steps",
                    "step? microbatches gathers frees partial_frees layer_gathers layer_frees"
                    " forward_layer_gathers backward_layer_gathers peak_gathered_bytes? peak_ns?"
                    " peak_layers? wait_ns?",
                    events=rows(
                        "schedule",
                        "unit? layer? microbatch? phase? gather_launch_ns? gather_start_ns?"
                        " gather_end_ns? first_use_ns? last_use_ns? backward_first_use_ns?"
                        " backward_last_use_ns? free_ns? free_phase? resharded_bytes?"
                        " resharded_until_ns? wait_ns? bytes? held_ns? source",
                    ),
                    scatters=rows("scatters", "unit? layer? microbatch? launch_ns? start_ns? end_ns? bytes?"),
                    volume=rows("volume", "kind count bytes? sent_bytes?"),
                ),
            ),
            "volume_theory": null_or(ANY),
            "memory": rows("memory", "rank part bytes formula_bytes? formula?"),
            "memory_peaks": rows("peaks", "rank peak_bytes? scratch_bytes?"),
            **_NOTES,
        },
    ),
    "collectives": (
        "Every collective with its ranks; times in ns from the run's start.",
        {
            "collectives": array(_COLLECTIVE),
            "unmatched": array(keys(**_COLLECTIVE["properties"], reason=TEXT)),
            "stragglers": rows("stragglers", "rank collectives last late_median_ns? late_max_ns? cost_ns alone_ns"),
            "by_group_and_kind": rows(
                "communication_by", "rank? group? group_description? axis? kind? count bytes? busy_ns exposed_ns"
            ),
            "lines": rows(
                "transfer_lines",
                "kind bus_gb_per_s? deviation? r_squared? count sizes",
                ranks=array(WHOLE),
                latency_ns=null_or(NUMBER),
            ),
            "slowdowns": rows("slowdowns", "name pairs alone_ns beside_ns slowdown"),
            "clocks": rows("clocks", "rank? offset_ns? iqr_ns? collectives applied error_ns"),
            **_NOTES,
        },
    ),
    "compare": (
        "Runs side by side, and the caps where they are a sweep; times in ms.",
        {
            "runs": rows(
                "compare",
                "path strategy? bucket_cap_mb? ranks steps overlap_ratio? emulated predicted sent_bytes?"
                " theory_sent_bytes? memory_bytes? theory_memory_bytes? peak_memory_bytes? activation_bytes?"
                " recompute_ms? phantoms spread_ms? model? recording_of tier?",
                **dict.fromkeys(MEASURES, _FIGURE),
            ),
            "fastest": null_or(TEXT),
            "no_fastest": null_or(TEXT),
            "finding": TEXT,
            "sweep": null_or(_SWEEP),
            "largest_batches": rows(
                "largest_batches",
                "path sharding? memory_limit_bytes? peak_memory_bytes? batch? batch_ratio? published_batch_ratio?"
                " sample_ms? sample_iqr_ms? sample_ratio? published_sample_ratio?",
            ),
            "warnings": array(TEXT),
        },
    ),
    "advise": (
        "What another setting would gain, from one run.",
        {
            "advice": TEXT,
            "actions": array(_ACTION),
            "advised": null_or(_ADVISED),
            "settings": array(_ADVISED),
            "caps": rows("advise", "bucket_cap_mb buckets gain_ns step_ns"),
            "no_cutting_gains_more_than_ns": null_or(WHOLE),
            "sentences": array(TEXT),
            "lines": array(TEXT),
            "verified": null_or(_VERIFIED),
            "emulated": FLAG,
            "warnings": array(TEXT),
        },
    ),
    "predict": (
        "What a recorded run would take under another setting: means over all steps of all ranks.",
        {
            "run": TEXT,
            "changes": ANY,
            "recorded": _MEANS,
            "predicted": _MEANS,
            "interval": _INTERVAL,
            "gain": keys(gain_ns=WHOLE, half_ns=WHOLE),
            "extrapolated": _EXTRAPOLATED,
            "warnings": array(TEXT),
        },
    ),
    "pipeline": (
        "Each step's bubble and its parts, what each rank and stage did, and what other settings gain; times in ns.",
        {
            "pipeline": null_or(ANY) | {"description": "That of run.json; null where there is none."},
            "steps": rows(
                "pipeline_steps",
                "pipeline step? ranks microbatches span_ns bubble theory? imbalance? sending? overhead?"
                " overhead_ns? hop_ns? slowest_stage? slower held",
                stages=WHOLE | {"description": "How many there are."},
            ),
            "ranks": rows(
                "pipeline_ranks",
                "pipeline rank? step? stages span_ns busy_ns idle_ns wait_ns? transfer_ns? overhead_ns?"
                " schedule_ns? imbalance_ns? actions held",
            ),
            "waits": rows(
                "pipeline_waits",
                "rank? place? step? span_ns busy_ns bubble_ns bubble wait_ns? transfer_ns? sending_ns other_ns"
                " fill_ns received? sent?",
            ),
            "actions": rows(
                "pipeline",
                "pipeline rank? step? stage action microbatch begun_ns start_ns end_ns took_ns gap_ns wait_ns?"
                " transfer_ns? overhead_ns? held",
            ),
            "played": array(_PLAYED),
            "warnings": array(TEXT),
        },
    ),
    "bench-collectives": (
        "How long all-reduces take, by size and algorithm.",
        {
            "ranks": WHOLE,
            "device": TEXT,
            "link": null_or(keys(bandwidth_gbps=NUMBER, latency_us=NUMBER)),
            "rows": rows("bench_collectives", "bytes algorithm time_ns algbw_gb_per_s bus_gb_per_s modelled_ns? wrong"),
        },
    ),
    "plan": (
        "Batch, memory and operations of a training run.",
        {
            "layer_parameters": null_or(WHOLE),
            "forward_flops": null_or(WHOLE),
            "cache_bytes_per_token": null_or(WHOLE),
            "parameters": WHOLE,
            "step_flops": WHOLE,
            "quick_look_bytes": WHOLE,
            "batch": keys(**dict.fromkeys(("seq", "microbatch", "accumulate", "ranks", "samples", "tokens"), WHOLE)),
            "precision": TEXT,
            "gpu_bytes": null_or(WHOLE),
            "stages": rows(
                "plan",
                "stage parameters_bytes gradients_bytes optimizer_bytes activations_bytes total_bytes fits_from?",
            ),
            "advice": TEXT,
            "predicted": null_or(_PLANNED) | {"description": "With --from: the step, and what training takes."},
            "warnings": array(TEXT),
        },
    ),
    "watch": (
        "A watched training: each rank, kinds of steps, what has changed, who was last; times in ns.",
        {
            "source": {"type": "string", "enum": ["watch", "flight recorder"]},
            "world_size": WHOLE,
            "ended": FLAG | {"description": "Whether all ranks have ended the training."},
            "sentences": array(TEXT),
            "ranks": rows(
                "watched_ranks",
                "rank steps last_step? span_ns? data_ns? forward_ns? backward_ns? exposed_comm_ns?"
                " exposed_gradients_ns? exposed_gathers_ns? exposed_others_ns? late_share? late_median_ns?",
            ),
            "kinds": rows("watched_kinds", "period? first_step steps span_ns extra_ns"),
            "changes": rows(
                "watched_changes",
                "change rank? step since_step before_ns after_ns exposed_before_ns? exposed_after_ns?",
            ),
            "late": rows("watched_late", "step group late_rank late_ns late"),
            "stopped": rows(
                "watched_stopped",
                "rank last_step? answers since_ns? group? enqueued? looked_step? others_wait_in? ended",
            ),
            "collectives": rows(
                "dumped_collectives",
                "group sequence kinds[] arrived[] missing[] late_rank? late_ns? duration_ns? completed",
            )
            | {"description": "Of Flight Recorder dumps."},
            "recordings": array(keys(rank=WHOLE, step=WHOLE, path=TEXT, reason=TEXT)),
            "notes": array(TEXT),
        },
    ),
    "doctor": (
        "What would keep a recording from working on this machine.",
        {
            "ok": FLAG,
            "checks": array(
                keys(
                    name=TEXT,
                    verdict={"type": "string", "enum": ["ok", "warning", "problem"]},
                    found=TEXT,
                    remedy=null_or(TEXT),
                )
            ),
            "facts": ANY,
        },
    ),
}
"""What each command's document is about, and its keys."""


def schema(command: str) -> Schema:
    """The JSON Schema of the document that `overlaplab COMMAND … --json` prints."""
    about, properties = DOCUMENTS[command]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"overlaplab {command} --json",
        "description": about,
        **keys(schema_version={"const": SCHEMA_VERSION}, **properties),
    }


def text(command: str) -> str:
    """The file's text."""
    return json.dumps(schema(command), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in DOCUMENTS:
        (FOLDER / f"{name}.json").write_text(text(name))
