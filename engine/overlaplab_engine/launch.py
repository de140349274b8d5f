"""Start the ranks of one machine, and end them together."""

import logging
import os
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from overlaplab_engine.errors import EngineError
from overlaplab_engine.faults import FAULT, MANAGED
from overlaplab_engine.recording.trace_file import sweep

ENTRY = ("-P", "-m", "overlaplab_engine")
"""The arguments of Python that run a rank. -P: modules in the current folder are not imported."""


def launch(nproc: int, argv: list[str], out: Path, entry: Sequence[str] = ()) -> None:
    """Run `python -m overlaplab_engine ARGV` as `nproc` ranks under torch's elastic agent, and wait for them.

    `entry`: what stands in place of `ENTRY`. Half-written files in `out` are removed in the end. If a rank
    fails, EngineError names the first cause; by then all ranks have ended.
    """
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed."):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # this function reports the errors itself
    os.environ[MANAGED] = "1"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    with tempfile.TemporaryDirectory(prefix="overlaplab-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=nproc,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            with _host_name_without_dns():
                elastic_launch(config, sys.executable)(*(entry or ENTRY), *argv)
        except ChildFailedError as error:
            raise EngineError(_first_cause(error.failures)) from None
        except SignalException as error:
            raise EngineError(f"interrupted by {signal.Signals(error.sigval).name}; all ranks have ended") from None
        except Exception as error:  # from the agent or its rendezvous
            text = " ".join(str(error).split())
            raise EngineError(f"the ranks cannot be started: {type(error).__name__}: {text}") from error
        finally:
            sweep(out)


@contextmanager
def _host_name_without_dns() -> Iterator[None]:
    """Let `socket.getfqdn` answer without asking DNS.

    The agent calls it for every event that it logs and every failure that it formats, which cannot be turned off, and
    without DNS each call takes seconds. The ranks do not call it, because they get `local_addr`.
    """
    before = socket.getfqdn
    socket.getfqdn = lambda name="": name or socket.gethostname()
    try:
        yield
    finally:
        socket.getfqdn = before


def _first_cause(failures: dict[int, ProcessFailure]) -> str:
    """A message about the failure that caused the others.

    In order of precedence: a rank killed by a signal, the first reported error, a rank that ended without a report, the
    first reported loss of a peer, any other. Ranks that the launcher ended by SIGTERM, or that lost a peer without
    reporting it, are only consequences.
    """

    def precedence(item: tuple[int, ProcessFailure]) -> tuple[int, int]:
        _, failure = item
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            return 0, 0
        if _has_report(failure):
            return (3 if failure.error_file_data["lost_peer"] else 1), failure.error_file_data["time_ns"]
        return (4 if failure.exitcode in (FAULT, -signal.SIGTERM) else 2), failure.timestamp

    rank, failure = min(failures.items(), key=precedence)
    if failure.exitcode < 0:
        return f"rank {rank}: killed by {signal.Signals(-failure.exitcode).name}"
    return f"rank {rank}: {failure.message if _has_report(failure) else f'ended with exit code {failure.exitcode}'}"


def _has_report(failure: ProcessFailure) -> bool:
    return os.path.isfile(failure.error_file)
