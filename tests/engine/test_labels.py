"""Labels of threads that go on while recordings begin and end."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from overlaplab_engine import labels
from overlaplab_engine.optimizer import SleepingAdamW
from torch.profiler import profile

from overlaplab.vocabulary import label_text

SPANS = {
    "made by the thread": (lambda: labels.span(labels.Word.SERVE, worker=1, staleness=0), []),
    "an operator of the thread": (lambda: labels.operator("sleep::update"), []),
    "of torch alone": (lambda: labels.Span("x"), [RuntimeError]),  # what the first is there for
}


@pytest.mark.parametrize(("make", "raised"), SPANS.values(), ids=SPANS)
def test_a_recording_may_begin_within_a_span_of_another_thread(make: Any, raised: list[type[Exception]]) -> None:
    def work(wait: Callable[[], None]) -> None:
        with make():
            wait()

    assert raised_while_a_recording_begins(work) == raised


def test_a_recording_may_begin_within_an_update_of_another_thread() -> None:
    """As of a parameter server, whose optimizer is made on the thread that trains."""
    parameter, waits = torch.nn.Parameter(torch.zeros(1)), []
    optimizer = SleepingAdamW([parameter], lr=1e-3, units=["layers.0"], sleep=lambda unit: waits[0]())
    parameter.grad = torch.ones(1)
    optimizer.step()  # the first one is made

    def work(wait: Callable[[], None]) -> None:
        waits.append(wait)
        optimizer.step()

    assert raised_while_a_recording_begins(work) == []


def raised_while_a_recording_begins(work: Callable[[Callable[[], None]], None]) -> list[type[Exception]]:
    """What `work` raises on another thread if a recording of all threads begins while it waits by its argument."""
    entered, begun, found = threading.Event(), threading.Event(), []

    def wait() -> None:
        entered.set()
        begun.wait()

    def run() -> None:
        try:
            work(wait)
        except Exception as error:
            found.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait()
    with profile(experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)):
        begun.set()
        thread.join()
    return found


def test_a_field_may_have_any_name() -> None:
    assert label_text("forward", microbatch="0", word="x") == "engine::forward microbatch=0 word=x"
