"""Programs that were played, as the events that their traces hold: the inverse of `recorded_collectives`.

Operators are called `predicted::…`, after the pass and unit that computes, so that no reader takes them for recorded
ones; they count as compute, as a sleeping device's do. How much of its work a rank is idle is known, but not when, so
that idle time is shared out evenly. Labels are the engine's (`traces/README.md`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from urllib.parse import quote

from msgspec import Struct, field

from overlaplab.dtypes import DTYPE_BYTES
from overlaplab.manifest import Manifest
from overlaplab.simulate.player import End, Launch, Mark, Played, Program, Wait, Work
from overlaplab.simulate.predictions.by_hand import HopEvents
from overlaplab.simulate.predictions.trace_event import COMPUTES, INSTANT_NS, LANES, LINK, Event
from overlaplab.vocabulary import DONE_WORDS, LAUNCH_WORDS, PREDICTED, STAGE_WORDS, WAIT_WORDS, label_text

_PASSES = ("backward", "forward", "optimizer", *STAGE_WORDS)
_MAX_PART_NS = 1_000_000
"""Work with idle time is split into operators of at most 1 ms."""
_NAME_FIELDS = {
    "bucket": ("bucket",),
    "parameters": ("bucket",),
    "gather": ("unit", "microbatch", "phase"),
    "scatter": ("unit", "microbatch"),
    "replicas": ("unit", "microbatch"),
    "activations": ("module", "microbatch", "phase"),
}
"""What the name of a launch of this role consists of."""


def played_events(
    programs: Sequence[Program], played: Played, manifest: Manifest, steps: Sequence[int | None], *, taken_ns: int = 0
) -> list[list[Event]]:
    """Each rank's events, in order of start.

    `manifest` is the predicted run's, `steps` has the profiler's number of each step. `taken_ns`: the link's thread
    takes a collective up so long after it could, which is not in T.
    """
    groups = _groups(programs)
    dtype, link = _sent_dtype(manifest, "bucket"), manifest.emulated_link
    by_hand = [HopEvents(rank, len(programs), dtype, DTYPE_BYTES.get(dtype, 1), link) for rank in range(len(programs))]
    return [
        sorted(
            _RankEvents(program, over_ns, played.carried, manifest, steps, groups, taken_ns, hop_events).events(),
            key=lambda event: event.start_ns,
        )
        for program, over_ns, hop_events in zip(programs, played.over_ns, by_hand, strict=True)
    ]


def _groups(programs: Sequence[Program]) -> dict[Hashable, str]:
    """The name of each process group: 0 if all ranks are in it, else its ranks, as in meshes; of a message its lane."""
    members: dict[Hashable, list[int]] = {}
    names: dict[Hashable, str] = {}
    for rank, program in enumerate(programs):
        for move in program:
            if isinstance(move, Launch) and move.lane is not None:
                names[move.key] = quote("0:{}-{}".format(*move.lane))
            elif isinstance(move, Launch) and move.group is not None:
                names[move.key] = "-".join(map(str, move.group))
            elif isinstance(move, Launch):
                members.setdefault(move.key, []).append(rank)
    everybody = [*range(len(programs))]
    return names | {key: "0" if ranks == everybody else "-".join(map(str, ranks)) for key, ranks in members.items()}


class _RankEvents(Struct):
    """One rank's moves, and what is under way as its events are made of them in turn."""

    program: Program
    over_ns: Sequence[int]
    carried: Mapping[Hashable, tuple[int, int]]
    manifest: Manifest
    steps: Sequence[int | None]
    groups: Mapping[Hashable, str]
    taken_ns: int
    by_hand: HopEvents
    open: dict[str, tuple[int, str]] = {}
    """When passes and updates began, and their names."""
    computed_ns: int = 0
    """When a backward pass that is still under way had computed all gradients; 0 where that is not told apart."""
    unit: str = ""
    launched: dict[Hashable, tuple[Launch, int, int]] = {}
    """Each launch, when it was, and its number within its group."""
    named: dict[Hashable, dict[str, str]] = {}
    """The fields that the labels of a launch, of its wait and of its end share."""
    numbers: dict[str, int] = {}
    """How many each group has launched."""
    flying: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    """How many were launched and not waited for, by role and name: of a server's bucket several messages."""
    waiting: list[tuple[Launch, int, int]] = []
    """What is waited for in a row, with when each wait began and was over."""
    arrived: dict[str, int] = {}
    """When each gradient arrived whose bucket is not launched yet."""
    gathered: dict[str, int] = {}
    """The bytes of each unit."""
    used: dict[str, tuple[int, str]] = {}
    """When each unit's last use was over, and its name, until a use shows that it was held, or a gather that it was
    freed."""

    def events(self) -> Iterator[Event]:
        """All of them, which `played_events` sorts."""
        silent = _silent_waits(self.program)
        step, begun, now = -1, 0, 0
        for place, (move, over) in enumerate(zip(self.program, self.over_ns, strict=True)):
            if not isinstance(move, Wait):
                yield from self.waits(labelled=place - 1 not in silent)
            elif place in silent:
                self.computed_ns = self.computed_ns or now + 2 * INSTANT_NS  # after the last launch
            match move:
                case Work():
                    for start, end in _operators(move):
                        yield Event(COMPUTES, f"{PREDICTED}{self.doing}", now + start, now + end)
                case Launch():
                    yield from self.launch(move, now)
                case Wait(key) if key in self.launched:
                    self.waiting.append((self.launched[key][0], now, over))
                case Mark():
                    yield from self.mark(move, now)
                case End():
                    if step >= 0:
                        yield Event(COMPUTES, f"ProfilerStep#{self.steps[step] or 0}", begun, now)
                    begun, step = now, step + 1
            now = over
        yield from self.waits(labelled=True)
        yield from (self.free(unit) for unit in [*self.used])
        yield from self.comms()

    @property
    def doing(self) -> str:
        """The pass, and the unit, that compute."""
        word = next((word for word in _PASSES if word in self.open), "between passes")
        return f"{word} {self.unit}" if self.unit else word

    def mark(self, mark: Mark, now: int) -> Iterator[Event]:
        """The label of an instant, or of what ends."""
        match mark.word:
            case "gradient" | "kept_gradient":
                self.arrived |= {mark.name: now} if mark.word == "gradient" else {}
                yield _instant(now, label_text("gradient_ready", parameter=quote(mark.name)))
            case "use" | "last_use":
                unit = _unit_name(mark.name)
                self.unit = unit if mark.word == "use" else ""
                self.used.pop(unit, None)
                if mark.word == "last_use" and unit in self.gathered:
                    self.used[unit] = now, mark.name
                word = "first_use" if mark.word == "use" else mark.word
                yield _instant(now, label_text(word, **_unit_label_fields(mark.name)))
            case "forward" | "optimizer" | "update":
                self.open[mark.word] = now, mark.name
            case word if word in STAGE_WORDS:  # after what was launched at the same moment
                self.open[mark.word] = now + 2 * INSTANT_NS, mark.name
            case "backward":
                yield from self.close_range("forward", now)
                self.open["backward"] = now, mark.name
            case "backward_end" | "kept_end":
                yield from self.close_range("backward", self.computed_ns or now, sync=int(mark.word == "backward_end"))
                self.computed_ns = 0
            case "optimizer_end" | "update_end":
                yield from self.close_range(mark.word.removesuffix("_end"), now)
            case word if word.removesuffix("_end") in STAGE_WORDS:
                action = mark.word.removesuffix("_end")
                begun, name = self.open.pop(action)
                stage, microbatch = name.split(" ")
                yield Event(COMPUTES, label_text(action, stage=stage, microbatch=microbatch), begun, now)

    def close_range(self, word: str, now: int, **fields: int) -> Iterator[Event]:
        """The range that began with the word."""
        if (begun := self.open.pop(word, None)) is not None:
            keys = {"forward": "microbatch", "backward": "microbatch", "update": "unit"}
            name = {keys[word]: begun[1]} if word in keys else {}
            yield Event(COMPUTES, label_text(word, **name, **fields), begun[0], now)

    def launch(self, launch: Launch, now: int) -> Iterator[Event]:
        """The label of what launches it, around that of the call."""
        group = self.groups[launch.key]
        number = self.numbers.get(group, 0)
        self.launched[launch.key] = launch, now, number
        self.numbers[group] = number + (launch.hops is None)
        self.named[launch.key] = self.fields(launch)
        self.flying[launch.role, launch.what] += 1
        arrived = [self.arrived.pop(name) for name in launch.parameters if name in self.arrived]
        if launch.role == "gather" and launch.what is not None:
            unit = _unit_name(launch.what)
            self.gathered[unit] = launch.bytes
            yield from [self.free(unit)] if unit in self.used else ()
        if launch.role and self.flying[launch.role, launch.what] == 1:  # else a further message of the bucket
            sizes = {} if launch.role in ("bucket", "activations") else {"bytes": launch.bytes}
            text = label_text(LAUNCH_WORDS[launch.role], **self.named[launch.key], **sizes)
            events = [Event(COMPUTES, text, now, now + 2 * INSTANT_NS)]
            if launch.role == "bucket":  # ready with its last gradient, or else when it is launched
                size = launch.gradient_bytes or launch.bytes
                text = label_text("bucket_ready", bucket=launch.what or "", bytes=size, parameters=launch.parameters)
                events.insert(0 if arrived else 1, _instant(max(arrived, default=now), text))
            yield from events
        if launch.hops is None:
            yield _instant(now, label_text("launch", seq=number, group=group))

    def free(self, unit: str) -> Event:
        """The label of a unit that is freed with its last use: it is gathered before it is used again."""
        at_ns, name = self.used.pop(unit)
        return _instant(at_ns, label_text("free", **_unit_label_fields(name), bytes=self.gathered[unit]))

    def fields(self, launch: Launch) -> dict[str, str]:
        """Its bucket or unit; FSDP2 says of a unit neither microbatch nor phase: those of the pass."""
        backward, forward = self.open.get("backward"), self.open.get("forward")
        here = ((backward or forward or (0, "0"))[1], "backward" if backward else "forward")
        names = (launch.what or "").split(" ")
        keys = _NAME_FIELDS.get(launch.role, ())
        return _ordered_fields(dict(zip(keys, (*names, *here[len(names) - 1 :]), strict=False)))

    def waits(self, *, labelled: bool) -> Iterator[Event]:
        """The ranges in which it waited, and what it then knew to be done."""
        general: list[tuple[int, int]] = []
        for launch, begun, over in self.waiting:
            fields = self.named[launch.key]
            if launch.role in WAIT_WORDS:
                self.flying[launch.role, launch.what] -= 1
                yield Event(COMPUTES, label_text(WAIT_WORDS[launch.role], **fields), begun, over)
                continue
            if launch.lane is None or launch.group is not None:  # around a pipeline's messages is no label
                general.append((begun, over))
            self.flying[launch.role, launch.what] -= 1
            if launch.role in DONE_WORDS and not self.flying[launch.role, launch.what]:
                yield _instant(over, label_text(DONE_WORDS[launch.role], **fields))
        if general and labelled:
            yield Event(COMPUTES, label_text("wait"), general[0][0], general[-1][1])
        self.waiting.clear()

    def comms(self) -> Iterator[Event]:
        """The link's ranges: from when the rank has launched a collective and the link is free, to its end."""
        link, free = self.manifest.emulated_link, dict[int, int]()
        lanes = sorted({launch.lane for launch, _, _ in self.launched.values() if launch.lane is not None})
        for key, (launch, at, number) in self.launched.items():
            if launch.hops is not None:
                yield from self.by_hand.events(launch, self.carried[key])
                continue
            end = self.carried[key][1]
            dtype = _sent_dtype(self.manifest, launch.role if launch.lane is None else "activations")
            fields: dict[str, str | int] = {"seq": number, "kind": launch.kind, "dtype": dtype, "bytes": launch.bytes}
            fields["group"] = self.groups[key]
            fields |= {"link": quote(str(link)), "modelled_ns": launch.transfer_ns} if link else {}
            thread = LINK if launch.lane is None else LANES + lanes.index(launch.lane)
            start = min(max(at, free.get(thread, 0)) + self.taken_ns, end)
            yield Event(thread, label_text("comm", **fields), start, end)
            free[thread] = end


def _operators(work: Work) -> Iterator[tuple[int, int]]:
    """When it computes, from its start: in equal parts that each end with their share of the idle time."""
    idle_ns = min(work.idle_ns, work.ns)
    parts = -(-work.ns // _MAX_PART_NS) if idle_ns else 1
    for part in range(parts):
        start, end = (work.ns * at // parts for at in (part, part + 1))
        part_idle_ns = idle_ns * (part + 1) // parts - idle_ns * part // parts
        if start < end - part_idle_ns:
            yield start, end - part_idle_ns


def _instant(at_ns: int, text: str) -> Event:
    return Event(COMPUTES, text, at_ns, at_ns + INSTANT_NS)


def _unit_label_fields(name: str) -> dict[str, str]:
    """The fields of a label, from the name of a unit's move."""
    return _ordered_fields(dict(zip(_NAME_FIELDS["gather"], name.split(" "), strict=True)))


def _ordered_fields(fields: dict[str, str]) -> dict[str, str]:
    """The fields in the grammar's order, which is not that of names."""
    return {key: fields[key] for key in ("bucket", "unit", "module", "phase", "microbatch") if key in fields}


def _sent_dtype(manifest: Manifest, role: str) -> str:
    """The type in which gradients, parameters, activations, or flags are sent."""
    if not role:
        return "int32"
    computes = manifest.param_dtype or (manifest.model.dtype if manifest.model else None) or "float32"
    if role in ("gather", "parameters", "activations"):
        return computes
    return manifest.reduce_dtype or ("float32" if manifest.main_grad else computes)


def _unit_name(name: str) -> str:
    """The unit in the name of a move."""
    return name.split(" ")[0]


def _silent_waits(program: Program) -> set[int]:
    """The places of waits within a backward pass after its last gradient, as DDP's, which no label shows."""
    silent: set[int] = set()
    since: set[int] = set()
    inside = False
    for place, move in enumerate(program):
        if isinstance(move, Mark) and move.word in ("backward", "gradient", "kept_gradient"):
            inside = True
            since.clear()
        elif isinstance(move, Mark) and move.word in ("backward_end", "kept_end"):
            silent |= since
            inside = False
            since.clear()
        elif isinstance(move, Wait) and inside:
            since.add(place)
    return silent
