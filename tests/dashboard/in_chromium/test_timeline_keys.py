"""The Timeline by keyboard in a real browser: exposed stretches, events; and what the legend and the panel say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from browsing.browser import app_on, rerun, settle, watched
from browsing.canvas import FIND, open_timeline, told, window
from made.traces import launched, run_of, step
from playwright.sync_api import Browser, Page, expect


def exposed_rank(stretches: list[tuple[int, int]], end: int) -> list[dict[str, Any]]:
    """Two steps of 1000 µs in which only these stretches compute nothing; communication begins 50 µs before each."""
    events = [step(0, 0, 1000), step(1, 1000, 2000)]
    begin, number = 0, 1
    for start, stop in sorted([*stretches, (1000, 1000), (end, end)]):
        events += launched(f"void gemm{number}<float>(int)", begin + 1, begin, start, correlation=2 * number)
        if stop > start:
            name = f"ncclDevKernel_AllReduce_{number}"
            events += launched(name, start - 60, start - 50, stop, stream=20, correlation=2 * number + 1)
        begin, number = stop, number + 1
    return events


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("keys") / "runs"
    late = exposed_rank([(150, 200), (600, 780), (1300, 1301)], 2000)
    run_of(root / "stretches", exposed_rank([(100, 200), (400, 700), (1200, 1250)], 2000), late, backend="nccl")
    tiny = [(start, start + 1) for start in range(100, 110, 2)]
    run_of(root / "tiny", exposed_rank([*tiny, (1200, 1250)], 2000), backend="nccl")
    with app_on(root) as found:
        yield found


@pytest.fixture
def stage(page: Page, address: str) -> Page:
    """The whole run in view; the keys' rank is the one with most exposed time, 0."""
    open_timeline(page, address, "stretches", "&from=0&to=2000000")
    page.locator(".stage").focus()
    return page


def stretch(page: Page) -> str:
    told(page, "event")
    return page.locator(".stretch").inner_text()


def test_what_is_selected_out_of_view_is_no_place_to_go_on_from(page: Page, address: str) -> None:
    """Summary's links select a collective that may begin before the time that they show."""
    open_timeline(page, address, "stretches", "&from=1000000&to=2000000&event=0-0")
    page.locator(".stage").focus()
    page.keyboard.press("n")
    assert stretch(page) == "3 of 3, rank 0: 50 µs"


def test_keys_lead_from_one_exposed_stretch_to_the_next(stage: Page) -> None:
    page = stage
    seen = []
    for key in ("n", "n", "n", "n", "p", "p"):
        page.keyboard.press(key)
        seen.append((stretch(page), told(page, "event")))
    assert [words for words, _ in seen] == [
        "1 of 3, rank 0: 100 µs",
        "2 of 3, rank 0: 300 µs",
        "3 of 3, rank 0: 50 µs",
        "1 of 3, rank 0: 100 µs",
        "3 of 3, rank 0: 50 µs",
        "2 of 3, rank 0: 300 µs",
    ]
    assert [event for _, event in seen[:3]] == [seen[3][1], seen[5][1], seen[4][1]]
    assert window(page) == (0, 2_000_000)  # all of them were wide enough to be seen
    expect(page.locator("h3").first).to_have_text("Selected: 0.400 to 0.700 ms")
    with rerun(page):
        page.keyboard.press("Escape")
    assert stretch(page) == ""
    page.keyboard.press("p")
    assert stretch(page) == "3 of 3, rank 0: 50 µs"  # the last one in view


def test_what_looks_like_one_stretch_is_one(page: Page, address: str) -> None:
    open_timeline(page, address, "tiny", "&from=0&to=2000000")
    page.locator(".stage").focus()
    seen = []
    for _ in range(3):  # the first zooms to where they can be told apart
        page.keyboard.press("n")
        seen.append(stretch(page))
    assert seen == ["1 of 2, rank 0: 5 µs", "2 of 2, rank 0: 50 µs", "1 of 2, rank 0: 5 µs"]
    page.keyboard.press("w")  # from where the reader has zoomed, what is seen there counts
    page.keyboard.press("n")
    assert stretch(page) == "2 of 6, rank 0: 1 µs"


def test_the_longest_stretch_of_the_step_and_of_the_run(page: Page, address: str) -> None:
    open_timeline(page, address, "stretches", "&from=1000000&to=2000000")
    page.locator(".stage").focus()
    page.keyboard.press("l")
    assert stretch(page) == "longest of the step, rank 0: 50 µs"
    assert window(page) == (1_000_000, 2_000_000)  # a twentieth of it is seen well
    page.keyboard.press("Shift+L")
    assert stretch(page) == "longest of the run, rank 0: 300 µs"
    expect(page.locator("h3").first).to_have_text("Selected: 0.400 to 0.700 ms")
    page.wait_for_url("**range=*")  # the address keeps a stretch of one mark, too, which is no event
    page.reload()
    expect(page.locator("h3").first).to_have_text("Selected: 0.400 to 0.700 ms")


def test_the_longest_stretch_is_zoomed_to(page: Page, address: str) -> None:
    open_timeline(page, address, "tiny", "&from=0&to=2000000")
    page.locator(".stage").focus()
    page.keyboard.press("Shift+L")
    assert stretch(page) == "longest of the run, rank 0: 50 µs"
    assert window(page) == (1_050_000, 1_400_000)


def test_buttons_do_the_same_as_keys(stage: Page) -> None:
    page = stage
    for name, words in (
        ("Next exposed stretch", "1 of 3, rank 0: 100 µs"),
        ("Previous exposed stretch", "3 of 3, rank 0: 50 µs"),
        ("Longest exposed stretch of the step", "longest of the step, rank 0: 50 µs"),  # step 1 begins in the middle
        ("Longest exposed stretch of the run", "longest of the run, rank 0: 300 µs"),
    ):
        page.get_by_role("button", name=name, exact=True).click()
        assert stretch(page) == words


def test_a_stretch_too_narrow_to_see_is_zoomed_to_on_the_rank_that_is_selected(stage: Page) -> None:
    page = stage
    page.mouse.click(*rank_1(page))
    expect(page.locator(".chosen")).to_contain_text("rank 1")
    page.keyboard.press("p")
    assert stretch(page) == "3 of 3, rank 1: 1 µs"
    start, end = window(page)
    assert start < 1_300_000 < 1_301_000 < end
    assert end - start < 20_000


def rank_1(page: Page) -> tuple[float, float]:
    """A place in the step's mark of rank 1."""
    box = page.locator(".stage").bounding_box()
    assert box is not None
    for down in range(60, round(box["height"]), 3):
        page.mouse.move(box["x"] + 200, box["y"] + down)
        tip = page.locator(".tip")
        if tip.is_visible() and "rank 1, steps" in tip.inner_text():
            return box["x"] + 200, box["y"] + down
    pytest.fail("rank 1 has no steps")


def test_enter_and_arrows_choose_events(stage: Page) -> None:
    page = stage
    chosen = page.locator(".chosen")
    page.keyboard.press("Enter")
    expect(chosen).to_contain_text("Selected: gemm1, rank 0, stream 7 (compute), 100 µs from 0.000 ms")
    page.keyboard.press("Shift+ArrowRight")
    expect(chosen).to_contain_text("Selected: gemm2")
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("Shift+ArrowLeft")  # there is none before
    expect(chosen).to_contain_text("Selected: gemm1")
    page.keyboard.press("Shift+ArrowRight")
    with rerun(page):
        page.keyboard.press("Shift+ArrowDown")
    expect(chosen).to_contain_text("Selected: ncclDevKernel_AllReduce_2, rank 0, stream 20")
    page.get_by_role("heading", name="Selected event").wait_for()
    page.wait_for_url("**event=0-**")
    page.keyboard.press("Shift+ArrowUp")
    expect(chosen).to_contain_text("Selected: gemm2")
    start, end = window(page)
    assert end - start == 2_000_000
    event = told(page, "event")
    page.locator("button.in").focus()
    page.keyboard.press("Enter")  # on a button Enter presses it
    start, end = window(page)
    assert end - start == 1_000_000
    assert told(page, "event") == event
    page.keyboard.press("Shift+ArrowRight")
    assert told(page, "event") != event


@pytest.mark.parametrize("how", ["key", "button"])
def test_arrows_choose_events_wherever_the_longest_stretch_was_asked_for(page: Page, address: str, how: str) -> None:
    open_timeline(page, address, "stretches", "&from=0&to=2000000")
    page.evaluate("document.activeElement?.blur()")
    page.keyboard.press("l") if how == "key" else page.locator("button.longest").click()
    chosen = page.locator(".chosen")
    expect(chosen).to_contain_text("exposed")
    seen = window(page)
    page.keyboard.press("Shift+ArrowUp")
    expect(chosen).to_contain_text("stream")
    assert window(page) == seen  # the arrow did not pan


def test_words_about_a_stretch_move_nothing(browser: Browser, address: str) -> None:
    with watched(browser, width=1440, height=900) as page:
        open_timeline(page, address, "stretches", "&from=0&to=2000000")
        before = page.locator(".stage").bounding_box()
        page.locator("button.worst").click()
        assert stretch(page) == "longest of the run, rank 0: 300 µs"
        assert page.locator(".stage").bounding_box() == before


def test_the_legend_has_what_is_in_view(stage: Page, address: str) -> None:
    page = stage
    legend = page.locator(".legend")
    expect(legend).to_contain_text(re.compile(r"^compute\s*all-reduce\s*exposed:.*"))
    room = legend.evaluate("legend => legend.offsetHeight")
    with rerun(page):
        page.locator("button.longest").click()
        for _ in range(14):
            page.keyboard.press("w")
    open_timeline(page, address, "stretches", "&from=210000&to=330000")
    expect(legend).to_have_text(re.compile(r"^\s*compute\s*$"))
    page.locator(".stage").focus()
    page.keyboard.press("f")
    expect(legend).to_contain_text("exposed:")
    assert legend.evaluate("legend => legend.offsetHeight") == room


def test_the_help_names_the_keys(stage: Page) -> None:
    text = re.sub(r"\s+", " ", stage.locator(".keys").inner_text())
    for words in ("NP next and previous exposed stretch", "L longest of the step", "Enter selects an event", "H host"):
        assert words in text
    label = stage.locator(".stage").get_attribute("aria-label") or ""
    assert "N and P go to the next and the previous exposed stretch" in label


def test_the_panel_of_an_event_is_a_grid_of_labels_and_values(stage: Page) -> None:
    page = stage
    page.keyboard.press("Enter")
    facts = page.locator(".st-key-timeline_facts [data-testid=stText]")
    facts.filter(has_text="lasts").wait_for()  # a run for the opened window may still come before
    settle(page)
    shown = [text.split("\n", 1) for text in facts.all_inner_texts()]
    values = dict(shown)
    assert (values["start"], values["end"], values["lasts"]) == ("0.000 ms", "0.100 ms", "100 µs")
    assert values["launch began"] == "0.001 ms, -1 µs before the event"
    boxes = [box for box in (fact.bounding_box() for fact in facts.all()) if box is not None]
    assert len({round(box["y"]) for box in boxes}) < len(boxes) / 2  # several beside each other
    assert page.evaluate(f"{FIND}.getBoundingClientRect().bottom") <= boxes[0]["y"]
