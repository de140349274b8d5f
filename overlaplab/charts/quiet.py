"""Charts that no text of a trace can make run script.

Altair's HTML, which notebooks show and `Chart.save` writes, holds a chart's JSON in a script element as it is: a kernel
called `</script><script>…` ends that element and begins its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

import altair as alt

__all__ = ["QuietChart"]

_JOINER = "\N{WORD JOINER}"
"""Is not drawn, and stands between `<` and what would make it a tag's end or a comment's beginning."""


class QuietChart(alt.LayerChart):
    """Layers whose `to_dict`, from which everything else is made, holds no `</` and no `<!`."""

    checked: ClassVar[bool] = False
    """Whether charts are validated against Vega-Lite's schema: tests set it; on a page it takes a third of the time."""

    def to_dict(self, validate: bool = True, **options: Any) -> dict[str, Any]:
        """As Altair's, its tables included."""
        options["validate"] = validate and self.checked
        found: dict[str, Any] = _quiet(super().to_dict(**options))
        return found


def _quiet(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("</", f"<{_JOINER}/").replace("<!", f"<{_JOINER}!") if "<" in value else value
    if isinstance(value, dict):
        return {key: _quiet(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_quiet(member) for member in value]
    return value
