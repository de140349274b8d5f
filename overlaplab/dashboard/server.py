"""How the dashboard is started; imports nothing of streamlit."""

from __future__ import annotations

import sys
from pathlib import Path

HOST = "127.0.0.1"
PORT = 8501
"""Where the dashboard listens unless told otherwise."""

SETTINGS: dict[str, str | bool | int | tuple[str, ...]] = {
    # Only this machine may connect, by these names (a foreign page may not rebind its own), with Streamlit's checks on.
    "server.address": HOST,
    "server.allowedHosts": (HOST, "localhost"),
    "server.enableCORS": True,
    "server.enableXsrfProtection": True,
    "server.maxUploadSize": 200,  # MB of item file; what `uploads` takes is bounded as a whole
    # Nothing leaves this machine: no telemetry, no look-up of its outside address, no mail prompt.
    "browser.gatherUsageStats": False,
    "server.headless": True,
    "server.showEmailPrompt": False,
    "client.toolbarMode": "minimal",
    "client.showErrorLinks": False,
    # Red means exposed communication here: controls are blue.
    "theme.light.primaryColor": "#0072B2",
    "theme.dark.primaryColor": "#56B4E9",
    "server.fileWatcherType": "none",
    # Only what is called draws: otherwise each string that stands alone in a page's file would appear on it.
    "runner.magicEnabled": False,
}
"""Streamlit's options; `.streamlit/config.toml` says the same for `streamlit run app.py`, and a test compares them."""


def command(folder: Path | None, port: int, host: str = HOST) -> list[str]:
    """The command line that serves the dashboard for a folder.

    Under another host than `HOST` it answers to every name that leads there, since nobody knows them all.
    """
    line = [sys.executable, "-m", "streamlit", "run", str(Path(__file__).with_name("main.py"))]
    settings = SETTINGS if host == HOST else SETTINGS | {"server.address": host, "server.allowedHosts": ()}
    for option, value in settings.items():
        for item in value if isinstance(value, tuple) else (value,):
            line.append(f"--{option}={str(item).lower() if isinstance(item, bool) else item}")
    line.append(f"--server.port={port}")
    return [*line, "--", *([str(folder.resolve())] if folder is not None else [])]
