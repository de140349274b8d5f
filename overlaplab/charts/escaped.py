"""Charts in which no name from a trace can run as a script.

Altair's HTML, which notebooks show and `Chart.save` writes, puts a chart's JSON into a script element without escaping:
a kernel called `</script><script>…` would end that element and begin its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

import altair as alt

_JOINER = "\N{WORD JOINER}"
"""Invisible; put after each `<` that would begin a closing tag or a comment."""


class EscapedChart(alt.LayerChart):
    """A layered chart whose `to_dict`, on which all of Altair's output is based, holds no `</` and no `<!`."""

    checked: ClassVar[bool] = False
    """Whether to validate charts against Vega-Lite's schema: only in tests, since it takes a third of a page's time."""

    def to_dict(self, validate: bool = True, **options: Any) -> dict[str, Any]:
        """Return Altair's dictionary, the chart's tables included, with the beginnings of tags escaped."""
        options["validate"] = validate and self.checked
        quiet: dict[str, Any] = _escape_tags(super().to_dict(**options))
        return quiet


def _escape_tags(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("</", f"<{_JOINER}/").replace("<!", f"<{_JOINER}!") if "<" in value else value
    if isinstance(value, dict):
        return {key: _escape_tags(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_escape_tags(member) for member in value]
    return value
