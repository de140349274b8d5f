"""The command that says what another setting would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overlaplab.cli.options import OPENING, Json, Opening, RunPath, Strategy, group_options
from overlaplab.cli.shared import load, print_json, show
from overlaplab.errors import OverlaplabError

if TYPE_CHECKING:
    from overlaplab.manifest import Link

app = typer.Typer()


@app.command(
    epilog="Example: overlaplab predict runs/bucketed --bucket-cap-mb 4 --link 10Gbps,50us --out runs/predicted"
)
@group_options
def predict(
    run: RunPath,
    bucket_cap_mb: Annotated[float | None, typer.Option(metavar="M", help="Cap of the buckets, in MiB.")] = None,
    first_bucket_mb: Annotated[float | None, typer.Option(metavar="M", help="Cap of the first bucket, in MiB.")] = None,
    link: Annotated[
        str | None, typer.Option(metavar="L", help="Bandwidth and latency, as in 1Gbps,200us; or a run, for its link.")
    ] = None,
    ranks: Annotated[int | None, typer.Option(metavar="N", help="Number of ranks.")] = None,
    prefetch: Annotated[int | None, typer.Option(metavar="P", help="Units gathered ahead of the one in use.")] = None,
    accumulate: Annotated[int | None, typer.Option(metavar="A", help="Microbatches per step.")] = None,
    strategy: Strategy = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME", help="Schedule of a pipeline: gpipe, 1f1b, interleaved-1f1b or zbv.")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(metavar="M", help="Microbatches of a pipeline's step, each as large as recorded.")
    ] = None,
    stages: Annotated[
        str | None, typer.Option(metavar="L,L…", help="Layers of each stage of a pipeline, as in 1,3,3,1.")
    ] = None,
    no_straggler: Annotated[
        bool,
        typer.Option("--no-straggler", help="Let every rank work as long as the median rank, of two the faster one."),
    ] = False,
    edit: Annotated[
        list[str] | None,
        typer.Option("--edit", metavar="NAME[=VALUE]", help="Another change, by name (repeatable)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="RUN2", help="A new folder for the predicted run.")
    ] = None,
    as_json: Json = False,
    opening: Opening = OPENING,
) -> None:
    """Predict a recorded run under another setting: step time, exposed time, and their error.

    The predicted run is a folder like a recorded one, which all commands and pages read and mark. Figures are means
    over all ranks' steps that nothing disturbed. --edit takes these options by name, as in cap=4, and further ones;
    docs/predictions.md lists all. What can be changed depends on the recording:

    Data parallelism on CPUs: all but the options of pipelines.
    A pipeline: --schedule, --microbatches, --stages, --link.
    Tensor parallelism, DP × TP, HSDP: --link.
    An asynchronous parameter server: nothing.
    GPUs: --link, --ranks and caps of DDP and of the engine, --prefetch of FSDP2, and edits of what hosts do.
    """
    from overlaplab.findings import refuse_to_predict
    from overlaplab.load.run_folder import load_run
    from overlaplab.report import documents, predicted_run, terminal
    from overlaplab.simulate.predictions.predict import predict as predict_run
    from overlaplab.simulate.programs.setting import Setting

    if out is not None and out.exists():
        raise OverlaplabError("exists already", path=out, remedy="Name a new folder.")
    recorded = load([run], opening)[0]
    options: dict[str, Any] = {
        "strategy": strategy,
        "bucket_cap_mb": bucket_cap_mb,
        "first_bucket_mb": first_bucket_mb,
        "link": link,
        "ranks": ranks,
        "prefetch": prefetch,
        "accumulate": accumulate,
        "schedule": schedule,
        "microbatches": microbatches,
        "stages": None if stages is None else _stages(stages),
        "straggler": False if no_straggler else None,
    }
    changes, edits = _edits(edit or ())
    if twice := [name for name, value in changes.items() if options.get(name) not in (None, value)]:
        option = twice[0].replace("_", "-")
        raise OverlaplabError(f"--{option} and --edit give it two values", remedy="Give the option, or --edit.")
    options |= changes
    refuse_to_predict(recorded, needs_all_ranks=any(value is not None for value in options.values()))
    if options["link"] is not None:
        options["link"] = _link(str(options["link"]), options["ranks"] or len(recorded.traces))
    changed = {name: value for name, value in options.items() if value is not None}
    prediction = predict_run(recorded, Setting(**changed, edits=edits))
    with TemporaryDirectory() as scratch:
        folder = out or Path(scratch) / "predicted"
        predicted_run.write_run(folder, prediction.manifest, prediction.ranks)
        predicted = load_run(folder, cache=False)
        if as_json:
            print_json(documents.predict_document(prediction, recorded, predicted))
        else:
            show(*terminal.predict(prediction, recorded, predicted))


def _edits(texts: Sequence[str]) -> tuple[dict[str, Any], tuple[tuple[str, str | None], ...]]:
    """What `--edit` gives: options of a `Setting`, by their fields, and edits by their names."""
    options: dict[str, Any] = {}
    edits: list[tuple[str, str | None]] = []
    for text in texts:
        name, _, value = text.partition("=")
        if name == "no-straggler" and not value:
            options["straggler"] = False
        elif name not in OPTIONS:
            edits.append((name, value or None))
        else:
            field, parse, example = OPTIONS[name]
            try:
                parsed = parse(value)
            except ValueError:
                raise OverlaplabError(f"--edit {text}: no value for {name}", remedy=f"As in {name}={example}") from None
            if field in options and options[field] != parsed:
                raise OverlaplabError(f"--edit {name} is given twice", remedy="Predict one value at a time.")
            options[field] = parsed
    return options, tuple(edits)


def _caps(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _word(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _stages(text: str) -> tuple[int, ...]:
    """The layers of each stage."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and len(word) < 10 for word in words):
        raise OverlaplabError(f"--stages {text} are not the layers of each stage", remedy="As in --stages 1,3,3,1.")
    return tuple(int(word) for word in words)


def _link(text: str, ranks: int) -> Link:
    """Return the link that the text names, or that of the run at the path that it is."""
    from msgspec.structs import replace

    from overlaplab.costs import parse_link
    from overlaplab.load.run_folder import load_manifest

    manifest = load_manifest(text) if Path(text).is_dir() else None
    if manifest is not None and manifest.link is not None:
        return replace(manifest.link, world_size=ranks)
    return parse_link(text, ranks)


OPTIONS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "strategy": ("strategy", _word, "bucketed"),
    "cap": ("bucket_cap_mb", float, "4"),
    "first-bucket": ("first_bucket_mb", float, "1"),
    "caps": ("caps_mb", _caps, "4,2,1"),
    "without-parameter": ("without_parameter", _word, "embedding.weight"),
    "link": ("link", _word, "1Gbps,200us"),
    "ranks": ("ranks", int, "64"),
    "prefetch": ("prefetch", int, "2"),
    "accumulate": ("accumulate", int, "4"),
    "schedule": ("schedule", _word, "1f1b"),
    "microbatches": ("microbatches", int, "8"),
    "stages": ("stages", _stages, "1,3,3,1"),
}
"""By an edit's name the field of `Setting` that it sets, how its value is read, and an example of one."""
