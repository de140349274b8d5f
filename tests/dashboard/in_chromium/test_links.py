"""Permalinks, downloads, uploads and new runs in a real browser."""

from __future__ import annotations

import csv
import io
import struct
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from browsing.browser import app_on, choose_row, pick, rerun, settle, visit, wait_until, watch_of
from made.runs import engine_events, made_runs
from made.traces import run_of
from playwright.sync_api import Page, Response, expect


def query(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def test_a_permalink_survives_pages_reloads_and_the_way_back(page: Page, address: str) -> None:
    chosen = {"run": "bucketed", "rank": "1", "step": "0"}
    visit(page, address, "buckets", query="run=bucketed&rank=1&step=0")
    page.get_by_text("2 buckets of rank 1, step 0:").wait_for()
    for name, title in (
        ("summary", "Summary"),
        ("collectives", "Collectives"),
        ("zero3", "ZeRO-3"),
        ("buckets", "Buckets"),
    ):
        visit(page, address, name)
        expect(page).to_have_title(f"bucketed · {title} – overlaplab")
        assert query(page) == chosen, name
    page.get_by_text("2 buckets of rank 1, step 0:").wait_for()
    pick(page, "run_picker", "one-rank")
    page.get_by_text("2 buckets of rank 0, step 0:").wait_for()
    assert query(page) == {"run": "one-rank", "step": "0"}
    page.reload()
    settle(page)
    page.get_by_text("2 buckets of rank 0, step 0:").wait_for()
    page.go_back()  # to the page before, with the run that was chosen there
    page.get_by_text("This run gathers no parameters").wait_for()
    settle(page)
    assert query(page) == chosen
    page.get_by_role("link", name="Buckets").click()
    page.get_by_text("2 buckets of rank 1, step 0:").wait_for()


def test_a_hostile_link_gives_the_default_and_one_line(page: Page, address: str) -> None:
    hostile = "%3Cimg%20src=x%20onerror=pwned(1)%3E![x](http://evil.example/x.png)"
    visit(page, address, "summary", query=f"run={hostile}")
    assert page.locator(".st-key-link_names").inner_text() == "The link names a run that is not here. Showing ahead."
    assert "evil" not in page.url


def test_a_row_leads_to_its_spot_on_the_timeline(page: Page, address: str) -> None:
    visit(page, address, "collectives", query="run=bucketed")
    with rerun(page):
        choose_row(page, "collectives_table", 1)
    page.wait_for_url("**/timeline?**")
    settle(page)
    found = query(page)
    assert (found["run"], found["rank"]) == ("bucketed", "1")
    assert "event" in found
    # The most exposed come first, the second of them runs from 1,600 to 1,950 µs; half of that is shown on either side,
    # as far as the run goes: it ends after 2,000 µs, 2 % of the window before the canvas does.
    page.wait_for_url("**from=1314000&to=2014000**")


def test_what_was_chosen_is_marked_on_the_timeline(page: Page, address: str) -> None:
    """The second bucket waits for the first one, whose all-reduce ends as that of the second begins."""
    visit(page, address, "buckets", query="run=bucketed&rank=1&step=0")
    with rerun(page):
        choose_row(page, "buckets_table", 1)
    page.wait_for_url("**/timeline?**event=**")
    settle(page)
    page.get_by_role("heading", name="Selected event").wait_for()
    page.wait_for_function(
        """() => {
          const [host] = document.querySelectorAll('[data-testid^=stBidiComponent]');
          const stage = host.shadowRoot.querySelector('.stage');
          return (stage.getAttribute('aria-label') ?? '').includes('Selected: all-reduce of 4.00 MB, number 1');
        }"""
    )


def test_charts_are_taken_away_as_png_and_csv(page: Page, address: str) -> None:
    visit(page, address, "buckets", query="run=bucketed")
    for kind in ("PNG", "CSV"):
        with page.expect_download() as waited:
            page.locator(".st-key-downloads_buckets_chart").get_by_text(f"Download {kind}").click()
        content = Path(waited.value.path()).read_bytes()
        assert waited.value.suggested_filename == f"bucketed_buckets_chart.{kind.lower()}"
        if kind == "PNG":
            assert content.startswith(b"\x89PNG")
            assert struct.unpack(">I", content[16:20])[0] >= 2200
        else:
            rows = list(csv.DictReader(io.StringIO(content.decode())))
            assert {row["rank"] for row in rows} == {"0"}
            assert {"bucket", "exposed (ns)"} <= set(rows[0])


def test_charts_and_controls_say_what_they_are(page: Page, address: str) -> None:
    """To those who do not see them."""
    visit(page, address, "buckets", query="run=bucketed")
    said = page.locator("[data-testid=stVegaLiteChart][aria-label]").evaluate_all(
        "(found) => found.map((one) => one.getAttribute('aria-label'))"
    )
    assert any("in launch order on a time axis" in text for text in said)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Runs of this test's own, to which it may add."""
    return made_runs(tmp_path / "runs")


def test_new_runs_appear_and_uploads_open(
    page: Page, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLAPLAB_WATCH_S", "1")
    received: list[int] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: received.append(len(frame))))
    with app_on(own) as address:
        visit(page, address, "summary", query="run=bucketed")
        wait_until(page, lambda: sum(received) > 20_000)
        assert sum(received) > 20_000
        page.wait_for_timeout(500)
        received.clear()
        page.wait_for_timeout(2000)
        wait_until(page, lambda: sum(received) > 0)  # the folder was looked into, and nothing has changed
        assert 0 < sum(received) < 5_000
        run_of(own / "sweep" / "cap-1", engine_events(), engine_events(), manifest={"bucket_cap_mb": 1.0})
        box = page.locator(".st-key-run_picker input")
        box.click()
        page.get_by_role("option", name="sweep/cap-1").wait_for()
        page.keyboard.press("Escape")
        assert query(page)["run"] == "bucketed"

        run_of(tmp_path / "mine", engine_events(), manifest={"bucket_cap_mb": 3.0})
        page.get_by_text("Open traces from this computer").click()
        files = sorted(str(file) for file in (tmp_path / "mine").iterdir())
        uploads: list[Response] = []
        page.on("response", lambda response: uploads.append(response) if "upload_file" in response.url else None)
        page.locator("input[type=file]").set_input_files(files)
        page.locator("[data-testid=stFileChip]").nth(1).wait_for()
        wait_until(page, lambda: len(uploads) >= len(files))  # what is sent before is a form without its files
        page.locator("[data-testid=stBaseButton-secondaryFormSubmit]").click()
        wait_until(page, lambda: "bucket_cap_mb 3" in page.inner_text("body"))
        assert "bucket_cap_mb 3" in page.inner_text("body")
        page.wait_for_url("**/?run=%2Fuploaded+1")
        visit(page, address, "buckets")
        page.get_by_text("2 buckets of rank 0").wait_for()
        with rerun(page):
            page.get_by_text("Close and delete this upload").click()
        page.wait_for_url("**/buckets?run=broken")
        watch_of(page).errors.clear()  # a run that is broken by purpose is the first of the folder
