"""Charts in notebooks, drawn without a network.

Altair's own renderer fetches Vega from a CDN, shows nothing in a notebook that is not running, and writes data into a
script. This one gives each output twice: as PNG, which GitHub, nbviewer and nbconvert show, and as Vega-Lite, which
JupyterLab draws itself, with tooltips.
"""

from __future__ import annotations

from typing import Any

import altair as alt
from altair.utils.mimebundle import spec_to_mimebundle

VEGA_LITE = f"application/vnd.vegalite.v{alt.SCHEMA_VERSION[1:].partition('.')[0]}+json"
_SCALE = 1.5  # PNG pixels per pixel of the chart


def draw_offline() -> None:
    """Use this renderer for all Altair charts."""
    alt.renderers.register("overlaplab", _bundle)
    alt.renderers.enable("overlaplab")


def _bundle(spec: dict[str, Any], **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A chart as a MIME bundle and its metadata; on white, since the page's colour is unknown."""
    shown = spec | {"background": "#FFFFFF"}
    description = str(shown.get("description", "chart"))
    png, metadata = spec_to_mimebundle(shown, format="png", mode="vega-lite", scale_factor=_SCALE)
    metadata["image/png"]["alt"] = description
    return {VEGA_LITE: shown, "text/plain": description, **png}, metadata
