"""What tests do on a page that Streamlit's own tester has opened, and what it says in its head and below."""

from __future__ import annotations

from pathlib import Path
from typing import TypeGuard
from urllib.parse import parse_qs

from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block

import overlaplab.dashboard
from overlaplab.dashboard.links import TURN

VIEWS = Path(overlaplab.dashboard.__file__).with_name("views")
PAGES = {
    "summary": "Summary",
    "timeline": "Timeline",
    "buckets": "Buckets",
    "compare": "Compare",
    "zero3": "ZeRO-3",
    "collectives": "Collectives",
}
"""The pages that a recording of any loop has, and their titles."""

_HEAD = ("-head", "-head_below")


def unfold(app: AppTest, key: str) -> None:
    """Open a part that is folded away."""
    app.session_state[key] = True
    app.run()
    assert not app.exception


def head_texts(app: AppTest) -> list[str]:
    """A page's head below its title: the run's name, what was recorded and of which step, the verdict, what to try."""
    return [text.value for node in app.main.children.values() if _is_head(node) for text in node.text]


def body_texts(app: AppTest) -> list[str]:
    """All texts of a page outside its head."""
    nodes = [node for node in app.main.children.values() if not _is_head(node)]
    texts = [node.text if isinstance(node, Block) else [node] if node.type == "text" else [] for node in nodes]
    return [text.value for group in texts for text in group]


def _is_head(node: object) -> TypeGuard[Block]:
    return isinstance(node, Block) and node.proto.id.endswith(_HEAD)


def turn(app: AppTest) -> AppTest:
    """Follow the hidden link where the app turns to another page, as its script has the browser do."""
    for link in [link.proto for link in app.page_link if link.value == TURN]:
        app.switch_page(str(VIEWS / f"{link.page or 'summary'}.py"))
        app.query_params.clear()
        for name, values in parse_qs(link.query_string).items():
            app.query_params[name] = values
        app.run()
    return app
