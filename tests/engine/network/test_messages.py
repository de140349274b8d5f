"""Who waits for a message is seen to wait."""

import threading
import time
from pathlib import Path

import pytest
import torch
from overlaplab_engine.alarm import waited_ns
from overlaplab_engine.config import Config
from overlaplab_engine.models.times import Sleep
from overlaplab_engine.network.link import Link
from overlaplab_engine.network.messages import _NotedWork
from overlaplab_engine.recording.manifest import sleeps_on_schedule
from overlaplab_engine.strategies.pipeline import Pipeline


def test_the_work_of_a_message_notes_who_waits_for_it() -> None:
    """As torch's pipelines do, which know nothing of it."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    work = _NotedWork(future)
    assert not work.is_completed()
    before = waited_ns()
    threading.Timer(0.05, future.set_result, ([],)).start()
    time.sleep(0.02)  # the host works
    since = time.perf_counter_ns()
    assert work.wait()
    waited = waited_ns() - before
    assert 0 < waited <= time.perf_counter_ns() - since
    assert work.is_completed()
    assert work.get_future().value() == []


@pytest.mark.parametrize("link", [Link(bandwidth_gbps=1, latency_us=200), None])
def test_a_pipeline_sleeps_on_schedule_where_its_waits_are_noted(link: Link | None, tmp_path: Path) -> None:
    config = Config(out=tmp_path, strategy="pipeline", compute=Sleep.parse("sleep:1ms,2ms"), link=link)
    assert sleeps_on_schedule(config, Pipeline) == (link is not None)
