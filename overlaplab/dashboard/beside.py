"""What lies beside a run: runs that the Compare page begins with, recordings that tell how far a prediction is off."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

import pandas as pd
import streamlit as st

from overlaplab import findings
from overlaplab.analyses import same_but_batch, same_but_cap, work_differs
from overlaplab.dashboard.data import Opened, run_manifest
from overlaplab.folders import natural_key
from overlaplab.manifest import Manifest
from overlaplab.simulate.predictions.device import device_manifest
from overlaplab.simulate.predictions.error import recorded_caps

_MOST = 12  # runs compared unless the user chooses more
_MOST_OF_SWEEP = 24  # as many as stay open (`data.open_run`): six caps, four times each
_RECORDING = re.compile(r"cap-[0-9.]+(?:-([0-9]{1,9}))?$")


def runs_beside(run: str, manifests: Mapping[str, Manifest | None]) -> tuple[list[str], str | None]:
    """The chosen run and those that did the same work, in order of name; and if there are none, why.

    Of runs with the largest batch that fits into some memory, other batches are the same work.

    `manifests` has those of all runs, the chosen one's among them, by their names below the opened folder; None where
    there is none. Runs of the chosen one's own folder come first; those of others only where it has none. Where some
    differ from it in bucket_cap_mb alone, these are a sweep, and the rest is left out.
    """
    chosen = manifests.get(run)
    differing = {
        name: None if other is None or chosen is None else work_differs(chosen, other)
        for name, other in manifests.items()
        if name != run
    }
    same = [
        name
        for name, keys in differing.items()
        if keys == [] or (chosen and (other := manifests[name]) and same_but_batch(chosen, other))
    ]
    folder = PurePath(run).parent
    near = [name for name in same if PurePath(name).parent == folder] or same
    if not near:
        return [run], findings.work_compared(run, differing if chosen is not None else None)
    swept = {
        name: other.bucket_cap_mb
        for name in (run, *near)
        if chosen is not None and (other := manifests[name]) is not None and same_but_cap(chosen, other)
    }
    if len({*swept.values()}) > 1:
        near = [name for name in swept if name != run]
    return _first(sorted([run, *near], key=natural_key), run), None


def caps_beside(opened: Opened) -> pd.DataFrame:
    """Recordings of the same setting or with other caps, as far as they lie beside this run in the opened folder, or
    were uploaded, too.
    """
    manifest = opened.manifest
    if manifest is None:
        return recorded_caps(device_manifest(opened.run), ())
    folder = PurePath(opened.name).parent
    beside = [other for other in st.session_state["names"] if PurePath(other).parent == folder]
    return recorded_caps(manifest, filter(None, map(run_manifest, beside)))


def _first(names: list[str], run: str) -> list[str]:
    """The names that are compared unless the user chooses more, the run among them; of a sweep each cap before any is
    there a second time.
    """
    matches = [_RECORDING.search(name) for name in names]
    most = _MOST_OF_SWEEP if all(matches) else _MOST
    rounds = [int(match[1] or 1) if match else 1 for match in matches]
    order = sorted(range(len(names)), key=lambda place: (names[place] != run, rounds[place], place))
    return [names[place] for place in sorted(order[:most])]
