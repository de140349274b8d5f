"""For all tests: none uses the user's own cache of tables, and browser tests share one Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


pytest.register_assert_rewrite("browser")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of this session's, also for the processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAPLAB_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("OVERLAPLAB_NO_CACHE", raising=False)
        patch.setenv("OVERLAPLAB_WATCH_S", "0")  # no rerun of the app but those that a test causes
        patch.delenv("OVERLAPLAB_CACHE_BYTES", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _valid_charts() -> None:
    """Every chart that a test draws is held against Vega-Lite's schema."""
    from overlaplab.charts.quiet import QuietChart

    QuietChart.checked = True


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    from browser import chromium

    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page, 1280 wide and light, that fails the test on a request that leaves 127.0.0.1, an error in the
    console, an uncaught exception, and injected script that ran.
    """
    from browser import watched

    with watched(browser) as found:
        yield found
