"""Write docs/columns.md out of the registry of columns, overlaplab/columns.py.

python scripts/columns.py    # after a change of the registry
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from overlaplab.columns import REGISTRY, Column

PAGE = Path(__file__).resolve().parents[1] / "docs" / "columns.md"

_HEAD = """# Columns

What the tables of terminal, report and dashboard call each column, and what it means. `name` is its name in Python and
its key in JSON, `unit` what it is measured in there. People are shown ns as ms, bytes as kB or MB, and ratios as
percentages; the header of a CSV file tells the unit of its values. A terminal of 80 columns may need a shorter header.

`scripts/columns.py` writes this page out of `overlaplab/columns.py`.
"""


def page() -> str:
    """The page's text."""
    parts = [_HEAD, _table(REGISTRY[""].values()), "## In single tables\n\nThere these columns mean something else.\n"]
    parts += [f"### `{table}`\n\n{_table(columns.values())}" for table, columns in sorted(REGISTRY.items()) if table]
    return "\n".join(parts)


def _table(columns: Iterable[Column]) -> str:
    rows = [f"| `{each.name}` | {each.unit} | {each.header} | {each.short} | {each.explanation} |" for each in columns]
    return "\n".join(["| name | unit | header | in a terminal | explanation |", "|---|---|---|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page())
