"""The registry of columns: what every column of the analyses' tables is called, measured in, and means.

Terminal, HTML report, dashboard, CSV files and docs/columns.md take headers and explanations from here, so that a
column is called the same everywhere. A page only says which columns it shows, and in which order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["text", "flag", "count", "ns", "ms", "bytes", "GB/s", "ratio"]
"""What a table holds. People are shown ns as ms, bytes as kB or MB, and ratios, from 0 to 1, as percentages."""

_SHOWN: dict[Unit, str] = {"ns": "ms", "ms": "ms", "bytes": "MB", "GB/s": "GB/s"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    """The analysis's name of the column, which is also its key in JSON."""
    unit: Unit
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


_ANYWHERE = (
    Column("rank", "count", "rank", "The process's number in the job, from 0."),
    Column("step", "count", "step", "The number of the profiler's step."),
    Column("start_ns", "ns", "start", "When it began, from the run's start, by the first rank's clock."),
    Column("end_ns", "ns", "end", "When it ended, from the run's start, by the first rank's clock."),
    Column("bytes", "bytes", "size", "The size of what was communicated, as a full tensor.", short="MB"),
    Column("kind", "text", "kind", "The kind of collective, such as all-reduce."),
    Column("ranks", "count", "ranks", "How many ranks the row is made of."),
    Column("steps", "count", "steps", "How many steps were measured."),
    # Where a step's time went
    Column("span_ns", "ns", "step time", "How long the step took.", short="step ms"),
    Column("compute_ns", "ns", "compute", "Time in which the rank computed, whether or not it communicated."),
    Column("comm_ns", "ns", "communication", "Time in which the rank communicated, hidden or exposed.", "comm"),
    Column(
        "compute_only_ns", "ns", "compute only", "Time in which the rank computed and did not communicate.", "alone"
    ),
    Column("overlapped_ns", "ns", "hidden", "Communication during which the same rank computed."),
    Column("exposed_comm_ns", "ns", "exposed", "Communication during which the same rank computed nothing."),
    Column("exposed_wait_ns", "ns", "wait", "Exposed time before the collective's last rank arrived."),
    Column("exposed_transfer_ns", "ns", "transfer", "Exposed time after the collective's last rank arrived."),
    Column(
        "memory_only_ns", "ns", "memory only", "Time in which memory was copied or set and nothing else ran.", "memory"
    ),
    Column("idle_ns", "ns", "idle", "Time in which nothing ran."),
    Column(
        "preempted_ns",
        "ns",
        "preempted",
        "Time in which an operator waited for a core: no computation, but exposed communication or idle time.",
    ),
    Column("overlap_ratio", "ratio", "overlap ratio", "Hidden communication ÷ communication.", "overlap", "% of comm."),
    Column(
        "damaged",
        "flag",
        "damaged",
        "Whether events of the step have impossible times: its figures are without them, and it counts in no median.",
    ),
    Column("step_kind", "count", "step kind", "Steps of one number send and do the same; 0 is the most frequent kind."),
    Column("outside_ns", "ns", "outside steps", "Recorded time that lies in no step. It is in no total."),
    Column("ran_ns", "ns", "ran", "Time in which the computing thread ran on a core."),
    Column("delayed_ns", "ns", "waited for a core", "Time in which the computing thread could run, and had no core."),
    Column("host_wait_ns", "ns", "host wait", "Idle time in which the host had not yet launched what ran next."),
    Column("kernel_wait_ns", "ns", "kernel wait", "Idle time in gaps of less than 30 ns between two kernels."),
    Column("other_ns", "ns", "other idle", "Idle time for other reasons: the work was launched, but waited."),
    # One thing that happened
    Column("launch_ns", "ns", "launch", "When the host launched it, from the run's start, by the first rank's clock."),
    Column("wait_ns", "ns", "wait", "From this rank's arrival at the collective to its last rank's."),
    Column("transfer_ns", "ns", "transfer", "From the arrival of the collective's last rank to that rank's end."),
    Column("exposed_ns", "ns", "exposed", "The part of its time during which the rank computed nothing."),
    Column("busy_ns", "ns", "busy", "Time in which at least one of them ran.", short="busy ms"),
    # Why communication was exposed
    Column("cause", "text", "cause", "Why communication was exposed, and for how long; of a wait, why it waited."),
    Column("concerned", "text", "in", "The collectives whose exposed time has this cause."),
    Column("remedy", "text", "what helps", "What can be changed in this run to reduce it."),
    Column("collective", "count", "collective's number", "The collective's place in the table of collectives."),
    Column("what", "text", "moves", "The bucket, the unit or the parameter that the collective moves."),
    Column("moved", "text", "collective", "The kind of collective, and what it moves."),
    Column("late_rank", "count", "late rank", "The rank that a straggler wait waited for."),
    Column("of_step", "ratio", "% of step", "Its exposed time ÷ the time of the step."),
    # Buckets of gradients
    Column("index", "count", "bucket", "The bucket's number, in the order of launches."),
    Column("bucket", "count", "bucket", "The bucket's number, in the order of launches."),
    Column("backward_start_ns", "ns", "backward start", "When the backward pass began, from the step's start."),
    Column("backward_end_ns", "ns", "backward end", "When the backward pass ended, from the step's start."),
    Column("parameters", "text", "parameters", "The names of the parameters whose gradients the bucket holds."),
    Column("gradient_ready_ns", "ns", "gradients ready", "When each gradient arrived, from the step's start."),
    Column("last_parameter", "text", "last gradient", "The parameter whose gradient arrived last."),
    Column("parameter", "text", "last gradient", "The parameter whose gradient arrived last."),
    Column("ready_ns", "ns", "ready", "When the bucket's last gradient had arrived, from the step's start."),
    Column("passes", "count", "backward passes", "How many backward passes of the step sent gradients."),
    Column("arrivals", "count", "arrivals", "Each gradient's place in the order of arrival, from 1."),
    Column("arrival", "count", "arrival", "The last gradient's place in the order of arrival, from 1."),
    Column("shapes", "text", "shapes", "The shapes of the gradients."),
    Column("shape", "text", "shape", "The shape of the last gradient."),
    Column("gradients", "count", "gradients", "How many gradients arrived in the backward pass."),
    Column(
        "told_by",
        "text",
        "known by",
        "Where its gradients are known from: labels, their sizes, or the order of arrival.",
    ),
    Column("source", "text", "read from", "Whose ranges in the trace show this: the engine's, DDP's or FSDP2's."),
    Column("gap_ns", "ns", "gap", "The time between the arrivals of the bucket's last two gradients."),
    Column("held_ns", "ns", "held others", "The longest time that a later bucket was ready and waited for this one."),
    Column(
        "earlier_ns", "ns", "earlier", "How much earlier the bucket could have been launched without its last gradient."
    ),
    Column("saved_ns", "ns", "saved", "How much of the exposed time would then not be there, replayed."),
    Column("held", "count", "buckets held", "The later buckets that were ready and waited for this one."),
    Column(
        "link_ns", "ns", "link busy", "The time after its launch in which the link was busy with the bucket before it."
    ),
    # Sharded parameters
    Column("unit", "text", "unit", "The parameters that are gathered and freed together, usually one layer."),
    Column("layer", "count", "layer", "The layer's number, where the unit is a layer."),
    Column("microbatch", "count", "microbatch", "The microbatch within the step, from 0."),
    Column("phase", "text", "phase", "The pass for which the unit was gathered: forward or backward."),
    Column("gathered_for", "text", "for", "The pass for which the unit was gathered, and the microbatch."),
    Column("gather_launch_ns", "ns", "launch", "When the host launched the gather, from the step's start."),
    Column("gather_start_ns", "ns", "start", "When the gather began, from the step's start."),
    Column("gather_end_ns", "ns", "end", "When the gather ended, from the step's start."),
    Column("first_use_ns", "ns", "first use", "When the unit's computation began, from the step's start.", short="use"),
    Column("last_use_ns", "ns", "last use", "When the unit's computation ended, from the step's start."),
    Column(
        "backward_first_use_ns",
        "ns",
        "first use in backward",
        "When backward began to use a unit that was kept since its forward.",
    ),
    Column(
        "backward_last_use_ns",
        "ns",
        "last use in backward",
        "When backward ended its use of a unit that was kept since its forward.",
    ),
    Column("free_ns", "ns", "free", "When the full parameters were freed, from the step's start."),
    Column("free_phase", "text", "freed in", "The pass in which the full parameters were freed."),
    Column(
        "resharded_bytes",
        "bytes",
        "held in part",
        "The bytes of resharded units' parts, which stay held after a free.",
    ),
    Column("resharded_until_ns", "ns", "held in part until", "When the unit of such a part was gathered again."),
    Column("microbatches", "count", "microbatches", "How many microbatches gathered parameters."),
    Column("gathers", "count", "gathers", "How many gathers the step launched.", short="in all"),
    Column("frees", "count", "frees", "How many units were seen to be freed."),
    Column("partial_frees", "count", "freed in part", "Frees after which a part of the unit stays held."),
    Column("layer_gathers", "count", "layers gathered", "How many gathers were of layers.", short="of layers"),
    Column("layer_frees", "count", "layers freed", "How many frees were of layers.", short="freed"),
    Column("forward_layer_gathers", "count", "layers gathered for forward", "Gathers of layers for a forward pass."),
    Column("backward_layer_gathers", "count", "layers gathered for backward", "Gathers of layers for a backward pass."),
    Column(
        "peak_gathered_bytes", "bytes", "peak", "The most bytes of full parameters held at one time.", short="peak MB"
    ),
    Column("peak_ns", "ns", "peak at", "When the peak was first reached, from the step's start.", short="at ms"),
    Column("peak_layers", "count", "layers at the peak", "How many layers were gathered at the peak.", short="layers"),
    Column("time_ns", "ns", "time", "The moment from which on this was held, from the step's start."),
    Column("layers", "count", "layers", "How many gathers of layers were held from then on."),
    # Hops of collectives by hand
    Column("hop", "count", "hop", "The hop's number in the bucket's all-reduce, from 0."),
    Column("sends", "count", "sends chunk", "The number of the chunk that the rank sends in the hop."),
    Column("to", "count", "to rank", "The rank that gets it."),
    Column("receives", "count", "receives chunk", "The number of the chunk that the rank receives in the hop."),
    Column("chunk", "count", "chunk", "The number of the part of the bucket that travels by itself."),
    Column("arrived", "flag", "arrived", "Whether it came in this hop."),
    # Collectives across ranks
    Column("group", "text", "group", "The process group: what it is for, or its name."),
    Column("group_description", "text", "group is for", "What the process group is for, such as mesh_tp."),
    Column("axis", "text", "axis", "The axis of the mesh, by the group's description: dp, tp, pp, …."),
    Column("group_size", "count", "group size", "How many ranks the process group has."),
    Column("dtype", "text", "dtype", "The type of the tensor's elements."),
    Column("arrived_ns", "ns", "arrival", "When this rank was ready for the collective, from the run's start."),
    Column("longest_ns", "ns", "longest", "The longest time that a rank spent in it, from its arrival to its end."),
    Column("waits_ns", "ns", "all waits", "All ranks' waits together."),
    Column(
        "bus_gb_per_s",
        "GB/s",
        "bus bandwidth",
        "Bytes ÷ transfer × the ring's factor, such as 2(n−1)/n for an all-reduce.",
        short="GB/s",
    ),
    Column(
        "bus_is_lower_bound",
        "flag",
        "bandwidth is",
        "Whether the bandwidth is measured, or a lower bound computed from the duration.",
    ),
    Column("skew_ns", "ns", "skew", "The spread of the ranks' arrivals."),
    Column(
        "within_clock_error", "flag", "within clock error", "Whether the skew is no larger than clocks may differ by."
    ),
    Column("last_rank", "count", "last rank", "The rank that arrived last.", short="last"),
    Column(
        "doubtful",
        "flag",
        "match doubtful",
        "Whether its ends lie so far apart on the ranks that it may not be one collective.",
    ),
    Column("unmatched", "text", "not matched", "Why it has no counterpart on other ranks."),
    Column("count", "count", "collectives", "How many collectives were launched.", short="count"),
    Column("collectives", "count", "collectives", "How many collectives were counted.", short="of"),
    # Ranks that came late, and clocks
    Column("last", "count", "came last", "In how many collectives this rank arrived last.", short="last"),
    Column(
        "late_median_ns",
        "ns",
        "late, median",
        "How much later than the others' median arrival it came, the median.",
        "late ms",
    ),
    Column(
        "late_max_ns",
        "ns",
        "late, at most",
        "How much later than the others' median arrival it came, at most.",
        "at most",
    ),
    Column("cost_ns", "ns", "others waited", "How long all other ranks together waited for it."),
    Column(
        "alone_ns",
        "ns",
        "for it alone",
        "What the others would not have waited, had it come no later than the rank before it.",
    ),
    Column("offset_ns", "ns", "clock ahead", "How much its clock is ahead of the first rank's."),
    Column("iqr_ns", "ns", "IQR", "The interquartile range of the offsets that were measured."),
    Column("applied", "flag", "corrected", "Whether its times were corrected by the offset."),
    Column("error_ns", "ns", "clock error", "Skews up to this size are within the clocks' error."),
    # Runs side by side
    Column("path", "text", "path", "The run's folder or file."),
    Column("run", "text", "run", "The run, by the name of its folder."),
    Column("strategy", "text", "strategy", "The strategy that the run was recorded with."),
    Column("setting", "text", "setting", "The options that the strategy was given."),
    Column("bucket_cap_mb", "count", "bucket_cap_mb", "The size at which a bucket closes, in MiB.", short="cap"),
    Column("step_ms_median", "ms", "step time", "The median step.", short="step ms"),
    Column("step_ms_iqr", "ms", "IQR", "The interquartile range of the steps.", short="± IQR"),
    Column("exposed_ms_median", "ms", "exposed", "Exposed communication of a step, the median."),
    Column("exposed_ms_iqr", "ms", "exposed IQR", "Its interquartile range."),
    Column("exposed_wait_ms_median", "ms", "wait", "Exposed time of a step spent waiting, the median."),
    Column("exposed_wait_ms_iqr", "ms", "wait IQR", "Its interquartile range."),
    Column("exposed_transfer_ms_median", "ms", "transfer", "Exposed time of a step in transfer, the median."),
    Column("exposed_transfer_ms_iqr", "ms", "transfer IQR", "Its interquartile range."),
    Column("comm_ms_median", "ms", "communication", "Communication of a step, the median.", short="comm"),
    Column("comm_ms_iqr", "ms", "communication IQR", "Its interquartile range."),
    Column("compute_ms_median", "ms", "compute", "Compute of a step, with or without communication, the median."),
    Column("compute_ms_iqr", "ms", "compute IQR", "Its interquartile range."),
    Column("fastest", "flag", "fastest", "Whether it is the fastest by more than the spread."),
    Column("emulated", "flag", "emulated link", "Whether an emulated link carried its communication."),
    Column("predicted", "flag", "predicted", "Whether nobody recorded the run: it was predicted from another."),
    Column("phantoms", "count", "phantom ranks", "Ranks of the emulated group for which there is no process."),
    Column("model", "text", "model", "What run.json says about the model and its input, as JSON."),
    Column("spread_ms", "ms", "spread", "A difference in step time counts only if it is larger than this.", short="±"),
    # A sweep over bucket_cap_mb
    Column("runs", "count", "recordings", "How many recordings the row is made of.", short="runs"),
    Column("buckets", "count", "buckets", "How many buckets a step has, at most."),
    Column("step_ms", "ms", "step time", "The median step of all recordings.", short="step ms"),
    Column("lowest_ms", "ms", "quickest recording", "The median step of the quickest recording.", "quickest"),
    Column("highest_ms", "ms", "slowest recording", "The median step of the slowest recording.", "slowest"),
    Column("compute_only_ms", "ms", "compute only", "The part of the median step that is compute alone.", "alone"),
    Column("hidden_ms", "ms", "hidden", "The part of the median step that is hidden communication."),
    Column("exposed_ms", "ms", "exposed", "The part of the median step that is exposed communication."),
    Column("rest_ms", "ms", "memory and idle", "The part of the median step that is memory alone, or idle.", "rest"),
    Column("on_link", "text", "on link", "From when to when communication was on the link, in ms."),
    Column("part", "text", "part", "Which part of the whole the row is about."),
    # What was sent and held
    Column(
        "sent_bytes",
        "bytes",
        "sent",
        "What a rank sent: a ring sends 2(n−1)/n of an all-reduce's tensor, (n−1)/n of others.",
    ),
    Column("peak_bytes", "bytes", "peak", "The most that the CUDA allocator held, activations and buffers included."),
    Column("scratch_bytes", "bytes", "lent to phantoms", "What phantoms were lent. It is in no other figure."),
    Column("formula_bytes", "bytes", "theory", "What the strategy should hold."),
    Column(
        "formula", "text", "formula", "The theory as a formula: Ψ is the number of parameters, N the number of ranks."
    ),
    Column("theory_sent_bytes", "bytes", "theory: sent", "What the strategy should send.", short="theory sent"),
    Column(
        "memory_bytes",
        "bytes",
        "largest rank's memory",
        "Parameters, gradients and optimizer states on the rank that holds most.",
        "held MB",
    ),
    Column("theory_memory_bytes", "bytes", "theory: memory", "What that rank should hold.", short="theory held"),
    Column(
        "activation_bytes",
        "bytes",
        "activations",
        "What autograd keeps of a microbatch for its backward pass, besides parameters, on the rank that keeps most.",
        short="act. MB",
    ),
    Column("recompute_ms", "ms", "recomputed", "What runs again of the forward pass, the median step.", "again ms"),
    Column("peak_memory_bytes", "bytes", "peak memory", "The most allocated at one time on any rank.", short="peak MB"),
    # What fits into memory
    Column("sharding", "text", "sharding", "DDP, FSDP's SHARD_GRAD_OP or FULL_SHARD, or the strategy."),
    Column("memory_limit_bytes", "bytes", "memory limit", "What no rank's peak may exceed.", short="limit MB"),
    Column("batch", "count", "batch", "The most samples per rank and microbatch whose peak is within the limit."),
    Column("batch_ratio", "ratio", "batch, % of the first", "The batch ÷ that of the first row.", "% first"),
    Column(
        "published_batch_ratio",
        "ratio",
        "published batch, % of the first",
        "The same ratio in Hugging Face's article on FSDP: GPT-2 Large, two GPUs of 24 GB.",
        "publ. %",
    ),
    Column("sample_ms", "ms", "time per sample", "The median step ÷ the samples of all ranks.", "ms each"),
    Column("sample_iqr_ms", "ms", "± IQR of a sample's time", "The range of its middle half.", "± each"),
    Column("sample_ratio", "ratio", "time, % of the first", "The time per sample ÷ that of the first row.", "time %"),
    Column(
        "published_sample_ratio",
        "ratio",
        "published time, % of the first",
        "The same ratio in that article, of the time of an epoch.",
        "publ. t. %",
    ),
    # Which settings are faster
    Column("tier", "count", "tier", "1 for the fastest and what does not differ clearly from it; then the next."),
    Column("recording_of", "count", "recording of", "The place of the first run of the same setting, from 0."),
    # What the link model says
    Column("bound_ns", "ns", "bound", "The least time that the step could take over the link."),
    Column("half_bound_ns", "ns", "half the bytes", "The same if every collective sent half as much."),
    Column("half_transfer_ns", "ns", "half transfer", "What all transfers would take with half the bytes."),
    Column("any_cap_ns", "ns", "any cap", "The same of one rank alone with the best buckets of all."),
    Column("found_ns", "ns", "best found", "How long the step takes with the best buckets that were tried."),
    Column("least_ns", "ns", "least", "How long it takes at least, whatever the buckets."),
    Column("waits_known", "flag", "waits known", "Whether no transfer may include waiting for another rank."),
    Column(
        "bytes_explain", "flag", "bytes explain it", "Whether more bytes take longer: false where waits may hide that."
    ),
    # What another setting would give
    Column("option", "text", "what changes", "What is set otherwise: a cap or caps, or the prefetch."),
    Column(
        "first_bucket_mb", "count", "first_bucket_mb", "The size at which the first bucket closes, in MiB.", "first"
    ),
    Column("prefetch", "count", "prefetch", "How many units are gathered ahead of the one in use."),
    Column("bucket_sizes", "text", "buckets' sizes", "The bytes of each bucket, in the order of launches."),
    Column(
        "caps_mb",
        "text",
        "caps",
        "The caps in MiB that give these buckets; the last one applies to all further buckets.",
    ),
    Column("gain_ns", "ns", "gain", "How much shorter a step would be.", short="gain ms"),
    Column("half_ns", "ns", "gain, give or take", "By how much a recorded gain may differ, in 95 of 100 cases.", "±"),
    Column("low_ns", "ns", "gain, at least", "The lower end of the gain's range.", short="from"),
    Column("high_ns", "ns", "gain, at most", "The upper end of the gain's range.", short="to"),
    Column("step_ns", "ns", "step then", "How long the median step would take.", short="step then"),
    Column("replayed", "flag", "replayed", "Whether all ranks were replayed; else the gain is an upper bound."),
    Column("best", "flag", "best", "Whether it is the best setting of its kind."),
    # A watched training
    Column("measured", "flag", "measured", "Whether it is one of a burst, of which more than its time is known."),
    Column("profiled", "flag", "profiled", "Whether a profiler ran, which makes steps longer."),
    Column("data_ns", "ns", "data loading", "From the end of a step to the next forward pass.", short="data"),
    Column("forward_ns", "ns", "forward", "The forward pass, with its waits.", short="fwd"),
    Column("backward_ns", "ns", "backward", "The backward pass, with its waits.", short="bwd"),
    Column(
        "exposed_gradients_ns",
        "ns",
        "exposed gradients",
        "Waits for all-reduces and reduce-scatters, DDP's among them.",
        short="grads",
    ),
    Column("exposed_gathers_ns", "ns", "exposed gathers", "Waits for all-gathers.", short="gathers"),
    Column(
        "exposed_others_ns", "ns", "exposed, other", "Waits for all other collectives and messages.", short="others"
    ),
    Column("late", "flag", "late", "Whether the last rank came later than durations differ by anyway."),
    Column("late_ns", "ns", "late by", "How long after the first rank the last one came to the all-reduce."),
    Column("last_step", "count", "last step", "The last step that the rank has ended."),
    Column(
        "late_share",
        "ratio",
        "late, % of steps",
        "In how many of the measured steps that show lateness it was late.",
        "late",
    ),
    Column("period", "count", "period", "Each so many steps there is one of the kind; empty of ordinary steps."),
    Column("first_step", "count", "first step", "The first step of the kind."),
    Column("extra_ns", "ns", "longer by", "How much longer than an ordinary step it takes."),
    Column("change", "text", "change", "What has changed for good: the step time, or that a rank is late."),
    Column("since_step", "count", "as before until", "The last measured step that was as before."),
    Column("before_ns", "ns", "before", "The median step, or how late the rank was, before the change."),
    Column("after_ns", "ns", "after", "The median step, or how late the rank is, after the change."),
    Column("exposed_before_ns", "ns", "exposed before", "The median exposed communication before the change."),
    Column("exposed_after_ns", "ns", "exposed after", "The median exposed communication after the change."),
    # A window of the timeline
    Column("exposed_share", "ratio", "exposed, % of window", "Exposed communication ÷ the window's length."),
    Column("name", "text", "name", "The event's name."),
    Column("events", "count", "events", "How many events of that name touch the window."),
)
"""What a column means wherever nothing else is said of it."""

_COLLECTIVE = Column("index", "count", "number", "The collective's number, in order of first starts.", short="#")

_BENCH: tuple[tuple[str, Unit, str, str, str], ...] = (
    ("time_ns", "ns", "time", "How long an all-reduce takes.", "{}"),
    ("algbw_gb_per_s", "GB/s", "algorithm bandwidth", "Bytes ÷ time.", "alg"),
    ("bus_gb_per_s", "GB/s", "bus bandwidth", "Bytes ÷ time × 2(n−1)/n.", "bus"),
)
"""Figures of each algorithm: name, unit, header, explanation, header in a terminal."""

_IN_TABLES: dict[tuple[str, ...], tuple[Column, ...]] = {
    ("buckets", "scatters"): (
        Column("launch_ns", "ns", "launch", "When the host launched it, from the step's start."),
    ),
    ("buckets", "scatters", "sweep_links"): (
        Column("start_ns", "ns", "start", "When the collective began, from the step's start."),
        Column("end_ns", "ns", "end", "When the collective ended, from the step's start."),
    ),
    ("collectives",): (_COLLECTIVE,),
    ("each_collective",): (
        _COLLECTIVE,
        Column("bytes", "bytes", "size", "The larger of the collective's input and output.", short="MB", shown="kB"),
        Column("start_ns", "ns", "start", "When the first rank began, from the run's start."),
        Column("end_ns", "ns", "end", "When the last rank ended, from the run's start."),
        Column("wait_ns", "ns", "longest wait", "The longest time that a rank waited for the last one.", short="wait"),
        Column("exposed_ns", "ns", "most exposed", "The exposed time of the rank with most.", short="exposed"),
        Column("ranks", "count", "ranks here", "How many ranks' traces hold it."),
    ),
    ("communication_by",): (
        Column("bytes", "bytes", "size", "The size of all of them together, as full tensors.", short="MB"),
        Column("exposed_max_ns", "ns", "most exposed", "The exposed time of the rank with most.", short="at most"),
    ),
    ("exposed",): (
        Column("exposed_ns", "ns", "exposed", "The exposed time that has this cause.", short="ms"),
        Column("start_ns", "ns", "from", "The first exposed moment, from the run's start.", short="from ms"),
        Column("end_ns", "ns", "to", "The last exposed moment, from the run's start."),
    ),
    ("late_buckets",): (
        Column("cost_ns", "ns", "cost", "Its exposed time, and the longest time that it held another bucket."),
    ),
    ("schedule",): (
        Column("bytes", "bytes", "size", "The size of the unit's full parameters.", short="kB"),
        Column("wait_ns", "ns", "wait", "How long the rank was ready to use the unit before the gather ended."),
        Column("held_ns", "ns", "held from", "From when on its bytes count as held, from the step's start."),
    ),
    ("scatter_steps",): (
        Column("scatters", "count", "reduce-scatters", "How many reduce-scatters of gradients ran."),
        Column("exposed_ns", "ns", "exposed", "The reduce-scatters' time during which the rank computed nothing."),
    ),
    ("schedule_steps",): (Column("wait_ns", "ns", "wait", "How long gathers kept the rank waiting."),),
    ("hops",): (
        Column("kind", "text", "half", "The half of the all-reduce that the hop belongs to."),
        Column("source", "count", "from rank", "The rank that the received chunk comes from."),
        Column("bytes", "bytes", "sent", "What the rank sends in the hop."),
        Column("start_ns", "ns", "start", "When the rank began the hop, from the step's start."),
        Column("end_ns", "ns", "end", "When it had sent, received and added, from the step's start."),
    ),
    ("chunks_after_hops",): (
        Column("hop", "count", "after hop", "The hop after which it is so; -1: before the first."),
        Column("ranks", "count", "sum of ranks", "Of how many ranks the chunk there holds the sum."),
    ),
    ("gathered_bytes",): (Column("bytes", "bytes", "held", "The bytes of full parameters held from then on."),),
    ("compare",): (
        Column(
            "sent_bytes",
            "bytes",
            "sent per rank and step",
            "The median step, of local SGD the mean step; the mean of the ranks, counted as a ring sends.",
            short="sent MB",
        ),
    ),
    ("volume",): (Column("bytes", "bytes", "full tensors", "The size of the full tensors."),),
    ("memory",): (Column("bytes", "bytes", "measured", "The size of the tensors' storages after the last step."),),
    ("plan", "plan_over_ranks"): (
        Column("stage", "count", "ZeRO stage", "What is sharded: 1 optimizer states, 2 gradients too, 3 all.", "stage"),
        Column("parameters_bytes", "bytes", "parameters", "The size of the parameters that a GPU holds.", "params"),
        Column("gradients_bytes", "bytes", "gradients", "The size of the gradients that a GPU holds.", "grads"),
        Column("optimizer_bytes", "bytes", "optimizer", "The size of the optimizer's states that a GPU holds."),
        Column("activations_bytes", "bytes", "activations", "What a microbatch keeps between its passes.", "activ."),
        Column("total_bytes", "bytes", "per GPU", "All of these together."),
        Column("fits_from", "count", "fits from", "The smallest number of GPUs whose memory suffices.", shown="GPUs"),
    ),
    ("bench_collectives",): (
        Column("algorithm", "text", "algorithm", "ring and tree, both by hand, or torch: the library's."),
        Column("time_ns", "ns", "time", "How long an all-reduce takes: the median, and its mean over the ranks."),
        Column("algbw_gb_per_s", "GB/s", "algorithm bandwidth", "Bytes ÷ time.", short="alg GB/s"),
        Column("modelled_ns", "ns", "by the formula", "What the link's formula says."),
        Column("wrong", "count", "wrong", "How many elements of all ranks have a wrong sum."),
    ),
    ("bench_side_by_side",): (
        Column("bytes", "bytes", "size", "The size of the tensor."),
        *(
            Column(f"{name}_{figure}", unit, f"{name} {header}", f"{explanation} Of {name}.", short=short.format(name))
            for name in ("ring", "tree", "torch")
            for figure, unit, header, explanation, short in _BENCH
        ),
    ),
    ("bound",): (Column("transfer_ns", "ns", "transfers", "What the link takes for all of the step's collectives."),),
    ("blocking",): (
        Column(
            "blocking_ns",
            "ns",
            "blocking",
            "Exposed time in which the next kernel that computes waited for a collective.",
        ),
        Column(
            "not_blocking_ns",
            "ns",
            "not blocking",
            "Exposed time in which no kernel that computes waited for a collective: something else held it up.",
        ),
        Column(
            "unresolved_ns",
            "ns",
            "unresolved",
            "Exposed time for which it is unknown whether a kernel waited for it.",
        ),
    ),
    ("delays",): (
        Column("unit", "text", "unit", "The unit that computed; empty between units."),
        Column("phase", "text", "pass", "The pass of the unit: forward or backward; empty between units."),
        Column("span_ns", "ns", "time", "How long it took."),
    ),
    ("staleness",): (
        Column("worker", "count", "worker", "The rank whose gradients were applied."),
        Column("staleness", "count", "staleness", "Updates since the worker got the parameters that it computed with."),
        Column("start_ns", "ns", "start", "When the update began, from the run's start, by the first rank's clock."),
        Column("end_ns", "ns", "end", "When the update ended, from the run's start, by the first rank's clock."),
    ),
    ("recomputation",): (
        Column("module", "text", "module", "The checkpointed module."),
        Column("passes", "count", "passes", "How many of its forward passes ran again."),
        Column("recompute_ns", "ns", "recomputed", "How long they took on the host when they ran again."),
    ),
    ("copies",): (
        Column("way", "text", "way", "Down, from the device to its host, or up."),
        Column("count", "count", "copies", "How many copies."),
        Column("bytes", "bytes", "size", "What was copied."),
        Column("theory_bytes", "bytes", "theory", "What should be copied, without padding."),
        Column("copy_ns", "ns", "copying", "Time in which at least one of them was under way."),
        Column("hidden_ns", "ns", "hidden", "Of that, time in which the rank computed."),
    ),
    ("collective_times",): (
        Column("ranks", "text", "group", "The ranks of the group."),
        Column(
            "time_ns", "ns", "time", "How long it takes once all ranks are there, by a line through what was measured."
        ),
        Column("count", "count", "transfers", "How many transfers the line rests on."),
    ),
    ("transfer_lines",): (
        Column("ranks", "text", "group", "The ranks of the group."),
        Column("latency_ns", "ns", "latency per message", "α of the line through the transfers.", short="α ms"),
        Column("bus_gb_per_s", "GB/s", "bandwidth", "B of that line: what each rank sends in a second.", short="B"),
        Column("deviation", "ratio", "missed, % of transfers", "By how much the line misses them, ÷ their time."),
        Column(
            "r_squared", "ratio", "R², % of variance", "The part of the times' variance that sizes explain.", "R² %"
        ),
        Column("count", "count", "transfers", "How many transfers the line rests on."),
        Column("sizes", "count", "sizes", "Of how many different sizes these were."),
    ),
    ("slowdowns",): (
        Column("name", "text", "kernel", "The kernel's name."),
        Column("pairs", "count", "in a step", "How many of that name ran both ways: alone, and beside communication."),
        Column("alone_ns", "ns", "alone", "How long these take alone, all together."),
        Column("beside_ns", "ns", "beside communication", "How long they take while the rank communicates.", "beside"),
        Column("slowdown", "ratio", "longer, % of alone", "By how much that is longer.", short="longer %"),
    ),
    ("advise",): (
        Column("setting", "text", "setting", "What would be set otherwise."),
        Column("action", "text", "action", "What would be done."),
        Column("against", "text", "against", "What it answers of the step: exposed time of a cause, or idle time."),
        Column("memory_bytes", "bytes", "more memory", "How much more each rank would hold, at most.", short="more MB"),
    ),
    ("late_rank_names",): (
        Column("name", "text", "computes", "The kernel, or on CPUs the operator that no other one contains."),
        Column("own_ns", "ns", "late rank", "How long these take the late rank in a mean step."),
        Column("others_ns", "ns", "others", "How long they take the others, in the median."),
        Column("own", "count", "late rank's number", "How many the late rank runs in a mean step."),
        Column("others", "count", "others' number", "How many the others run, in the median."),
    ),
    ("late_rank_phases",): (
        Column(
            "phase",
            "text",
            "phase",
            "Which pass of the step, or what comes before or between them; on GPUs what device and host do.",
        ),
        Column("what", "text", "host work", "What the host does meanwhile, by the name of its range."),
        Column(
            "own_ns", "ns", "late rank", "How long the late rank takes in a mean step, but for exposed communication."
        ),
        Column("others_ns", "ns", "others", "How long the others take, in the median."),
    ),
    ("pipeline", "pipeline_ranks", "pipeline_steps"): (
        Column("pipeline", "count", "pipeline", "Which of several pipelines side by side, from 0."),
    ),
    ("pipeline", "pipeline_held"): (Column("stage", "count", "stage", "The stage, from 0."),),
    ("pipeline", "pipeline_ranks", "pipeline_steps", "pipeline_held"): (
        Column("held", "count", "held", "Microbatches whose activations a stage holds, in a step at most."),
    ),
    ("pipeline_ranks", "pipeline_steps"): (
        Column("stages", "text", "stages", "The stages that the rank holds, or how many there are."),
        Column("span_ns", "ns", "pipeline's step", "From the first action of any rank to the last one's end.", "whole"),
    ),
    ("pipeline", "pipeline_ranks"): (
        Column("wait_ns", "ns", "waited", "In gaps before actions: a message's other end had not called yet.", "wait"),
        Column("transfer_ns", "ns", "on its way", "In gaps before actions: a message was on its way.", "moving"),
        Column("overhead_ns", "ns", "overhead", "In gaps before actions: neither; the host's own.", "host"),
    ),
    ("pipeline",): (
        Column("action", "text", "action", "What it did: forward, backward, or one half of a backward pass."),
        Column("start_ns", "ns", "start", "When it began, from the first action of the pipeline's step.", "from ms"),
        Column("end_ns", "ns", "end", "When it ended, from the first action of the pipeline's step.", "to ms"),
        Column("begun_ns", "ns", "begun", "When it began, from the run's start, by the first rank's clock."),
        Column("took_ns", "ns", "took", "How long it took."),
        Column("gap_ns", "ns", "gap before", "What lies between it and the rank's action before.", "gap"),
    ),
    ("pipeline_ranks",): (
        Column("busy_ns", "ns", "busy", "In actions."),
        Column("idle_ns", "ns", "idle", "The rest of the pipeline's step."),
        Column("schedule_ns", "ns", "by schedule", "What its schedule leaves idle by itself.", "sched."),
        Column("imbalance_ns", "ns", "by imbalance", "What unequal stages add to that.", "uneven"),
        Column("actions", "count", "actions", "How many actions the rank did."),
    ),
    ("pipeline_steps",): (
        Column("microbatches", "count", "microbatches", "Per step."),
        Column("bubble", "ratio", "bubble", "Without an action, of all ranks' time.", shown="% of time"),
        Column("theory", "ratio", "theory", "(p - 1) ÷ (v·m + p - 1): equal stages, no sending.", shown="% of time"),
        Column("imbalance", "ratio", "imbalance", "By unequal stages.", shown="% of time"),
        Column("sending", "ratio", "sending", "Waiting for messages on their way.", shown="% of time"),
        Column("overhead", "ratio", "overhead", "The host's own between actions.", shown="% of time"),
        Column("overhead_ns", "ns", "overhead per action", "The host's own between two actions, the mean."),
        Column("hop_ns", "ns", "hop", "How long a message was on its way, the median."),
        Column("slowest_stage", "count", "slowest stage", "The stage that took longest."),
        Column("slower", "ratio", "slower by", "By how much, of the median stage.", shown="% of median"),
    ),
    ("pipeline_waits",): (
        Column("place", "count", "place", "The rank's place along the pipeline, from 0."),
        Column("span_ns", "ns", "works for", "From the step's first computation to its last one.", "span"),
        Column("busy_ns", "ns", "busy", "In it: something is computed."),
        Column("bubble_ns", "ns", "bubble", "In it: nothing is computed while a message is received.", "bubble"),
        Column("bubble", "ratio", "bubble, % of span", "The same, of the span.", short="bubble %"),
        Column("wait_ns", "ns", "waited", "Of the bubble: the sender had not begun yet.", "wait"),
        Column("transfer_ns", "ns", "on its way", "Of the bubble: the message was on its way.", "moving"),
        Column("sending_ns", "ns", "sending", "In it: nothing is computed while messages are sent alone.", "sends"),
        Column("other_ns", "ns", "other", "In it: nothing is computed, for other reasons.", "other"),
        Column("fill_ns", "ns", "before", "Nothing is computed yet while its first messages are received.", "before"),
        Column("received", "count", "received", "How many messages the rank received.", short="recv"),
        Column("sent", "count", "sent", "How many messages the rank sent."),
    ),
    ("pipeline_held",): (Column("time_ns", "ns", "time", "From the first action of the pipeline's step."),),
    ("by_cap", "by_depth", "by_ranks"): (Column("step_ns", "ns", "step", "The mean of all ranks' steps, predicted."),),
    ("by_ranks",): (
        Column("ranks", "count", "ranks", "How many ranks there would be."),
        Column("throughput", "ratio", "throughput, % of fewest ranks'", "A rank's ÷ that with the fewest ranks."),
        Column("held_bytes", "bytes", "held per rank", "Parameters, gradients and optimizer states, by formula."),
    ),
    ("lanes",): (
        Column("which", "text", "step", "Whether the row is of the step as measured, or as predicted."),
        Column("lane", "text", "lane", "`rank`: the rank works; `link`: a collective is on the link."),
        Column("what", "text", "what", "The bucket or unit, or the kind of collective; empty where the rank works."),
        Column("exposed", "flag", "exposed", "Whether the rank does not work meanwhile."),
        Column("start_ns", "ns", "from", "From the step's start."),
        Column("end_ns", "ns", "to", "From the step's start."),
    ),
    ("watched_series", "watched_strip"): (
        Column("first_step", "count", "from step", "The first step of the piece."),
        Column("last_step", "count", "to step", "The last step of the piece."),
    ),
    ("watched_series",): (
        Column("steps", "count", "steps", "How many steps of the kind the piece has."),
        Column("span_low_ns", "ns", "step time, least", "The shortest of these steps."),
        Column("span_ns", "ns", "step time", "Their median."),
        Column("span_high_ns", "ns", "step time, most", "The longest of them."),
        Column("measured_steps", "count", "measured", "In how many of them it is known what was exposed."),
        Column("exposed_low_ns", "ns", "exposed, least", "The least that was exposed in one of those, on any rank."),
        Column("exposed_comm_ns", "ns", "exposed", "The median of those, over all ranks."),
        Column("exposed_high_ns", "ns", "exposed, most", "The most that was exposed in one of those, on any rank."),
        Column("exposed_share", "ratio", "exposed, % of step", "The median share of the step."),
    ),
    ("watched_strip",): (
        Column("telling_steps", "count", "telling steps", "How many measured steps tell who was last."),
        Column("late_steps", "count", "late steps", "In how many of them the rank was late."),
        Column("late_share", "ratio", "late, % of steps", "In which share of them the rank was late."),
        Column("late_median_ns", "ns", "late by", "How much later than the first rank it came, where it was late."),
    ),
    ("watched_late",): (Column("late_rank", "count", "last rank", "The rank whose all-reduce was shortest."),),
    ("watched_kinds", "watched_ranks"): (
        Column("steps", "count", "steps", "How many steps there are.", short="steps"),
        Column("span_ns", "ns", "step time", "The median step.", short="step ms"),
    ),
    ("dumped_collectives",): (
        Column("sequence", "count", "number", "Its number among the group's collectives, from 1.", short="no."),
        Column("kinds", "text", "kind", "The kind of collective; several where ranks disagree."),
        Column("arrived", "text", "arrived", "The ranks that launched it."),
        Column("missing", "text", "missing", "The ranks of the group that had not launched it."),
        Column("late_rank", "count", "last rank", "The rank that launched it last."),
        Column("late_ns", "ns", "late by", "How long after the first rank the last one launched it.", short="by"),
        Column("duration_ns", "ns", "took", "How long it took on the rank on which it took longest.", short="took"),
        Column("completed", "flag", "over", "Whether it is over on all ranks that launched it."),
    ),
    ("watched_stopped", "dumped_stopped"): (
        Column("answers", "flag", "answers", "Whether its process still told where it is, or told it as it failed."),
        Column("since_ns", "ns", "for", "How long no step had ended by then."),
        Column("group", "text", "group", "The process group of which it has enqueued too few collectives."),
        Column("enqueued", "count", "enqueued", "The number of the group's last collective that it was given."),
        Column("looked_step", "count", "by step", "The last step that had ended when that was so."),
        Column(
            "others_wait_in", "count", "others wait in", "The number of the collective in which others wait for it."
        ),
        Column("ended", "flag", "ended", "Whether it has ended its training, while others go on."),
    ),
    ("watched_ranks",): (
        Column("late_median_ns", "ns", "late by", "How much later than the first rank it came.", "by"),
    ),
    ("window",): (Column("span_ns", "ns", "window", "The window's length."),),
    ("kernels",): (
        Column("part", "text", "counts as", "What the events count as."),
        Column(
            "busy_ns", "ns", "busy, all ranks", "Time in which at least one of them ran, all ranks' together.", "busy"
        ),
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
