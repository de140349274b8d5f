"""zero2: each full bucket of gradients is reduce-scattered during the backward pass, and its memory given back.

Rajbhandari et al. 2020 (arXiv 1910.02054, §5.2), P_os+g: a rank keeps only the gradients of the part that it updates.
With several microbatches each is sent, and only the parts add up.
"""

from torch import nn

from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies.base import Options, Traits, register
from overlaplab_engine.strategies.gradients.buckets import OrderedLauncher
from overlaplab_engine.strategies.sharding.partitioned import Partitioned, ShardedBucket

IN_FLIGHT = 2
"""Full buckets that may wait for the network, before the backward pass waits for them: so many take up memory."""


@register
class Zero2(Partitioned):
    """The buckets are launched in the same order on all ranks, each as soon as it is full."""

    name = "zero2"
    traits = Traits(
        gradients="reduce_scatter",
        sends_every_microbatch=True,
        buckets=True,
        gathers="updated_parameters",
        sharded=("gradients", "optimizer"),
    )

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        super().__init__(model, comm, options)
        self._launcher: OrderedLauncher[None] = OrderedLauncher(len(self._buckets), self._launch)

    def _open_bucket(self, bucket: ShardedBucket) -> None:
        self._make_room(bucket)

    def _mark_full(self, bucket: ShardedBucket) -> None:
        self._launcher.mark_ready(bucket.index)

    def _launch(self, index: int) -> None:
        bucket = self._buckets[index]
        assert bucket.gradients is not None
        received = bucket.gradients.new_empty(bucket.flat.layout.chunk)
        self._reduce_scatter(bucket.flat, bucket.gradients, received, bucket.marks.launch, bucket.marks.done)
        bucket.gradients, bucket.views = None, []
        self._wait_for_scatters(leave=IN_FLIGHT)

    def _restart(self) -> None:
        super()._restart()
        self._launcher.reset()
