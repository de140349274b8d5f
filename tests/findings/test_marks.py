"""What marks are called, from names as traces have them."""

from __future__ import annotations

import pytest

from overlaplab.findings import exposed_name, mark_name, mark_word
from overlaplab.timeline.marks import MarkKind


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "engine::comm seq=121 kind=all_reduce bytes=5234756 group=0 link=1Gbps%2C1000us modelled_ns=9",
            "all-reduce of 5.23 MB, number 121, group 0, emulated link 1Gbps,1000us",
        ),
        ("engine::forward microbatch=0", "forward, microbatch 0"),
        ("engine::backward microbatch=1 sync=1", "backward, microbatch 1, gradients are sent"),
        ("engine::gather_launch unit=a%20b phase=forward microbatch=0 bytes=12", None),
        ("engine::bucket_ready bucket=0 bytes=4000 parameters=a%2Cb,c,d,e", None),
        ("engine::bucket_ready bucket=", "engine::bucket_ready bucket="),
        ("aten::mm", "aten::mm"),
        ("100%2C", "100%2C"),
    ],
)
def test_labels_are_read_out(name: str, words: str | None) -> None:
    if words is None:
        words = {
            "gather_launch": "gather launch, unit a b, phase forward, microbatch 0, 12 B",
            "bucket_ready": "bucket ready, bucket 0, 4.00 kB, parameters a,b, c, d and 1 more",
        }[name.split()[0].removeprefix("engine::")]
    assert mark_name(name) == words


def test_exposed_time_is_named_by_its_cause() -> None:
    row = {"cause": "straggler wait", "late_rank": 3, "collective": 19, "kind": "all_reduce", "what": "bucket 5"}
    assert exposed_name(row) == "waited for rank 3: bucket 5, all-reduce 19"
    assert mark_word(MarkKind.TAIL) == "nothing left to overlap (tail)"
    assert mark_word(MarkKind.ALL_GATHER) == "all-gather"
