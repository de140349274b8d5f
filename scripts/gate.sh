#!/usr/bin/env bash
# Record, compare with a baseline, and say what came of it: the steps of action.yml, which also run by hand.
#   RECORD='torchrun --nproc-per-node 2 train.py --out "$OUT"' BASELINE=overlap.json scripts/gate.sh
# RECORD     a shell command that records a run into $OUT (also given as OVERLAPLAB_RECORD)
# BASELINE   a file of `overlaplab baseline`; where it is missing, REPEATS recordings make it, and nothing is checked
# FAIL_IF    conditions as of `overlaplab compare --fail-if`, one per line
# REQUIRE    what must hold, as of `overlaplab compare --require`, one per line (nothing by default)
# SKIP_STEPS first steps of each rank that do not count; REPEATS recordings for a new baseline (3)
# RESULTS    gets run/, check.md, check.xml (a new folder)
# Exits with 1 where a condition fails, 2 where nothing can be judged, and 3 where what must hold is inconclusive.
set -euo pipefail
: "${RECORD:?a command that records into \$OUT}"
BASELINE=${BASELINE:-overlaplab-baseline.json}
FAIL_IF=${FAIL_IF:-exposed_comm_ns > 5%}
SKIP_STEPS=${SKIP_STEPS:-0}
REPEATS=${REPEATS:-3}
RESULTS=${RESULTS:-$(mktemp -d)}
mkdir -p "$RESULTS"

record() { OUT=$1 OVERLAPLAB_RECORD=$1 bash -euo pipefail -c "$RECORD"; }

if [ ! -e "$BASELINE" ]; then
    runs=()
    for number in $(seq "$REPEATS"); do
        record "$RESULTS/baseline-$number"
        runs+=("$RESULTS/baseline-$number")
    done
    overlaplab baseline "${runs[@]}" --skip-steps "$SKIP_STEPS" --out "$BASELINE"
    echo "There was no baseline: keep $BASELINE, and the next run is compared with it."
    exit 0
fi

record "$RESULTS/run"
conditions=()
while IFS= read -r condition; do
    [ -z "${condition// /}" ] || conditions+=(--fail-if "$condition")
done <<< "$FAIL_IF"
while IFS= read -r condition; do
    [ -z "${condition// /}" ] || conditions+=(--require "$condition")
done <<< "${REQUIRE:-}"
verdict=0
overlaplab compare "$RESULTS/run" --baseline "$BASELINE" --skip-steps "$SKIP_STEPS" "${conditions[@]}" \
    --markdown "$RESULTS/check.md" --junit "$RESULTS/check.xml" || verdict=$?
if [ -e "$RESULTS/check.md" ]; then
    [ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$RESULTS/check.md" >> "$GITHUB_STEP_SUMMARY"
    [ -z "${PULL_REQUEST:-}" ] || gh pr comment "$PULL_REQUEST" --body-file "$RESULTS/check.md" --edit-last --create-if-none
fi
exit "$verdict"
