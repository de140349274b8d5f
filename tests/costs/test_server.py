"""What a step's messages to and from a parameter server take."""

import pytest

from overlaplab.costs import message_ns, server_ns, transfer_ns
from overlaplab.findings import sent_notes
from overlaplab.manifest import Link, Manifest, Parameter
from overlaplab.traits import TRAITS

LINK = Link(emulated=True, bandwidth_gbps=8, latency_us=2, world_size=4)
"""A byte takes a nanosecond."""


def test_a_message_takes_the_latency_and_its_bytes() -> None:
    assert message_ns(1000, LINK) == transfer_ns("send_recv", 1000, LINK) == 3000


def test_a_servers_link_carries_one_message_after_another() -> None:
    """By adding them up: three ranks' gradients, then the parameters for each."""
    free = 0
    for size in (500, 500, 500, 1000, 1000, 1000):
        free += message_ns(size, LINK)
    assert server_ns(500, 1000, LINK) == free


@pytest.mark.parametrize(("asynchronous", "said"), [(False, True), (True, False), (None, True)])
def test_it_is_said_beside_what_a_ring_takes(asynchronous: bool | None, said: bool) -> None:
    parameter = Parameter(name="weight", shape=(250_000,), dtype="float32", bytes=1_000_000, unit="layers.0")
    manifest = Manifest(
        format_version=1,
        world_size=4,
        link=LINK,
        parameters=(parameter,),
        traits=TRAITS["parameter-server"],
        strategy="parameter-server",
        asynchronous=asynchronous,
    )
    notes = sent_notes(manifest)
    assert notes.endswith("n = 4 ranks; Ψ = 1.00 MB, the bytes of all parameters.")
    assert ("2(n−1)(α + Ψ ÷ bandwidth) = 6.0 ms; a ring in 1.5 ms" in notes) is said
    assert (server_ns(1_000_000, 1_000_000, LINK), transfer_ns("all_reduce", 1_000_000, LINK)) == (6_012_000, 1_512_000)
