"""A recorded run under another setting: its events, its steps at a slider's move, and how far they may be off."""

from overlaplab.simulate.predictions.answer import Question, interval
from overlaplab.simulate.predictions.error import measured_steps, recorded_caps
from overlaplab.simulate.predictions.what_if import answer, measured_span_ns, steps_by_cap
from overlaplab.simulate.programs.setting import Setting
