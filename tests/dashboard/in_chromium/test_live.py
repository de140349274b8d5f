"""The Live page in a real browser: it follows a training by itself, and a mark in its chart opens a recording."""

from __future__ import annotations

from pathlib import Path

from browsing.browser import serving, settle
from made.runs import engine_events
from made.traces import run_of
from made.watched import eventful, with_recording
from playwright.sync_api import Page

_LATE = """
window.WebSocket = class extends WebSocket {
  addEventListener(type, listener, ...how) {
    const late = (event) => setTimeout(() => listener(event), 600);
    super.addEventListener(type, type === "message" ? late : listener, ...how);
  }
}"""
"""What makes the page hear of everything 0.6 s late, as from a busy server."""


def test_it_follows_a_training_and_its_marks_lead_to_recordings(page: Page, tmp_path: Path) -> None:
    run_of(tmp_path / "mine" / "step-1203", engine_events(), engine_events(), manifest={})
    with_recording(eventful(tmp_path / "mine" / "watch", steps=1300), "runs/mine/step-1203")
    line = ("-m", "overlaplab", "app", str(tmp_path), "--port", "{port}")
    with serving(*line, folder=tmp_path, environment={"OVERLAPLAB_WATCH_S": "1"}) as (address, _):
        page.goto(f"{address}/live?run=mine/watch")
        settle(page)
        page.get_by_text("step 1,300 of a training").wait_for()
        with_recording(eventful(tmp_path / "mine" / "watch", steps=1500), "runs/mine/step-1203")
        page.get_by_text("step 1,500 of a training").wait_for()  # nobody has touched the page
        settle(page)
        page.locator(".st-key-watched_times .mark-symbol path").last.click()
        page.get_by_role("heading", name="Summary").wait_for()
        settle(page)
        assert "step-1203" in page.url


def test_a_mark_opens_its_recording_though_a_look_is_due(page: Page, tmp_path: Path) -> None:
    """The page asks for what is new before it knows that it has been turned: it stayed empty then."""
    run_of(tmp_path / "mine" / "step-1203", engine_events(), engine_events(), manifest={})
    with_recording(eventful(tmp_path / "mine" / "watch", steps=1300), "runs/mine/step-1203")
    page.add_init_script(_LATE)
    line = ("-m", "overlaplab", "app", str(tmp_path), "--port", "{port}")
    with serving(*line, folder=tmp_path, environment={"OVERLAPLAB_WATCH_S": "0.2"}) as (address, _):
        page.goto(f"{address}/live?run=mine/watch")
        settle(page)
        page.get_by_role("button", name="step 1,203 ›").click()
        page.get_by_role("heading", name="Summary").wait_for()
        page.wait_for_timeout(3000)
        settle(page)
        assert page.get_by_role("heading", name="Summary").count() == 1
        assert "step-1203" in page.url
