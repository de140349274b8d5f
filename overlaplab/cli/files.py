"""The commands that write one file about runs: a report, an export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from overlaplab.cli.options import OPENING, Opening, RunPath, RunPaths, group_options
from overlaplab.cli.shared import expand_runs, load, need, progress, show
from overlaplab.errors import OverlaplabError
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.words import count

app = typer.Typer()


@app.command(epilog="Example: overlaplab report runs/naive runs/bucketed -o report.html")
@group_options
def report(
    runs: RunPaths,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="An existing file is replaced.")],
    selection: Selection = EVERYTHING,
    opening: Opening = OPENING,
) -> None:
    """Write one HTML file that holds the charts and tables of these runs: it opens from disk and can be mailed.

    A folder of runs means all of them.
    """
    from overlaplab.report.whole_file import refuse_target, whole_file

    need("a report", "report", "vl_convert")
    refuse_target(out, [])
    runs = expand_runs(runs)
    loaded = load(runs, opening)
    refuse_target(out, loaded)
    # altair needs jsonschema, which, where Jupyter has installed a grammar of IRIs, parses it for more than a second.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    with progress("drawing") as advance:
        from overlaplab.report.page import report_page  # it imports altair, for which bad input need not wait

        text = report_page(loaded, selection, advance, cached=not opening.no_cache)
    page = text.encode("utf-8", errors="replace")
    with whole_file(out) as file:
        file.write(page)
    show(f"{out}: {len(page) / 1e6:.1f} MB")


@app.command(epilog="Example: overlaplab export runs/bucketed --perfetto bucketed.json.gz")
@group_options
def export(
    run: RunPath,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            "--perfetto",
            metavar="FILE",
            help="Write all ranks into one trace; gzipped if FILE ends in .gz; - writes to a pipe.",
        ),
    ] = None,
    inductor_estimates: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="How long collectives of each size take, without waiting, for torch inductor's option"
            " profile_guided_estimations_profile_path.",
        ),
    ] = None,
    opening: Opening = OPENING,
) -> None:
    """Write a run to a file for another tool: --perfetto for ui.perfetto.dev, clocks aligned, or --inductor-estimates.

    For Perfetto each rank is a process, with its threads and streams; above these are steps, phases, buckets, gathers
    and exposed communication as tracks. Arrows lead from launches to kernels, and from rank to rank of each collective.
    """
    from overlaplab.report.inductor import write_inductor_estimates
    from overlaplab.report.perfetto import write_perfetto
    from overlaplab.report.whole_file import refuse_target, whole_file

    if perfetto is None and inductor_estimates is None:
        raise OverlaplabError("nothing to export", remedy="Give --perfetto FILE or --inductor-estimates FILE.")
    if str(perfetto) == "-":
        if inductor_estimates is not None:
            what = "--perfetto - goes without --inductor-estimates"
            raise OverlaplabError(what, remedy="Export one after the other.")
        with progress("writing ranks") as advance:
            write_perfetto(load([run], opening)[0], sys.stdout.buffer, packed=False, progress=advance)
        return
    for target in filter(None, (perfetto, inductor_estimates)):
        refuse_target(target, [])
    loaded = load([run], opening)[0]
    for target in filter(None, (perfetto, inductor_estimates)):
        refuse_target(target, [loaded])
    if perfetto is not None:
        with progress("writing ranks") as advance, whole_file(perfetto) as file:
            write_perfetto(loaded, file, packed=perfetto.suffix == ".gz", progress=advance)
        show(f"{perfetto}: {perfetto.stat().st_size / 1e6:.1f} MB")
    if inductor_estimates is not None:
        with whole_file(inductor_estimates) as file:
            number = write_inductor_estimates(loaded, file)
        show(f"{inductor_estimates}: {count(number, 'time')} of collectives")
