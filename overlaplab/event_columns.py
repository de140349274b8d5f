"""The columns of a trace's tables, without pandas, which processes that only decode do not wait for."""

DAMAGED = "damaged"
"""The phase of an event at times that cannot be true: it counts as nothing, and its step in no median."""

EVENT_COLUMNS = {
    "name": "category",
    "category": "category",
    "phase": "category",
    "ts_ns": "int64",
    "dur_ns": "int64",
    "pid": "category",
    "tid": "category",
    "stream": "int32",
    "device": "int32",
    "correlation": "int32",
    "external_id": "int32",
    "flow_launch": "int32",
    "flow_backward": "int32",
}
"""The columns of `Trace.events` and their dtypes.

`category` is kineto's `cat`; `phase` is `X` for an event with a duration, `i` for an instant, and `DAMAGED` for one
whose duration is unknown (then 0), or, if it is a device's, its start as well (then that of its launch); `ts_ns` is
Unix time in ns; `pid` and `tid` are the process and thread as text. The other columns are -1 where the event has no
such number: `stream` (of a device's event; a host's event has none, whatever its arguments say), `device`,
`correlation` (shared by a launch and what it launched), `external_id` (of the operator it belongs to), `flow_launch`
(shared by the two ends of an arrow from a launch to a kernel) and `flow_backward` (shared by a forward operator and its
backward; the first, if an event has several arrows). Such a column is int64 if a number in the file does not fit into
int32.
"""

COLLECTIVE_COLUMNS = {
    "event": "int64",
    "kind": "category",
    "dtype": "category",
    "elements_in": "int64",
    "elements_out": "int64",
    "bytes": "int64",
    "group": "category",
    "group_description": "category",
    "group_size": "int64",
    "sequence": "int64",
    "source": "int64",
    "destination": "int64",
    "root": "int64",
    "comms_id": "int64",
}
"""The columns of `Trace.collectives` and their dtypes: collective metadata from event arguments.

`event` is the row of `Trace.events` (a kernel, or an operator such as `record_param_comms`); `kind` is one of
`vocabulary.collective_kind`; `dtype` is torch's name in lower case; `bytes` is the larger of input and output;
`group` is the process group's name, `group_description` its purpose (`default_pg`, `mesh_tp`), `group_size` how many
ranks it has (of gathers and scatters also by their sizes: output ÷ input); `sequence` numbers a group's collectives;
`source` is the rank in the job that a message comes from, where the rank receives it, `destination` the one that it
goes to, where it sends it; `root` is the place in the group of the rank from which a broadcast or scatter comes, or to
which a reduce or gather goes; `comms_id` is torch's hash of a collective's group and number, the same on all its ranks
(the lower 63 bits). Unknown numbers are -1, unknown texts are empty.
"""

INPUT_COLUMNS = {"event": "int64", "shapes": "category", "types": "category"}
"""The columns of `Trace.inputs` and their dtypes: tensors' shapes and types (`record_shapes=True`) as the file's JSON.

Kept only for communication (`c10d::*`, `gloo:*`, `nccl:*`, `record_param_comms`) and for `AccumulateGrad`.
"""

SYNC_COLUMNS = {"event": "int64", "wait_on_stream": "int64", "recorded_by": "int64"}
"""The columns of `Trace.syncs` and their dtypes: what events of the category `cuda_sync` wait for.

The row of `Trace.events` (`event`) holds the rest: its name says what waits (`Stream Wait Event`: its `stream`), its
`correlation` is that of the call that waits, or tells a stream to. `wait_on_stream` is the stream on which the awaited
event was recorded, `recorded_by` the correlation of that `cudaEventRecord`; -1 where Kineto did not know (since CUDA
12.9: pytorch #195068), and for waits for a whole stream or device.
"""
