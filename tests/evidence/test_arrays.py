"""Groups of rows give what pandas' groupby gives."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from overlaplab.evidence.arrays import Groups, as_table, grouped_by, number_texts, or_none, place_among, take_rows

SMALL = st.integers(-2, 3)


@given(st.lists(st.tuples(SMALL, SMALL, SMALL)))
def test_groups_are_those_of_pandas(rows: list[tuple[int, int, int]]) -> None:
    table = pd.DataFrame(rows, columns=["a", "b", "value"], dtype="int64")
    a, b, values = (table[name].to_numpy() for name in table)
    by = table.groupby(["a", "b"])
    groups = grouped_by(a, b)
    assert groups.of_row.tolist() == by.ngroup().tolist()
    assert groups.place().tolist() == by.cumcount().tolist()
    assert groups.spread(np.maximum, values).tolist() == by["value"].transform("max").tolist()
    assert groups.reduce(np.add, values).tolist() == by["value"].sum().tolist()
    known = by["value"].transform(lambda own: own[own >= 0].nunique() > 1)
    assert groups.differ(values).tolist() == known.astype(bool).tolist()
    one = Groups(a)
    assert one.values.tolist() == sorted(table["a"].unique())
    assert one.values[one.of_row].tolist() == a.tolist()


@given(st.lists(st.tuples(SMALL, st.booleans())))
def test_the_first_chosen_row_of_each_group(rows: list[tuple[int, bool]]) -> None:
    numbers, chosen = np.array([number for number, _ in rows], np.int64), np.array([own for _, own in rows], bool)
    found = Groups(numbers).first(chosen).tolist()
    assert found == [
        next((row for row in range(len(rows)) if rows[row] == (number, True)), len(rows))
        for number in np.unique(numbers).tolist()
    ]


@given(st.lists(SMALL), st.lists(SMALL))
def test_places_among_ascending_values(known: list[int], asked: list[int]) -> None:
    ordered = sorted(known)
    found = place_among(np.array(ordered, np.int64), np.array(asked, np.int64)).tolist()
    assert found == [ordered.index(value) if value in ordered else -1 for value in asked]


def test_texts_stay_objects() -> None:
    texts = np.array(["b", "", "a", "b"], dtype=object)
    assert number_texts(texts).tolist() == [0, -1, 2, 0]
    assert or_none(texts, texts != "").tolist() == ["b", None, "a", "b"]
    table = as_table(take_rows({"texts": texts, "numbers": np.arange(4)}, np.array([3, 1])))
    assert table.dtypes.astype(str).to_dict() == {"texts": "object", "numbers": "int64"}
    assert table.to_numpy().tolist() == [["b", 3], ["", 1]]
