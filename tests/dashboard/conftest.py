"""Folders of runs that the dashboard's tests open, and the app on one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import streamlit
from browsing.app_page import turn
from made.runs import engine_events, made_gathering, made_runs, made_sweep
from made.traces import run_of
from streamlit.testing.v1 import AppTest

import overlaplab.dashboard

MAIN = Path(overlaplab.dashboard.__file__).with_name("main.py")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an engine's run of two ranks, a foreign GPU trace, and a run that cannot be read; tests only read
    it, so that the app has it read after the first.
    """
    return made_runs(tmp_path_factory.mktemp("shown") / "runs")


@pytest.fixture
def own_runs(tmp_path: Path) -> Path:
    """The same, for a test that changes it."""
    return made_runs(tmp_path / "runs")


@pytest.fixture(scope="session")
def gathering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of zero3, one that prefetches and one that does not, and one that gathers nothing; tests
    only read it.
    """
    folder = made_gathering(tmp_path_factory.mktemp("shown") / "gathering")
    run_of(folder / "bucketed", engine_events(), engine_events(), manifest={})
    return folder


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app, started as the README says, on a folder with the runs of `runs`, the two of `gathering` and a sweep;
    tests only read it.
    """
    from browsing.browser import app_on

    folder = made_gathering(made_runs(tmp_path_factory.mktemp("served") / "runs"))
    made_sweep(folder / "sweep")
    with app_on(folder) as found:
        yield found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, compiled_once: None) -> Callable[..., AppTest]:
    """A function that opens a page on a folder, on the run of this name."""

    def open_page(folder: Path | None, page: str = "summary", run: str | None = None) -> AppTest:
        monkeypatch.setattr(sys, "argv", ["main.py", *([str(folder)] if folder else [])])
        app = AppTest.from_file(str(MAIN), default_timeout=300)
        if page != "summary":
            app.switch_page(str(MAIN.parent / "views" / f"{page}.py"))
        if run is not None:
            app.query_params["run"] = run
        turn(app.run())
        assert not app.exception, app.exception[0].message
        return app

    return open_page


@pytest.fixture
def spinners(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What pages say while they compute something."""
    said: list[str] = []
    real = streamlit.spinner

    def spinner(text: str, **look: Any) -> AbstractContextManager[None]:
        said.append(text)
        return real(text, **look)

    monkeypatch.setattr(streamlit, "spinner", spinner)
    return said


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch, compiled_once: None) -> Callable[..., AppTest]:
    """A function that follows a link: opens a page on a folder with these query parameters."""

    def follow(folder: Path, page: str = "summary", **query: str) -> AppTest:
        monkeypatch.setattr(sys, "argv", ["main.py", str(folder)])
        app = AppTest.from_file(str(MAIN), default_timeout=300)
        app.switch_page(str(MAIN.parent / "views" / f"{page}.py")) if page != "summary" else None
        for name, value in query.items():
            app.query_params[name] = value
        app.run()
        assert not app.exception, app.exception[0].message
        return app

    return follow
