"""parameter-server: gradients go to rank 0, which updates the parameters and sends them back.

Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server" (OSDI). Rank 0 trains, too: so n ranks
train on n batches, as with every other strategy, and what differs is who updates. For each update rank 0 receives n − 1
times the gradients and sends n − 1 times the parameters, which a ring spreads over all links.

[Note: asynchronous]
Each worker's gradients are applied as they come, and the worker goes on with what results, whatever the others do
(Downpour SGD, fetching and pushing in every step: Dean et al. 2012, "Large Scale Distributed Deep Networks"). On rank 0
a thread serves each other worker. The updates since a worker got its parameters are the *staleness* of the gradients
that it computes with them. n gradients are being computed at a time, and each update makes n − 1 of them staler: so
n − 1 is the mean, and of slow workers it is more. `max_staleness` holds updates back that would make another worker's
gradients too stale (Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server").
With n − 1, the least that is possible, the workers take turns.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from overlaplab_engine import labels
from overlaplab_engine.alarm import wake_on_time
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies.base import Options, Strategy, Traits, register
from overlaplab_engine.strategies.gradients.buckets import Bucket
from overlaplab_engine.strategies.gradients.hooks import after_accumulation
from overlaplab_engine.strategies.sharding.shards import Layout


@register
class ParameterServer(Strategy):
    """After `backward` rank 0 has the mean gradients, and the others none; `updated` brings them its parameters.

    Gradients lie in one buffer, followed by a flag for each parameter that says whether a rank has used it. (Types do
    not mix: each has a buffer.)
    """

    name = "parameter-server"
    traits = Traits(gradients="server")

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        super().__init__(model, comm, options)
        self._serves = comm.rank == 0
        self._prescale = 1.0 / comm.world_size  # not `comm.prescale`: rank 0 adds up by hand, on GPUs too
        keys = [(p.device, p.dtype) for p in self.parameters]
        self._buckets = self._form_buckets(range(len(keys)), keys, [sys.maxsize])  # one per device and dtype
        self._values = [_move_to_flat([self.parameters[m] for m in bucket.members]) for bucket in self._buckets]
        self._holds_means = False
        """Whether rank 0 has means that no pass has added to yet."""
        if self.gradients.main:
            for parameter in self.parameters:
                after_accumulation(parameter, self._move_to_main_grad)

    def _move_to_main_grad(self, parameter: torch.Tensor) -> None:
        self.gradients.place(parameter, None, 1.0)

    @classmethod
    def variant(cls, options: Options) -> type[Strategy]:
        return AsynchronousServer if options.asynchronous else cls

    def clip(self, max_norm: float) -> torch.Tensor:
        """See `Strategy`; rank 0 tells the others the norm."""
        norm = super().clip(max_norm)
        self.comm.broadcast([norm])
        return norm

    def updated(self) -> None:
        """Rank 0 sends the parameters, to all at once."""
        if self.comm.world_size > 1:
            workers = range(1, self.comm.world_size)
            sends = [(values, worker) for worker in workers for values in self._values] if self._serves else []
            receives = [] if self._serves else [(values, 0) for values in self._values]
            work = self.comm.exchange(sends, receives)
            with self._wait_label:
                work.wait()

    def backward(self, loss: torch.Tensor, microbatch: int = 0) -> None:
        """See `Strategy`.

        Where gradients were not zeroed, rank 0's means become sums again, which `_fill` prescales once more.
        """
        for parameter in self.parameters if self._holds_means else ():
            if (grad := self.gradients.get(parameter)) is not None:
                grad.mul_(self.comm.world_size)
        self._holds_means = False
        super().backward(loss, microbatch)

    @torch.no_grad()
    def _finish(self) -> None:
        self._fill()
        self._add_up()
        self._holds_means = self._serves
        for bucket in self._buckets:
            for i, view, used in zip(bucket.members, bucket.views, bucket.flags.tolist(), strict=True):
                if used or not self._serves:  # unused everywhere, the gradient stays untouched
                    self.gradients.set(self.parameters[i], view if self._serves else None)

    def _fill(self) -> None:
        """Put the gradients into the buffers, prescaled, and set the flags of those that are there."""
        for bucket in self._buckets:
            grads = [self.gradients.get(self.parameters[m]) for m in bucket.members]
            for grad, view in zip(grads, bucket.views, strict=True):
                torch.mul(grad, self._prescale, out=view) if grad is not None else view.zero_()
            bucket.flags.copy_(torch.tensor([float(grad is not None) for grad in grads]))
            labels.instant(bucket.marks.ready)

    def _add_up(self) -> None:
        """On rank 0 the buffers become the sum over the ranks, always in their order; the others send theirs."""
        senders = range(1, self.comm.world_size) if self._serves else []
        for bucket in self._buckets:
            received = [(torch.empty_like(bucket.flat), rank) for rank in senders]
            with bucket.marks.launch:
                works = [self.comm.exchange([], [buffer]) for buffer in received]
                sent = None if self._serves else self.comm.exchange([(bucket.flat, 0)], [])
            for work, (theirs, _) in zip(works, received, strict=True):
                with self._wait_label:
                    work.wait()
                bucket.flat += theirs
            if sent is not None:
                with self._wait_label:
                    sent.wait()
            labels.instant(bucket.marks.done)

    def _match_others(self) -> None:
        for bucket in self._buckets:
            bucket.flat.fill_(torch.nan)
        self._add_up()

    def _abandon(self) -> None:
        """Nothing is under way in a backward pass."""


class AsynchronousServer(ParameterServer):
    """`updated` pushes this rank's gradients and brings the parameters that result; see [Note: asynchronous].

    The server's parameters, which the optimizer updates, are not those that rank 0 computes with. Buffers are each
    rank's own. The update must be made by `update`, as the server makes it when gradients come.
    """

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        """See `Strategy`. EngineError if `max_staleness` is less than the number of other ranks."""
        super().__init__(model, comm, options)
        self._prescale = 1.0
        self._running = False
        self._server = _Server(self, self._buckets, self._values) if self._serves else None
        for module in model.modules():
            module.register_load_state_dict_pre_hook(_refuse_load)  # type: ignore[no-untyped-call]
        others = comm.world_size - 1
        if options.max_staleness is not None and options.max_staleness < others:
            raise EngineError(
                f"--max-staleness {options.max_staleness}: with {others} other ranks it is {others} or more"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward pass; the server runs from the first synchronised one on."""
        if self._sync and not self._running:
            self._running = True
            if self._server is not None:
                self._server.start()
        return self.model(*args, **kwargs)

    def named_optimized(self) -> list[tuple[str, torch.Tensor]]:
        """On rank 0 the server's parameters; on others their own, whose gradients `_finish` drops."""
        if self._server is None:
            return super().named_optimized()
        return list(zip(self.names, self._server.parameters, strict=True))

    def clip(self, max_norm: float) -> torch.Tensor:
        """EngineError: no rank ever has the mean over the ranks."""
        raise EngineError("--asynchronous applies each rank's gradients by themselves: leave --clip-norm out")

    def update(self, step: Callable[[], None]) -> None:
        """From now on the server updates by `step`, with each worker's gradients."""
        if self._server is not None:
            self._server.use(step)

    @torch.no_grad()
    def updated(self) -> None:
        """Push the gradients, and get what the server then has."""
        gradients = [bucket.flat for bucket in self._buckets]
        if self._server is not None:
            for values, new in zip(self._values, self._server.apply(0, gradients), strict=True):
                values.copy_(new)
            return
        sends = [(flat, 0) for flat in (_MORE, *gradients)]
        work = self.comm.exchange(sends, [(values, 0) for values in self._values])
        with self._wait_label:
            work.wait()

    def close(self) -> None:
        """Wait until the server has applied all that was pushed; every rank must call it."""
        if not self._running:
            return
        self._running = False
        if self._server is not None:
            self._server.finish()
        else:
            self.comm.exchange([(_NO_MORE, 0)], []).wait()

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """The server's, which all ranks go on with."""
        self.close()
        if self._server is not None:
            for values, served in zip(self._values, self._server.values, strict=True):
                values.copy_(served)
        self.comm.broadcast(self._values)
        return super().full_parameters()

    def _gradient_holders(self) -> list[torch.Tensor]:
        """Not the server's parameters, whose gradients are its own."""
        return list(self.parameters)

    @torch.no_grad()
    def _finish(self) -> None:
        self._fill()
        for parameter in self.parameters:
            self.gradients.set(parameter, None)

    def _match_others(self) -> None:
        """No rank waits for another one's backward pass."""


def _refuse_load(*_: Any) -> None:
    """The server's parameters are its own: what is loaded into the model would be overwritten by its next answer."""
    raise EngineError("parameter-server with --asynchronous: load a state before the strategy is made")


_MORE, _NO_MORE = torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
"""What a worker sends before gradients, and when there will be no more."""


class _Server:
    """Rank 0's copy of the parameters, and a thread for each other worker, which applies that worker's gradients."""

    def __init__(self, strategy: Strategy, buckets: Sequence[Bucket], values: Sequence[torch.Tensor]) -> None:
        """Begin with a copy of `values`, in which the parameters lie as their gradients do in `buckets`."""
        self._comm, self._gradients = strategy.comm, strategy.gradients
        self._max_staleness = strategy.options.max_staleness
        self.values = [flat.clone() for flat in values]
        self._layouts = [Layout([view.shape for view in bucket.views], 0, 1) for bucket in buckets]
        self._served = [view.requires_grad_() for view in _split(self._layouts, self.values)]
        members = [member for bucket in buckets for member in bucket.members]
        by_member = dict(zip(members, self._served, strict=True))
        self.parameters = [by_member[member] for member in sorted(members)]
        """What the optimizer updates, in the strategy's order."""
        self._buffers = [bucket.flat for bucket in buckets]
        self._step: Callable[[], None] | None = None
        self._turn = threading.Condition()
        self._version = 0
        """Updates made."""
        self._versions = [0] * self._comm.world_size
        """The version that each worker computes with."""
        self._active: set[int] = set()
        self._threads: list[threading.Thread] = []
        self._failure: Exception | None = None

    def start(self) -> None:
        """Serve all workers, which begin with the present version."""
        self._active = set(range(self._comm.world_size))
        self._versions = [self._version] * self._comm.world_size
        others = sorted(self._active - {0})
        self._threads = [threading.Thread(target=self._serve, args=(worker,), daemon=True) for worker in others]
        for thread in self._threads:
            thread.start()

    def use(self, step: Callable[[], None]) -> None:
        if self._step == step:  # asking for the turn would wait for an update under way
            return
        with self._turn:
            self._step = step
            self._turn.notify_all()

    def finish(self) -> None:
        """Serve the other workers to their end. Raises what a thread failed with."""
        self._leave(0)
        for thread in self._threads:
            thread.join()
        self._check()

    @torch.no_grad()
    def apply(self, worker: int, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Update by one worker's gradients (with their flags), once it is its turn; a copy of what results."""
        with self._turn:
            self._turn.wait_for(lambda: self._failure is not None or self._may_go(worker))
            self._check()
            assert self._step is not None
            with labels.span(Word.SERVE, worker=worker, staleness=self._version - self._versions[worker]):
                self._place(gradients)
                self._step()
            self._version += 1
            self._versions[worker] = self._version
            self._turn.notify_all()
            return [flat.clone() for flat in self.values]

    def _may_go(self, worker: int) -> bool:
        """Whether the step is known, and all others' updates could follow this worker's and none be too stale.

        The stalest goes first.
        """
        if self._step is None:
            return False
        versions = sorted(self._versions[other] for other in self._active - {worker})
        next_version = self._version + 1
        staleness = [next_version + place - version for place, version in enumerate(versions)]
        return self._max_staleness is None or max(staleness, default=0) <= self._max_staleness

    def _place(self, gradients: Sequence[torch.Tensor]) -> None:
        flags = [
            f for layout, flat in zip(self._layouts, gradients, strict=True) for f in flat[layout.numel :].tolist()
        ]
        for parameter, view, used in zip(self._served, _split(self._layouts, gradients), flags, strict=True):
            self._gradients.set(parameter, view if used else None)

    def _serve(self, worker: int) -> None:
        wake_on_time()
        try:
            while self._receive_more(worker):
                gradients = [torch.empty_like(flat) for flat in self._buffers]
                self._receive(gradients, worker)
                new = self.apply(worker, gradients)
                self._comm.exchange([(flat, worker) for flat in new], []).wait()
        except Exception as error:  # the training thread raises it
            self._failure = error
        self._leave(worker)

    def _receive_more(self, worker: int) -> bool:
        """Wait until the worker says whether it sends more gradients; returns that."""
        more = torch.zeros_like(_MORE)
        self._receive([more], worker)
        return bool(more)

    def _receive(self, tensors: Sequence[torch.Tensor], worker: int) -> None:
        self._comm.exchange([], [(tensor, worker) for tensor in tensors]).wait()

    def _leave(self, worker: int) -> None:
        with self._turn:
            self._active.discard(worker)
            self._turn.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def _move_to_flat(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Move these parameters to a flat buffer (elements,), which is returned."""
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    for parameter, view in zip(parameters, Layout([p.shape for p in parameters], 0, 1).views(flat), strict=True):
        parameter.data = view
    return flat


def _split(layouts: Sequence[Layout], flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parts of flat buffers, in their shapes."""
    return [view for layout, flat in zip(layouts, flats, strict=True) for view in layout.views(flat)]
