"""A stranger's runs, and the app on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import app_on
from hostile import hostile_runs


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of hostile runs, which tests only read."""
    return hostile_runs(tmp_path_factory.mktemp("strangers") / "runs")


@pytest.fixture(scope="session")
def app_address(strangers: Path) -> Iterator[str]:
    """The app on these runs."""
    with app_on(strangers) as address:
        yield address
