"""Processes that start in a tenth of a second: forks of one that has imported torch (`warmed`), which takes seconds.

For tests of what ranks do. How the command and torchrun start and end them as programs of their own,
tests/engine/test_faults.py tries.
"""

import gc
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType

import pytest

from overlaplab.ports import free_port

READ_AT_IMPORT = {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
"""Variables that torch reads when it is imported, with the values that launchers give them."""

_STARTER = multiprocessing.get_context("forkserver")


class WarmProcess:
    """`python LINE`, LINE being `-m MODULE …` or `FILE …`; like a `subprocess.Popen` whose output is piped, as text.

    Ranks that it starts by torch's launcher are forks of it, and real processes too.
    """

    def __init__(self, line: Sequence[str], environment: dict[str, str]) -> None:
        """Start it; its environment is this process's and `environment`."""
        _start_forkserver()
        self._line = line
        self._texts: tuple[str, str] | None = None
        folder = mkdtemp()
        self._said = [Path(folder, "stdout"), Path(folder, "stderr")]
        variables = os.environ | READ_AT_IMPORT | environment
        self._process = _STARTER.Process(target=_run, args=(line, variables, self._said))
        with pytest.MonkeyPatch.context() as patch:
            # Else it would first run the script of an app that was tested here before, which Streamlit leaves there.
            patch.setitem(sys.modules, "__main__", ModuleType("__main__"))
            self._process.start()
        self.sentinel = self._process.sentinel

    @property
    def returncode(self) -> int | None:
        """As of `subprocess.Popen`, without a `poll`."""
        return self.poll()

    def poll(self) -> int | None:
        """As of `subprocess.Popen`."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """If it still runs."""
        if self.poll() is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end, and drop its files; what it has written."""
        self._process.join(timeout)
        assert self.returncode is not None, f"{' '.join(self._line)} has not ended after {timeout:g} s"
        if self._texts is None:
            self._texts = (self._said[0].read_text(), self._said[1].read_text())
            shutil.rmtree(self._said[0].parent)
        return self._texts

    def ended(self) -> "Ended":
        """What became of it, once it is over or killed."""
        stdout, stderr = self.communicate(60)
        return Ended(self.returncode, stdout, stderr)

    def kill(self) -> None:
        """If it still runs."""
        self._process.kill()


class ForkedRank:
    """What torch's launcher asks of the `subprocess.Popen` of a rank, which here is a fork of the launcher."""

    def __init__(self, line: Sequence[str], environment: dict[str, str]) -> None:
        self._process = multiprocessing.get_context("fork").Process(target=_run_rank, args=(line, environment))
        self._process.start()
        self.pid = self._process.pid

    @staticmethod
    def of(_: object, args: tuple[str, ...], env: dict[str, str]) -> "ForkedRank":
        """In place of the method that starts `PYTHON LINE`, with -P or -u."""
        return ForkedRank(args[2:] if args[1] in ("-P", "-u") else args[1:], env)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a rank", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None and self.pid is not None:
            os.kill(self.pid, number)


@dataclass(frozen=True)
class Ended:
    """What became of a process."""

    code: int | None
    stdout: str
    stderr: str


def run_launcher(*line: str, limit_s: float = 800, **environment: str) -> Ended:
    """Run a line that starts its ranks itself; after `limit_s` seconds it is killed."""
    launcher = WarmProcess(line, environment)
    connection.wait([launcher.sentinel], limit_s)
    launcher.kill()
    return launcher.ended()


def run_warm(count: int, *line: str, limit_s: float = 800, **environment: str) -> list[Ended]:
    """Run a line as so many ranks, as torchrun would on one machine.

    Once one fails the others are killed, with code -9; so are all after `limit_s` seconds.
    """
    port = free_port()
    common = environment | {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [WarmProcess(line, common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(count)]
    end = time.monotonic() + limit_s
    try:
        while running := [rank.sentinel for rank in ranks if rank.returncode is None]:
            if any(rank.returncode for rank in ranks) or not connection.wait(running, end - time.monotonic()):
                break
    finally:
        for rank in ranks:
            rank.kill()
    return [rank.ended() for rank in ranks]


def _start_forkserver() -> None:
    """With this folder on its path, where it finds `warmed`."""
    before = os.environ.copy()
    path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update({"PYTHONPATH": os.pathsep.join(path), **READ_AT_IMPORT})
    try:
        _STARTER.set_forkserver_preload(["ranks.warmed"])
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(line: Sequence[str], environment: dict[str, str], said: Sequence[Path]) -> None:
    gc.freeze()  # what was imported: walking through it in search of garbage takes a third of a second
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    SubprocessHandler._popen = ForkedRank.of
    _run_line(line)


def _run_line(line: Sequence[str]) -> None:
    if line[0] == "-m":
        sys.argv = list(line[1:])
        runpy.run_module(line[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(line)
        sys.path.insert(0, os.path.dirname(line[0]))
        runpy.run_path(line[0], run_name="__main__")


def _run_rank(line: Sequence[str], environment: dict[str, str]) -> None:
    """With signals as a program begins with them, not as the launcher that was forked handles them."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    _run_line(line)
