"""Reads the labels that the engine writes."""

from urllib.parse import unquote

from overlaplab_engine.labels import PREFIX, Word


def parse(text: str) -> tuple[Word, dict[str, str | list[str]]]:
    """The word and values of a label, the inverse of `labels.label`; numbers stay text."""
    head, *pairs = text.split(" ")
    assert head.startswith(PREFIX), text
    values: dict[str, str | list[str]] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        values[key] = [unquote(v) for v in value.split(",") if v] if key == "parameters" else unquote(value)
    return Word(head.removeprefix(PREFIX)), values
