#!/bin/sh
# Records the GPU sample runs anew: one rank of an emulated group of eight on one GPU, its peers phantoms; numerics not meant.
#
#   scripts/record_gpu_samples.sh                      into traces/h100; about five minutes, with nothing else on the GPU
#   DEVICE=cpu scripts/record_gpu_samples.sh DIR       the same commands with a tiny model on the CPU: whether they work
#
# Needs torch, typer and rich, and nothing else of overlaplab's. PYTHON is the interpreter (.venv's, else python3).
cd "$(dirname "$0")/.." || exit 2
device=${DEVICE:-cuda}
out=${1:-traces/h100}
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
    model='--width 1024 --heads 16 --seq 512 --batch 32 --vocab 8000 --warmup 12'
fi
common="--device $device --nproc 1 --link 200Gbps,10us,8 --dtype bfloat16 $model"
failed=

record() { # NAME OPTIONS…: three recorded steps, or two where their files would be too large
    name=$1
    shift
    for steps in 3 2; do
        # shellcheck disable=SC2086
        "$python" -m engine --out "$out/$name" "$@" $common --steps $steps || break
        bytes=$(cat "$out/$name"/* | wc -c)
        echo "$out/$name: $steps steps, $bytes bytes"
        [ "$bytes" -ge $most ] || return
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

if [ -n "$failed" ]; then
    echo "failed:$failed" >&2
    exit 1
fi
echo "now: scripts/golden.py, and the table of traces/README.md"
