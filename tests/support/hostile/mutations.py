"""Damaged traces: small real and made ones, mutated at random but reproducibly."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from made.traces import document, event, gloo, launched, op, step

TRACES = Path(__file__).parents[3] / "traces"

_TOKENS: tuple[bytes, ...] = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"\\",
        b"},",
        b', {"',
        b"},{",
        b"]}",
        b"null",
        b"true",
        b"NaN",
        b"-inf",
    ),
    *(b"Infinity", b"1e400", b"-1", b"0", b"007", b"1.", b".5", b" "),
    *(b"9" * 20, b"9" * 400, b'"ts"', b'"dur": ', b'"ph": "X"', b'"args": null', b'"traceEvents": [', b'"pid": "x"'),
    *(b"\\ud800", b"\\u12", b"\\q", b"\xff", b"\xc3", b"\x00", b"\n", b"\xef\xbb\xbf", b"[" * 2000, b'{"a":' * 300),
    *(b"1790857026123456789", b"1790857026123456.789", b'"baseTimeNanoseconds": 99999999999999999999', b"\x1f\x8b"),
)
_STEPS = 4


@cache
def seeds() -> list[bytes]:
    """Texts of intact traces: the first events of our samples, and a made one of a GPU."""
    return [_cut(path) for path in sorted(TRACES.glob("*/rank0.pt.trace.json.gz"))] + [_made()]


def _cut(path: Path) -> bytes:
    trace = json.loads(gzip.decompress(path.read_bytes()))
    events = trace["traceEvents"]
    trace["traceEvents"] = events[:12] + events[200:212] + events[-8:]
    return json.dumps(trace, indent=1).encode()


def _made() -> bytes:
    events: list[dict[str, Any]] = [step(1, 0, 90), op("mm", 1, 3), gloo(4, 9)]
    events += launched("gemm", 10, 20, 30, correlation=5)
    events += launched("ncclDevKernel_AllReduce", 12, 25, 60, stream=20, correlation=6)
    events[-1]["args"] |= {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 7, "Out msg nelems": 7}
    events[-1]["args"] |= {"Process Group Name": "0", "Group size": 2, "Seq": 3}
    shapes = {"Input Dims": [[[4, 2]], []], "Input type": ["TensorList", "Scalar"]}
    events += [event("c10d::allreduce_", 5, 6, **shapes), {"ph": "i", "name": "mark", "ts": 3, "pid": 9, "tid": 1}]
    events += [{"ph": phase, "id": 5, "pid": 9, "tid": 1, "ts": 10, "cat": "ac2g"} for phase in "sf"]
    events += [{"ph": "B", "name": "range", "pid": 9, "tid": 1, "ts": 1}, {"ph": "E", "pid": 9, "tid": 1, "ts": 2}]
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}
    info = {"rank": 0, "world_size": 2, "backend": "nccl", "pg_config": [group]}
    return json.dumps(document(events, distributedInfo=info, baseTimeNanoseconds=10**18)).encode()


def mutated(seed: bytes, number: int) -> bytes:
    """The text with a few mutations, the same for the same number; some are gzipped, and some of those cut short."""
    chance = random.Random(number)
    data = seed
    for _ in range(chance.randint(1, _STEPS)):
        data = chance.choice(_MUTATIONS)(data, chance)
    if chance.random() < 0.2:
        data = gzip.compress(data, compresslevel=1)
        if chance.random() < 0.5:
            data = chance.choice((_cut_off, _flip))(data, chance)
    return data


def damage_once(data: bytes, number: int) -> bytes:
    """The text with one mutation, the same for the same number."""
    chance = random.Random(number)
    return chance.choice((_flip, _insert, _delete))(data, chance)


def _place(data: bytes, chance: random.Random) -> int:
    return chance.randrange(len(data) + 1)


def _flip(data: bytes, chance: random.Random) -> bytes:
    at = _place(data, chance)
    return data[:at] + bytes((chance.randrange(256),)) + data[at + 1 :]


def _insert(data: bytes, chance: random.Random) -> bytes:
    at = _place(data, chance)
    return data[:at] + chance.choice(_TOKENS) + data[at:]


def _delete(data: bytes, chance: random.Random) -> bytes:
    at = _place(data, chance)
    return data[:at] + data[at + chance.choice((1, 1, 2, 10, 300)) :]


def _repeat(data: bytes, chance: random.Random) -> bytes:
    start, end = sorted((_place(data, chance), _place(data, chance)))
    return data[:end] + data[start:end][:3000] + data[end:]


def _swap(data: bytes, chance: random.Random) -> bytes:
    a, b, c = sorted(_place(data, chance) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def _cut_off(data: bytes, chance: random.Random) -> bytes:
    return data[: _place(data, chance)]


def _replace(data: bytes, chance: random.Random) -> bytes:
    """Another value for one of a key's occurrences."""
    key = chance.choice((b'"ts": ', b'"dur": ', b'"pid": ', b'"ph": ', b'"args": ', b'"id": ', b'"name": ', b'": '))
    parts = data.split(key)
    at = chance.randrange(len(parts))
    head, value, rest = key.join(parts[:at]), parts[at], key.join(parts[at + 1 :])
    comma = value.find(b",")
    return head + key + chance.choice(_TOKENS) + value[max(comma, 0) :] + (key + rest if rest else b"")


_MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_flip, _insert, _insert, _delete, _repeat, _swap, _cut_off, _replace, _replace, _replace),
)
