"""The commands about several runs: comparisons, checks that fail a build, and baselines for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overlaplab.cli.options import OPENING, Every, Json, Opening, RunPaths, group_options
from overlaplab.cli.shared import expand_runs, load, print_json, show
from overlaplab.errors import OverlaplabError
from overlaplab.selection import EVERYTHING, Selection

if TYPE_CHECKING:
    from overlaplab.analyses import Scalars
    from overlaplab.findings import CheckLine

app = typer.Typer()


@app.command(epilog="Example: overlaplab compare runs/naive runs/bucketed --fail-if 'exposed_comm_ns > 5%'")
@group_options
def compare(
    runs: RunPaths,
    as_json: Json = False,
    every: Every = False,
    selection: Selection = EVERYTHING,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Exit with 1 if this holds: % compares the last run with the first ('exposed_comm_ns > 5%'), ms or a"
            " ratio is an absolute limit ('exposed.tail > 5ms'). Exit with 2 if it cannot be judged (repeatable).",
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Exit with 1 if the last run does not meet this ('hidden_gathers >= 7', 'exposed.tail_share < 0.05')."
            " Exit with 3 if that is open: a busy machine, a launch-bound run, an unknown figure (repeatable).",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with this baseline instead of the first run."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE.xml", help="Write the conditions as JUnit tests.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Write the check as Markdown, for a comment.")
    ] = None,
    opening: Opening = OPENING,
) -> None:
    """Runs side by side: step time, its parts, and which run is clearly fastest.

    A folder of runs means all of them. Runs that differ only in bucket_cap_mb are shown by cap. One run is enough
    with --baseline or --require. With --baseline a change fails only if it lies beyond all of its recordings.
    """
    from overlaplab import analyses, findings
    from overlaplab.findings.requirements import judge_requirements, parse_requirement
    from overlaplab.report import documents, terminal

    with _write_if_not_judged([*(fail_if or ()), *(require or ())], runs[-1], junit, markdown):
        runs = expand_runs(runs)
        conditions = [analyses.parse_condition(text) for text in fail_if or ()]
        requirements = [parse_requirement(text) for text in require or ()]
    names = [str(condition) for condition in (*conditions, *requirements)]
    checks = bool(names or junit or markdown)
    causes = any(condition.is_of_cause for condition in conditions)
    before: Sequence[Scalars] = ()
    with _write_if_not_judged(names, runs[-1], junit, markdown):
        if len(runs) < 2 and baseline is None and (conditions or not requirements):
            raise OverlaplabError("only one run", path=runs[0], remedy="Name two or more to compare, or a --baseline.")
        stored = None if baseline is None else analyses.stored_baseline(baseline)
        loaded = load(runs, opening)
        first = loaded[0] if stored is None and len(loaded) > 1 else None
        if stored is not None or (checks and (conditions or not requirements)):
            before = analyses.recordings_before(
                loaded[-1], selection, stored, first, conditions=conditions, path=baseline
            )
        if as_json:
            print_json(documents.compare_document(loaded, selection))
        else:
            show(*terminal.compare(loaded, selection, every=every))
    if checks:
        from overlaplab.report.checks import gate_markdown, junit_xml

        with _write_if_not_judged(names, loaded[-1].path, junit, markdown):
            figures = analyses.scalars(loaded[-1], selection, causes=causes)
            lines = findings.check_lines(analyses.judged(conditions, before, figures))
            lines += judge_requirements(loaded[-1], requirements, selection) if requirements else []
        if junit is not None:
            _write(junit, junit_xml(lines, loaded[-1].path))
        if markdown is not None:
            _write(markdown, gate_markdown(loaded[-1], selection, figures, before, lines))
        _say(lines, findings.busy_note(loaded[-1:] if first is None else [first, loaded[-1]], selection))
    if baseline is not None and not conditions:
        print("overlaplab: note: nothing is compared with the baseline: no --fail-if names a figure", file=sys.stderr)


@app.command("baseline", epilog="Example: overlaplab baseline runs/main-1 runs/main-2 runs/main-3 -o baseline.json")
@group_options
def baseline_command(
    runs: RunPaths,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.json", help="An existing file is replaced.")],
    selection: Selection = EVERYTHING,
    opening: Opening = OPENING,
) -> None:
    """Store the figures of several recordings of one setting: `compare --baseline` compares later runs with them."""
    from overlaplab import analyses
    from overlaplab.report import terminal
    from overlaplab.report.whole_file import refuse_target
    from overlaplab.words import count

    refuse_target(out, [])
    loaded = load(expand_runs(runs), opening)
    refuse_target(out, loaded)
    stored = analyses.baseline(loaded, selection)
    _write(out, stored.text().encode())
    show(f"{out}: {count(len(stored.recordings), 'recording')}", *terminal.warnings_by_run(loaded))


def _say(lines: Sequence[CheckLine], busy: str | None) -> None:
    """Say what became of each condition, and exit with 1 if any failed, else with 3 if any is inconclusive.

    `busy`: that the machine was busy, which is said where a condition fails.
    """
    from overlaplab.findings import Outcome

    words = {Outcome.HOLDS: "ok", Outcome.FAILED: "failed", Outcome.INCONCLUSIVE: "inconclusive"}
    for line in lines:
        print(f"overlaplab: {words[line.outcome]}: {line.sentence}", file=sys.stderr)
    outcomes = {line.outcome for line in lines}
    if busy is not None and Outcome.FAILED in outcomes:
        print(f"overlaplab: note: {busy}", file=sys.stderr)
    if Outcome.FAILED in outcomes:
        raise typer.Exit(1)
    if Outcome.INCONCLUSIVE in outcomes:
        raise typer.Exit(3)


@contextmanager
def _write_if_not_judged(
    conditions: Sequence[str], run: str, junit: Path | None, markdown: Path | None
) -> Iterator[None]:
    """Where the block raises, write why nothing was judged, so that no earlier verdict stands in the check's files."""
    try:
        yield
    except OverlaplabError as error:
        from overlaplab.report.checks import not_judged_markdown, not_judged_xml

        if junit is not None:
            _write(junit, not_judged_xml(conditions, run, str(error)))
        if markdown is not None:
            _write(markdown, not_judged_markdown(str(error)))
        raise


def _write(path: Path, content: bytes) -> None:
    from overlaplab.report.whole_file import refuse_target, whole_file

    refuse_target(path, [])
    with whole_file(path) as file:
        file.write(content)
