"""A report: one HTML file that holds everything it shows, asks no other host for anything, and runs no script but its
own.

Every text goes through Jinja2's autoescape, every chart's data through `bundle.data_island`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import PurePath
from typing import Any

import jinja2
from markupsafe import Markup

from overlaplab import findings
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.report.blocks import Chapter, Drawn, shown_columns
from overlaplab.report.bundle import asset, columnar_spec, data_island, fill, libraries, policy, style
from overlaplab.report.sections import comparison, sections
from overlaplab.sections.run_tables import RunTables
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.words import sentence, shorten, visible_line


def report_page(
    runs: Sequence[Run],
    selection: Selection = EVERYTHING,
    progress: Callable[[int, int], None] | None = None,
    *,
    cached: bool = True,
) -> str:
    """The report on these runs as HTML: what compares them, then each; of a sweep only a run of its best and one of its
    worst cap. `cached`: its libraries may be read from the cache's folder.

    Raises `OverlaplabError` for a rank or step that a run does not have.
    """
    if not runs:
        raise OverlaplabError("no runs to report on")
    reported = [RunTables(run=run, selection=selection) for run in runs]
    compared, roles = comparison(reported)
    names = _names(runs)
    roles = roles or dict.fromkeys(range(len(runs)), "")
    chapters = [compared] if compared else []
    for done, (place, role) in enumerate(roles.items()):
        if progress:
            progress(done, len(roles))
        title = f"{names[place]}: {role}" if role else names[place]
        chapters.append(_chapter(reported[place], f"run-{place + 1}", title))
    title = f"overlaplab: {names[0]}" if len(names) == 1 else f"overlaplab: {len(names)} runs"
    return _render_page(title, chapters, cached=cached)


def _chapter(tables: RunTables, anchor: str, name: str) -> Chapter:
    run, diagnosis = tables.run, tables.diagnosis
    return Chapter(
        anchor=anchor,
        title=name,
        path=shorten(run.path, 300),
        verdict=tables.verdict if diagnosis is None else diagnosis.headline,
        advice=() if diagnosis is None else (diagnosis.advice, *diagnosis.remarks),
        note=findings.about(run.manifest, len(run.traces)),
        warnings=tuple(shorten(warning, 400) for warning in tables.warnings),
        sections=tuple(sections(tables)),
    )


def _names(runs: Sequence[Run]) -> list[str]:
    """What each run is called: its folder's name, with a number where two have the same."""
    names = [shorten(PurePath(run.path).name or run.path, 80) for run in runs]
    twice = {name for name in names if names.count(name) > 1}
    return [f"{place}: {name}" if name in twice else name for place, name in enumerate(names, 1)]


def _render_page(title: str, chapters: Sequence[Chapter], *, cached: bool) -> str:
    specs: dict[str, Any] = {}
    for chapter in chapters:
        for number, section in enumerate(chapter.sections, 1):
            for place, block in enumerate(section.blocks, 1):
                if isinstance(block, Drawn):
                    specs[f"{chapter.anchor}-{number}-{place}"] = columnar_spec(block.spec)
    scripts = [libraries(cached=cached), asset("page.js")]
    sheet = style()
    return _template().render(
        title=title,
        chapters=chapters,
        policy=policy(scripts=scripts, styles=[sheet]),
        # Trusted: the project's own style and scripts, and JSON that is escaped already.
        style=Markup(sheet),
        scripts=[Markup(script) for script in scripts],
        charts=Markup(data_island(specs)),
        version=version("overlaplab"),
        today=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible_text,
    )
    environment.globals.update(fill=fill, shown_columns=shown_columns, sentence=sentence, zip=zip)
    return environment.from_string(asset("page.html"))


def _visible_text(value: Any) -> Any:
    """Characters that cannot be seen, such as those that turn the direction of writing, do not reach the page; but a
    space that keeps a number and its unit together does.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\N{NO-BREAK SPACE}".join(map(visible_line, value.split("\N{NO-BREAK SPACE}")))
