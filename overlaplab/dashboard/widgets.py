"""What the pages share. Strings out of a trace, a manifest or the file system go only through `st.text`, `st.code`,
`st.dataframe`, select boxes' options and chart text: none of these reads Markdown or HTML.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from overlaplab import findings
from overlaplab.charts.theme import palette
from overlaplab.columns import Column
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.downloads import download_buttons
from overlaplab.dashboard.folder import find_runs
from overlaplab.dashboard.head import PageHead
from overlaplab.findings import Diagnosis
from overlaplab.formats import in_one_unit
from overlaplab.sections.blocks import Bar, Bars, Block, Chart, Folded, Lines, Section, TableBlock, Tiles
from overlaplab.words import capitalise, count, shorten

_TABLE_WIDTH = 930  # pixels that a table has in a window of 1280
_LETTER, _PADDING = 6.3, 24  # pixels of a table's letter, and of what stands beside a cell's
_VISIBLE_ROWS = 10  # rows that a table shows without scrolling
_MOST_ROWS = 5000  # more do not come to the browser at ease
_SAMPLES = Path(__file__).parents[2] / "traces"


def opened_folder() -> Path | None:
    """The folder given after `--`, else the sample runs where they lie beside the code, else None."""
    folders = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if folders:
        return Path(folders[0]).expanduser()
    return _SAMPLES if _SAMPLES.is_dir() and find_runs(_SAMPLES) else None


def is_dark() -> bool:
    """Whether the browser shows the dark theme."""
    return st.context.theme.type == "dark"


def show_warnings(opened: Opened) -> None:
    """What a reader of the run's figures must know, a line each."""
    for warning in opened.warnings:
        st.text(f"Note: {shorten(warning, 300)}")


def show_lead(sentence: str, note: str | None = None) -> None:
    """The first sentence about what the page shows, large, and a line about the runs under it."""
    with st.container(key="lead", gap="xxsmall"):
        st.text(sentence)
        if note is not None:
            with st.container(key="note"):
                st.text(note)


def show_advice(sentences: Iterable[str], diagnosis: Diagnosis | None = None) -> None:
    """The end of a page: what to do about what it shows, a line each, but for what its head says of `diagnosis`."""
    above = () if diagnosis is None else findings.why_and_what_to_do(diagnosis)
    sentences = [sentence for sentence in sentences if sentence not in above]
    if not sentences:
        return
    st.header("What to do about it", anchor=False)
    with st.container(key="todo", gap="xsmall"):
        for sentence in sentences:
            st.text(sentence)


def show_nothing(opened: Opened, otherwise: str) -> None:
    """Why there is nothing to draw: device activity that was not recorded, else as given, in Markdown."""
    missing = findings.not_recorded(opened.run)
    if missing is None:
        st.info(otherwise)
    else:
        st.warning("Device activity was not recorded, or not by a device that is known: there is no breakdown.")
        st.text(missing)
    show_warnings(opened)


def show_nothing_counts(opened: Opened) -> None:
    """`show_nothing`, of a page about all that counts."""
    show_nothing(opened, findings.why_no_breakdown(opened.run))


def show_page(
    head: PageHead, section: Section | None, diagnosis: Diagnosis | None, choose: str, nothing: str
) -> dict[Any, Any] | None:
    """A page that is one section, or says that there is `nothing`; the row that was chosen in the table `choose`."""
    head.show(diagnosis)
    if section is None:
        show_nothing(head.opened, nothing)
        return None
    show_lead(section.lead)
    show_warnings(head.opened)
    row = show_blocks(section.blocks, choose, head.opened.title)
    show_advice(section.advice, diagnosis)
    return row


def show_section(section: Section) -> None:
    """A section about several runs: its title and lead, then as `show_blocks` has it."""
    st.header(section.title, anchor=False)
    st.text(section.lead)
    show_blocks(section.blocks)


def show_blocks(blocks: Iterable[Block], choose: str = "", run: str = "") -> dict[Any, Any] | None:
    """Draw a section's charts, tables and lines; the row that was chosen in the table of the key `choose`.

    Charts, and the files in which they are kept, name the `run` that they are about; empty for several.
    """
    rows = [
        _show_folded(block, choose)
        if isinstance(block, Folded)
        else show_block(block, choose=block.key == choose, run=run)
        for block in blocks
    ]
    return next((row for row in rows if row is not None), None)


def show_block(block: Block, *, choose: bool = False, run: str = "") -> dict[Any, Any] | None:
    """Draw a part of a section about `run`; the bar's spot that was chosen, or with `choose` the table's row."""
    match block:
        case Chart():
            _draw_once(id(block), is_dark(), run, block)
            _download_buttons(block, run)
        case Lines():
            st.subheader(block.heading, anchor=False)
            with st.container(key=block.key, gap=None):
                for line in block.lines:
                    st.text(line)
        case TableBlock():
            for table in block.summary if block.is_long else ():
                st.subheader(table.caption, anchor=False)
                show_table(table)
            st.subheader(block.caption, anchor=False)
            if block.lead:
                st.text(block.lead)
            return show_table(block, choose=choose)
        case Tiles():
            st.html(_tiles(block))
        case Bars():
            return _show_bars(block)
        case Folded():
            return _show_folded(block, "")
    return None


def _show_folded(block: Folded, choose: str) -> dict[Any, Any] | None:
    """A part that is folded away; what is in it is made when it is open."""
    fold = st.expander(block.heading, key=block.key, on_change="rerun")
    if not fold.open:
        return None
    with fold:
        blocks = block.blocks()
        if not blocks:
            st.text("The run does not say.")
        return show_blocks(blocks, choose)


def _tiles(block: Tiles) -> str:
    """HTML of the program's own words and figures."""
    tiles = [
        f"<div><dt>{escape(tile.label)}</dt><dd>{escape(tile.value)}</dd><dd>{escape(tile.note)}</dd></div>"
        for tile in block.tiles
    ]
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _show_bars(block: Bars) -> dict[Any, Any] | None:
    """A row per bar, each with a button that leads to its spot, which is returned once."""
    st.subheader(block.heading, anchor=False)
    chosen = None
    with st.container(key=block.key, gap="xxsmall"):
        for number, bar in enumerate(block.bars):
            if _show_bar(bar, f"{block.key}_{number}", predicted=block.predicted) and bar.spot is not None:
                chosen = dict(bar.spot)
        if block.remainder:
            with st.container(key=f"{block.key}_rest"):
                st.text(block.remainder)
    return chosen


def _show_bar(bar: Bar, key: str, *, predicted: bool) -> bool:
    label, drawn, words, link = st.columns((18, 22, 47, 13), gap="small", vertical_alignment="center")
    with label.container(key=f"{key}_label"):
        st.text(bar.label)
    tone = getattr(palette(is_dark()), bar.colour)
    width = f"{100 * bar.share:.1f}"
    look = "bar predicted" if predicted else "bar"
    drawn.html(
        f'<div class="{look}"><i style="flex: 0 1 calc({width}% - {width} * 0.055rem); background: {tone}"></i>'
        f"<b>{escape(bar.value)}</b></div>"
    )
    with words.container(key=f"{key}_words", gap=None):
        for line in bar.lines:
            st.text(line)
    if bar.spot is None:
        return False
    return link.button("on the timeline ›", key=f"{key}_link", type="tertiary", help="Show its collectives there.")


def show_choice(block: Chart, on_choice: Callable[[], None], run: str) -> None:
    """A chart of `run` of which a part can be chosen; `on_choice` is called then, before anything is drawn anew."""
    _show_chart(_cached_chart(id(block), is_dark(), run, block)[1], block.key, on_select=on_choice)
    _download_buttons(block, run)


def _download_buttons(block: Chart, run: str) -> None:
    """Buttons for a chart whose table is worth keeping."""
    if block.table is not None:
        draw = partial(_draw, block, f"Run {run}" if run else "", dark=is_dark())
        download_buttons(draw, block.key, block.table, dark=is_dark(), run=run)


def _draw(block: Chart, run: str, *, dark: bool) -> alt.LayerChart:
    """The chart, with these words about the run at the beginning of its note, which follows a sentence."""
    return block.draw(dark=dark, note=capitalise(" · ".join(filter(None, (run, block.note)))) or None)


def _run_words(block: Chart, run: str) -> str:
    """The words about the run where a chart has a note; the page's head has them, too."""
    return f"Run {run}" if run and block.note else ""


@st.cache_resource(max_entries=256, show_spinner=False)
def _draw_once(identity: int, dark: bool, run: str, _block: Chart) -> Chart:
    """Show a chart; when the same block is shown again, Streamlit sends what it sent before.

    `identity` is the block's `id`; the cache keeps the block that is returned alive, so that no other gets this `id`.
    """
    _show_chart(_draw(_block, _run_words(_block, run), dark=dark), _block.key)
    return _block


@st.cache_resource(max_entries=64, show_spinner=False)
def _cached_chart(identity: int, dark: bool, run: str, _block: Chart) -> tuple[Chart, alt.LayerChart]:
    """A block, and the chart that it draws; as `_draw_once`, for charts that the reader can choose from."""
    return _block, _draw(_block, _run_words(_block, run), dark=dark)


def _show_chart(chart: alt.LayerChart, key: str, **look: Any) -> None:
    """A chart below its title and subtitle, which wrap in a narrow window where the chart's own would be cut.

    The chart's own description is what screen readers say.
    """
    with st.container(key=f"title_{key}", gap=None):
        st.text(_one_line(chart.title.text))
        if chart.title.subtitle not in (alt.Undefined, ""):
            with st.container(key=f"subtitle_{key}"):
                st.text(_one_line(chart.title.subtitle))
    bare = chart.copy(deep=False)
    bare.title, bare.width = alt.Undefined, "container"
    st.altair_chart(bare, theme=None, width="stretch", key=key, **look)


def _one_line(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else " ".join(lines)


def show_table(block: TableBlock, *, choose: bool = False, narrow: bool = False) -> dict[Any, Any] | None:
    """A table without its caption, and without columns of which nothing is known; numbers stand on the right.

    With `choose` the reader can choose a row, which is returned once; `narrow` is for a table beside something else.
    """
    rows = block.frame.head(_MOST_ROWS)
    hint = "Choose a row to see it on the timeline." if choose else ""
    more = len(block.frame) - len(rows)
    left_out = f"{count(more, 'more row')}, which the command line shows with --all." if more else ""
    _, shown, config = _cached_table(id(block), narrow, block)
    width = sum(_column_width(config[str(title)]["label"], shown[title]) for title in shown)
    is_cut = len(shown) > _VISIBLE_ROWS or width > _TABLE_WIDTH
    cut = f"Scroll for all of {count(len(shown), 'row')} and {count(len(shown.columns), 'column')}." if is_cut else ""
    remarks = [remark for remark in (block.note, left_out, cut, hint) if remark]
    if remarks:
        with st.container(key=f"remarks_{block.key}"):
            st.text(" ".join(remarks))
    name = block.key.replace("_", " ")  # for those who do not see it
    look: dict[str, Any] = {"hide_index": True, "column_config": config, "placeholder": "–", "alt": name}
    if not choose:
        st.dataframe(shown, key=block.key, **look)
        return None
    # A new key after each choice: else the reader who comes back would be sent away again.
    turn = st.session_state.setdefault(f"{block.key}_turn", 0)
    state: Any = st.dataframe(shown, key=f"{block.key}_{turn}", on_select="rerun", selection_mode="single-row", **look)
    chosen = state["selection"]["rows"]
    if not chosen or not 0 <= chosen[0] < len(shown):
        return None
    st.session_state[f"{block.key}_turn"] = turn + 1
    row: dict[Any, Any] = rows.iloc[[chosen[0]]].to_dict("records")[0]
    return row


@st.cache_resource(max_entries=64, show_spinner=False)
def _cached_table(identity: int, narrow: bool, _block: TableBlock) -> tuple[TableBlock, pd.DataFrame, dict[str, Any]]:
    """A block, and its first rows as they are shown, and how; as `_draw_once`."""
    wide = _block.wide or _block.columns
    room = 0 if narrow else _TABLE_WIDTH
    return _block, *_for_streamlit(_block.frame.head(_MOST_ROWS), (narrow and _block.narrow) or wide, room)


def _for_streamlit(table: pd.DataFrame, columns: Iterable[Column], room: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table as it is shown, and how: each column in one unit, each header with its explanation.

    Headers are those of a terminal where the others do not fit into so many pixels.
    """
    filled = [column for column in columns if table[column.name].notna().any()]
    in_units = {column: in_one_unit(table[column.name], column) for column in filled}
    labels = {column: _label(column, unit) for column, (_, unit, _) in in_units.items()}
    if sum(_column_width(labels[column], values) for column, (values, _, _) in in_units.items()) > room:
        labels = {column: _terse_label(column, unit) for column, (_, unit, _) in in_units.items()}
    shown, config = {}, dict[str, Any]()
    for column, (values, unit, form) in in_units.items():
        title = f"{column.header} ({unit})" if unit else column.header
        shown[title] = values
        look: dict[str, Any] = {"label": labels[column], "help": column.explanation}
        if _is_text(values):
            config[title] = st.column_config.TextColumn(width=_text_width(look["label"], values), **look)
        else:
            if column.unit == "ratio" and "%" not in look["label"]:
                form = f"{form} %%"
            config[title] = st.column_config.NumberColumn(format=form or None, **look)
    return pd.DataFrame(shown), config


def _label(column: Column, unit: str) -> str:
    """The header with the unit, narrow, so that many columns fit; of percentages with what they are shares of."""
    return column.title if column.unit == "ratio" else f"{column.header} {unit}".strip()


def _terse_label(column: Column, unit: str) -> str:
    """The header of a terminal, with the unit in which it is shown here."""
    if column.unit == "GB/s":
        return unit
    unit = "%" if column.unit == "ratio" else unit
    name = column.terse.removesuffix("MB").removesuffix("kB") if column.unit == "bytes" else column.terse
    return name if unit in name else f"{name} {unit}".strip()


def _is_text(values: pd.Series) -> bool:
    return pd.api.types.is_string_dtype(values) or values.dtype == object


def _column_width(header: str, values: pd.Series[Any]) -> int:
    """Pixels, about."""
    return _text_width(header, values) if _is_text(values) else round(_LETTER * len(header)) + _PADDING


def _text_width(header: str, texts: pd.Series) -> int:
    """Pixels in which the longest of the first texts has room, as far as a table can give it."""
    longest = max((len(str(text)) for text in (header, *texts.head(1000).dropna())), default=0)
    return min(round(_LETTER * longest) + _PADDING, 440)
