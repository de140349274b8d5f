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


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "no text"])
def test_a_damaged_file_is_bundled_anew(damage: str, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_, **__: "first")
    assert bundle_again() == "first"
    (stored,) = cache_folder.iterdir()
    text = stored.read_bytes()
    damaged = {"cut": text[:-1], "longer": text + b";", "empty": b"", "no text": b"\xff\n\xff"}
    stored.write_bytes(damaged[damage])
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_, **__: "second")
    assert bundle_again() == "second"


def test_a_script_that_another_user_may_have_written_is_bundled_anew(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_, **__: "first")
    assert bundle_again() == "first"
    (stored,) = cache_folder.iterdir()
    stored.chmod(0o666)
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_, **__: "second")
    assert bundle_again() == "second"
    assert bundle_again(cached=False) == "second"


def test_without_a_cache_nothing_is_kept(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPLAB_NO_CACHE", "1")
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_, **__: "script")
    assert bundle_again() == "script"
    assert not cache_folder.exists()
