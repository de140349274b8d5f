"""How the app is started: both ways with the same settings, bound to this machine."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from streamlit import net_util

from overlaplab.dashboard.server import SETTINGS, command

ROOT = Path(__file__).parents[2]


def test_both_ways_to_start_have_the_same_settings() -> None:
    def flat(table: dict[str, object], prefix: str = "") -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in table.items():
            name = f"{prefix}{key}"
            found |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
        return found

    written = flat(tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text()))
    assert written == {key: list(value) if isinstance(value, tuple) else value for key, value in SETTINGS.items()}


def test_no_string_of_a_pages_file_is_drawn_by_itself() -> None:
    assert SETTINGS["runner.magicEnabled"] is False


def test_the_settings_keep_the_app_to_this_machine(tmp_path: Path) -> None:
    line = command(tmp_path, 8502)
    for word in (
        "--server.address=127.0.0.1",
        "--server.port=8502",
        "--server.enableCORS=true",
        "--server.enableXsrfProtection=true",
        "--browser.gatherUsageStats=false",
        "--server.headless=true",
        "--server.maxUploadSize=200",
    ):
        assert word in line
    assert command(None, 8501)[-1] == "--"


def test_building_the_command_needs_no_streamlit() -> None:
    code = "import sys, overlaplab.dashboard.server; sys.exit('streamlit' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_streamlit_still_caches_its_outside_address_where_the_app_sets_it() -> None:
    """The app sets it so that no outside service is asked; a renamed variable would undo that silently."""
    assert "_external_ip" in vars(net_util)
