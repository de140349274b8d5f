"""For all tests: none uses the user's own cache of tables, and browser tests share one Chromium."""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


pytest.register_assert_rewrite("browsing.browser")
# A change is not held up by an example that was drawn at random: `FUZZ=N` draws new ones, the suite always the same.
settings.register_profile(  # no deadline: a busy machine takes long for anything
    "repeatable", derandomize="FUZZ" not in os.environ, deadline=None
)
settings.load_profile("repeatable")
# Jupyter brings it, and then jsonschema, which altair imports, compiles its grammar of addresses for a second or two.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
STARTED = Path(__file__).with_name("support") / "started"
"""Has the `sitecustomize` of processes that tests start."""

SLOWEST = (
    *("dashboard/in_chromium/test_canvas.py", "engine/strategies/test_parity.py", "engine/test_faults.py"),
    *("engine/strategies/test_zoo.py", "engine/test_checkpoint.py", "examples/test_examples.py"),
    *("dashboard/in_chromium/test_links.py", "engine/strategies/test_mixed_precision.py", "scripts/test_gpu_tests.py"),
    *("dashboard/in_chromium/test_drawn.py", "safety/test_hostile_app.py", "engine/strategies/test_zero.py"),
    *("test_end_to_end.py", "test_notebooks.py", "safety/test_hostile_files.py", "cli/test_sweep_command.py"),
    *("dashboard/in_chromium/test_compare.py", "dashboard/test_permalinks.py", "engine/strategies/test_library.py"),
    *("engine/strategies/test_fsdp2.py", "load/test_slice.py", "load/test_malformed_traces.py"),
    *("safety/test_hostile_terminal.py", "test_users_folder.py", "scripts/test_gpu_scripts.py"),
    *("load/test_executors.py", "test_hta.py", "dashboard/views/test_what_if_page.py"),
    *("simulate/programs/test_contract.py", "dashboard/test_states.py", "dashboard/views/test_pages.py"),
)
"""Files that take longest, by CPU time: they come first, or one of them would run on when all others are done."""

IN_CHROMIUM = ("in_chromium", "test_hostile_app", "test_hostile_files", "test_site.py", "test_notebooks")
"""Names of files and folders whose tests open pages in Chromium."""
IN_WORKER = "PYTEST_XDIST_WORKER" in os.environ


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {Path(__file__).parent / name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests and modules are no garbage: looking for some among them would take a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """As `--dist loadfile`, but one worker has all files that open pages in Chromium, and starts it once."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "in Chromium" if any(name in file for name in IN_CHROMIUM) else file

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of this session's, also for the processes that tests start (workers share one).

    Those processes find `STARTED` on PYTHONPATH.
    """
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAPLAB_CACHE_DIR", str((folder.parent if IN_WORKER else folder) / "cache"))
        patch.delenv("OVERLAPLAB_NO_CACHE", raising=False)
        patch.setenv("PYTHONPATH", str(STARTED), prepend=os.pathsep)
        patch.setenv("OVERLAPLAB_WATCH_S", "0")  # no rerun of the app but those that a test causes
        patch.delenv("OVERLAPLAB_CACHE_BYTES", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _valid_charts() -> Iterator[None]:
    """Every chart that a test draws is held against Vega-Lite's schema, as a whole (Altair alone would hold each of its
    parts against it, too), and charts alike but for their figures once. And garbage is not searched for in what modules
    consist of, but in everything else: tests see when it is gone.
    """
    from overlaplab.charts.theme import EscapedChart
    from overlaplab.dashboard.heap import Resting, rest_modules

    rest_modules()
    gc.callbacks[:] = [callback for callback in gc.callbacks if not isinstance(callback, Resting)]
    validate, valid = EscapedChart.validate, set[str]()

    def validate_once(chart: dict[str, Any]) -> None:
        shape = json.dumps(_without_figures(chart))
        if shape not in valid:
            validate(chart)
            valid.add(shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EscapedChart, "checked", True)
        patch.setattr(EscapedChart, "validate", staticmethod(validate_once))
        yield


def _without_figures(chart: Any) -> Any:
    """A chart's JSON with a number's type and size in its place, and each of a list's kinds of members once."""
    match chart:
        case dict():
            return {key: _without_figures(value) for key, value in chart.items()}
        case list():
            shapes = [_without_figures(value) for value in chart]
            return [shape for place, shape in enumerate(shapes) if shape not in shapes[:place]]
        case bool() | None:
            return chart
        case int() | float():
            return [type(chart).__name__, chart < 0, chart > 1]
        case str() if chart.startswith("data-"):  # a table's name: a hash of what it holds
            return "data"
    return str(chart)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, str, str]]:
    """Runs `overlaplab` with these arguments in this process; its exit code, its stdout and its stderr.

    What it prints with --json must fit docs/schema.
    """
    from schemas import expect_schema

    from overlaplab.cli import main

    def call(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["overlaplab", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        if "--json" in arguments and out:
            expect_schema(str(arguments[0]), json.loads(out))
        return stopped.value.code, out, err

    return call


@pytest.fixture(scope="session")
def compiled_once() -> Iterator[None]:
    """Streamlit's tester keeps the bytecode of scripts, and which installed packages have components, as its server
    does: else each run compiles the scripts anew, and each app searches all packages, which takes longer than the page.
    """
    from streamlit.components.v2 import manifest_scanner
    from streamlit.runtime.scriptrunner.script_cache import ScriptCache
    from streamlit.testing.v1 import app_test, local_script_runner

    cache, scan = ScriptCache(), manifest_scanner.scan_component_manifests
    with pytest.MonkeyPatch.context() as patch:
        for module in (app_test, local_script_runner):
            patch.setattr(module, "ScriptCache", lambda: cache)
        patch.setattr(manifest_scanner, "scan_component_manifests", functools.cache(scan))
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    from browsing.browser import chromium

    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A blank page, 1280 wide and light, that fails the test on a request that leaves 127.0.0.1, an error in the
    console, an uncaught exception, and injected script that ran.
    """
    from browsing.browser import watched

    with watched(browser) as found:
        yield found
