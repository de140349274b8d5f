"""For all tests: none uses the user's own cache of tables, and browser tests share one Chromium."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


pytest.register_assert_rewrite("browser")
# A change is not held up by an example that was drawn at random: `FUZZ=N` draws new ones, the suite always the same.
settings.register_profile("repeatable", derandomize="FUZZ" not in os.environ)
settings.load_profile("repeatable")
# Jupyter brings it, and then jsonschema, which altair imports, compiles its grammar of addresses for a second or two.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

SLOWEST = (
    *("engine/strategies/test_zoo.py", "engine/strategies/test_parity.py", "engine/test_faults.py"),
    *("engine/test_checkpoint.py", "dashboard/test_canvas.py", "examples/test_examples.py"),
    *("dashboard/test_links_in_chromium.py", "engine/strategies/test_mixed_precision.py", "test_gpu_tests.py"),
    *("dashboard/test_in_chromium.py", "safety/test_hostile_app.py", "engine/strategies/test_zero.py"),
    *("test_end_to_end.py", "test_notebooks.py", "safety/test_hostile_files.py", "cli/test_sweep_command.py"),
    *("dashboard/test_compare_in_chromium.py", "dashboard/test_permalinks.py", "engine/strategies/test_library.py"),
    *("engine/strategies/test_fsdp2.py", "load/test_slice.py", "load/test_malformed_traces.py"),
    *("safety/test_hostile_terminal.py", "test_users_folder.py", "test_gpu_scripts.py", "load/test_executors.py"),
    *("test_hta.py",),
)
"""Files that take longest, by CPU time: they come first, or one of them would run on when all others are done."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {Path(__file__).parent / name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


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
