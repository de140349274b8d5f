"""A stranger's runs, and the app on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing.audited_server import Served, audited
from hostile.traces import hostile_runs


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of hostile runs, which tests only read."""
    return hostile_runs(tmp_path_factory.mktemp("strangers") / "runs")


@pytest.fixture(scope="session")
def app(strangers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The app on these runs; what it connects to is written down."""
    with audited(strangers, tmp_path_factory.mktemp("audit")) as found:
        yield found


@pytest.fixture(scope="session")
def app_address(app: Served) -> str:
    return app.address
