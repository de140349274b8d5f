"""What a run is, in one line: strategy, ranks, settings and link."""

from __future__ import annotations

from collections.abc import Sequence

from overlaplab.costs import ENOUGH_STEPS, attained_steps, link_attained
from overlaplab.events import Run
from overlaplab.findings.thresholds import MOST_STEPS, MOST_STEPS_NAMED
from overlaplab.manifest import Manifest
from overlaplab.words import cap_digits, count, join_names, numbers_named, shorten, to_ms

SLEEPS = "sleeping device"
"""What a run with `--compute sleep` was recorded on."""
PREDICTED = "predicted"
"""What is said of a run that nobody recorded."""


def run_title(run: Run) -> str:
    """The run's path and the gist of its manifest; emulated links, phantom ranks, sleeping devices are always named."""
    if run.manifest is None:
        return run.path
    link = run.manifest.emulated_link
    parts = (
        describe_prediction(run.manifest),
        shorten(run.manifest.strategy or ""),
        describe_ranks(run.manifest, len(run.traces)),
        SLEEPS if run.manifest.sleeps else "",
        f"emulated link {link}" if link else "",
    )
    return f"{run.path}: {', '.join(filter(None, parts))}"


def note(manifest: Manifest | None) -> str | None:
    """The line about a run under its charts: strategy, ranks, device, prefetch depth or bucket cap, emulated link."""
    if manifest is None:
        return None
    device = SLEEPS if manifest.sleeps else shorten(manifest.device or "")
    parts = [describe_prediction(manifest), shorten(manifest.strategy or ""), describe_ranks(manifest), device]
    if manifest.prefetch is not None:
        parts.append(f"prefetch {manifest.prefetch}")
    elif manifest.bucket_cap_mb is not None:
        parts.append(f"bucket_cap_mb {cap_digits(manifest.bucket_cap_mb)}")
    return ", ".join(filter(None, (*parts, describe_link(manifest), describe_machine(manifest))))


def says_predicted(note: str | None) -> bool:
    """Whether a line of `note`, `link_note` or `links_note` says that all that it is about was predicted."""
    phrase = f"{PREDICTED}, not recorded"
    return note is not None and phrase in note and f"some runs {phrase}" not in note


def describe_prediction(manifest: Manifest | None) -> str:
    """That nobody recorded the run, and from which other it was predicted; empty of recordings."""
    if manifest is None or manifest.predicted_from is None:
        return ""
    return f"{PREDICTED}, not recorded, from {shorten(manifest.predicted_from.rstrip('/').rpartition('/')[2], 40)}"


def describe_machine(manifest: Manifest) -> str:
    """In which steps the machine was busy with something else; empty where in none, or where run.json does not tell."""
    steps = {row.step for row in manifest.machine or ()}
    busy = sorted({row.step for row in manifest.machine or () if row.busy})
    if not busy:
        return ""
    return "machine busy" + ("" if len(busy) == len(steps) else f" in {steps_named(busy)}")


def steps_named(steps: Sequence[int]) -> str:
    """`step 3`, `steps 3 and 5`."""
    return f"step{'s' * (len(steps) > 1)} {numbers_named(steps, last=' and ')}"


def link_note(manifest: Manifest | None) -> str | None:
    """What is not real: a predicted run, device, link and group, for charts without room for the whole `note`."""
    if manifest is None:
        return None
    group = f"one rank of a group of {manifest.world_size}" if manifest.phantom_ranks else ""
    link = describe_link(manifest)
    parts = (describe_prediction(manifest), SLEEPS if manifest.sleeps else "", link, group if link else "")
    return ", ".join(filter(None, parts)) or None


def links_note(manifests: Sequence[Manifest | None]) -> str | None:
    """What is not real of several runs: those predicted, emulated links, phantom ranks; None if nothing."""
    predicted = [manifest for manifest in manifests if manifest is not None and manifest.predicted is not None]
    where = "" if len(predicted) == len(manifests) else "in some runs "
    prediction = f"{where}{PREDICTED}, not recorded" if predicted else ""
    return ", ".join(filter(None, (prediction, _links_note(manifests)))) or None


def _links_note(manifests: Sequence[Manifest | None]) -> str | None:
    emulated = [manifest for manifest in manifests if manifest is not None and manifest.emulated_link is not None]
    if not emulated:
        return None
    links = sorted({str(manifest.emulated_link) for manifest in emulated})
    asleep = [manifest for manifest in manifests if manifest is not None and manifest.sleeps]
    parts = [SLEEPS if len(asleep) == len(manifests) else f"in some runs {SLEEPS}"] if asleep else []
    parts += [f"emulated link {' or '.join(links)}"]
    if any(_missed_words(manifest) for manifest in emulated):
        parts.append("link not attained in some runs")
    groups = [describe_ranks(manifest) for manifest in manifests if manifest is not None and manifest.phantom_ranks]
    where = "" if len(groups) == len(manifests) else "in some runs "
    return ", ".join((*parts, *(f"{where}{group}" for group in sorted({*groups}))))


def describe_ranks(manifest: Manifest, ranks: int | None = None) -> str:
    """`2 ranks` (the number given, or else the job's), or one rank whose peers are phantoms."""
    if not manifest.phantom_ranks:
        mesh = "" if manifest.axes.is_one_axis else f" ({manifest.axes})"
        return count(manifest.world_size if ranks is None else ranks, "rank") + mesh
    made_up = "" if manifest.numerics_meant else "; losses are meaningless"
    return f"one rank of an emulated group of {manifest.world_size} (peers are phantoms{made_up})"


def describe_link(manifest: Manifest) -> str:
    """The emulated link, and whether it was attained, or in which steps it was not; empty without one."""
    link, missed = manifest.emulated_link, _missed_words(manifest)
    return f"emulated link {link}{f', link {missed}' if missed else ''}" if link else ""


def link_missed(manifest: Manifest) -> str | None:
    """In which steps the emulated link was not attained, by how much, and what to do; None where it was in all."""
    steps = attained_steps(manifest)
    late = [step for step in steps if not step.attained]
    if not late:
        return "link not attained" if link_attained(manifest) is False else None
    parts = [
        f"step {step.step} ({step.ratio:.3f} × the modelled time, one collective {to_ms(step.latest_ns):.1f} ms late)"
        for step in late[:MOST_STEPS]
    ]
    parts += [f"{len(late) - MOST_STEPS} more"] if len(late) > MOST_STEPS else []
    problem = f"link not attained in {join_names(parts)}"
    tried = f" in the best of {manifest.attempts} recordings" if (manifest.attempts or 1) > 1 else ""
    if link_attained(manifest):
        good = [f"--step {step.step}" for step in steps if step.attained]
        remedy = f"`{' '.join(good)}` leaves it out" if len(good) <= MOST_STEPS_NAMED else "`--step` chooses others"
        return f"{problem}: figures of all steps include it; {remedy}"
    enough = min(ENOUGH_STEPS, len(steps))
    return (
        f"{problem}: {enough} of {len(steps)} steps must attain it and {len(steps) - len(late)} did{tried}, so that "
        "communication took longer than the link says; record on a quieter machine, or with a slower --link"
    )


def _missed_words(manifest: Manifest) -> str:
    """`not attained`, with the steps if the run attained the link otherwise; empty if it did in all."""
    if link_attained(manifest) is False:
        return "not attained"
    late = [step.step for step in attained_steps(manifest) if not step.attained]
    return f"not attained in {steps_named(late)}" if late else ""


def describe_settings(manifest: Manifest | None) -> str:
    """The strategy's options as the manifest has them; empty if it has none."""
    if manifest is None:
        return ""
    gathers, bound = manifest.overlap_param_gather, manifest.max_staleness
    behind = " in the background" if manifest.background else ""
    layers = "" if manifest.checkpointing is True else f" of every {manifest.checkpointing} layers"
    last_layer = {None: "", True: "last layer kept", False: "last layer freed"}[manifest.keep_last]
    swept = manifest.swept.settings if manifest.swept else {}
    named = ("bucket_cap_mb", "prefetch", "accumulate")
    parts = [
        f"cap {cap_digits(manifest.bucket_cap_mb)} MiB" if manifest.bucket_cap_mb is not None else "",
        f"prefetch {manifest.prefetch}" if manifest.prefetch is not None else "",
        f"{manifest.accumulate} microbatches" if (manifest.accumulate or 0) > 1 else "",
        f"gathers {'in' if gathers else 'before'} forward" if gathers is not None else "",
        "offloaded" if manifest.offload else "",
        "asynchronous" + ("" if bound is None else f", staleness {bound} or less") if manifest.asynchronous else "",
        f"averages every {count(manifest.every, 'step')}{behind}" if manifest.every else "",
        "layers kept for backward" if manifest.reshard_after_forward is False else last_layer,
        f"checkpointing{layers}" if manifest.checkpointing else "",
        "fp32 gradients" if manifest.main_grad else "",
        f"computes in {manifest.param_dtype}" if manifest.param_dtype is not None else "",
        f"reduces in {manifest.reduce_dtype}" if manifest.reduce_dtype is not None else "",
        *(f"{shorten(name, 40)} {shorten(str(value), 40)}" for name, value in swept.items() if name not in named),
    ]
    return ", ".join(filter(None, parts))
