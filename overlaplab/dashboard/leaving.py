"""Uploads go when their user has left: Streamlit itself keeps a session until the next one comes."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from threading import Thread

from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from overlaplab.dashboard.uploads import Uploads

_LOOK_S = 10.0
_GRACE_S = 120.0
"""For so long a browser may be away, as when its machine sleeps, and find all as it was."""


def clear_when_left(session_uploads: Uploads) -> None:
    """Delete this session's uploads once its browser is gone for two minutes."""
    context = get_script_run_ctx()
    if context is None or not runtime.exists():
        return
    session = context.session_id
    reference = weakref.ref(session_uploads)
    Thread(
        target=wait_until_left,
        args=(reference, lambda: runtime.exists() and runtime.get_instance().is_active_session(session)),
        name="overlaplab-uploads",
        daemon=True,
    ).start()


def wait_until_left(
    reference: weakref.ref[Uploads], is_here: Callable[[], bool], *, look_s: float = _LOOK_S, grace_s: float = _GRACE_S
) -> None:
    """Return when the uploads are gone, or have been cleared after their user was away for `grace_s`."""
    seen = time.monotonic()
    while True:
        time.sleep(look_s)
        uploads = reference()
        if uploads is None or not uploads.names:
            return
        if is_here():
            seen = time.monotonic()
        elif time.monotonic() - seen >= grace_s:
            uploads.clear()
            return
        del uploads
