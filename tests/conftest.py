"""What holds for all tests: none touches the user's own cache of tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of this session's, also for the processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAPLAB_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("OVERLAPLAB_NO_CACHE", raising=False)
        patch.delenv("OVERLAPLAB_CACHE_BYTES", raising=False)
        yield
