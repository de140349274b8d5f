"""Labels of threads that go on while recordings begin and end."""

import threading
from typing import Any

import pytest
import torch
from overlaplab_engine import labels
from torch.profiler import profile

from overlaplab.vocabulary import label_text

SPANS = {
    "made by the thread": (lambda: labels.span(labels.Word.SERVE, worker=1, staleness=0), []),
    "of torch alone": (lambda: labels.Span("x"), [RuntimeError]),  # what the first is there for
}


@pytest.mark.parametrize(("make", "raised"), SPANS.values(), ids=SPANS)
def test_a_recording_may_begin_within_a_span_of_another_thread(make: Any, raised: list[type[Exception]]) -> None:
    entered, begun, found = threading.Event(), threading.Event(), []

    def work() -> None:
        try:
            with make():
                entered.set()
                begun.wait()
        except Exception as error:
            found.append(type(error))

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    with profile(experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)):
        begun.set()
        thread.join()
    assert found == raised


def test_a_field_may_have_any_name() -> None:
    assert label_text("forward", microbatch="0", word="x") == "engine::forward microbatch=0 word=x"
