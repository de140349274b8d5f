"""For tests of the command line: a command, as a user calls it; its --json fits docs/schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from schemas import expect_schema

from overlaplab.cli import main


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, str, str]]:
    """Runs `overlaplab` with these arguments; its exit code, and what it printed on stdout and stderr."""

    def call(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["overlaplab", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        if "--json" in arguments and out:
            expect_schema(str(arguments[0]), json.loads(out))
        return stopped.value.code, out, err

    return call
