"""Eight users at once: each gets the page and the run that it asked for, and nobody else's. How long that takes is
measured by `benchmarks/users.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from browsing.browser import serving
from browsing.stream_client import User, words

SAMPLES = Path(__file__).parents[2] / "traces"
USERS = (
    ("summary", "naive", "naive, 2 ranks"),
    ("summary", "zero3", "zero3, 2 ranks"),
    ("summary", "torch-ddp-gloo", "torch-ddp, 2 ranks"),
    ("buckets", "bucketed", "7 buckets of rank"),
    ("zero3", "zero3-serial", "prefetch 0"),
    ("collectives", "bucketed", "bucketed, 2 ranks"),
    ("buckets", "per-param", "per-param, 2 ranks"),
    ("timeline", "torch-fsdp2", "torch-fsdp2, 2 ranks"),
)
"""Page, run, and what stands there."""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has just started, in which one thread interrupts another wherever it can."""
    startup = tmp_path_factory.mktemp("startup")
    (startup / "sitecustomize.py").write_text("import sys; sys.setswitchinterval(1e-6)")
    environment = {
        "PYTHONPATH": str(startup),
        "STREAMLIT_SERVER_WEBSOCKET_PING_INTERVAL": "300",  # else a busy server takes its users for gone
    }
    line = ("-m", "overlaplab", "app", str(SAMPLES), "--port", "{port}")
    with serving(*line, folder=SAMPLES, environment=environment) as (address, _):
        yield address


def test_eight_users_get_what_each_asked_for(samples: str) -> None:
    """Twice: before anybody has opened the runs, which all then do in the same moment, and when all are open."""
    start = threading.Barrier(len(USERS), timeout=600)

    def use(page: str, run: str) -> list[str]:
        with User(samples) as user:
            shown = []
            for _ in range(2):
                start.wait()
                shown.append(words(user.show(page, f"run={run}")))
            return shown

    with ThreadPoolExecutor(len(USERS)) as pool:
        found = list(pool.map(use, *zip(*[(page, run) for page, run, _ in USERS], strict=True)))
    for (page, run, expected), shown in zip(USERS, found, strict=True):
        for text in shown:
            assert expected in text, (page, run)
        assert shown[0] == shown[1]
    others = "\n".join(found[0])
    assert "zero3" not in others
