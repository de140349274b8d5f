"""The registry of columns: what every column of the analyses' tables is called, measured in, and means.

Terminal, HTML report, dashboard, CSV files and docs/columns.md take headers and explanations from here, so that a
column is called the same everywhere. A page only says which columns it shows, and in which order.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

from msgspec import Struct

Unit: TypeAlias = Literal["text", "flag", "count", "ns", "ms", "bytes", "GB/s", "ratio"]
"""What a table holds. People are shown ns as ms, bytes as kB or MB, and ratios, from 0 to 1, as percentages."""

_SHOWN: dict[Unit, str] = {"ns": "ms", "ms": "ms", "bytes": "MB", "GB/s": "GB/s"}


class Column(Struct, frozen=True):
    """One column of a table."""

    unit: Unit
    name: str
    """The analysis's name of the column, which is also its key in JSON."""
    header: str
    """What people read above it, without the unit."""
    explanation: str
    short: str = ""
    """The header in a terminal of 80 columns, where the other one has no room; it may hold the unit."""
    shown: str = ""
    """The unit in which it is shown, where that is not the usual one: `kB`, or what a percentage is of."""

    @property
    def shown_unit(self) -> str:
        """The unit in which the column is shown; empty where it has none."""
        return self.shown or _SHOWN.get(self.unit, "")

    @property
    def title(self) -> str:
        """The header with the unit in which the column is shown, such as `step time (ms)`."""
        return _with_unit(self.header, self.shown_unit)

    @property
    def title_as_held(self) -> str:
        """The header with the unit in which the table holds the column, such as `step time (ns)`."""
        return _with_unit(self.header, self.unit if self.unit in _SHOWN else "")

    @property
    def terse(self) -> str:
        """The header in a terminal."""
        return self.short or self.header


def _with_unit(header: str, unit: str) -> str:
    return f"{header} ({unit})" if unit else header


_text, _flag, _count = partial(Column, "text"), partial(Column, "flag"), partial(Column, "count")
_ns, _ms, _bytes = partial(Column, "ns"), partial(Column, "ms"), partial(Column, "bytes")
_speed, _ratio = partial(Column, "GB/s"), partial(Column, "ratio")

_ANYWHERE = (
    _count("rank", "rank", "The process's number in the job, from 0."),
    _count("step", "step", "The number of the profiler's step."),
    _ns("start_ns", "start", "When it began, from the run's start, by the first rank's clock."),
    _ns("end_ns", "end", "When it ended, from the run's start, by the first rank's clock."),
    _bytes("bytes", "size", "The size of what was communicated, as a full tensor.", "MB"),
    _text("kind", "kind", "The kind of collective, such as all-reduce."),
    _count("ranks", "ranks", "How many ranks the row is made of."),
    _count("steps", "steps", "How many steps were measured."),
    # Where a step's time went
    _ns("span_ns", "step time", "How long the step took.", "step ms"),
    _ns("compute_ns", "compute", "Time in which the rank computed, whether or not it communicated."),
    _ns("comm_ns", "communication", "Time in which the rank communicated, hidden or exposed.", "comm"),
    _ns("compute_only_ns", "compute only", "Time in which the rank computed and did not communicate.", "alone"),
    _ns("overlapped_ns", "hidden", "Communication during which the same rank computed."),
    _ns("exposed_comm_ns", "exposed", "Communication during which the same rank computed nothing."),
    _ns("exposed_wait_ns", "wait", "Exposed time before the collective's last rank arrived."),
    _ns("exposed_transfer_ns", "transfer", "Exposed time after the collective's last rank arrived."),
    _ns("memory_only_ns", "memory only", "Time in which memory was copied or set and nothing else ran.", "memory"),
    _ns("idle_ns", "idle", "Time in which nothing ran."),
    _ns(
        "preempted_ns",
        "preempted",
        "Time in which an operator waited for a core: no computation, but exposed communication or idle time.",
    ),
    _ratio("overlap_ratio", "overlap ratio", "Hidden communication ÷ communication.", "overlap", "% of comm."),
    _flag(
        "damaged",
        "damaged",
        "Whether events of the step have impossible times: its figures are without them, and it counts in no median.",
    ),
    _count("step_kind", "step kind", "Steps of one number send and do the same; 0 is the most frequent kind."),
    _ns("outside_ns", "outside steps", "Recorded time that lies in no step. It is in no total."),
    _ns("ran_ns", "ran", "Time in which the computing thread ran on a core."),
    _ns("delayed_ns", "waited for a core", "Time in which the computing thread could run, and had no core."),
    _ns("host_wait_ns", "host wait", "Idle time in which the host had not yet launched what ran next."),
    _ns("kernel_wait_ns", "kernel wait", "Idle time in gaps of less than 30 ns between two kernels."),
    _ns("other_ns", "other idle", "Idle time for other reasons: the work was launched, but waited."),
    # One thing that happened
    _ns("launch_ns", "launch", "When the host launched it, from the run's start, by the first rank's clock."),
    _ns("wait_ns", "wait", "From this rank's arrival at the collective to its last rank's."),
    _ns("transfer_ns", "transfer", "From the arrival of the collective's last rank to that rank's end."),
    _ns("exposed_ns", "exposed", "The part of its time during which the rank computed nothing."),
    _ns("busy_ns", "busy", "Time in which at least one of them ran.", "busy ms"),
    # Why communication was exposed
    _text("cause", "cause", "Why communication was exposed, and for how long; of a wait, why it waited."),
    _text("concerned", "in", "The collectives whose exposed time has this cause."),
    _text("remedy", "what helps", "What can be changed in this run to reduce it."),
    _count("collective", "collective's number", "The collective's place in the table of collectives."),
    _text("what", "moves", "The bucket, the unit or the parameter that the collective moves."),
    _text("moved", "collective", "The kind of collective, and what it moves."),
    _count("late_rank", "late rank", "The rank that a straggler wait waited for."),
    _ratio("of_step", "% of step", "Its exposed time ÷ the time of the step."),
    # Buckets of gradients
    _count("index", "bucket", "The bucket's number, in the order of launches."),
    _count("bucket", "bucket", "The bucket's number, in the order of launches."),
    _ns("backward_start_ns", "backward start", "When the backward pass began, from the step's start."),
    _ns("backward_end_ns", "backward end", "When the backward pass ended, from the step's start."),
    _text("parameters", "parameters", "The names of the parameters whose gradients the bucket holds."),
    _ns("gradient_ready_ns", "gradients ready", "When each gradient arrived, from the step's start."),
    _text("last_parameter", "last gradient", "The parameter whose gradient arrived last."),
    _text("parameter", "last gradient", "The parameter whose gradient arrived last."),
    _ns("ready_ns", "ready", "When the bucket's last gradient had arrived, from the step's start."),
    _count("passes", "backward passes", "How many backward passes of the step sent gradients."),
    _count("arrivals", "arrivals", "Each gradient's place in the order of arrival, from 1."),
    _count("arrival", "arrival", "The last gradient's place in the order of arrival, from 1."),
    _text("shapes", "shapes", "The shapes of the gradients."),
    _text("shape", "shape", "The shape of the last gradient."),
    _count("gradients", "gradients", "How many gradients arrived in the backward pass."),
    _text("told_by", "known by", "Where its gradients are known from: labels, their sizes, or the order of arrival."),
    _text("source", "read from", "Whose ranges in the trace show this: the engine's, DDP's or FSDP2's."),
    _ns("gap_ns", "gap", "The time between the arrivals of the bucket's last two gradients."),
    _ns("held_ns", "held others", "The longest time that a later bucket was ready and waited for this one."),
    _ns("earlier_ns", "earlier", "How much earlier the bucket could have been launched without its last gradient."),
    _ns("saved_ns", "saved", "How much of the exposed time would then not be there, replayed."),
    _count("held", "buckets held", "The later buckets that were ready and waited for this one."),
    _ns("link_ns", "link busy", "The time after its launch in which the link was busy with earlier buckets."),
    # Sharded parameters
    _text("unit", "unit", "The parameters that are gathered and freed together, usually one layer."),
    _count("layer", "layer", "The layer's number, where the unit is a layer."),
    _count("microbatch", "microbatch", "The microbatch within the step, from 0."),
    _text("phase", "phase", "The pass for which the unit was gathered: forward or backward."),
    _text("gathered_for", "for", "The pass for which the unit was gathered, and the microbatch."),
    _ns("gather_launch_ns", "launch", "When the host launched the gather, from the step's start."),
    _ns("gather_start_ns", "start", "When the gather began, from the step's start."),
    _ns("gather_end_ns", "end", "When the gather ended, from the step's start."),
    _ns("first_use_ns", "first use", "When the unit's computation began, from the step's start.", "use"),
    _ns("last_use_ns", "last use", "When the unit's computation ended, from the step's start."),
    _ns(
        "backward_first_use_ns",
        "first use in backward",
        "When backward began to use a unit that was kept since its forward.",
    ),
    _ns(
        "backward_last_use_ns",
        "last use in backward",
        "When backward ended its use of a unit that was kept since its forward.",
    ),
    _ns("free_ns", "free", "When the full parameters were freed, from the step's start."),
    _text("free_phase", "freed in", "The pass in which the full parameters were freed."),
    _bytes("resharded_bytes", "held in part", "The bytes of resharded units' parts, which stay held after a free."),
    _ns("resharded_until_ns", "held in part until", "When the unit of such a part was gathered again."),
    _count("microbatches", "microbatches", "How many microbatches gathered parameters."),
    _count("gathers", "gathers", "How many gathers the step launched.", "in all"),
    _count("frees", "frees", "How many units were seen to be freed."),
    _count("partial_frees", "freed in part", "Frees after which a part of the unit stays held."),
    _count("layer_gathers", "layers gathered", "How many gathers were of layers.", "of layers"),
    _count("layer_frees", "layers freed", "How many frees were of layers.", "freed"),
    _count("forward_layer_gathers", "layers gathered for forward", "Gathers of layers for a forward pass."),
    _count("backward_layer_gathers", "layers gathered for backward", "Gathers of layers for a backward pass."),
    _bytes("peak_gathered_bytes", "peak", "The most bytes of full parameters held at one time.", "peak MB"),
    _ns("peak_ns", "peak at", "When the peak was first reached, from the step's start.", "at ms"),
    _count("peak_layers", "layers at the peak", "How many layers were gathered at the peak.", "layers"),
    _ns("time_ns", "time", "The moment from which on this was held, from the step's start."),
    _count("layers", "layers", "How many gathers of layers were held from then on."),
    # Hops of collectives by hand
    _count("hop", "hop", "The hop's number in the bucket's all-reduce, from 0."),
    _count("sends", "sends chunk", "The number of the chunk that the rank sends in the hop."),
    _count("to", "to rank", "The rank that gets it."),
    _count("receives", "receives chunk", "The number of the chunk that the rank receives in the hop."),
    _count("chunk", "chunk", "The number of the part of the bucket that travels by itself."),
    _flag("arrived", "arrived", "Whether it came in this hop."),
    # Collectives across ranks
    _text("group", "group", "The process group: what it is for, or its name."),
    _text("group_description", "group is for", "What the process group is for, such as mesh_tp."),
    _text("axis", "axis", "The axis of the mesh, by the group's description: dp, tp, pp, …."),
    _count("group_size", "group size", "How many ranks the process group has."),
    _text("dtype", "dtype", "The type of the tensor's elements."),
    _ns("arrived_ns", "arrival", "When this rank was ready for the collective, from the run's start."),
    _ns("longest_ns", "longest", "The longest time that a rank spent in it, from its arrival to its end."),
    _ns("waits_ns", "all waits", "All ranks' waits together."),
    _speed(
        "bus_gb_per_s",
        "bus bandwidth",
        "Bytes ÷ transfer × the ring's factor, such as 2(n−1)/n for an all-reduce.",
        "GB/s",
    ),
    _flag(
        "bus_is_lower_bound",
        "bandwidth is",
        "Whether the bandwidth is measured, or a lower bound computed from the duration.",
    ),
    _ns("skew_ns", "skew", "The spread of the ranks' arrivals."),
    _flag("within_clock_error", "within clock error", "Whether the skew is no larger than clocks may differ by."),
    _count("last_rank", "last rank", "The rank that arrived last.", "last"),
    _flag(
        "doubtful",
        "match doubtful",
        "Whether its ends lie so far apart on the ranks that it may not be one collective.",
    ),
    _text("unmatched", "not matched", "Why it has no counterpart on other ranks."),
    _count("count", "collectives", "How many collectives were launched.", "count"),
    _count("collectives", "collectives", "How many collectives were counted.", "of"),
    # Ranks that came late, and clocks
    _count("last", "came last", "In how many collectives this rank arrived last.", "last"),
    _ns(
        "late_median_ns",
        "late, median",
        "How much later than the others' median arrival it came, the median.",
        "late ms",
    ),
    _ns("late_max_ns", "late, at most", "How much later than the others' median arrival it came, at most.", "at most"),
    _ns("cost_ns", "others waited", "How long all other ranks together waited for it."),
    _ns(
        "alone_ns",
        "for it alone",
        "What the others would not have waited, had it come no later than the rank before it.",
    ),
    _ns("offset_ns", "clock ahead", "How much its clock is ahead of the first rank's."),
    _ns("iqr_ns", "IQR", "The interquartile range of the offsets that were measured."),
    _flag("applied", "corrected", "Whether its times were corrected by the offset."),
    _ns("error_ns", "clock error", "Skews up to this size are within the clocks' error."),
    # Runs side by side
    _text("path", "path", "The run's folder or file."),
    _text("run", "run", "The run, by the name of its folder."),
    _text("strategy", "strategy", "The strategy that the run was recorded with."),
    _text("setting", "setting", "The options that the strategy was given."),
    _count("bucket_cap_mb", "bucket_cap_mb", "The size at which a bucket closes, in MiB.", "cap"),
    _ms("step_ms_median", "step time", "The median step.", "step ms"),
    _ms("step_ms_iqr", "IQR", "The interquartile range of the steps."),
    _ms("exposed_ms_median", "exposed", "Exposed communication of a step, the median."),
    _ms("exposed_ms_iqr", "exposed IQR", "Its interquartile range."),
    _ms("exposed_wait_ms_median", "wait", "Exposed time of a step spent waiting, the median."),
    _ms("exposed_wait_ms_iqr", "wait IQR", "Its interquartile range."),
    _ms("exposed_transfer_ms_median", "transfer", "Exposed time of a step in transfer, the median."),
    _ms("exposed_transfer_ms_iqr", "transfer IQR", "Its interquartile range."),
    _ms("comm_ms_median", "communication", "Communication of a step, the median.", "comm"),
    _ms("comm_ms_iqr", "communication IQR", "Its interquartile range."),
    _ms("compute_ms_median", "compute", "Compute of a step, with or without communication, the median."),
    _ms("compute_ms_iqr", "compute IQR", "Its interquartile range."),
    _flag("fastest", "fastest", "Whether it is the fastest by more than the spread."),
    _flag("emulated", "emulated link", "Whether an emulated link carried its communication."),
    _flag("predicted", "predicted", "Whether nobody recorded the run: it was predicted from another."),
    _count("phantoms", "phantom ranks", "Ranks of the emulated group for which there is no process."),
    _text("model", "model", "What run.json says about the model and its input, as JSON."),
    _ms(
        "spread_ms",
        "spread",
        "A difference in step time counts if it is larger, or if all steps of one run are shorter.",
        "±",
    ),
    # A sweep over bucket_cap_mb
    _count("runs", "recordings", "How many recordings the row is made of.", "runs"),
    _count("buckets", "buckets", "How many buckets a step has, at most."),
    _ms("step_ms", "step time", "The median step of all recordings.", "step ms"),
    _ms("lowest_ms", "quickest recording", "The median step of the quickest recording.", "quickest"),
    _ms("highest_ms", "slowest recording", "The median step of the slowest recording.", "slowest"),
    _ms("compute_only_ms", "compute only", "The part of the median step that is compute alone.", "alone"),
    _ms("hidden_ms", "hidden", "The part of the median step that is hidden communication."),
    _ms("exposed_ms", "exposed", "The part of the median step that is exposed communication."),
    _ms("rest_ms", "memory and idle", "The part of the median step that is memory alone, or idle.", "rest"),
    _text("on_link", "on link", "From when to when communication was on the link, in ms."),
    _text("part", "part", "Which part of the whole the row is about."),
    # What was sent and held
    _bytes(
        "sent_bytes", "sent", "What a rank sent: a ring sends 2(n−1)/n of an all-reduce's tensor, (n−1)/n of others."
    ),
    _bytes("peak_bytes", "peak", "The most that the CUDA allocator held, activations and buffers included."),
    _bytes("scratch_bytes", "lent to phantoms", "What phantoms were lent. It is in no other figure."),
    _bytes("formula_bytes", "theory", "What the strategy should hold."),
    _text("formula", "formula", "The theory as a formula: Ψ is the number of parameters, N the number of ranks."),
    _bytes("theory_sent_bytes", "theory: sent", "What the strategy should send.", "theory sent"),
    _bytes(
        "memory_bytes",
        "largest rank's memory",
        "Parameters, gradients and optimizer states on the rank that holds most.",
        "held MB",
    ),
    _bytes("theory_memory_bytes", "theory: memory", "What that rank should hold.", "theory held"),
    _bytes(
        "activation_bytes",
        "activations",
        "What autograd keeps of a microbatch for its backward pass, besides parameters, on the rank that keeps most.",
        "act. MB",
    ),
    _ms("recompute_ms", "recomputed", "What runs again of the forward pass, the median step.", "again ms"),
    _bytes("peak_memory_bytes", "peak memory", "The most allocated at one time on any rank.", "peak MB"),
    # What fits into memory
    _text("sharding", "sharding", "DDP, FSDP's SHARD_GRAD_OP or FULL_SHARD, or the strategy."),
    _bytes("memory_limit_bytes", "memory limit", "What no rank's peak may exceed.", "limit MB"),
    _count("batch", "batch", "The most samples per rank and microbatch whose peak is within the limit."),
    _ratio("batch_ratio", "batch, % of the first", "The batch ÷ that of the first row.", "% first"),
    _ratio(
        "published_batch_ratio",
        "published batch, % of the first",
        "The same ratio in Hugging Face's article on FSDP: GPT-2 Large, two GPUs of 24 GB.",
        "publ. %",
    ),
    _ms("sample_ms", "time per sample", "The median step ÷ the samples of all ranks.", "ms each"),
    _ms("sample_iqr_ms", "IQR of a sample's time", "The range of its middle half.", "IQR"),
    _ratio("sample_ratio", "time, % of the first", "The time per sample ÷ that of the first row.", "time %"),
    _ratio(
        "published_sample_ratio",
        "published time, % of the first",
        "The same ratio in that article, of the time of an epoch.",
        "publ. t. %",
    ),
    # Which settings are faster
    _count("tier", "tier", "1 for the fastest and what does not differ clearly from it; then the next."),
    _count("recording_of", "recording of", "The place of the first run of the same setting, from 0."),
    # What the link model says
    _ns("bound_ns", "bound", "The least time that the step could take over the link."),
    _ns("half_bound_ns", "half the bytes", "The same if every collective sent half as much."),
    _ns("half_transfer_ns", "half transfer", "What all transfers would take with half the bytes."),
    _ns("any_cap_ns", "any cap", "The same of one rank alone with the best buckets of all."),
    _ns("found_ns", "best found", "How long the step takes with the best buckets that were tried."),
    _ns("least_ns", "least", "How long it takes at least, whatever the buckets."),
    _flag("waits_known", "waits known", "Whether no transfer may include waiting for another rank."),
    _flag("bytes_explain", "bytes explain it", "Whether more bytes take longer: false where waits may hide that."),
    # What another setting would give
    _text("option", "what changes", "What is set otherwise: a cap or caps, or the prefetch."),
    _count("first_bucket_mb", "first_bucket_mb", "The size at which the first bucket closes, in MiB.", "first"),
    _count("prefetch", "prefetch", "How many units are gathered ahead of the one in use."),
    _text("bucket_sizes", "buckets' sizes", "The bytes of each bucket, in the order of launches."),
    _text("caps_mb", "caps", "The caps in MiB that give these buckets; the last one applies to all further buckets."),
    _ns("gain_ns", "gain", "How much shorter a step would be.", "gain ms"),
    _ns(
        "half_ns",
        "gain, give or take",
        "By how much the gain between means of several recordings may differ, in 95 of 100 cases.",
        "±",
    ),
    _ns("low_ns", "gain, at least", "The lower end of the gain's range.", "from"),
    _ns("high_ns", "gain, at most", "The upper end of the gain's range.", "to"),
    _ns("step_ns", "step then", "How long the median step would take.", "step then"),
    _flag("replayed", "replayed", "Whether all ranks were replayed; else the gain is an upper bound."),
    _flag("best", "best", "Whether it is the best setting of its kind."),
    # A watched training
    _flag("measured", "measured", "Whether it is one of a burst, of which more than its time is known."),
    _flag("profiled", "profiled", "Whether a profiler ran, which makes steps longer."),
    _ns("data_ns", "data loading", "From the end of a step to the next forward pass.", "data"),
    _ns("forward_ns", "forward", "The forward pass, with its waits.", "fwd"),
    _ns("backward_ns", "backward", "The backward pass, with its waits.", "bwd"),
    _ns(
        "exposed_gradients_ns",
        "exposed gradients",
        "Waits for all-reduces and reduce-scatters, DDP's among them.",
        "grads",
    ),
    _ns("exposed_gathers_ns", "exposed gathers", "Waits for all-gathers.", "gathers"),
    _ns("exposed_others_ns", "exposed, other", "Waits for all other collectives and messages.", "others"),
    _flag("late", "late", "Whether the last rank came later than durations differ by anyway."),
    _ns("late_ns", "late by", "How long after the first rank the last one came to the all-reduce."),
    _count("last_step", "last step", "The last step that the rank has ended."),
    _ratio(
        "late_share", "late, % of steps", "In how many of the measured steps that show lateness it was late.", "late"
    ),
    _count("period", "period", "Each so many steps there is one of the kind; empty of ordinary steps."),
    _count("first_step", "first step", "The first step of the kind."),
    _ns("extra_ns", "longer by", "How much longer than an ordinary step it takes."),
    _text("change", "change", "What has changed for good: the step time, or that a rank is late."),
    _count("since_step", "as before until", "The last measured step that was as before."),
    _ns("before_ns", "before", "The median step, or how late the rank was, before the change."),
    _ns("after_ns", "after", "The median step, or how late the rank is, after the change."),
    _ns("exposed_before_ns", "exposed before", "The median exposed communication before the change."),
    _ns("exposed_after_ns", "exposed after", "The median exposed communication after the change."),
    # A window of the timeline
    _ratio("exposed_share", "exposed, % of window", "Exposed communication ÷ the window's length."),
    _text("name", "name", "The event's name."),
    _count("events", "events", "How many events of that name touch the window."),
)
"""What a column means wherever nothing else is said of it."""

_COLLECTIVE = _count("index", "number", "The collective's number, in order of first starts.", "#")

_BENCH: tuple[tuple[str, Unit, str, str, str], ...] = (
    ("time_ns", "ns", "time", "How long an all-reduce takes.", "{}"),
    ("algbw_gb_per_s", "GB/s", "algorithm bandwidth", "Bytes ÷ time.", "alg"),
    ("bus_gb_per_s", "GB/s", "bus bandwidth", "Bytes ÷ time × 2(n−1)/n.", "bus"),
)
"""Figures of each algorithm: name, unit, header, explanation, header in a terminal."""

_IN_TABLES: dict[tuple[str, ...], tuple[Column, ...]] = {
    ("buckets", "scatters"): (_ns("launch_ns", "launch", "When the host launched it, from the step's start."),),
    ("buckets", "scatters", "sweep_links"): (
        _ns("start_ns", "start", "When the collective began, from the step's start."),
        _ns("end_ns", "end", "When the collective ended, from the step's start."),
    ),
    ("collectives",): (_COLLECTIVE,),
    ("each_collective",): (
        _COLLECTIVE,
        _bytes("bytes", "size", "The larger of the collective's input and output.", "MB", shown="kB"),
        _ns("start_ns", "start", "When the first rank began, from the run's start."),
        _ns("end_ns", "end", "When the last rank ended, from the run's start."),
        _ns("wait_ns", "longest wait", "The longest time that a rank waited for the last one.", "wait"),
        _ns("exposed_ns", "most exposed", "The exposed time of the rank with most.", "exposed"),
        _count("ranks", "ranks here", "How many ranks' traces hold it."),
    ),
    ("communication_by",): (
        _bytes("bytes", "size", "The size of all of them together, as full tensors.", "MB"),
        _ns("exposed_max_ns", "most exposed", "The exposed time of the rank with most.", "at most"),
    ),
    ("exposed",): (
        _ns("exposed_ns", "exposed", "The exposed time that has this cause.", "ms"),
        _ns("start_ns", "from", "The first exposed moment, from the run's start.", "from ms"),
        _ns("end_ns", "to", "The last exposed moment, from the run's start."),
    ),
    ("late_buckets",): (_ns("cost_ns", "cost", "Its exposed time, and the longest time that it held another bucket."),),
    ("schedule",): (
        _bytes("bytes", "size", "The size of the unit's full parameters.", "kB"),
        _ns("wait_ns", "wait", "How long the rank was ready to use the unit before the gather ended."),
        _ns("held_ns", "held from", "From when on its bytes count as held, from the step's start."),
    ),
    ("scatter_steps",): (
        _count("scatters", "reduce-scatters", "How many reduce-scatters of gradients ran."),
        _ns("exposed_ns", "exposed", "The reduce-scatters' time during which the rank computed nothing."),
    ),
    ("schedule_steps",): (_ns("wait_ns", "wait", "How long gathers kept the rank waiting."),),
    ("hops",): (
        _text("kind", "half", "The half of the all-reduce that the hop belongs to."),
        _count("source", "from rank", "The rank that the received chunk comes from."),
        _bytes("bytes", "sent", "What the rank sends in the hop."),
        _ns("start_ns", "start", "When the rank began the hop, from the step's start."),
        _ns("end_ns", "end", "When it had sent, received and added, from the step's start."),
    ),
    ("chunks_after_hops",): (
        _count("hop", "after hop", "The hop after which it is so; -1: before the first."),
        _count("ranks", "sum of ranks", "Of how many ranks the chunk there holds the sum."),
    ),
    ("gathered_bytes",): (_bytes("bytes", "held", "The bytes of full parameters held from then on."),),
    ("compare",): (
        _bytes(
            "sent_bytes",
            "sent per rank and step",
            "The median step, of local SGD the mean step; the mean of the ranks, counted as a ring sends.",
            "sent MB",
        ),
    ),
    ("volume",): (_bytes("bytes", "full tensors", "The size of the full tensors."),),
    ("memory",): (_bytes("bytes", "measured", "The size of the tensors' storages after the last step."),),
    ("plan", "plan_over_ranks"): (
        _count("stage", "ZeRO stage", "What is sharded: 1 optimizer states, 2 gradients too, 3 all.", "stage"),
        _bytes("parameters_bytes", "parameters", "The size of the parameters that a GPU holds.", "params"),
        _bytes("gradients_bytes", "gradients", "The size of the gradients that a GPU holds.", "grads"),
        _bytes("optimizer_bytes", "optimizer", "The size of the optimizer's states that a GPU holds."),
        _bytes("activations_bytes", "activations", "What a microbatch keeps between its passes.", "activ."),
        _bytes("total_bytes", "per GPU", "All of these together."),
        _count("fits_from", "fits from", "The smallest number of GPUs whose memory suffices.", shown="GPUs"),
    ),
    ("bench_collectives",): (
        _text("algorithm", "algorithm", "ring and tree, both by hand, or torch: the library's."),
        _ns("time_ns", "time", "How long an all-reduce takes: the median, and its mean over the ranks."),
        _speed("algbw_gb_per_s", "algorithm bandwidth", "Bytes ÷ time.", "alg GB/s"),
        _ns("modelled_ns", "by the formula", "What the link's formula says."),
        _count("wrong", "wrong", "How many elements of all ranks have a wrong sum."),
    ),
    ("bench_side_by_side",): (
        _bytes("bytes", "size", "The size of the tensor."),
        *(
            Column(unit, f"{name}_{figure}", f"{name} {header}", f"{explanation} Of {name}.", short.format(name))
            for name in ("ring", "tree", "torch")
            for figure, unit, header, explanation, short in _BENCH
        ),
    ),
    ("bound",): (_ns("transfer_ns", "transfers", "What the link takes for all of the step's collectives."),),
    ("blocking",): (
        _ns("blocking_ns", "blocking", "Exposed time in which the next kernel that computes waited for a collective."),
        _ns(
            "not_blocking_ns",
            "not blocking",
            "Exposed time in which no kernel that computes waited for a collective: something else held it up.",
        ),
        _ns("unresolved_ns", "unresolved", "Exposed time for which it is unknown whether a kernel waited for it."),
    ),
    ("delays",): (
        _text("unit", "unit", "The unit that computed; empty between units."),
        _text("phase", "pass", "The pass of the unit: forward or backward; empty between units."),
        _ns("span_ns", "time", "How long it took."),
    ),
    ("staleness",): (
        _count("worker", "worker", "The rank whose gradients were applied."),
        _count("staleness", "staleness", "Updates since the worker got the parameters that it computed with."),
        _ns("start_ns", "start", "When the update began, from the run's start, by the first rank's clock."),
        _ns("end_ns", "end", "When the update ended, from the run's start, by the first rank's clock."),
    ),
    ("recomputation",): (
        _text("module", "module", "The checkpointed module."),
        _count("passes", "passes", "How many of its forward passes ran again."),
        _ns("recompute_ns", "recomputed", "How long they took on the host when they ran again."),
    ),
    ("copies",): (
        _text("way", "way", "Down, from the device to its host, or up."),
        _count("count", "copies", "How many copies."),
        _bytes("bytes", "size", "What was copied."),
        _bytes("theory_bytes", "theory", "What should be copied, without padding."),
        _ns("copy_ns", "copying", "Time in which at least one of them was under way."),
        _ns("hidden_ns", "hidden", "Of that, time in which the rank computed."),
    ),
    ("collective_times",): (
        _text("ranks", "ranks", "The ranks of the group."),
        _ns("time_ns", "time", "How long it takes once all ranks are there, by a line through what was measured."),
        _count("count", "transfers", "How many transfers the line rests on."),
    ),
    ("transfer_lines",): (
        _text("ranks", "ranks", "The ranks of the group."),
        _ns("latency_ns", "latency per message", "α of the line; unknown where all are of one size.", "α ms"),
        _speed("bus_gb_per_s", "bandwidth", "B of that line: what each rank sends in a second.", "B"),
        _ratio("deviation", "missed, % of transfers", "By how much the line misses them, ÷ their time."),
        _ratio("r_squared", "R², % of variance", "The part of the times' variance that sizes explain.", "R² %"),
        _count("count", "transfers", "How many transfers the line rests on."),
        _count("sizes", "sizes", "Of how many different sizes these were."),
    ),
    ("slowdowns",): (
        _text("name", "kernel", "The kernel's name."),
        _count("pairs", "in a step", "How many of that name ran both ways: alone, and beside communication."),
        _ns("alone_ns", "alone", "How long these take alone, all together."),
        _ns("beside_ns", "beside communication", "How long they take while the rank communicates.", "beside"),
        _ratio("slowdown", "longer, % of alone", "By how much that is longer.", "longer %"),
    ),
    ("advise",): (
        _text("setting", "setting", "What would be set otherwise."),
        _text("action", "action", "What would be done."),
        _text("against", "against", "What it answers of the step: exposed time of a cause, or idle time."),
        _bytes("memory_bytes", "more memory", "How much more each rank would hold, at most.", "more MB"),
    ),
    ("late_rank_names",): (
        _text("name", "computes", "The kernel, or on CPUs the operator that no other one contains."),
        _ns("own_ns", "late rank", "How long these take the late rank in a mean step."),
        _ns("others_ns", "others", "How long they take the others, in the median."),
        _count("own", "late rank's number", "How many the late rank runs in a mean step."),
        _count("others", "others' number", "How many the others run, in the median."),
    ),
    ("late_rank_phases", "step_phases"): (
        _text(
            "phase",
            "phase",
            "Which pass of the step, or what comes before or between them; on GPUs what device and host do.",
        ),
        _text("what", "host work", "What the host does meanwhile, by the name of its range."),
    ),
    ("step_phases",): (
        _ns("took_ns", "time", "How long it takes in the step, but for exposed communication."),
        _count("number", "passes", "How many passes of this phase begin in the step."),
    ),
    ("late_rank_phases",): (
        _ns("own_ns", "late rank", "How long the late rank takes in a mean step, but for exposed communication."),
        _ns("others_ns", "others", "How long the others take, in the median."),
    ),
    ("pipeline", "pipeline_ranks", "pipeline_steps"): (
        _count("pipeline", "pipeline", "Which of several pipelines side by side, from 0."),
    ),
    ("pipeline", "pipeline_held"): (_count("stage", "stage", "The stage, from 0."),),
    ("pipeline", "pipeline_ranks", "pipeline_steps", "pipeline_held"): (
        _count("held", "held", "Microbatches whose activations a stage holds, in a step at most."),
    ),
    ("pipeline_ranks", "pipeline_steps"): (
        _text("stages", "stages", "The stages that the rank holds, or how many there are."),
        _ns("span_ns", "pipeline's step", "From the first action of any rank to the last one's end.", "whole"),
    ),
    ("pipeline", "pipeline_ranks"): (
        _ns("wait_ns", "waited", "In gaps before actions: a message's other end had not called yet.", "wait"),
        _ns("transfer_ns", "on its way", "In gaps before actions: a message was on its way.", "moving"),
        _ns("overhead_ns", "overhead", "In gaps before actions: neither; the host's own.", "host"),
    ),
    ("pipeline",): (
        _text("action", "action", "What it did: forward, backward, or one half of a backward pass."),
        _ns("start_ns", "start", "When it began, from the first action of the pipeline's step.", "from ms"),
        _ns("end_ns", "end", "When it ended, from the first action of the pipeline's step.", "to ms"),
        _ns("begun_ns", "begun", "When it began, from the run's start, by the first rank's clock."),
        _ns("took_ns", "took", "How long it took."),
        _ns("gap_ns", "gap before", "What lies between it and the rank's action before.", "gap"),
    ),
    ("pipeline_ranks",): (
        _ns("busy_ns", "busy", "In actions."),
        _ns("idle_ns", "bubble", "The rest of the pipeline's step."),
        _ns("schedule_ns", "by schedule", "What its schedule leaves idle by itself.", "sched."),
        _ns("imbalance_ns", "by imbalance", "What unequal stages add to that.", "uneven"),
        _count("actions", "actions", "How many actions the rank did."),
    ),
    ("pipeline_steps",): (
        _count("microbatches", "microbatches", "Per step."),
        _ratio("bubble", "bubble", "Without an action, of all ranks' time.", shown="% of time"),
        _ratio("theory", "theory", "(p - 1) ÷ (v·m + p - 1): equal stages, no sending.", shown="% of time"),
        _ratio("imbalance", "imbalance", "By unequal stages.", shown="% of time"),
        _ratio("sending", "sending", "Waiting for messages on their way.", shown="% of time"),
        _ratio("overhead", "overhead", "The host's own between actions.", shown="% of time"),
        _ns("overhead_ns", "overhead per action", "The host's own between two actions, the mean."),
        _ns("hop_ns", "hop", "How long a message was on its way, the run's median."),
        _count("slowest_stage", "slowest stage", "The stage that took longest."),
        _ratio("slower", "slower by", "By how much, of the median stage.", shown="% of median"),
    ),
    ("pipeline_waits",): (
        _count("place", "place", "The rank's place along the pipeline, from 0."),
        _ns("span_ns", "works for", "From the step's first computation to its last one.", "span"),
        _ns("busy_ns", "busy", "In it: something is computed."),
        _ns("bubble_ns", "bubble", "In it: nothing is computed while a message is received.", "bubble"),
        _ratio("bubble", "bubble, % of span", "The same, of the span.", "bubble %"),
        _ns("wait_ns", "waited", "Of the bubble: the sender had not begun yet.", "wait"),
        _ns("transfer_ns", "on its way", "Of the bubble: the message was on its way.", "moving"),
        _ns("sending_ns", "sending", "In it: nothing is computed while messages are sent alone.", "sends"),
        _ns("other_ns", "other", "In it: nothing is computed, for other reasons.", "other"),
        _ns("fill_ns", "before", "Nothing is computed yet while its first messages are received.", "before"),
        _count("received", "received", "How many messages the rank received.", "recv"),
        _count("sent", "sent", "How many messages the rank sent."),
    ),
    ("pipeline_held",): (_ns("time_ns", "time", "From the first action of the pipeline's step."),),
    ("by_cap", "by_depth", "by_ranks"): (_ns("step_ns", "step", "The mean of all ranks' steps, predicted."),),
    ("by_ranks",): (
        _count("ranks", "ranks", "How many ranks there would be."),
        _ratio("throughput", "throughput, % of fewest ranks'", "A rank's ÷ that with the fewest ranks."),
        _bytes("held_bytes", "held per rank", "Parameters, gradients and optimizer states, by formula."),
    ),
    ("lanes",): (
        _text("which", "step", "Whether the row is of the step as measured, or as predicted."),
        _text("lane", "lane", "`rank`: the rank works; `link`: a collective is on the link."),
        _text("what", "what", "The bucket or unit, or the kind of collective; empty where the rank works."),
        _flag("exposed", "exposed", "Whether the rank does not work meanwhile."),
        _ns("start_ns", "from", "From the step's start."),
        _ns("end_ns", "to", "From the step's start."),
    ),
    ("watched_series", "watched_strip"): (
        _count("first_step", "from step", "The first step of the piece."),
        _count("last_step", "to step", "The last step of the piece."),
    ),
    ("watched_series",): (
        _count("steps", "steps", "How many steps of the kind the piece has."),
        _ns("span_low_ns", "step time, least", "The shortest of these steps."),
        _ns("span_ns", "step time", "Their median."),
        _ns("span_high_ns", "step time, most", "The longest of them."),
        _count("measured_steps", "measured", "In how many of them it is known what was exposed."),
        _ns("exposed_low_ns", "exposed, least", "The least that was exposed in one of those, on any rank."),
        _ns("exposed_comm_ns", "exposed", "The median of those, over all ranks."),
        _ns("exposed_high_ns", "exposed, most", "The most that was exposed in one of those, on any rank."),
        _ratio("exposed_share", "exposed, % of step", "The median share of the step."),
    ),
    ("watched_strip",): (
        _count("telling_steps", "telling steps", "How many measured steps tell who was last."),
        _count("late_steps", "late steps", "In how many of them the rank was late."),
        _ratio("late_share", "late, % of steps", "In which share of them the rank was late."),
        _ns("late_median_ns", "late by", "How much later than the first rank it came, where it was late."),
    ),
    ("watched_late",): (_count("late_rank", "last rank", "The rank whose all-reduce was shortest."),),
    ("watched_kinds", "watched_ranks"): (
        _count("steps", "steps", "How many steps there are.", "steps"),
        _ns("span_ns", "step time", "The median step.", "step ms"),
    ),
    ("dumped_collectives",): (
        _count("sequence", "number", "Its number among the group's collectives, from 1.", "no."),
        _text("kinds", "kind", "The kind of collective; several where ranks disagree."),
        _text("arrived", "arrived", "The ranks that launched it."),
        _text("missing", "missing", "The ranks of the group that had not launched it."),
        _count("late_rank", "last rank", "The rank that launched it last."),
        _ns("late_ns", "late by", "How long after the first rank the last one launched it.", "by"),
        _ns("duration_ns", "took", "How long it took on the rank on which it took longest.", "took"),
        _flag("completed", "over", "Whether it is over on all ranks that launched it."),
    ),
    ("watched_stopped", "dumped_stopped"): (
        _flag("answers", "answers", "Whether its process still told where it is, or told it as it failed."),
        _ns("since_ns", "for", "How long no step had ended by then."),
        _text("group", "group", "The process group of which it has enqueued too few collectives."),
        _count("enqueued", "enqueued", "The number of the group's last collective that it was given."),
        _count("looked_step", "by step", "The last step that had ended when that was so."),
        _count("others_wait_in", "others wait in", "The number of the collective in which others wait for it."),
        _flag("ended", "ended", "Whether it has ended its training, while others go on."),
    ),
    ("watched_ranks",): (_ns("late_median_ns", "late by", "How much later than the first rank it came.", "by"),),
    ("window",): (_ns("span_ns", "window", "The window's length."),),
    ("kernels",): (
        _text("part", "counts as", "What the events count as."),
        _ns("busy_ns", "busy, all ranks", "Time in which at least one of them ran, all ranks' together.", "busy"),
    ),
}
"""What a column means in these tables: an analysis' name, `window` or `kernels`."""


def _registry() -> dict[str, dict[str, Column]]:
    columns_of_table = {"": {column.name: column for column in _ANYWHERE}}
    for tables, columns in _IN_TABLES.items():
        for table in tables:
            columns_of_table.setdefault(table, {}).update({column.name: column for column in columns})
    return columns_of_table


REGISTRY = _registry()
"""Columns by table and name; the table `""` has what holds wherever a table says nothing else."""


def column(table: str, name: str) -> Column:
    """A column of a table, which is named by its analysis. Raises KeyError for one that is not registered."""
    return REGISTRY.get(table, {}).get(name) or REGISTRY[""][name]


def columns(table: str, *names: str) -> tuple[Column, ...]:
    """Columns of a table, in this order."""
    return tuple(column(table, name) for name in names)
