"""Who waits for a message is seen to wait."""

import threading
import time

import torch
from overlaplab_engine.alarm import waited_ns
from overlaplab_engine.network.communicator import Work
from overlaplab_engine.network.messages import _NotedWork
from overlaplab_engine.network.process_group import AllWorks


def test_who_waits_for_messages_through_the_communicator_waits_once() -> None:
    """Else a sleeping device would owe the wait, and sleep it again."""
    futures = [torch.futures.Future[list[torch.Tensor]]() for _ in range(2)]
    work = Work(AllWorks([_NotedWork(future) for future in futures]), (), lambda: None)
    for future in futures:
        threading.Timer(0.05, future.set_result, ([],)).start()
    before, since = waited_ns(), time.perf_counter_ns()
    work.wait()
    assert 0 < waited_ns() - before <= time.perf_counter_ns() - since


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
