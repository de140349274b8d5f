"""What commands write to a terminal about a stranger's runs: no order of the trace's own, no character that hides or
turns others. Each command runs under a real pseudo-terminal.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from hostile.traces import FOLDERS

from overlaplab import cli

ENGINE, GPU, BROKEN = (FOLDERS[kind] for kind in ("engine", "gpu", "broken"))
LINES = {
    "summary": ["summary", ENGINE],
    "summary of kernels": ["summary", GPU],
    "buckets": ["buckets", ENGINE, "--rank", "0"],
    "schedule": ["schedule", ENGINE],
    "schedule of one": ["schedule", ENGINE, "--rank", "0", "--step", "0"],
    "pipeline": ["pipeline", ENGINE],
    "collectives": ["collectives", ENGINE],
    "collectives of kernels": ["collectives", GPU],
    "exposed": ["exposed", ENGINE],
    "exposed of kernels": ["exposed", GPU],
    "compare": ["compare", ENGINE, GPU],
    "baseline": ["baseline", ENGINE, "--out", "../\x1b[41;5m baseline.json"],
    "compare with a baseline": ["compare", ENGINE, "--baseline", ENGINE],
    "advise": ["advise", ENGINE],
    "predict": ["predict", ENGINE, "--bucket-cap-mb", "1"],
    "slice": ["slice", GPU, "--steps", "3", "--out", "../\x1b[41;5m sliced"],
    "report": ["report", GPU, "-o", "../\x1b[41;5m.html"],
    "export": ["export", GPU, "--perfetto", "../\x1b[41;5m.json"],
    "slice of nothing": ["slice", GPU, "--steps", "77", "--out", "none"],
    "summary of what is broken": ["summary", BROKEN],
    "compare with what is broken": ["compare", ENGINE, BROKEN],
    "summary of nothing": ["summary", "\x1b[41;5m\u202e no such run"],
    "summary of strange ranks": ["summary", ENGINE, "--assign-rank", "\x1b[41;5m\u202e=0"],
    "no such option": ["summary", ENGINE, "--\x1b[41;5m\u202e"],
    "compare against a bound": ["compare", ENGINE, GPU, "--fail-if", "\x1b[41;5m > 3"],
    "watch": ["watch", "watched"],
    "watch of nothing": ["watch", "\x1b[41;5m\u202e no such folder"],
    "the app on nothing": ["app", "\x1b[41;5m no such folder"],
}
WATCHED = {
    "format": "overlaplab-watch",
    "version": 1,
    "rank": 0,
    "world_size": 1,
    "started_unix_ns": 0,
    "every": 100,
    "burst": 3,
    "ended": True,
    "notes": ["\x1b[41;5m\u202e of a stranger"],
}
"""The header of a watched training."""
ELSEWHERE = {
    "bench-collectives": "reads no trace",
    "doctor": "reads no trace; tests/cli/test_doctor.py has an nvidia-smi that writes orders to a terminal",
    "plan": "reads no trace",
    "record": "reads no trace",
    "sweep": "reads no trace but its own",
}
"""Commands without a line above, and why."""
RUN = """
import json, sys
from overlaplab.cli import main
for name, line in json.loads(sys.argv[1]).items():
    print(f"\\n<<<{name}>>>", flush=True)
    sys.argv = ["overlaplab", *line]
    try:
        main()
    except SystemExit as end:
        print(f"\\n<<<exit {end.code}>>>", flush=True)
"""
OURS = re.compile(r"\x1b\[(?!41;5m|31m)[0-9;]*m|\x1b\[(?:\?25[lh]|2K|1A|\d*G)")
"""The escape sequences that rich itself writes: colours (not those of payloads), and those of a progress bar."""


@pytest.fixture(scope="module")
def written(strangers: Path) -> dict[str, str]:
    """By name of the line what it wrote to the terminal."""
    (strangers / "watched").mkdir(exist_ok=True)
    (strangers / "watched" / "rank0.json").write_text(json.dumps(WATCHED))
    (strangers / "watched" / "rank0.cells").write_bytes(struct.pack("<BBHIq", 1, 0, 0, 0, 100))
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONUTF8": "1"}
    environment.pop("NO_COLOR", None)
    line = [sys.executable, "-c", RUN, json.dumps(LINES)]
    with subprocess.Popen(line, stdin=slave, stdout=slave, stderr=slave, cwd=strangers, env=environment) as process:
        os.close(slave)
        text = b"".join(_read(master)).decode()
        os.close(master)
    assert process.returncode == 0, text
    parts = re.split(r"<<<(?!exit)(.*?)>>>", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _read(master: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # how Linux tells that the other side is closed
            return
        if not chunk:
            return
        yield chunk


def test_every_command_has_a_line() -> None:
    commands = {line[0] for line in LINES.values()} | ELSEWHERE.keys()
    assert commands == set(typer.main.get_command(cli.app).commands)


@pytest.mark.parametrize("name", LINES)
def test_the_terminal_gets_text_only(written: dict[str, str], name: str) -> None:
    text = written[name]
    assert "Traceback" not in text
    rest = OURS.sub("", text)
    strange = {char for char in rest if not (char.isprintable() or char in "\r\n")}
    assert strange == set()


@pytest.mark.parametrize("name", ["exposed", "compare", "slice", "report", "export"])
def test_hostile_names_keep_nothing_from_being_done(written: dict[str, str], name: str) -> None:
    assert written[name].rpartition("<<<exit ")[2].startswith("0>>>")


def test_names_are_there_as_text(written: dict[str, str]) -> None:
    assert "</script>" in written["buckets"]
    assert "[link=" in written["schedule of one"]
    assert "�[31m�]0;title�" in written["summary of what is broken"].replace("\r\n", "")


@pytest.mark.parametrize("name", [name for name in LINES if "broken" in name or "no" in name.split()])
def test_what_is_wrong_is_one_line(written: dict[str, str], name: str) -> None:
    """An error's line is one, however long, and the exit code 2."""
    before, _, code = written[name].rpartition("<<<exit ")
    assert code.startswith("2>>>")
    lines = [line for line in OURS.sub("", before).replace("\r", "\n").splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("reading traces ", "copying events "))]
    assert [line.startswith("overlaplab: ") for line in said] == [True]
