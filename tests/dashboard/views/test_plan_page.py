"""The page Plan: what it says of what the reader enters."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import overlaplab.dashboard

VIEW = Path(overlaplab.dashboard.__file__).parent / "views" / "plan.py"


@pytest.fixture
def app(compiled_once: None) -> AppTest:
    return AppTest.from_file(str(VIEW), default_timeout=300).run()


def said(app: AppTest) -> str:
    assert not app.exception
    return "\n".join([*(one.value for one in app.text), *(one.value for one in app.code)]).replace("\u00a0", " ")


def test_it_says_what_fits_and_what_to_try(app: AppTest) -> None:
    text = said(app)
    assert "2 × 4 × 128 GPUs = 1,024 sequences of 4,096" in text
    assert "Try ZeRO stage 1: 64.3 GB of 80.0 GB per GPU." in text


def test_what_does_not_divide_says_what_would(app: AppTest) -> None:
    app.number_input[7].set_value(96).run()
    assert "64 or 128 GPUs" in said(app)
    app.number_input[7].set_value(512).run()
    assert "2 × 1 × 512 GPUs" in said(app)


def test_checkpointing_makes_room(app: AppTest) -> None:
    app.toggle[0].set_value(True).run()
    assert "Try ZeRO stage 1: 3" in said(app)
