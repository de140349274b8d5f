"""Holds documents of --json against docs/schema."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[2] / "docs" / "schema"


def expect_schema(command: str, document: Any) -> None:
    """A document has the types and all the keys that its schema tells, and no others."""
    errors = [f"{error.json_path}: {error.message}"[:300] for error in _validator(command).iter_errors(document)]
    assert not errors, "\n".join(errors[:20])


@cache
def _validator(command: str) -> Draft202012Validator:
    schema = json.loads((FOLDER / f"{command}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(_closed(schema))


def _closed(schema: Any) -> Any:
    """The schema without the room for later versions' keys."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    return closed | {"additionalProperties": False} if "required" in schema else closed
