"""Runs recorded on GPUs, by anybody, under another setting: hosts and streams played again.

docs/design/plays.md, Runs on GPUs. The predicted run tells what streams did as operators of threads: the main stream's,
the others', and the link's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from math import inf

import numpy as np
import pandas as pd
from msgspec.structs import replace
from numpy.typing import NDArray

from overlaplab.costs import transfer_ns
from overlaplab.costs.link import ROUNDS
from overlaplab.events import Run, Trace, main_stream, missing_ranks, once_per_run, step_windows
from overlaplab.evidence.dependencies import device_events
from overlaplab.evidence.purposes import Role, purposes
from overlaplab.evidence.recorded import recorded_collectives, recorded_of_events
from overlaplab.intervals import union
from overlaplab.manifest import Link, Manifest, played_phantoms
from overlaplab.simulate.fill_buckets import MIB
from overlaplab.simulate.gpus.buckets import DeviceEdits, recut
from overlaplab.simulate.gpus.edit import RankEdit
from overlaplab.simulate.gpus.gathers import prefetch_edits
from overlaplab.simulate.gpus.slowdown import with_slowdowns
from overlaplab.simulate.gpus.streams import (
    DevicePrograms,
    device_programs,
    edited_programs,
    is_played_together,
    note_places,
)
from overlaplab.simulate.play_errors import play_or_refuse, refusal
from overlaplab.simulate.player import Launch, Move, Played, change_launches, find_launches
from overlaplab.simulate.predictions.answer import SettingPrediction, lane_table
from overlaplab.simulate.predictions.trace_event import COMPUTES, LINK, Event
from overlaplab.simulate.programs.edits import apply_device_edits
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.uncertainty import have_one_size
from overlaplab.simulate.undisturbed import mean_step_ns
from overlaplab.vocabulary import PREDICTED, label_fields, label_text
from overlaplab.words import count

_STEP = "ProfilerStep#"
_LAUNCHES = 3
"""The thread of launches; those of other streams follow it."""


class DevicePrediction(SettingPrediction, frozen=True, kw_only=True):
    """A setting of a run on GPUs, played."""

    changed: DevicePrograms
    cut: DeviceEdits
    """Its other buckets, or other prefetching."""

    def lanes(self, rank: int, step: int) -> pd.DataFrame:
        return device_lanes(self.events(rank), step)

    def events(self, rank: int) -> list[Event]:
        edit = self.cut.edits[rank] if self.cut.edits else RankEdit()
        return list(_events(self.run.traces[rank], self.changed, self.played, rank, edit))


def predict_device(run: Run, setting: Setting) -> DevicePrediction:
    """Play the run under the setting. Raises `OverlaplabError` where it cannot be."""
    programs, recorded_ns = _programs(run, setting), _recorded_steps(run)
    link = _setting_link(run, setting)
    cut = _recut(run, setting, fitted=link is None)
    changed = (edited_programs(run, cut.edits) if cut.edits else None) or programs
    changed = apply_device_edits(run, changed, setting.edits)
    if link is not None:  # last: an edit halves what a collective took as it was recorded
        changed = replace(changed, programs=tuple(_retime_programs(run, changed, link, setting.ranks)))
    after = play_or_refuse(run, changed.programs)
    if (beside := with_slowdowns(run, changed)) is not changed:
        changed, after = beside, play_or_refuse(run, beside.programs)
    predicted_ns = changed.spans_ns(after)
    return DevicePrediction(
        run=run,
        manifest=device_manifest(run),
        setting=setting,
        programs=(programs.programs, changed.programs),
        recorded_ns=recorded_ns,
        predicted_ns=predicted_ns,
        transfers_ns=_doubt_ns(run, changed, predicted_ns, cut.doubt_ns)
        + _halving_gains_ns(run, setting, predicted_ns),
        played=after,
        changed=changed,
        cut=cut,
    )


@once_per_run
def _recorded_steps(run: Run) -> NDArray[np.int64]:
    """How long all steps take as the recorded programs give them."""
    programs = require_device(run)
    return programs.spans_ns(play_or_refuse(run, programs.programs))


def device_manifest(run: Run) -> Manifest:
    """What run.json says; of anybody's run without one, how many ranks there are."""
    return run.manifest or Manifest(format_version=1, world_size=len(run.traces) + missing_ranks(run))


def _programs(run: Run, setting: Setting) -> DevicePrograms:
    names = ("link", "ranks", "bucket_cap_mb", "first_bucket_mb", "prefetch", "edits")
    if setting != Setting(**{name: getattr(setting, name) for name in names}):
        what = "of a run on GPUs nothing but the link, the ranks, DDP's caps, FSDP2's prefetch and edits are predicted"
        raise refusal(run, what)
    programs = require_device(run)
    if (setting.link or setting.ranks) and not programs.members:
        what = "it shows of no collective when all ranks had come to it"
        raise refusal(run, what, "Open all ranks' traces together.")
    return programs


def _setting_link(run: Run, setting: Setting) -> Link | None:
    """The link by whose formula collectives take as long as they do; None where they take as long as recorded."""
    if setting.ranks is None:
        return setting.link
    if setting.ranks < 1:
        raise refusal(run, f"ranks must be above 0, not {setting.ranks}")
    if (why := why_no_other_ranks(run)) is not None:
        what = "on GPUs other numbers of ranks are predicted where every collective is an all-reduce of all ranks"
        raise refusal(run, f"{what}, and {why}")
    link = setting.link or (run.manifest.link if run.manifest else None)
    if link is None:
        raise refusal(
            run,
            f"how long collectives of {count(setting.ranks, 'rank')} take is not known",
            "Name a link, as in --link 100Gbps,10us.",
        )
    return link


@once_per_run
def why_no_other_ranks(run: Run) -> str | None:
    """Why no other number of ranks is predicted of a run on GPUs, as a clause; None where one is, behind a link.

    What ranks share out, such as optimizer states or layers, would be another part of each. Raises as `require_device`.
    """
    manifest, programs = device_manifest(run), require_device(run)
    if manifest.pipeline is not None or not manifest.axes.is_one_axis:
        return f"its ranks share the model ({manifest.axes})"
    for launch in find_launches(chain.from_iterable(programs.programs)):
        kind = launch.kind or "a collective of unknown kind"
        if not is_played_together(launch):
            return f"when all ranks had come to one ({kind}) is not known"
        members = programs.members[launch.key] + played_phantoms(manifest)
        if members != manifest.world_size or kind != "all_reduce":
            return f"one is {kind} of {members} of {manifest.world_size} ranks"
    if any((purposes(trace)["role"] == Role.ACTIVATIONS.value).any() for trace in run.traces):
        return "some are of activations"
    return None


def require_device(run: Run) -> DevicePrograms:
    """The programs of a run on GPUs as it is; raises `OverlaplabError` where nothing can be predicted of it."""
    programs = device_programs(run)
    if programs is None or len({len(step_windows(trace)) for trace in run.traces}) > 1:
        raise refusal(run, "its traces do not show what waited for what, or of different steps")
    return programs


def _recut(run: Run, setting: Setting, *, fitted: bool) -> DeviceEdits:
    """The buckets that the setting's caps give, or the prefetching that it asks for; as recorded where it does not.

    `fitted`: see `recut`.
    """
    if setting.prefetch is not None:
        if setting.bucket_cap_mb is not None or setting.first_bucket_mb is not None:
            raise refusal(run, "FSDP2 sends no buckets: it has no cap")
        return DeviceEdits(edits=prefetch_edits(run, setting.prefetch), doubt_ns={})
    recorded_cap_mb = run.manifest.bucket_cap_mb if run.manifest else None
    cap = recorded_cap_mb if setting.bucket_cap_mb is None else setting.bucket_cap_mb
    first = cap if setting.first_bucket_mb is None else setting.first_bucket_mb
    if setting.bucket_cap_mb is None and setting.first_bucket_mb is None:
        return DeviceEdits(edits=(), doubt_ns={})
    if cap is None or first is None:
        raise refusal(run, "the cap of its other buckets is not known", "Name --bucket-cap-mb.")
    for name, value in (("bucket_cap_mb", cap), ("first_bucket_mb", first)):
        if not 0 < value < inf:
            raise refusal(run, f"{name} must be above 0, not {value}")
    return recut(run, [int(first * MIB), int(cap * MIB)], fitted=fitted)


def _doubt_ns(run: Run, programs: DevicePrograms, spans_ns: NDArray[np.int64], doubt_ns: Mapping[Hashable, int]) -> int:
    """How much the mean step changes when all T that are in doubt are off in the same direction."""
    if not any(doubt_ns.values()):
        return 0
    means = [mean_step_ns(run, spans_ns)]
    for sign in (-1, 1):

        def shift(launch: Launch, sign: int = sign) -> Launch:
            return replace(launch, transfer_ns=max(launch.transfer_ns + sign * doubt_ns.get(launch.key, 0), 0))

        other = replace(programs, programs=tuple(change_launches(program, shift) for program in programs.programs))
        means.append(mean_step_ns(run, other.spans_ns(play_or_refuse(run, other.programs))))
    return round(max(abs(mean - means[0]) for mean in means))


def _halving_gains_ns(run: Run, setting: Setting, spans_ns: NDArray[np.int64]) -> int:
    """What half the bytes gains where no link is known and collectives are of one size: T may not depend on it."""
    link = setting.link or (run.manifest.link if run.manifest else None)
    others = tuple(edit for edit in setting.edits if edit != ("half-bytes", None))
    launches = find_launches(chain.from_iterable(require_device(run).programs))
    if link is not None or others == setting.edits or not have_one_size(each for each in launches if each.bytes):
        return 0
    return round(abs(predict_device(run, replace(setting, edits=others)).mean_ns - mean_step_ns(run, spans_ns)))


def _retime_programs(run: Run, programs: DevicePrograms, link: Link, ranks: int | None) -> Iterator[tuple[Move, ...]]:
    """With T by the link's formula, as of a ring of so many `ranks`; None: of as many as each collective has."""
    phantoms = played_phantoms(run.manifest)

    def retime(move: Launch) -> Launch:
        if not is_played_together(move):
            return move
        if move.kind not in ROUNDS or move.bytes <= 0:
            what = f"how long {move.kind or 'a collective of unknown kind'} would take is not known"
            raise refusal(run, f"{what}: no size is recorded", "Record with record_shapes=True.")
        ring = replace(link, world_size=ranks or programs.members[move.key] + phantoms)
        return replace(move, transfer_ns=transfer_ns(move.kind, move.bytes, ring))

    for program in programs.programs:
        yield change_launches(program, retime)


def _events(trace: Trace, programs: DevicePrograms, played: Played, rank: int, edit: RankEdit) -> Iterator[Event]:
    """One rank's events, in order of start."""
    notes = note_places(programs, rank).items()
    noted = {note: played.over_ns[program][number] for note, (program, number) in notes}
    ends = played.ends_ns[programs.steps[rank]]
    windows = zip(step_windows(trace), pairwise(ends), strict=True)
    steps = [Event(COMPUTES, f"{_STEP}{window.step or 0}", *span) for window, span in windows]
    yield from sorted((*steps, *_device_events(trace, noted, edit)), key=lambda event: (event.start_ns, -event.end_ns))


def _device_events(trace: Trace, noted: Mapping[tuple[str, int], int], edit: RankEdit) -> Iterator[Event]:
    main, names = main_stream(trace), trace.events["name"].tolist()
    collectives, row_of = recorded_collectives(trace), recorded_of_events(trace)
    events = device_events(trace)
    for place, event in enumerate(events):
        if place in edit.gone:
            continue
        begin, end = noted["begun", place], noted["done", place]
        if not event.communicates:
            thread = COMPUTES if event.stream == main else _LAUNCHES + 1 + event.stream
            yield Event(thread, f"{PREDICTED}{names[event.row]}", begin, end)
            continue
        row = collectives.iloc[int(row_of[event.row])]
        yield from _collective(place, row["kind"], row["dtype"], int(row["bytes"]), (begin, end))
    # What is sent instead of others has their type.
    dtype = next((collectives["dtype"].iloc[int(row_of[events[place].row])] for place in edit.gone), "")
    for place, sent in enumerate(edit.sent, start=len(events)):
        ran = noted["begun", place], noted["done", place]
        yield from _collective(place, sent.launch.kind, dtype, sent.launch.bytes, ran)


def _collective(place: int, kind: str, dtype: str, num_bytes: int, ran: tuple[int, int]) -> Iterator[Event]:
    """Its launch, and what carries it."""
    kind, num_bytes = kind or "collective", max(num_bytes, 0)
    yield Event(_LAUNCHES, label_text("launch", seq=place, group="0"), ran[0], ran[0] + 1)
    yield Event(LINK, label_text("comm", seq=place, kind=kind, dtype=dtype, bytes=num_bytes, group="0"), *ran)


def device_lanes(events: Sequence[Event], step: int) -> pd.DataFrame:
    """What one rank's main stream and its collectives did in a step, by its place: see `lane_table`."""
    window = [event for event in events if event.name.startswith(_STEP)][step]
    computes = [event for event in events if event.thread == COMPUTES and not event.name.startswith(_STEP)]
    works = union([event.start_ns for event in computes], [event.end_ns for event in computes])
    carried = ((_kind(event), event.start_ns, event.end_ns) for event in events if event.thread == LINK)
    return lane_table(works, carried, window.start_ns, window.end_ns, joined=True)


def _kind(event: Event) -> str:
    label = label_fields(event.name)
    return label[1].get("kind", "") if label else ""
