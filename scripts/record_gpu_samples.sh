#!/bin/sh
# Records the GPU sample runs anew: one rank of an emulated group of eight on one GPU, its peers phantoms; losses are meaningless.
#
#   scripts/record_gpu_samples.sh                   into traces/GPU, such as traces/h200, with nothing else on the GPU
#   DEVICE=cpu scripts/record_gpu_samples.sh DIR    the same commands with a tiny model on the CPU: whether they work
#
# Environment: PYTHON, the interpreter (.venv's, else python3), which needs torch, typer and rich; LIMIT_S, when to stop
# (500 s), and RUN_S, the most for one run (90 s); PACKED, a folder that gets what was recorded in a few files (pack.sh).
# What was recorded stays and is packed after each run, also if one hangs or fails, or this script is stopped or killed.
cd "$(dirname "$0")/.." || exit 2
began=$(date +%s)
device=${DEVICE:-cuda}
export PYTHONPATH="$PWD/engine${PYTHONPATH:+:$PYTHONPATH}" # where nothing is installed
python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || python=python3
most=${MOST:-3000000} # bytes of a run's files, which stay below

if [ "$device" = cpu ]; then
    if [ $# -eq 0 ]; then
        echo "DEVICE=cpu needs a directory of its own: scripts/record_gpu_samples.sh DIR" >&2
        exit 2
    fi
    model='--width 8 --heads 2 --seq 4 --batch 1 --vocab 20 --warmup 2'
else # in its first ten steps DDP's host waits for the step before, to time it: so none of those are recorded
    gpu=$("$python" -c 'import torch; print(torch.cuda.get_device_name())') || {
        echo "torch finds no GPU here; DEVICE=cpu scripts/record_gpu_samples.sh DIR shows whether all works" >&2
        exit 2
    }
    # NVIDIA H100 80GB HBM3 → h100, NVIDIA A100-SXM4-80GB → a100, NVIDIA GeForce RTX 4090 → geforce-rtx-4090
    gpu=$(echo "$gpu" | tr '[:upper:]' '[:lower:]' | sed -E -e 's/^nvidia +//' \
        -e 's/^(tesla +)?([a-z]{1,2}[0-9]+[a-z]?)([ -].*)?$/\2/' -e 's/[^a-z0-9]+/-/g' -e 's/^-|-$//g')
    model='--width 1024 --heads 16 --seq 512 --batch 32 --vocab 8000 --warmup 12'
fi
out=${1:-traces/$gpu}
common="--device $device --nproc 1 --link 200Gbps,10us,8 --dtype bfloat16 $model"
failed=
child=

keep() {
    [ -z "$PACKED" ] || [ ! -d "$out" ] || sh scripts/pack.sh "$out" "$PACKED"
}

finish() { # EXIT CODE
    keep
    exit "$1"
}

stop() {
    trap '' TERM INT HUP
    [ -z "$child" ] || { kill "$child" && wait "$child"; }
    echo "stopped; $out holds what was recorded until then" >&2
    finish 143
}
trap stop TERM INT HUP

record() { # NAME OPTIONS…: three recorded steps, or two where their files would be too large
    name=$1
    shift
    for steps in 3 2; do
        left=$((began + ${LIMIT_S:-500} - $(date +%s)))
        [ $left -gt 0 ] || break
        [ $left -lt "${RUN_S:-90}" ] || left=${RUN_S:-90}
        # In the background, because a shell that waits for a command in the foreground does not notice signals.
        # shellcheck disable=SC2086
        timeout -k 10 $left "$python" -m overlaplab_engine --out "$out/$name" "$@" $common --steps $steps &
        child=$!
        wait $child
        code=$?
        child=
        if [ $code -ne 0 ]; then
            [ -f "$out/$name/run.json" ] || rm -rf "${out:?}/$name" # a trace without it would look like a run
            break
        fi
        bytes=$(cat "$out/$name"/* | wc -c)
        echo "$out/$name: $steps steps, $bytes bytes"
        keep
        [ "$bytes" -ge "$most" ] || return
    done
    failed="$failed $name"
}

record naive --strategy naive --layers 8
record per-param --strategy per-param --layers 8
for cap in 5 25 100; do
    record bucketed-cap-$cap --strategy bucketed --layers 8 --bucket-cap-mb $cap
done
record torch-ddp --strategy torch-ddp --layers 8 --bucket-cap-mb 25
record zero1 --strategy zero1 --layers 32 --bucket-cap-mb 25
record zero2 --strategy zero2 --layers 32 --bucket-cap-mb 25
record zero3 --strategy zero3 --layers 32
record torch-fsdp2 --strategy torch-fsdp2 --layers 32
for cap in 1 5 25 100; do # as `overlaplab sweep` names them; what drifts meanwhile falls on all caps alike
    record sweep/cap-$cap --strategy bucketed --layers 4 --bucket-cap-mb $cap
done
for cap in 100 25 5 1; do
    record sweep/cap-$cap-2 --strategy bucketed --layers 4 --bucket-cap-mb $cap
done
for cap in 25 1 100 5; do
    record sweep/cap-$cap-3 --strategy bucketed --layers 4 --bucket-cap-mb $cap
done

if [ -n "$failed" ]; then
    echo "failed:$failed" >&2
    finish 1
fi
echo "now: scripts/golden.py, and the table of traces/README.md"
finish 0
