"""A pytest fixture for tests of one's own that record a training script and hold its figures against limits.

```python
def test_communication_stays_hidden(overlaplab_gate):
    run = overlaplab_gate.record("torchrun", "--nproc-per-node", "2", "train.py", "--out", "{out}")
    overlaplab_gate.check(run, "exposed.tail > 5ms", "exposed_comm_ns > 5%", baseline="tests/overlap.json")
    overlaplab_gate.require(run, "hidden_gathers >= 7")
```
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from overlaplab.events import Run

_SHOWN = 2000
"""Bytes of a failed command's output that are shown, the last ones."""


class Gate:
    """Records runs into a folder of the test, and checks them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recorded = 0

    def record(self, *command: str, timeout: float | None = None) -> Run:
        """Run a command that records, and open what it recorded.

        `{out}` in its arguments becomes a new folder of the test's, which the environment has as OVERLAPLAB_RECORD,
        too. Fails the test if the command does, or takes more than `timeout` seconds: its ranks are ended then.
        """
        from overlaplab.cli.sweep import run_to_end
        from overlaplab.load.run_folder import load_run

        self._recorded += 1
        out = self._folder / f"run-{self._recorded}"
        filled = [word.replace("{out}", str(out)) for word in command]
        environment = os.environ | {"OVERLAPLAB_RECORD": str(out)}
        with TemporaryFile() as output:
            try:
                code = run_to_end(filled, output, environment, group=True, timeout_s=timeout)
            except subprocess.TimeoutExpired as error:
                pytest.fail(f"{filled[0]} took more than {error.timeout:g} s", pytrace=False)
            except OSError as error:
                pytest.fail(f"{filled[0]} cannot be run: {error.strerror}", pytrace=False)
            if code:
                output.seek(max(0, output.tell() - _SHOWN))
                written = output.read().decode(errors="replace")
                pytest.fail(f"{filled[0]} ended with {code}: {written}", pytrace=False)
        return load_run(out)

    def check(
        self,
        run: Run,
        *conditions: str,
        baseline: str | os.PathLike[str] | None = None,
        before: Run | None = None,
        skip_steps: int = 0,
    ) -> None:
        """Fail the test where a condition is met, spelled as those of `overlaplab compare --fail-if`.

        Changes (`%`) are from a stored baseline, or from the run `before`. Raises `OverlaplabError` for a condition
        that cannot be read or judged, where the runs cannot be compared, and where a change is asked for and there is
        nothing to hold the run against.
        """
        from overlaplab import analyses, findings
        from overlaplab.errors import OverlaplabError
        from overlaplab.selection import Selection

        parsed = [analyses.parse_condition(text) for text in conditions]
        selection = Selection(skip_steps=skip_steps)
        path = None if baseline is None else Path(baseline)
        stored = None if path is None else analyses.stored_baseline(path)
        earlier = analyses.recordings_before(run, selection, stored, before, conditions=parsed, path=path)
        if not earlier and (changes := [str(condition) for condition in parsed if condition.is_change]):
            raise OverlaplabError(f"{changes[0]} is a change", remedy="Give baseline= or before= to hold it against.")
        lines = findings.check_lines(analyses.judged(parsed, earlier, analyses.scalars(run, selection)))
        if failed := [line.sentence for line in lines if line.outcome is findings.Outcome.FAILED]:
            pytest.fail("\n".join(failed), pytrace=False)

    def require(self, run: Run, *requirements: str, skip_steps: int = 0) -> None:
        """Fail the test where one of these does not hold, and skip it where that is inconclusive.

        See `overlaplab.require`.
        """
        import overlaplab

        try:
            overlaplab.require(run, *requirements, selection=overlaplab.Selection(skip_steps=skip_steps))
        except overlaplab.RequirementError as error:
            pytest.fail(str(error), pytrace=False)
        except overlaplab.InconclusiveError as error:
            pytest.skip(str(error))


@pytest.fixture
def overlaplab_gate(tmp_path: Path) -> Gate:
    """Records runs of the test's own and holds their figures against limits, see `Gate`."""
    return Gate(tmp_path)
