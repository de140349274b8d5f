"""The timeline's canvas as a test in a browser sees it, and a rank for it."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from made.traces import launched, step
from playwright.sync_api import Page

from browsing.browser import visit

GUTTER, AXIS = 150, 24  # of timeline.js, in pixels


def nccl(at: float, end: float, correlation: int) -> list[dict[str, Any]]:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return launched(name, 5, at, end, stream=20, correlation=correlation)


def gpu_rank(late: float) -> list[dict[str, Any]]:
    """A step of 1000 µs: compute until 400, an all-reduce from `late` to 700, compute from 800 to 1000."""
    return [
        step(0, 0, 1000),
        *launched("void at::native::gemm<float>(int)", 1, 0, 400, correlation=1),
        *nccl(late, 700, 2),
        *launched("void at::native::relu_kernel<4>(float)", 7, 800, 1000, correlation=3),
    ]


FIND = "document.querySelector('[data-testid^=stBidiComponent]')?.shadowRoot.querySelector('.timeline')"


def open_timeline(page: Page, address: str, run: str, query: str = "") -> None:
    visit(page, address, "timeline", query=f"run={run}{query}")
    page.wait_for_selector(".timeline:not([data-painted='0'])")


def told(page: Page, name: str) -> str:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.locator(".timeline").get_attribute(f"data-{name}") or ""


def window(page: Page) -> tuple[int, int]:
    start, end = told(page, "window").split(",")
    return int(start), int(end)


def plot(page: Page) -> tuple[float, float, float]:
    """Where the lanes stand: left, top, width."""
    box = page.locator(".stage").bounding_box()
    assert box is not None
    return box["x"] + GUTTER, box["y"] + AXIS, box["width"] - GUTTER


def at(page: Page, share: float, down: float = 0) -> tuple[float, float]:
    """A place in the lanes: a share of their width, pixels down."""
    left, top, width = plot(page)
    return left + share * width, top + down


def pixels(page: Page, layer: str = "marks") -> np.ndarray[Any, Any]:
    """A canvas as rows × columns of 0xRRGGBB, from the lanes' left and top on."""
    text, width = page.evaluate(
        """([find, layer, gutter, axis]) => {
          const canvas = eval(find).querySelector('canvas.' + layer);
          const wide = canvas.width - gutter;
          const {data} = canvas.getContext('2d').getImageData(gutter, axis, wide, canvas.height - axis);
          let text = '';
          for (let at = 0; at < data.length; at += 30000) text += String.fromCharCode(...data.subarray(at, at + 30000));
          return [btoa(text), wide];
        }""",
        [FIND, layer, GUTTER, AXIS],
    )
    raw = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, width, 4).astype(np.int64)
    found: np.ndarray[Any, Any] = (raw[..., 0] << 16) | (raw[..., 1] << 8) | raw[..., 2]
    return found if layer == "marks" else raw[..., 3]


def hexed(colour: str) -> int:
    return int(colour[1:], 16)


def share_of(image: np.ndarray[Any, Any], colour: str) -> np.ndarray[Any, Any]:
    """Which columns hold a colour anywhere."""
    found: np.ndarray[Any, Any] = (image == hexed(colour)).any(axis=0)
    return found
