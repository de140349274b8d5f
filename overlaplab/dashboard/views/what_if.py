"""The What if page: what a step would take with another cap, link or number of ranks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st
from msgspec.structs import replace

from overlaplab import findings
from overlaplab.analyses.across_runs.settings import is_predicted
from overlaplab.costs import Algorithm, parse_link
from overlaplab.dashboard import links
from overlaplab.dashboard.beside import caps_beside
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.head import error_line, open_page
from overlaplab.dashboard.pickers import shown_diagnosis
from overlaplab.dashboard.widgets import show_advice, show_block, show_nothing, show_warnings
from overlaplab.errors import OverlaplabError
from overlaplab.events import is_on_gpus, missing_ranks
from overlaplab.findings.actions.words import SCHEDULES
from overlaplab.manifest import Link, Manifest, strategy_traits
from overlaplab.sections.what_if import caps_tried, what_if_parts
from overlaplab.simulate.advice.edit_remedies import edit_of_action
from overlaplab.simulate.fill_buckets import CAP_MB
from overlaplab.simulate.further import Skew
from overlaplab.simulate.gpus.buckets import is_of_one_size
from overlaplab.simulate.predictions.answer import DEPTHS, Question
from overlaplab.simulate.predictions.cpu_answers import is_wide, playable_plan, playable_schedules
from overlaplab.simulate.predictions.device import require_device, why_no_other_ranks
from overlaplab.simulate.predictions.device_answers import option_or_why
from overlaplab.simulate.predictions.what_if import message_without_path
from overlaplab.simulate.programs import is_served
from overlaplab.simulate.programs.buckets import find_recutting, recuttings
from overlaplab.simulate.programs.options import has_first_bucket
from overlaplab.simulate.programs.setting import Setting
from overlaplab.traits import TRAITS, Traits
from overlaplab.words import sentence

_BANDWIDTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0)
_LATENCIES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0)
_LINKS = (("1Gbps", "500us"), ("10Gbps", "50us"), ("100Gbps", "5us"))
"""For runs that were recorded over an unknown link."""
_RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 5000, 10_000)
_MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)
_ALGORITHMS: dict[Algorithm, str] = {"ring": "ring", "auto": "ring or trees"}
_PREDICTED = [name for name, traits in TRAITS.items() if traits.is_played]
_NO_STRAGGLER = "Every rank works as the median rank does, of two as the faster one."
_SKEWS: dict[Skew, str] = {"recorded": "recorded steps", "lognormal": "fitted distribution"}


def page() -> None:
    head = open_page("What if")
    opened = head.opened
    head.show(shown_diagnosis(opened), "As predicted: " if is_predicted(opened.run) else "As recorded: ")
    if opened.not_predicted is not None:
        show_nothing(opened, "This page can play no other setting of this run.")
        st.text(sentence(opened.not_predicted))
        return
    show_warnings(opened)
    _draw_answer(opened, caps_beside(opened))


@st.fragment
def _draw_answer(opened: Opened, recorded: pd.DataFrame) -> None:
    """The controls and what they ask for; moving one draws nothing else of the page anew."""
    head = st.container(key="headline")
    notes = st.container(key="remarks_what_if", gap=None)
    try:
        question = _ask_question(opened)
        with st.spinner("Replaying the run with each setting"):
            parts = what_if_parts(opened.run, question, recorded, findings.note(opened.manifest))
    except OverlaplabError as error:
        error_line(OverlaplabError(message_without_path(opened.run, error)))
        return
    head.text(parts.headline)
    for line in parts.notes:
        notes.text(line)
    for charts in filter(None, (parts.option_charts, (parts.lanes,), parts.growth_charts)):
        with st.container(key=f"side_by_side_{charts[0].key}"):
            for column, chart in zip(st.columns(len(charts), vertical_alignment="bottom"), charts, strict=True):
                with column:
                    show_block(chart, run=opened.title)
    if opened.diagnosis is None or question != Question(setting=Setting()):  # else the page's head says it
        show_advice((parts.advice,))


def _ask_question(opened: Opened) -> Question:
    """What the controls that this run has ask for."""
    if is_on_gpus(opened.run):
        return _ask_on_gpus(opened)
    manifest = opened.manifest
    if manifest is None or manifest.strategy is None or missing_ranks(opened.run):
        return _ask_of_unnamed(opened, None)
    if len(recuttings(opened.run)) > 1 or not is_wide(opened.run):
        return _ask_of_unnamed(opened, manifest)
    return _ask_on_cpus(opened)


def _ask_on_gpus(opened: Opened) -> Question:
    """Traces tell of one option, or of actions alone; the others are folded, with a word why."""
    run, manifest = opened.run, opened.manifest
    what, controls, setting = option_or_why(run), _Controls(), Setting()
    with st.container(key="asked", horizontal=True, gap="small"):
        if what == "prefetch":
            ahead = _value_or(manifest.prefetch if manifest else None, "as recorded")
            setting = Setting(prefetch=controls.slide("Prefetch", "{} ahead", DEPTHS, ahead))
        elif what == "bucket_cap_mb":
            cap = _value_or(manifest.bucket_cap_mb if manifest else None, "as recorded")
            setting = Setting(bucket_cap_mb=controls.slide_cap("bucket_cap_mb", opened, cap))
        setting = replace(setting, edits=_ask_for_edit(controls, opened))
    controls.keep()
    with st.expander("Not predicted here"):
        option, why = (None, message_without_path(run, what)) if isinstance(what, OverlaplabError) else (what, "")
        link = bool(require_device(run).members)
        ranks = link and why_no_other_ranks(run) is None
        for line in findings.device_folded(option, why, first=not is_of_one_size(run), link=link, ranks=ranks):
            st.text(line)
    return Question(setting=setting)


def _ask_on_cpus(opened: Opened) -> Question:
    """Draw the controls; they begin at what was recorded, or at what a link asks for."""
    manifest = opened.manifest
    assert manifest is not None
    controls = _Controls()
    with st.container(key="asked", horizontal=True, gap="small"):
        # A Recorder does not count microbatches.
        microbatches = _value_or(manifest.accumulate, "as recorded" if manifest.by_recorder else 1)
        setting = replace(
            _ask_for_strategy(controls, opened, manifest),
            link=_ask_for_link(controls, manifest),
            ranks=controls.slide("Ranks", "{:,}", _RANKS, manifest.world_size),
            accumulate=controls.slide("Microbatches", "{}", (1, 2, 4, 8), microbatches),
            straggler=manifest.world_size == 1 or not controls.tick("No straggler", _NO_STRAGGLER),
        )
        setting = replace(setting, edits=_ask_for_edit(controls, opened))
        algorithm: Algorithm = controls.select("Collectives", _ALGORITHMS, "ring") or "ring"
        skew: Skew = controls.select("Further ranks work as", _SKEWS, "recorded") or "recorded"
    controls.keep()
    return Question(setting=setting, algorithm=algorithm, skew=skew)


def _ask_for_strategy(controls: _Controls, opened: Opened, manifest: Manifest) -> Setting:
    """The strategy and its options."""
    strategy = controls.select("Strategy", {name: name for name in _PREDICTED}, manifest.strategy)
    traits = TRAITS.get(strategy or manifest.strategy or "") or strategy_traits(manifest) or Traits()
    name, gathers = strategy or manifest.strategy or "", traits.gathers == "units"
    first = _value_or((manifest.raw or {}).get("first_bucket_mb"), "as the others")
    has_first, recorded = has_first_bucket(name, traits), strategy_traits(manifest)
    cap = _value_or(manifest.bucket_cap_mb, CAP_MB if recorded and recorded.buckets else None)
    ahead = _value_or(manifest.prefetch, 1)
    return Setting(
        strategy=strategy,
        bucket_cap_mb=controls.slide_cap("bucket_cap_mb", opened, cap) if traits.buckets else None,
        first_bucket_mb=controls.slide_cap("First bucket", opened, first) if has_first else None,
        prefetch=controls.slide("Prefetch", "{} ahead", (0, *DEPTHS), ahead) if gathers else None,
    )


def _ask_of_unnamed(opened: Opened, manifest: Manifest | None) -> Question:
    """DDP's cap, and actions: of a run whose strategy nobody named, of which ranks are missing, or of several models.

    The link, too, where a manifest is given. Of a pipeline its microbatches and schedule, but no actions.
    """
    controls = _Controls()
    with st.container(key="asked", horizontal=True, gap="small"):
        setting = Setting()
        if manifest is not None and is_served(opened.run, setting):
            setting = _ask_for_strategy(controls, opened, manifest)
        setting = replace(setting, link=_ask_for_link(controls, manifest) if manifest else None)
        if plan := playable_plan(opened.run):
            fitting = [each for each in _MICROBATCHES if plan.schedule in playable_schedules(opened.run, each)]
            microbatches = controls.slide("Microbatches", "{}", fitting, plan.microbatches)
            words = {name: SCHEDULES[name] for name in playable_schedules(opened.run, microbatches)}
            schedule = controls.select("Schedule", words, plan.schedule)
            setting = replace(setting, microbatches=microbatches, schedule=schedule)
        else:
            if is_wide(opened.run) and find_recutting(opened.run) is not None:
                cap = controls.slide_cap("bucket_cap_mb", opened, "as recorded")
                setting = replace(setting, bucket_cap_mb=cap)
            setting = replace(setting, edits=_ask_for_edit(controls, opened))
    controls.keep()
    if not controls.count:
        findings.refuse_to_predict(opened.run)  # where ranks are missing it says so
        if opened.manifest is None and missing_ranks(opened.run):
            raise OverlaplabError("ranks are missing: a prediction needs them all", path=opened.run.path)
    return Question(setting=setting)


def _ask_for_edit(controls: _Controls, opened: Opened) -> tuple[tuple[str, str | None], ...]:
    """The edit of one of the run's actions, if the reader wants one."""
    edits: dict[str, tuple[str, str | None]] = {}
    words = {"none": "none"}
    for number, each in enumerate(opened.diagnosis.actions if opened.diagnosis else (), 1):
        name = each.action.name
        if name == "larger_units" and (opened.manifest is None or opened.manifest.link is None):
            continue  # T of larger gathers is not known then
        if edit := edit_of_action(name, each.setting, each.what):
            key = name if name not in edits else f"{name}-{number}"  # such as another cap of a further model
            edits[key], words[key] = edit, each.short
    chosen = controls.select("Action", words, "none") if edits else None
    return () if chosen is None else (edits[chosen],)


def _ask_for_link(controls: _Controls, manifest: Manifest) -> Link | None:
    """The link that was chosen; None for the recorded one."""
    link = manifest.link
    if link is None:
        words = {"_".join(parts): ", ".join(parts) for parts in _LINKS} if manifest.world_size > 1 else {}
        chosen = controls.select("Link", words, "as recorded") if words else None
        return parse_link(chosen.replace("_", ","), manifest.world_size) if chosen else None
    bandwidth = controls.slide("Bandwidth", "{:g} Gbit/s", _BANDWIDTHS, link.bandwidth_gbps)
    latency = controls.slide("Latency", "{:g} µs", _LATENCIES, link.latency_us)
    if bandwidth is None and latency is None:
        return None
    return replace(
        link, bandwidth_gbps=_value_or(bandwidth, link.bandwidth_gbps), latency_us=_value_or(latency, link.latency_us)
    )


class _Controls:
    """The controls of one drawing. What they say stands in the link, but for what is as recorded."""

    def __init__(self) -> None:
        self._run: str = st.session_state["run"]
        self._fresh = links.consume_fresh(links.SETTING)
        if not self._fresh and st.session_state.get("asked_of", self._run) != self._run:
            links.settle(links.SETTING, None, plain=False)  # it was asked of another run
        st.session_state["asked_of"] = self._run
        text = links.choice(links.SETTING)
        self._linked = links.parse_setting(text)
        # what the link says and no control has taken
        self._unused = set(self._linked) if self._linked or not text else {text}
        self._texts: dict[str, str] = {}
        self.count = 0

    def slide(self, label: str, form: str, values: Iterable[Any], recorded: Any, first: Any = None) -> Any:
        """A slider's value, at first the recorded one, or this; None while it is the recorded one.

        Texts come before all values.
        """
        others = sorted({*values} - {recorded})
        place = 0 if isinstance(recorded, str) else bisect_left(others, recorded)
        options = [*others[:place], recorded, *others[place:]]
        linked = self._fresh and bool(self._linked)  # a link that does not name the control means the recorded value
        look = self._look(label, options, recorded if first is None or linked else first)
        chosen = st.select_slider(label, options, format_func=lambda value: _label(form, value, recorded), **look)
        return self._note(label, chosen, recorded, begins_elsewhere=first is not None)

    def slide_cap(self, label: str, opened: Opened, recorded: Any) -> Any:
        """A slider for a cap of buckets, the advised one among them; where none was recorded, it is the first."""
        actions = opened.diagnosis.actions if opened.diagnosis else ()
        advised = [each.setting for each in actions if each.action.name == "cap" and each.what is None]
        caps = {*caps_tried(opened.run), *filter(None, advised)}
        if recorded is None:
            return self.slide(label, "{:.12g} MiB", {CAP_MB, *caps}, "default", first=next(iter(advised), CAP_MB))
        return self.slide(label, "{:.12g} MiB", caps, recorded)

    def select(self, label: str, words: Mapping[Any, str], recorded: str | None) -> Any:
        """One of the options, at first the recorded one; None while it is that."""
        options = [*([recorded] if recorded is not None and recorded not in words else []), *words]
        look = self._look(label, options, recorded)
        place = None if recorded is None else 0
        chosen = st.selectbox(label, options, place, format_func=lambda value: words.get(value, value), **look)
        return self._note(label, chosen, recorded)

    def tick(self, label: str, explanation: str) -> bool:
        """Whether the reader wants it."""
        look = self._look(label, (False, True), first=False)
        return bool(self._note(label, st.checkbox(label, help=explanation, **look), recorded=False))

    def keep(self) -> None:
        """Write what the controls say into the link; where a link said what none of them can, say so."""
        if self._fresh and self._unused:
            st.warning(links.UNKNOWN[links.SETTING])
        links.keep_at_once(links.SETTING, ",".join(f"{name}:{text}" for name, text in self._texts.items()) or None)

    def _look(self, label: str, options: Sequence[Any], first: Any) -> dict[str, Any]:
        """Set a control to what the link says, or to its first value, where it is new; return key, width, callback."""
        self.count += 1
        name = _name(label)
        key = f"asked_{name} of {self._run}"  # another run's control begins anew
        linked = [value for value in options if _text(value) == self._linked.get(name)]
        self._unused -= {name} if linked else set()
        if self._fresh or st.session_state.get(key, self) not in options:
            st.session_state[key] = linked[0] if linked else first
        width = 195  # of which two fit into a narrow window
        return {"key": key, "width": width, "on_change": links.control_used}

    def _note(self, label: str, value: Any, recorded: Any, *, begins_elsewhere: bool = False) -> Any:
        """The value; None for the recorded one, which the link only says where the control begins at another."""
        if value != recorded or begins_elsewhere:
            self._texts[_name(label)] = _text(value)
        return None if value == recorded else value


def _name(label: str) -> str:
    return label.lower().replace(" ", "_")


def _text(value: Any) -> str:
    return str(value).removesuffix(".0")


def _label(form: str, value: Any, recorded: Any) -> str:
    if isinstance(value, str):
        return value
    return form.format(value) + (" (recorded)" if value == recorded else "")


def _value_or(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


page()
