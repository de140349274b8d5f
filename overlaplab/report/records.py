"""Tables as what JSON knows: what the documents are made of."""

from __future__ import annotations

from typing import Any

import pandas as pd


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain Python values, null for what is missing."""
    columns = {str(name): [plain_value(value) for value in table[name]] for name in table}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def plain_value(value: Any) -> Any:
    """A cell as a plain Python value, a tuple as a list, null for what is missing."""
    if isinstance(value, tuple):
        return [plain_value(member) for member in value]
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
