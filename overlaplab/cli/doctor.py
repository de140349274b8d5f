"""`overlaplab doctor`: what would keep a recording from working on this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from overlaplab.cli.checks import Check, Facts, Verdict, checks
from overlaplab.cli.shared import print_json, progress_bar, show
from overlaplab.dashboard.server import PORT
from overlaplab.words import count, shorten

app = typer.Typer()

ENGINE = "overlaplab_engine.doctor"
"""What is asked about torch, as a process of its own."""
TIMEOUT_S = 300.0
"""How long it may take: torch starts twice, and CUDA with it."""
EXTRAS = {"engine": "torch", "app": "streamlit", "report": "vl_convert", "hta": "hta"}
"""The extras, and a module of each."""
STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red"}


@app.command(epilog="Example: overlaplab doctor")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else.")] = False,
) -> None:
    """Check torch, the GPUs and their driver, CUPTI, NCCL, cores, ports and disk: would a recording work here?

    Each line is ok, a warning, or a problem, with what to do about it. A problem would keep a recording from
    working; with one, the exit code is 1.
    """
    with progress_bar() as bar:
        bar.add_task("asking torch", total=None)
        gathered = facts()
    lines = checks(gathered)
    problems = sum(line.verdict is Verdict.PROBLEM for line in lines)
    if as_json:
        rows = [{"name": c.name, "verdict": c.verdict, "found": c.fact, "remedy": c.remedy} for c in lines]
        print_json({"ok": not problems, "checks": rows, "facts": gathered})
    else:
        _print(lines)
        subject = f"{count(problems, 'problem')}, which" if problems else "Nothing here"
        show(f"{subject} would keep a recording from working.")
    if problems:
        raise typer.Exit(1)


def _print(lines: list[Check]) -> None:
    from rich.table import Table

    from overlaplab.report.terminal import plain_text

    table = Table.grid(padding=(0, 2))
    for line in lines:
        words = [plain_text(part) for part in (line.fact, line.remedy and f"→ {line.remedy}") if part]
        table.add_row(plain_text(line.verdict, style=STYLES[line.verdict]), plain_text(line.name), words[0])
        for more in words[1:]:
            table.add_row("", "", more)
    show(table)


def facts() -> Facts:
    """About this machine: what Python sees, and under `engine` what overlaplab_engine.doctor answers."""
    from overlaplab.load import cache

    return {
        "python": platform.python_version(),
        "overlaplab": importlib.metadata.version("overlaplab"),
        "engine": _engine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "loopback_error": _bind(0),
        "dashboard": {"port": PORT, "free": _bind(PORT) is None},
        "missing_extras": [extra for extra, module in EXTRAS.items() if importlib.util.find_spec(module) is None],
        "folder": str(Path.cwd()),
        "free_bytes": shutil.disk_usage(Path.cwd()).free,
        "cache": {"folder": str(cache.folder()), "writable": _can_write(cache.folder()), "off": cache.is_off()},
    }


def _engine() -> dict[str, Any]:
    """The engine's facts about torch and the driver; `failure` where it gives no answer."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", ENGINE], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        answer: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return {"failure": f"no answer within {TIMEOUT_S:g} s"}
    except ValueError:
        last = done.stderr.strip().rpartition("\n")[2]
        return {"failure": shorten(last, 300) or f"it ended with exit code {done.returncode}"}
    return answer


def _bind(port: int) -> str | None:
    """Why no socket can listen on this port of 127.0.0.1; None if one can. 0 is any port."""
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port just closed counts as free
            listener.bind(("127.0.0.1", port))
            listener.listen()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _can_write(folder: Path) -> bool:
    """Whether the folder can be written, or made."""
    there = next((parent for parent in (folder, *folder.absolute().parents) if parent.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
