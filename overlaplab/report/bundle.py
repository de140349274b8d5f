"""The scripts and styles of a report, and the policy that lets these run and nothing else."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import altair as alt

from overlaplab.charts.lanes import mark_colours
from overlaplab.charts.theme import DARK, LIGHT
from overlaplab.load.cache import folder, is_off, keep_whole


def asset(name: str) -> str:
    """A file that lies beside this module."""
    return files("overlaplab.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def libraries(*, cached: bool = True) -> str:
    """Vega, Vega-Lite and vega-embed as one script of about 0.9 MB that sets `window.vegaEmbed`; made offline.

    Bundling takes seconds of CPU, so the script is kept in the cache's folder, unless `cached` is false.
    """
    vega_lite = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    stored = folder() / f"vega-{vega_lite}-{version('vl-convert-python')}.js"
    uses_cache = cached and not is_off()
    script = _read_script(stored) if uses_cache else None
    if script is None:
        import vl_convert  # an extra, which `overlaplab report` asks for

        script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite)
        if uses_cache:
            content = script.encode()
            with contextlib.suppress(OSError):  # a full or read-only disk
                keep_whole(stored, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    assert _is_embeddable(script), "the libraries would end their own element"
    return script


def _is_embeddable(script: str) -> bool:
    return not any(end in script.lower() for end in ("</script", "<!--"))


def _read_script(stored: Path) -> str | None:
    """The script of a file that begins with a line with its digest; None if it is absent, damaged or another user's."""
    try:
        with stored.open("rb") as file:
            status = os.fstat(file.fileno())
            digest, _, content = file.read().partition(b"\n")
        script = content.decode()
    except (OSError, UnicodeDecodeError):
        return None
    is_ours = not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)
    is_whole = hashlib.sha256(content).hexdigest().encode() == digest
    return script if is_ours and is_whole and _is_embeddable(script) else None


def style() -> str:
    """The style sheet; the palette's colours are variables, so that a chart follows the reader's theme as it is."""
    light, dark = (" ".join(f"--{word}: {pair[place]};" for word, pair in _tones().items()) for place in (0, 1))
    return (
        f":root {{ {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f"{asset('page.css')}"
    )


def policy(*, scripts: list[str], styles: list[str]) -> str:
    """The content security policy of a page: these scripts and styles by their hashes, no connection to anywhere.

    Vega's expressions are interpreted (`ast`), so that it needs no `unsafe-eval`. Blobs are what the page itself makes:
    a chart on its way to a PNG.
    """
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join(map(_hash, scripts)),
        "style-src": " ".join(map(_hash, styles)),
        "connect-src": "'none'",
        "img-src": "blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{word} {sources}" for word, sources in allowed.items())


def data_island(value: Any) -> str:
    """JSON that may stand in a script element of an HTML page: nothing in it ends the element or begins a comment."""
    text = json.dumps(
        value, allow_nan=False, separators=(",", ":")
    )  # ASCII: U+2028 and U+2029 are escaped with the rest
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def columnar_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart's spec with each of its data sets as `{"column": [values]}`, half as long as rows that name each column;
    page.js makes rows of them again. Rows that differ in their columns stay as they are.
    """
    return spec | {"datasets": {name: _columns(rows) for name, rows in spec.get("datasets", {}).items()}}


def _columns(rows: list[dict[str, Any]]) -> Any:
    names = list(rows[0]) if rows else []
    if not names or any(list(row) != names for row in rows):
        return rows
    return {name: [row[name] for row in rows] for name in names}


def themed_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart's spec, drawn in the light palette, with the style sheet's variables in place of the colours."""
    names = {light: f"var(--{word})" for word, (light, _) in _tones().items()}
    themed: dict[str, Any] = with_texts(spec, lambda _, text: names.get(text, text))
    return themed


def with_texts(spec: Any, change: Callable[[str, str], str], key: str = "") -> Any:
    """A chart's spec with `change(key, text)` in place of each text, but for its data."""
    if isinstance(spec, dict):
        return {
            key: part if key in ("data", "datasets") else with_texts(part, change, key) for key, part in spec.items()
        }
    if isinstance(spec, list):
        return [with_texts(part, change) for part in spec]
    return change(key, spec) if isinstance(spec, str) else spec


def fill(colour: str) -> str:
    """The style sheet's variable for a colour of the palette."""
    return str(themed_spec({"fill": getattr(LIGHT, colour)})["fill"])


@cache
def _tones() -> dict[str, tuple[str, str]]:
    """The colour in the light and in the dark theme, by the name of the style sheet's variable."""
    dark = asdict(DARK)
    tones = {word.replace("_", "-"): (tone, dark[word]) for word, tone in asdict(LIGHT).items()}
    in_dark = mark_colours(DARK)
    marks = {f"mark-{mark.name.lower()}": (tone, in_dark[mark]) for mark, tone in mark_colours(LIGHT).items()}
    light_tones = {light for light, _ in tones.values()}
    return tones | {word: pair for word, pair in marks.items() if pair[0] not in light_tones}


def _hash(text: str) -> str:
    """Return an element's hash as browsers compute it, from its text in UTF-8."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
