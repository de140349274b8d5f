"""The libraries of a report: bundled once, and then read from the cache's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlaplab.report.bundle import libraries

bundle_again = libraries.__wrapped__
"""As a process that has not asked yet."""


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERLAPLAB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("OVERLAPLAB_NO_CACHE", raising=False)
    return tmp_path / "cache"


def test_a_second_process_reads_what_the_first_has_bundled(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = bundle_again()
    (stored,) = cache_folder.iterdir()
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_, **__: pytest.fail("bundled again"))
    assert bundle_again() == script
    assert stored.name.startswith("vega-")


@pytest.mark.parametrize("damage", [lambda text: text[:-1], lambda text: text + b";", lambda text: b""])
def test_a_damaged_file_is_bundled_anew(damage, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_, **__: "first")
    assert bundle_again() == "first"
    (stored,) = cache_folder.iterdir()
    stored.write_bytes(damage(stored.read_bytes()))
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_, **__: "second")
    assert bundle_again() == "second"


def test_without_a_cache_nothing_is_kept(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPLAB_NO_CACHE", "1")
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_, **__: "script")
    assert bundle_again() == "script"
    assert not cache_folder.exists()
