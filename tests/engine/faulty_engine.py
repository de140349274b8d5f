"""`python -m overlaplab_engine` with a fault: FAULT=rank:step:kind.

Its processes are found by TOKEN in their environment, forks by the files in the folder PROCESSES that have their ids.
None may ask DNS for a name.
"""

import os
import signal
import sys
import time

import no_dns
import overlaplab_engine.cli
import overlaplab_engine.launch
import overlaplab_engine.recording.trace_file
import overlaplab_engine.strategies.sharding.agreement
import overlaplab_engine.train
from overlaplab_engine.network.communicator import Communicator

no_dns.forbid()  # in a fork it was imported before
with open(os.path.join(os.environ["PROCESSES"], str(os.getpid())), "w"):
    pass
if "RANK" not in os.environ:
    overlaplab_engine.launch.ENTRY = (os.path.abspath(__file__),)
else:
    rank, step, kind = os.environ["FAULT"].split(":")
    mine = os.environ["RANK"] == rank
    train_step, build, all_gather = (
        overlaplab_engine.train.train_step,
        overlaplab_engine.train.build,
        Communicator.all_gather,
    )

    def faulty_step(strategy, optimizer, batches, at, **more):
        if at == int(step) and mine:
            if kind == "raise":
                raise ZeroDivisionError("the\nboom")
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "exit":
                os._exit(7)
            if kind == "lose-peer":
                raise RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out")
            if kind == "raise-in-backward":
                strategy.parameters[0].register_hook(raise_in_tensor_hook)
            if kind == "raise-in-hook":
                Communicator.all_reduce_mean = Communicator.all_reduce_future = raise_in_hook
            if kind == "kill-in-gather":
                Communicator.all_gather = killed_in_gather
            if kind == "raise-in-gather":
                Communicator.all_gather = raise_in_hook
            if kind == "raise-in-forward":
                strategy.model.layers[0].register_forward_pre_hook(raise_in_hook)
            if kind == "other-order":
                layers = strategy.model.layers
                layers[0], layers[1] = layers[1], layers[0]
                overlaplab_engine.strategies.sharding.agreement.TIMEOUT_S = 3
        if kind in ("lose-peer", "raise-in-backward") and at == int(step) and not mine:
            time.sleep(600)
        if kind == "raise-in-forward" and at == int(step) and not mine:  # its gathers meet nobody's
            strategy.model.layers[0].register_forward_pre_hook(lambda *_: time.sleep(600), prepend=True)
        if kind == "stall" and at == int(step):
            with open(os.environ["STALLED"] + os.environ["RANK"], "w"):
                pass
            if mine:
                time.sleep(600)
        return train_step(strategy, optimizer, batches, at, **more)

    def killed_in_gather(self, full, shard):
        """Launched on all ranks, ended by none."""
        Communicator.all_gather = all_gather
        all_gather(self, full, shard)
        os.kill(os.getpid(), signal.SIGKILL)

    def raise_in_hook(self, *tensors):
        raise ZeroDivisionError("in a hook")

    def raise_in_tensor_hook(grad):
        raise ZeroDivisionError("in a tensor's hook")

    def faulty_build(config, comm):
        import dataclasses

        return build(
            dataclasses.replace(config, layers=config.layers + 1) if mine and kind == "mismatch" else config, comm
        )

    overlaplab_engine.train.train_step, overlaplab_engine.train.build = faulty_step, faulty_build
    if kind == "no-device-events":
        export = overlaplab_engine.recording.trace_file.TraceFile._export

        def unseeing_export(self, profiler):
            export(self, profiler)
            self.saw_no_device = mine

        overlaplab_engine.recording.trace_file.TraceFile._export = unseeing_export

sys.exit(overlaplab_engine.cli.main(sys.argv[1:]))
