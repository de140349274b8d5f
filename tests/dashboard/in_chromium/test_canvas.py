"""The timeline's canvas in a real browser: what it draws, and each way to move, select, search and click."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
from browsing.browser import app_on, pick, rerun, settle, visit, watched
from browsing.canvas import AXIS, FIND, GUTTER, at, gpu_rank, hexed, open_timeline, pixels, plot, share_of, told, window
from made.traces import event, op, run_of, step
from PIL import Image
from playwright.sync_api import Browser, Page, expect

import overlaplab
from overlaplab.charts.theme import DARK, LIGHT
from overlaplab.dashboard.canvas import read_script
from overlaplab.dashboard.canvas.packing import pack
from overlaplab.findings import mark_word
from overlaplab.timeline.marks import MarkKind, mark_names
from overlaplab.timeline.timeline import timeline_events

MANY = 30_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`gpu`: two ranks and a collective; `many`: 30,000 operators and a lone instant; `tall`: 14 ranks, two steps."""
    found = tmp_path_factory.mktemp("canvas") / "runs"
    run_of(found / "gpu", gpu_rank(300), gpu_rank(500), backend="nccl")
    each = [op(f"op{number % 7}", 10 * number, 10 * number + 1 + number % 9) for number in range(MANY)]
    alone = event("gloo:all_reduce", 150_009.5, 150_009.501, cat="user_annotation", tid=7)
    run_of(found / "many", [step(0, 0, 10 * MANY), *each, alone])
    run_of(
        found / "tall", *[[step(0, 0, 100), op("mm", 10, 90), step(1, 100, 200), op("mm", 110, 190)] for _ in range(14)]
    )
    return found


@pytest.fixture(scope="module")
def served_at(folder: Path) -> Iterator[str]:
    with app_on(folder) as found:
        yield found


@pytest.fixture(scope="module")
def shared(browser: Browser, served_at: str) -> Iterator[Page]:
    """One page of the run `gpu` for all tests that only move about."""
    with watched(browser, height=900) as found:
        open_timeline(found, served_at, "gpu")
        yield found


@pytest.fixture
def page_of_gpu(shared: Page) -> Page:
    """That page, all of the run visible, nothing selected."""
    shared.mouse.move(5, 5)
    shared.locator(".stage").evaluate("stage => stage.blur()")
    shared.evaluate("window.scrollTo(0, 0)")
    shared.keyboard.press("Escape")
    shared.keyboard.press("f")
    shared.wait_for_function(f"{FIND}.dataset.window === '0,1000000'")
    expect(shared.locator("h3").first).to_have_text("Visible: 0.000 to 1.000 ms")
    return shared


# ---- Bytes


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    size = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + size])
    assert (4 + size) % 8 == 0
    arrays = {}
    for name, (kind, place, count) in header["arrays"].items():
        assert place % 8 == 0
        arrays[name] = np.frombuffer(data, np.dtype(kind).newbyteorder("<"), count, 4 + size + place)
    return header, arrays


def test_bytes_hold_every_event(folder: Path) -> None:
    timeline = timeline_events(overlaplab.load_run(folder / "many"))
    packed = pack(timeline)
    header, arrays = unpacked(packed.data)
    events = timeline.events
    assert (arrays["start"].astype(np.int64) + header["base_ns"]).tolist() == events["start_ns"].tolist()
    assert arrays["length"].tolist() == (events["end_ns"] - events["start_ns"]).tolist()
    assert [header["names"][code] for code in arrays["code"][:50]] == events["name"].astype(str).tolist()[:50]
    words = [mark_word(MarkKind(name)) for name in mark_names(events["part"])]
    assert [header["words"][part] for part in arrays["part"][arrays["code"]]] == words
    lanes = np.repeat(np.arange(len(timeline.lanes)), np.diff(arrays["first"].astype(np.int64)))
    assert lanes.tolist() == events["lane"].tolist()
    assert [lane["kind"] for lane in header["lanes"]] == timeline.lanes["kind"].tolist()
    assert header["lanes"][0]["label"] == "steps"
    assert len(packed.data) < 11 * len(events) + 30_000  # and the overview
    assert pack(timeline).id == packed.id == header["id"]


def test_a_run_longer_than_four_bytes_of_ns_is_exact(tmp_path: Path) -> None:
    run = run_of(tmp_path / "long", [op("mm", 0, 5_000_000.123), op("add", 6_000_000.5, 6_000_001)])
    header, arrays = unpacked(pack(timeline_events(run)).data)
    assert arrays["start"].dtype == arrays["length"].dtype == np.float64
    counted = arrays["first"][[lane["kind"] for lane in header["lanes"]].index("stream")]
    assert (arrays["start"][counted + 1], arrays["length"][counted]) == (6_000_000_500, 5_000_000_123)


def test_the_overview_holds_each_slots_share(folder: Path) -> None:
    timeline = timeline_events(overlaplab.load_run(folder / "gpu"))
    header, arrays = unpacked(pack(timeline).data)
    slots = header["slots"]
    assert header["ranks"] == [0, 1]
    compute, exposed = (arrays[name].reshape(2, slots) for name in ("compute", "exposed"))
    tenth = slots // 10
    for rank, late in ((0, 4), (1, 5)):
        assert (compute[rank, : 4 * tenth] == 255).all()
        assert (compute[rank, 4 * tenth + 1 : 8 * tenth] == 0).all()
        assert (exposed[rank, late * tenth + 1 : 7 * tenth - 1] == 255).all()
        assert (exposed[rank, : late * tenth - 1] == 0).all()


def test_members_of_a_collective_are_in_its_details(folder: Path) -> None:
    timeline = timeline_events(overlaplab.load_run(folder / "gpu"))
    _, arrays = unpacked(pack(timeline).data)
    marks = timeline.events.iloc[arrays["linked"]]
    assert set(arrays["collective"].tolist()) == {0}
    assert set(marks["trace"]) == {0, 1}
    assert pack(timeline_events(overlaplab.load_run(folder / "tall"))).id != pack(timeline).id


# ---- Painting


@pytest.fixture(scope="module")
def script(shared: Page) -> Page:
    """A page in which the canvas' script is `window.script`."""
    shared.evaluate(
        """async (source) => {
          window.script = await import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})));
        }""",
        read_script(),
    )
    return shared


def test_a_lane_is_painted_as_its_events_lie(script: Page) -> None:
    """Against a count of what covers each column: nothing vanishes, nothing is drawn where nothing is, and the busiest
    part colours what is narrower than a pixel."""
    random = np.random.default_rng(5)
    for _ in range(60):
        count, width = int(random.integers(1, 60)), 40
        begins = np.sort(random.integers(0, 1000, count))
        lengths = random.integers(0, random.choice([4, 40, 400]), count)
        order = np.lexsort((-lengths, begins))
        begins, lengths = begins[order], lengths[order]
        parts = random.integers(0, 3, count)
        low = int(random.integers(-50, 900))
        high = low + int(random.integers(40, 1200))
        row, busy = script.evaluate(
            """([begins, lengths, parts, low, high, width]) => {
              let reach = -Infinity;
              const run = {
                start: Uint32Array.from(begins), length: Uint32Array.from(lengths), code: Uint16Array.from(parts),
                depth: new Uint8Array(begins.length),
                reach: Float64Array.from(begins, (begin, i) => (reach = Math.max(reach, begin + lengths[i]))),
              };
              const look = {partOf: Uint8Array.of(0, 1, 2), colours: Uint32Array.of(1, 2, 3).map((c) => c * 80 - 1),
                parts: 3, hitParts: 3, searching: true, room: 30};
              const row = new Uint32Array(width);
              const scale = {from: low, to: high, perNs: width / (high - low), width};
              const lane = {first: 0, end: begins.length, depth: 1};
              const busy = window.script.paintLane(
                run, lane, 0, scale, look, row, new Float32Array(3 * width), new Float32Array(width), []);
              return [[...row], busy];
            }""",
            [begins.tolist(), lengths.tolist(), parts.tolist(), low, high, width],
        )
        pixel = (high - low) / width
        inside = (begins < high) & (begins + lengths >= low)
        overlap = np.minimum(begins + lengths, high) - np.maximum(begins, low)
        assert busy == overlap[inside].sum()
        painted = np.array([colour & 0xFF for colour in row])
        for column in range(width):
            left, right = low + column * pixel, low + (column + 1) * pixel
            touching = inside & (begins < right + 1e-6) & (begins + lengths >= left - 1e-6)
            if painted[column]:
                assert touching.any()
                assert painted[column] in {80 * (part + 1) - 1 for part in parts[touching]}
        for begin, length in zip(begins[inside], lengths[inside], strict=True):
            first = int((max(begin, low) - low) / pixel)
            last = int((min(begin + length, high) - low) / pixel)
            assert painted[min(first, width - 1) : min(last, width - 1) + 1].any()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("brief('void at::native::(anonymous namespace)::softmax<4, float>(int)')", "softmax"),
        ("brief('ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)')", None),
        ("brief('aten::mm')", "mm"),
        ("brief('reduce-scatter of 4 B, number 4')", "reduce-scatter of 4 B"),
        ("brief('waited for rank 1: bucket 3, all-reduce 7')", "waited for rank 1"),
        ("brief('<<<')", "<<<"),
        ("fitted('bucket 12', 9)", "bucket 12"),
        ("fitted('bucket 12', 8)", "b12"),
        ("fitted('bucket 12', 2)", ""),
        ("fitted('softmax', 4)", "sof…"),
        ("fitted('softmax', 2)", ""),
        ("lasting(0)", "0 ms"),
        ("lasting(999)", "999 ns"),
        ("lasting(1_234_000)", "1.234 ms"),
        ("lasting(12_345_678_901)", "12.35 s"),
        ("axisTime(1_234_567_890, 1000)", "1,234.568 ms"),
        ("axisTime(-1, 1e6)", "0 ms"),
        ("axisTime(-0, 5e5)", "0.0 ms"),
        ("axisTime(-2e6, 5e5)", "-2.0 ms"),
        ("axisTime(25e9, 5e9)", "25 s"),
    ],
)
def test_words(script: Page, call: str, said: str | None) -> None:
    said = "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if said is None else said
    assert script.evaluate(f"window.script.{call}") == said


# ---- The page


def test_marks_stand_where_the_events_are(page_of_gpu: Page, folder: Path) -> None:
    count = len(timeline_events(overlaplab.load_run(folder / "gpu")).events)
    assert told(page_of_gpu, "events") == str(count)
    image = pixels(page_of_gpu)
    width = image.shape[1]
    for colour, stretches in (
        (LIGHT.compute, [(0, 0.4), (0.8, 1)]),
        (LIGHT.reduce, [(0.3, 0.7)]),
        (LIGHT.waiting, [(0.4, 0.5)]),  # rank 1 comes at 500 µs
        (LIGHT.exposed, [(0.5, 0.7)]),
    ):
        columns = np.flatnonzero(share_of(image, colour))
        wanted = np.concatenate([np.arange(round(low * width), round(high * width)) for low, high in stretches])
        assert len(np.setxor1d(columns, wanted)) <= 6, colour
    label = page_of_gpu.locator(".stage").get_attribute("aria-label") or ""
    assert label.startswith("Timeline of 2 ranks in 8 lanes")
    legend = page_of_gpu.locator(".legend div").all_inner_texts()
    assert [re.split(r"\s*\n\s*|(?<=:)\s*", words.strip()) for words in legend] == [
        ["compute", "all-reduce"],
        ["exposed:", "nothing left to overlap (tail)", "waited for at once (blocking)", "waited for other ranks"],
    ]


def test_a_picture_of_what_is_seen_is_taken_away(page_of_gpu: Page) -> None:
    """It has the page's marks at twice their size, below the legend with its colours and the overview."""
    before = pixels(page_of_gpu)
    with page_of_gpu.expect_download() as waited:
        page_of_gpu.get_by_role("button", name="PNG").click()
    assert waited.value.suggested_filename == "gpu_Timeline.png"
    with Image.open(waited.value.path()) as picture:
        raw = np.asarray(picture.convert("RGB")).astype(np.int64)
    image = (raw[..., 0] << 16) | (raw[..., 1] << 8) | raw[..., 2]
    rows, columns = before.shape
    marks = image[-2 * rows :, -2 * columns :]
    for colour in (LIGHT.compute, LIGHT.reduce, LIGHT.exposed):
        seen, twice = (np.flatnonzero(share_of(each, colour)) for each in (before, marks))
        assert abs(twice[0] - 2 * seen[0]) <= 4
        assert abs(twice[-1] - 2 * seen[-1]) <= 4
        assert (image[: -2 * (rows + AXIS + 46)] == hexed(colour)).sum() > 300  # the legend's patch
    legend = image[: -2 * (rows + AXIS + 46)]
    assert (legend[:, :8] == hexed("#FFFFFF")).all()  # nothing touches the edge
    assert image[-1, 0] == hexed("#FFFFFF")
    assert np.array_equal(pixels(page_of_gpu), before)


def test_each_page_is_listed_once(page_of_gpu: Page) -> None:
    """The list is drawn again, and shorter, when the page knows what the run has nothing of."""
    links = page_of_gpu.locator("[data-testid=stSidebar] [data-testid=stPageLink]").all_text_contents()
    assert "Timeline" in links
    assert len(links) == len(set(links)), links


def test_keys_move_the_window(page_of_gpu: Page) -> None:
    page = page_of_gpu
    page.locator(".stage").focus()
    page.keyboard.press("w")
    assert window(page) == (100_000, 900_000)
    page.keyboard.press("d")
    assert window(page) == (220_000, 1_020_000) or window(page)[1] >= 1_000_000
    page.keyboard.press("a")
    page.keyboard.press("a")
    start, end = window(page)
    assert end - start == pytest.approx(800_000, abs=2)
    assert start < 100_000
    page.keyboard.press("s")
    assert window(page)[1] - window(page)[0] == pytest.approx(1_000_000, abs=2)
    page.keyboard.press("f")
    assert window(page) == (0, 1_000_000)
    page.locator(".in").click()
    assert window(page) == (250_000, 750_000)
    page.locator(".fit").click()
    assert window(page) == (0, 1_000_000)


def test_keys_work_where_nothing_has_the_focus_and_not_while_writing(page_of_gpu: Page) -> None:
    page = page_of_gpu
    page.keyboard.press("w")
    assert window(page) == (100_000, 900_000)
    page.keyboard.press("/")
    page.keyboard.type("wasd")
    assert window(page) == (100_000, 900_000)
    assert page.locator(".timeline input").input_value() == "wasd"
    page.keyboard.press("Escape")
    assert page.locator(".timeline input").input_value() == ""


def test_the_wheel_zooms_only_with_focus(page_of_gpu: Page) -> None:
    page = page_of_gpu
    scrolled = "document.querySelector('[data-testid=stMain]').scrollTop"
    page.mouse.move(*at(page, 0.25, 60))
    page.mouse.wheel(0, 120)
    page.wait_for_function(f"{scrolled} > 0")
    assert window(page) == (0, 1_000_000)
    page.evaluate(f"{scrolled} = 0")
    page.mouse.click(*at(page, 0.25, 2))
    expect(page.locator(".stage")).to_be_focused()
    page.mouse.wheel(0, -200)
    page.wait_for_function(f"{FIND}.dataset.window !== '0,1000000'")
    start, end = window(page)
    assert start + (end - start) / 4 == pytest.approx(250_000, rel=0.01)  # what is under the pointer stays there
    assert end - start < 800_000
    assert page.evaluate(scrolled) == 0


def test_shift_drag_pans(page_of_gpu: Page) -> None:
    page = page_of_gpu
    page.keyboard.press("w")
    page.keyboard.down("Shift")
    page.mouse.move(*at(page, 0.5, 40))
    page.mouse.down()
    page.mouse.move(*at(page, 0.45, 40), steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    start, end = window(page)
    assert (start, end) == (pytest.approx(140_000, abs=2000), pytest.approx(940_000, abs=2000))
    assert told(page, "range") == ""


def test_a_drag_selects_a_range_and_shows_its_figures(page_of_gpu: Page) -> None:
    page = page_of_gpu
    with rerun(page):
        page.mouse.move(*at(page, 0.4, 40))
        page.mouse.down()
        page.mouse.move(*at(page, 0.7, 50), steps=3)
        page.mouse.up()
    low, high = (int(bound) for bound in told(page, "range").split(","))
    assert (low, high) == (pytest.approx(400_000, abs=1500), pytest.approx(700_000, abs=1500))
    figures = f"Selected: {low / 1e6:.3f} to {high / 1e6:.3f} ms"
    expect(page.locator("h3").first).to_have_text(figures)
    with page.expect_download() as waited:
        page.get_by_role("button", name="CSV").first.click()
    taken = pd.read_csv(waited.value.path())
    assert taken[["from (ms)", "to (ms)"]].drop_duplicates().to_numpy().tolist() == [[low / 1e6, high / 1e6]]
    page.wait_for_url(f"**range={low}*")
    page.reload()  # as whoever is sent the address sees it
    settle(page)
    expect(page.locator("h3").first).to_have_text(figures)
    assert told(page, "range") == f"{low},{high}"
    page.locator(".stage").focus()
    page.keyboard.press("f")
    assert window(page) == (low, high)
    page.keyboard.press("f")
    assert window(page) == (0, 1_000_000)
    with rerun(page):
        page.keyboard.press("Escape")
    expect(page.locator("h3").first).to_have_text("Visible: 0.000 to 1.000 ms")


def test_the_overviews_window_can_be_dragged(page_of_gpu: Page) -> None:
    page = page_of_gpu
    page.locator(".in").click()
    box = page.locator(".overview").bounding_box()
    assert box is not None
    left, width = box["x"] + GUTTER, box["width"] - GUTTER
    page.mouse.move(left + width / 2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(left + width * 0.6, box["y"] + 20, steps=3)
    page.mouse.up()
    assert window(page) == (pytest.approx(350_000, abs=3000), pytest.approx(850_000, abs=3000))
    page.mouse.click(left + width * 0.1, box["y"] + 20)
    assert window(page)[0] < 20_000


def test_the_search_jumps_from_hit_to_hit(page_of_gpu: Page) -> None:
    page = page_of_gpu
    page.locator(".in").click()
    box = page.locator(".timeline input")
    box.fill("NATIVE")
    page.wait_for_function(f"{FIND}.dataset.hits === '4 hits'")
    assert share_of(pixels(page), LIGHT.compute).any()
    assert not share_of(pixels(page), LIGHT.reduce).any()  # what does not match is faint
    with rerun(page):
        box.press("Enter")
    assert told(page, "hits") == "3 of 4"  # the first one after the window's start
    assert window(page)[1] > 800_000  # it was brought into view
    seen = [told(page, "event")]
    for key, said in (("Enter", "4 of 4"), ("Enter", "1 of 4"), ("Shift+Enter", "4 of 4"), ("Shift+Enter", "3 of 4")):
        box.press(key)
        assert told(page, "hits") == said
        seen.append(told(page, "event"))
    assert (len(set(seen)), seen[0], seen[1]) == (3, seen[4], seen[3])
    expect(page.locator(".hits")).to_have_text("3 of 4")
    box.fill("no such kernel")
    page.wait_for_function(f"{FIND}.dataset.hits === 'no hit'")
    box.press("Escape")
    assert (told(page, "hits"), told(page, "event")) == ("", "-1")
    expect(page.locator(".stage")).to_be_focused()


def test_a_click_shows_the_event_and_a_collectives_members_are_linked(page_of_gpu: Page, folder: Path) -> None:
    page = page_of_gpu
    rows = np.flatnonzero(pixels(page)[:, round(0.6 * plot(page)[2])] == hexed(LIGHT.reduce))
    down = float(rows[0] + 3)
    assert not pixels(page, "above").any()
    page.mouse.move(*at(page, 0.6, down))
    tip = page.locator(".tip")
    expect(tip).to_contain_text("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    expect(tip).to_contain_text("all-reduce · rank 0, stream 20 (NCCL)")
    expect(tip).to_contain_text("400 µs, from 0.300 ms")
    linked = pixels(page, "above")
    between = (int(rows[0]) + int(rows[-1])) // 2
    assert linked[between, : round(0.25 * linked.shape[1])].max() == 0
    assert linked[between, round(0.35 * linked.shape[1]) : round(0.69 * linked.shape[1])].max() > 0
    with rerun(page):
        page.mouse.click(*at(page, 0.6, down))
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()
    assert pixels(page, "above").any()
    query = parse_qs(urlsplit(page.url).query)
    place, row = query["event"][0].split("-")
    name = overlaplab.load_run(folder / "gpu").traces[int(place)].events["name"].iloc[int(row)]
    assert (place, str(name)[:20]) == ("0", "ncclDevKernel_AllRed")
    expect(page.get_by_role("heading", name="Its collective by rank")).to_be_visible()
    label = page.locator(".stage").get_attribute("aria-label") or ""
    assert "Timeline of 2 ranks" in label
    assert "Exposed communication there: rank 0: 300 µs, rank 1: 200 µs." in label
    assert "Selected: ncclDevKernel_AllReduce" in label


def test_a_tooltip_keeps_off_its_lane_and_goes_on_zoom(page_of_gpu: Page) -> None:
    page = page_of_gpu
    rows = np.flatnonzero(pixels(page)[:, round(0.6 * plot(page)[2])] == hexed(LIGHT.exposed))
    tip = page.locator(".tip")
    for row in (rows[2], rows[-3]):  # of rank 0's exposed lane, and of rank 1's, the lowest one
        page.mouse.move(*at(page, 0.6, float(row)))
        expect(tip).to_contain_text("nothing left to overlap (tail): all-reduce 0")
        box = tip.bounding_box()
        assert box is not None
        own = [place for place in rows if abs(place - row) < 30]
        top = plot(page)[1]
        assert box["y"] >= top + own[-1] or box["y"] + box["height"] <= top + own[0] + 1
    page.keyboard.press("w")
    expect(tip).to_be_hidden()
    page.mouse.move(*at(page, 0.6, float(rows[2]) + 1))
    expect(tip).to_be_visible()


@pytest.mark.parametrize("width", [1440, 1024, 800])
def test_the_canvas_takes_the_pages_width_and_the_figures_stand_below(page_of_gpu: Page, width: int) -> None:
    page = page_of_gpu
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function(f"window.innerWidth === {width}")
    settle(page)
    canvas, table = (page.locator(name).first.bounding_box() for name in (".stage", "[class*=st-key-window_table]"))
    column = page.locator("[data-testid=stMainBlockContainer]").bounding_box()
    page.set_viewport_size({"width": 1280, "height": 900})
    assert canvas is not None
    assert table is not None
    assert column is not None
    assert canvas["width"] > column["width"] - 90  # but for the page's padding
    assert table["y"] >= canvas["y"] + canvas["height"]
    assert table["y"] < 900
    assert table["x"] + table["width"] <= width


def test_the_address_is_a_link_to_what_is_seen(page: Page, served_at: str) -> None:
    open_timeline(page, served_at, "gpu", "&from=300000&to=500000")
    assert window(page) == (300_000, 500_000)
    expect(page.locator("h3").first).to_have_text("Visible: 0.300 to 0.500 ms")
    page.keyboard.press("w")
    page.wait_for_url(re.compile("from=320000&to=480000"))
    settle(page)
    page.reload()
    page.wait_for_selector(".timeline:not([data-painted='0'])")
    assert window(page) == (320_000, 480_000)
    page.keyboard.press("w")
    page.wait_for_url(re.compile("from=336000&to=464000"))
    settle(page)
    visit(page, served_at, "compare")
    visit(page, served_at, "timeline")
    page.wait_for_selector(".timeline:not([data-painted='0'])")
    assert window(page) == (336_000, 464_000)
    page.locator(".stage").focus()
    page.keyboard.press("w")
    page.wait_for_url(re.compile("from=348800&to=451200"))
    settle(page)
    # Back and forth lead from page to page, each with its own last window; a window is no step of its own.
    for go, address, seen in (
        (page.go_back, "/compare", None),
        (page.go_back, "/timeline", (336_000, 464_000)),
        (page.go_forward, "/compare", None),
        (page.go_forward, "/timeline", (348_800, 451_200)),
    ):
        go()
        page.wait_for_url(f"**{address}?*")
        page.get_by_role("heading", name=address[1:].title(), exact=True).wait_for()
        settle(page)
        if seen is not None:
            page.wait_for_selector(".timeline:not([data-painted='0'])")
            assert window(page) == seen


@pytest.mark.parametrize("asked", [(-500_000, 500_000), (600_000, 1_900_000), (100_000, 500_000)])
def test_figures_and_address_are_of_the_window_that_is_drawn(
    page: Page, served_at: str, asked: tuple[int, int]
) -> None:
    """A link may ask for what lies before or after the run, where the canvas does not go."""
    open_timeline(page, served_at, "gpu", "&from={}&to={}".format(*asked))
    start, end = window(page)
    assert (start, end) == asked if asked[0] == 100_000 else -30_000 <= start < end <= 1_030_000
    expect(page.locator("h3").first).to_have_text(f"Visible: {start / 1e6:,.3f} to {end / 1e6:,.3f} ms")
    page.wait_for_url(f"**from={start}&to={end}**")
    page.reload()
    page.wait_for_selector(".timeline:not([data-painted='0'])")
    assert window(page) == (start, end)


def test_reruns_do_not_send_the_events_again(browser: Browser, served_at: str) -> None:
    with watched(browser) as page:
        received: list[int] = []
        page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: received.append(len(frame))))
        open_timeline(page, served_at, "many")
        assert told(page, "events") == str(MANY + 3)
        assert max(received) > 10 * MANY  # the events
        received.clear()
        with rerun(page):
            page.keyboard.press("w")
        assert window(page) != (0, 10_000 * MANY)
        assert 0 < sum(received) < 10 * MANY
        assert page.locator("[data-testid^=stBidiComponent]").count() == 1  # what carried them has gone
        # Nothing vanishes: of 30,000 events and a lone one of 1 ns, every busy column is coloured.
        with rerun(page):
            page.keyboard.press("f")
        page.wait_for_function(f"{FIND}.dataset.window === '0,{10_000 * MANY}'")
        image = pixels(page)
        ground = hexed("#FFFFFF")
        middle = image.shape[1] // 2
        rows = np.flatnonzero((image[:, middle] != ground) & (image[:, middle - 40] == ground))
        # In the instant's lane and its exposed one, strong enough to be seen.
        assert (255 - (image[rows, middle] & 255) > 40).sum() >= 8
        # A browser that has lost the events asks for them.
        page.evaluate("overlaplabRuns.kept.clear()")
        visit(page, served_at, "zero3")
        visit(page, served_at, "timeline")
        page.wait_for_selector(".timeline:not([data-painted='0'])")
        assert told(page, "events") == str(MANY + 3)


HOLD = """
const held = [];
const holding = (take) => (event) => (globalThis.hold ? held.push(() => take(event)) : take(event));
globalThis.release = async () => {
  for (; held.length; held.shift()()) await new Promise((done) => setTimeout(done, 20));
  globalThis.hold = false;
};
globalThis.WebSocket = class extends WebSocket {
  set onmessage(take) { super.onmessage = take && holding(take); }
  addEventListener(kind, take, ...more) {
    super.addEventListener(kind, kind === "message" ? holding(take) : take, ...more);
  }
};
"""
"""Until `release()`, what the server says after `hold = true` does not reach the page, as on a slow network."""
LEAVE = """(find) => {
  eval(find).dispatchEvent(new KeyboardEvent("keydown", { key: "w", bubbles: true }));
  setTimeout(() => {
    hold = true;
    document.querySelector('[class*=st-key-pages] a[href="collectives"]').click();
  }, 370);
}"""
"""Zooms, and opens another page just before the 400 ms are over after which the timeline tells of it."""


def test_a_page_that_is_opened_right_after_a_move_stays(browser: Browser, served_at: str) -> None:
    """The timeline tells of a move once it has rested: not any more when another page has been asked for."""
    with watched(browser, fresh=True) as page:
        page.add_init_script(HOLD)
        open_timeline(page, served_at, "gpu")
        page.evaluate(LEAVE, FIND)
        page.wait_for_timeout(2000)
        page.evaluate("release()")
        expect(page.locator("h1")).to_have_text("Collectives")
        settle(page)
        expect(page.locator("h1")).to_have_text("Collectives")


def test_many_ranks_scroll(page: Page, served_at: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 700})
    open_timeline(page, served_at, "tall")
    page.locator(".stage").focus()
    before = pixels(page)
    page.keyboard.press("PageDown")
    page.wait_for_function(f"{FIND}.querySelector('.scroll').scrollTop > 50")
    assert told(page, "window") == "0,100000"
    after = pixels(page)
    assert before.shape == after.shape
    assert (before != after).any()
    page.mouse.move(*at(page, 0.5, 50))
    page.keyboard.down("Shift")
    page.mouse.wheel(0, -2000)
    page.keyboard.up("Shift")
    page.wait_for_function(f"{FIND}.querySelector('.scroll').scrollTop === 0")
    assert told(page, "window") == "0,100000"


def test_a_chosen_step_is_shown_after_zooming_too(page: Page, served_at: str) -> None:
    open_timeline(page, served_at, "tall")
    page.keyboard.press("w")
    page.wait_for_url(re.compile("from=10000&to=90000"))
    settle(page)
    page.locator(".st-key-step_picker input").click()
    with rerun(page):
        page.locator("[role=option]").filter(has_text="1").first.click()
    assert window(page) == (100_000, 200_000)
    expect(page.locator("h3").first).to_have_text("Visible: 0.100 to 0.200 ms")
    page.wait_for_url(re.compile("from=100000&to=200000"))
    with rerun(page):
        page.mouse.click(*at(page, 0.5, 6))  # the step's own mark
    expect(page.locator("h3").first).to_have_text("Selected: 0.100 to 0.200 ms")
    expect(page.get_by_text("This is step 1 of rank 0.")).to_be_visible()
    pick(page, "run_picker", "gpu")  # the address still tells of the other run
    expect(page.locator("h3").first).to_have_text("Visible: 0.000 to 1.000 ms")
    assert window(page) == (0, 1_000_000)


def test_the_dark_theme_has_its_own_colours(browser: Browser, served_at: str) -> None:
    with watched(browser, color_scheme="dark") as page:
        open_timeline(page, served_at, "gpu")
        image = pixels(page)
        assert share_of(image, DARK.compute).mean() == pytest.approx(0.6, abs=0.02)
        assert share_of(image, DARK.exposed).mean() == pytest.approx(0.2, abs=0.02)
        assert not share_of(image, LIGHT.compute).any()
        pick(page, "run_picker", "many")
        page.wait_for_function(f"{FIND}.dataset.events === '{MANY + 3}'")
        assert window(page) == (0, 10_000 * MANY)
