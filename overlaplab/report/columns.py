"""Which columns of the analyses a report's tables show, and under which headers."""

from __future__ import annotations

from overlaplab.report.cells import Column

__all__ = [
    "BUCKETS",
    "BY_KIND",
    "CAPS",
    "CAUSES",
    "COLLECTIVES",
    "COMPARED",
    "COSTS",
    "GATHERS",
    "PARTS",
    "SPOTS",
    "STRAGGLERS",
    "WINDOW",
]

PARTS = {
    "rank": Column("rank", "count"),
    "step": Column("step", "count"),
    "span_ns": Column("step time", "ms"),
    "compute_only_ns": Column("compute only", "ms"),
    "overlapped_ns": Column("hidden comm.", "ms"),
    "exposed_comm_ns": Column("exposed comm.", "ms"),
    "exposed_wait_ns": Column("of it wait", "ms"),
    "exposed_transfer_ns": Column("of it transfer", "ms"),
    "memory_only_ns": Column("memory only", "ms"),
    "idle_ns": Column("idle", "ms"),
    "overlap_ratio": Column("hidden, % of comm.", "%"),
}
SPOTS = {
    "cause": Column("cause"),
    "moved": Column("collective"),
    "exposed_ns": Column("exposed", "ms"),
    "of_exposed": Column("% of exposed", "%"),
    "start_ns": Column("from", "ms"),
    "end_ns": Column("to", "ms"),
}
CAUSES = {
    "cause": Column("cause"),
    "exposed_ns": Column("per rank and step", "ms"),
    "of_exposed": Column("% of exposed", "%"),
    "of_step": Column("% of step time", "%"),
    "meaning": Column("which is"),
}
BUCKETS = {
    "index": Column("bucket", "count"),
    "bytes": Column("size", "bytes"),
    "last": Column("last gradient"),
    "ready_ns": Column("ready", "ms"),
    "launch_ns": Column("launch", "ms"),
    "start_ns": Column("start", "ms"),
    "end_ns": Column("end", "ms"),
    "exposed_ns": Column("exposed", "ms"),
    "held_ns": Column("held others", "ms"),
}
GATHERS = {
    "unit": Column("unit"),
    "phase": Column("phase"),
    "microbatch": Column("microbatch", "count"),
    "gather_launch_ns": Column("launch", "ms"),
    "gather_start_ns": Column("start", "ms"),
    "gather_end_ns": Column("end", "ms"),
    "first_use_ns": Column("first use", "ms"),
    "wait_ns": Column("wait", "ms"),
    "free_ns": Column("free", "ms"),
    "bytes": Column("size", "bytes"),
}
COLLECTIVES = {
    "index": Column("#", "count"),
    "step": Column("step", "count"),
    "name": Column("group"),
    "kind": Column("kind"),
    "bytes": Column("size", "bytes"),
    "wait_ns": Column("longest wait", "ms"),
    "transfer_ns": Column("transfer", "ms"),
    "exposed_ns": Column("most exposed", "ms"),
    "last_rank": Column("last rank", "count"),
    "bus_gb_per_s": Column("bus bandwidth", "GB/s"),
}
STRAGGLERS = {
    "rank": Column("rank", "count"),
    "last": Column("came last", "count"),
    "collectives": Column("of collectives", "count"),
    "late_median_ns": Column("late, median", "ms"),
    "late_max_ns": Column("late, at most", "ms"),
    "cost_ns": Column("others waited", "ms"),
    "alone_ns": Column("for it alone", "ms"),
}
BY_KIND = {
    "rank": Column("rank", "count"),
    "name": Column("group"),
    "kind": Column("kind"),
    "count": Column("collectives", "count"),
    "bytes": Column("size", "bytes"),
    "busy_ns": Column("busy", "ms"),
    "exposed_ns": Column("exposed", "ms"),
}
WINDOW = {
    "rank": Column("rank", "count"),
    "span_ns": Column("window", "ms"),
    "compute_ns": Column("compute", "ms"),
    "comm_ns": Column("communication", "ms"),
    "overlapped_ns": Column("hidden", "ms"),
    "exposed_comm_ns": Column("exposed", "ms"),
}


CAPS = {
    "bucket_cap_mb": Column("bucket_cap_mb", "count"),
    "runs": Column("recordings", "count"),
    "steps": Column("steps", "count"),
    "buckets": Column("buckets", "count"),
    "step_ms": Column("step", "ms"),
    "spread_ms": Column("spread", "ms"),
    "lowest_ms": Column("quickest recording", "ms"),
    "highest_ms": Column("slowest recording", "ms"),
    "compute_only_ms": Column("compute only", "ms"),
    "hidden_ms": Column("hidden", "ms"),
    "exposed_ms": Column("exposed", "ms"),
    "rest_ms": Column("neither", "ms"),
    "overlap_ratio": Column("hidden, % of comm.", "%"),
}
COMPARED = {
    "run": Column("run"),
    "strategy": Column("strategy"),
    "bucket_cap_mb": Column("bucket_cap_mb", "count"),
    "ranks": Column("ranks", "count"),
    "steps": Column("steps", "count"),
    "step_ms_median": Column("step", "ms"),
    "step_ms_iqr": Column("IQR", "ms"),
    "compute_ms_median": Column("compute", "ms"),
    "comm_ms_median": Column("comm.", "ms"),
    "exposed_ms_median": Column("exposed", "ms"),
    "overlap_ratio": Column("hidden, % of comm.", "%"),
}
COSTS = {
    "run": Column("run"),
    "sent_bytes": Column("sent per rank and step", "bytes"),
    "theory_sent_bytes": Column("theory: sent", "bytes"),
    "memory_bytes": Column("largest rank's memory", "bytes"),
    "theory_memory_bytes": Column("theory: memory", "bytes"),
    "peak_memory_bytes": Column("peak memory", "bytes"),
}
