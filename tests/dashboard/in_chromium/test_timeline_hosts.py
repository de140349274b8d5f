"""The Timeline's host lanes in a real browser: unfolded by key, click and link, with arrows to what calls launched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from browsing.browser import app_on, rerun, settle, visit
from browsing.canvas import AXIS, FIND, at, hexed, open_timeline, pixels, plot, told, window
from made.traces import event, launched, op, run_of, step
from playwright.sync_api import Page, expect

import overlaplab
from overlaplab.charts.lanes import host_colours
from overlaplab.charts.theme import LIGHT
from overlaplab.timeline.host_lanes import host_lanes

LAUNCH = host_colours(LIGHT)["launch"]
PAUSE = host_colours(LIGHT)["range"]


def paused_rank() -> list[dict[str, Any]]:
    """The host waits for data between two kernels: the all-reduce, which began meanwhile, is exposed for 200 µs."""
    return [
        step(0, 0, 1000),
        event("wait for data", 110, 290, cat="user_annotation"),
        *launched("void first<float>(int)", 5, 20, 100, correlation=1),
        *launched("ncclDevKernel_AllReduce_Sum_f32", 15, 80, 400, stream=20, correlation=2),
        *launched("void second<float>(int)", 295, 300, 900, correlation=3),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hosts") / "runs"
    run_of(root / "cpu", [step(0, 0, 100), op("mm", 10, 90)])
    run_of(root / "paused", paused_rank(), paused_rank(), backend="nccl")
    return root


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with app_on(folder) as found:
        yield found


def wait_for_hosts(page: Page, count: int, before: int) -> None:
    """Until so many hosts are there, which have four events each, the steps not among them."""
    page.wait_for_function(f"{FIND}.dataset.events === '{before + 4 * count}'")
    settle(page)


def rows_of(page: Page, share: float, colour: str) -> np.ndarray[Any, Any]:
    """Pixels from the lanes' top on that have the colour, at a share of their width."""
    image = pixels(page)
    found: np.ndarray[Any, Any] = np.flatnonzero(image[:, round(share * image.shape[1])] == hexed(colour))
    return found


def test_a_key_unfolds_the_host_and_the_address_keeps_it(page: Page, address: str, folder: Path) -> None:
    open_timeline(page, address, "paused", "&from=0&to=1000000&rank=0")
    before = int(told(page, "events"))
    stage = page.locator(".stage")
    lanes = "Timeline of 2 ranks in 8 lanes"
    assert (stage.get_attribute("aria-label") or "").startswith(lanes)  # what only unfolds is no lane
    assert not len(rows_of(page, 0.2, PAUSE))
    assert "hosts" not in page.url
    stage.focus()
    with rerun(page):
        page.keyboard.press("h")
    wait_for_hosts(page, 1, before)
    assert len(rows_of(page, 0.2, PAUSE)) > 5
    expect(page.locator(".legend")).to_contain_text(re.compile(r"host:\s*range\s*launch"))
    page.wait_for_url("**hosts=*")
    (unfolded,) = parse_qs(urlsplit(page.url).query)["hosts"]
    assert len(host_lanes(overlaplab.load_run(folder / "paused"), int(unfolded)).events) == 4
    assert (stage.get_attribute("aria-label") or "").startswith("Timeline of 2 ranks in 9 lanes")
    page.reload()
    page.wait_for_selector(".timeline:not([data-painted='0'])")
    wait_for_hosts(page, 1, before)
    assert len(rows_of(page, 0.2, PAUSE)) > 5
    expect(page.locator("button.host")).to_have_attribute("aria-expanded", "true")
    page.locator("button.host").click()
    expect(page.locator("button.host")).to_have_attribute("aria-expanded", "false")
    expect(page.locator(".legend")).not_to_contain_text("host:")
    assert not len(rows_of(page, 0.2, PAUSE))
    page.wait_for_url(re.compile("^(?!.*hosts=)"))


def test_each_rank_unfolds_by_a_click_on_its_row(page: Page, address: str) -> None:
    open_timeline(page, address, "paused", "&from=0&to=1000000")
    before = int(told(page, "events"))
    left, top, _ = plot(page)
    tall = page.evaluate(f"{FIND}.querySelector('.stage').offsetHeight - {AXIS}")
    folded = []
    for down in range(2, tall, 3):
        page.mouse.move(left - 60, top + down)
        if page.evaluate(f"{FIND}.querySelector('.stage').style.cursor") == "pointer":
            folded.append(down)
    assert len(folded) > 4
    page.mouse.click(left - 60, top + folded[-1])  # the lower rank
    wait_for_hosts(page, 1, before)
    page.mouse.click(left - 60, top + folded[0])
    wait_for_hosts(page, 2, before)
    page.wait_for_url(re.compile("hosts=0(,|%2C)1"))
    assert len(rows_of(page, 0.2, PAUSE)) > 20
    assert told(page, "event") == "-1"  # nothing was selected by that


def test_an_arrow_leads_from_the_launch_to_what_it_launched(page: Page, address: str) -> None:
    open_timeline(page, address, "paused", "&from=0&to=400000&hosts=0")
    expect(page.locator(".legend")).to_contain_text("host:")
    settle(page)
    assert window(page) == (0, 400_000)  # the host begins before the device, and has room for that
    call, kernel = 15.5 / 400, 80 / 400
    calls, computes, kernels = (
        rows_of(page, call, LAUNCH),
        rows_of(page, 0.1, LIGHT.compute),
        rows_of(page, 0.5, LIGHT.reduce),
    )
    between = slice(int(computes[0]) + 1, int(computes[0]) + 10)  # rank 0's other stream
    assert calls[0] < between.start < between.stop < kernels[0]
    assert not pixels(page, "above").any()
    with rerun(page):
        page.mouse.click(*at(page, 0.5, float(kernels[0]) + 4))
    page.mouse.move(5, 5)
    columns = np.flatnonzero(pixels(page, "above")[between].any(axis=0)) / plot(page)[2]
    assert len(columns)
    assert call - 0.01 < columns.min() <= columns.max() < kernel + 0.01
    expect(page.locator(".chosen")).to_contain_text("rank 0, stream 20 (NCCL), 320 µs from 0.080 ms")
    # And from the call, whose event is the host's.
    with rerun(page):
        page.mouse.click(*at(page, call, float(calls[0]) + 4))
    expect(page.locator(".chosen")).to_contain_text("cudaLaunchKernel, rank 0, main (host), 1 µs from 0.015 ms")
    expect(page.locator(".tip")).to_contain_text("launch · rank 0, main (host)")
    page.mouse.move(5, 5)
    assert pixels(page, "above")[between].any()
    page.get_by_text(re.compile(r"^name\s*cudaLaunchKernel$")).wait_for()
    page.wait_for_url("**event=0-*")
    selected = told(page, "event")
    page.reload()
    page.wait_for_function(f"{FIND}?.dataset.event === '{selected}'")
    assert window(page) == (0, 400_000)


def test_a_pause_of_the_host_opens_the_timeline_with_the_host(page: Page, address: str) -> None:
    visit(page, address, "summary", "paused")
    bar = page.locator(".st-key-causes")
    expect(bar).to_contain_text("host paused (compute gap)")
    bar.get_by_role("button", name="on the timeline").first.click()
    page.wait_for_url("**/timeline?**hosts=*")
    expect(page.locator(".legend")).to_contain_text("host:")


def test_threads_of_the_cpu_are_lanes_without_that(page: Page, address: str) -> None:
    open_timeline(page, address, "cpu")
    assert not page.locator("button.host").is_visible()
    before = told(page, "painted")
    page.locator(".stage").focus()
    page.keyboard.press("h")
    assert told(page, "events") == "2"
    assert told(page, "painted") == before
