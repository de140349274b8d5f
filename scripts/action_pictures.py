"""Draw a step before and after each action into docs/actions, from tests/situations and traces.

python scripts/action_pictures.py            # all of them
python scripts/action_pictures.py cap merge  # of these actions
"""

import sys
from pathlib import Path

from overlaplab import load_run
from overlaplab.sections.what_if import what_if_parts
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.predictions.error import recorded_caps
from overlaplab.simulate.programs.setting import Setting

ROOT = Path(__file__).parents[1]
PICTURES = {
    "host_work": ("04-dataloader-of-one-rank", Setting(edits=(("without-host-work", "enumerate(DataLoader)"),))),
    "arrival_order": ("registration-order", Setting(edits=(("arrival-order", None),))),
    "last_pass": ("01-no_sync-forgotten", Setting(edits=(("last-pass", None),))),
    "cap": ("06c-step-per-microbatch", Setting(bucket_cap_mb=0.5)),
    "strategy": ("12n-naive-bound-beaten", Setting(strategy="bucketed", bucket_cap_mb=0.07)),
    "asynchronous": ("02-metrics-all-reduced", Setting(edits=(("async", None),))),
    "merge": ("02-metrics-all-reduced", Setting(edits=(("merge", None),))),
    "balance": ("16e-engine-straggler-bound", Setting(edits=(("balance", "1"),))),
    "even_work": ("late-rank-changes", Setting(edits=(("even-work", None),))),
    "leave_out": ("19-syncbn", Setting(edits=(("leave-out", None),))),
    "one_gradient_less": ("07-embedding-last", Setting(without_parameter="embedding.weight")),
    "no_pause": ("pause", Setting(edits=(("no-pause", None),))),
    "device_waits": ("norms", Setting(edits=(("no-device-waits", None),))),
    "launch_overhead": ("launches", Setting(edits=(("no-launch-overhead", None),))),
    "prefetch": ("zero3-serial", Setting(prefetch=1)),
    "keep_gathered": ("units-freed", Setting(edits=(("keep-gathered", None),))),
    "whole_optimizer": ("sharded-optimizer", Setting(edits=(("whole-optimizer", None),))),
    "barriers": ("barriers", Setting(edits=(("leave-out", "barrier"),))),
    "asynchronous_hook": ("waiting-hook", Setting(edits=(("wait-at-pass-end", None),))),
    "larger_units": ("11-fsdp2-tiny-units", Setting(edits=(("larger-units", "8"),))),
    "earlier": ("02-metrics-all-reduced", Setting(edits=(("early", None),))),
    "half_the_bytes": ("12-zero1-one-bucket", Setting(edits=(("half-bytes", None),))),
}
"""By action the recording and what is changed."""
_PADDING = {"left": 24, "right": 120, "top": 5, "bottom": 5}
"""A reader's font may be wider than that of this machine."""
ROOMS = (ROOT / "tests" / "situations" / "recorded", ROOT / "traces" / "h100" / "loops", ROOT / "traces")
"""Where recordings are."""


def main(actions: list[str], folder: Path = ROOT / "docs" / "actions") -> None:
    """Draw them."""
    folder.mkdir(exist_ok=True)
    for action in actions or PICTURES:
        recording, setting = PICTURES[action]
        run = load_run(next(room / recording for room in ROOMS if (room / recording).exists()))
        assert run.manifest is not None
        seen = recorded_caps(run.manifest, ())
        parts = what_if_parts(run, Question(setting=setting), seen, None)
        parts.lanes.draw().properties(width=720, padding=_PADDING).save(folder / f"{action}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
