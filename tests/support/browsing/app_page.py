"""What tests do on a page that Streamlit's own tester has opened."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest


def unfold(app: AppTest, key: str) -> None:
    """Open a part that is folded away."""
    app.session_state[key] = True
    app.run()
    assert not app.exception
