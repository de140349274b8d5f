"""Rows of the event table by texts and by threads."""

from __future__ import annotations

import numpy as np
import pandas as pd

from overlaplab.events import matching, thread_numbers


def test_texts_match_once_per_category_and_missing_ones_never() -> None:
    column = pd.Series(["b", None, "a", "b"], dtype="category")
    asked: list[str] = []

    def is_b(text: str) -> bool:
        asked.append(text)
        return text == "b"

    assert matching(column, is_b).tolist() == [True, False, False, True]
    assert sorted(asked) == ["a", "b"]
    assert matching(column, lambda text: True).tolist() == [True, False, True, True]
    assert not matching(column, lambda text: False).any()


def test_threads_of_chosen_rows_have_the_numbers_that_all_have() -> None:
    events = pd.DataFrame({"pid": ["1", "2", "1", "2"], "tid": ["7", "7", "8", "7"]}, dtype="category")
    every = thread_numbers(events)
    assert len({*every.tolist()}) == 3
    assert every[1] == every[3]
    assert thread_numbers(events, np.array([3, 0])).tolist() == [every[3], every[0]]
