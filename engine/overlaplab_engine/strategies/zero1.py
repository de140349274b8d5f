"""zero1: gradients are reduce-scattered after the backward pass, and each rank updates its part of the parameters.

Rajbhandari et al. 2020 (arXiv 1910.02054, §5.1), P_os: optimizer states are partitioned. A reduce-scatter of gradients
and an all-gather of updated parameters send as much as an all-reduce (§7.1).
"""

from overlaplab_engine.strategies.base import Traits, register
from overlaplab_engine.strategies.sharding.partitioned import Partitioned, ShardedBucket


@register
class Zero1(Partitioned):
    """All gradients are kept in full; the mean of this rank's part lands in their midst."""

    name = "zero1"
    traits = Traits(gradients="reduce_scatter", buckets=True, gathers="updated_parameters", sharded=("optimizer",))

    def _open_bucket(self, bucket: ShardedBucket) -> None:
        if bucket.gradients is None:
            self._make_room(bucket)
            return
        for piece in bucket.flat.pieces.values():
            grad = self.gradients.get(piece)
            if grad is not None:  # not forgotten since the pass before: out of the way of what arrives
                self.gradients.set(piece, grad.clone())

    def _mark_full(self, bucket: ShardedBucket) -> None:
        """Nothing is sent before the backward pass is over."""

    def _send_remaining(self) -> None:
        for bucket in self._buckets:
            full = bucket.gradients
            assert full is not None
            self._reduce_scatter(
                bucket.flat, full, bucket.flat.layout.local_chunk(full), bucket.marks.launch, bucket.marks.done
            )
