"""Traces that come and go through pipes, and where the dashboard listens."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overlaplab.cli import main
from overlaplab.dashboard import server
from overlaplab.dashboard.server import HOST, SETTINGS
from overlaplab.ports import next_free_port

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "traces" / "torch-ddp-gloo" / "rank0.pt.trace.json.gz"

Command = Callable[..., tuple[Any, str, str]]
"""The fixture `command`: a command in this process."""


def run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "overlaplab", *arguments], input=given, capture_output=True, cwd=ROOT)


@pytest.mark.parametrize("name", ["summary", "exposed"])
def test_a_trace_through_a_pipe_gives_the_figures_of_the_file(name: str, command: Command) -> None:
    piped, (code, opened, _) = run(name, "-", "--json", given=TRACE.read_bytes()), command(name, TRACE, "--json")
    assert piped.returncode == code == 0, piped.stderr
    told, expected = json.loads(piped.stdout), json.loads(opened)
    assert told["ranks"] == expected["ranks"]
    assert told["ranks"]


def test_a_pipe_without_a_trace_is_one_line() -> None:
    done = run("summary", "-")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"overlaplab: -: not a torch.profiler trace (empty).")
    assert len(done.stderr.splitlines()) == 1


def test_a_pipe_is_read_once() -> None:
    done = run("compare", "-", "-", given=TRACE.read_bytes())
    assert done.returncode == 2
    assert done.stderr == b"overlaplab: -: standard input is given twice. It can be read only once.\n"


def test_an_export_goes_through_a_pipe(tmp_path: Path, command: Command) -> None:
    piped = run("export", str(TRACE.parent), "--perfetto", "-")
    command("export", TRACE.parent, "--perfetto", tmp_path / "x.json")
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == (tmp_path / "x.json").read_bytes()


def test_a_port_in_use_is_one_line_that_offers_the_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        offered = next_free_port(HOST, port)
        assert offered is not None
        assert offered > port
        monkeypatch.setattr(sys, "argv", ["overlaplab", "app", str(tmp_path), "--port", str(port)])
        with pytest.raises(SystemExit) as stopped:
            main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"overlaplab: port {port} is in use. The next free one: --port {offered}.\n"
    assert next_free_port(HOST, port) == port


def test_a_host_that_is_not_here_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["overlaplab", "app", str(tmp_path), "--host", "192.0.2.1"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("overlaplab: --host 192.0.2.1: not an address of this machine")
    assert len(told.splitlines()) == 1


def test_another_host_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, line: started.append(line))
    for host in (HOST, "0.0.0.0"):
        port = next_free_port(host, 20_000)
        monkeypatch.setattr(sys, "argv", ["overlaplab", "app", str(tmp_path), "--host", host, "--port", str(port)])
        with pytest.raises(SystemExit):
            main()
    here, anywhere = started
    assert f"--server.address={HOST}" in here
    assert f"--server.allowedHosts={HOST}" in here
    assert "--server.address=0.0.0.0" in anywhere
    assert not [word for word in anywhere if word.startswith("--server.allowedHosts")]
    (warned,) = capsys.readouterr().err.splitlines()
    assert "anybody who reaches 0.0.0.0" in warned


def test_the_other_settings_do_not_depend_on_the_host(tmp_path: Path) -> None:
    here, anywhere = server.command(tmp_path, 8501), server.command(tmp_path, 8501, "0.0.0.0")
    names = {word.partition("=")[0] for word in here} - {word.partition("=")[0] for word in anywhere}
    assert names == {"--server.allowedHosts"}
    assert SETTINGS["server.address"] == HOST
