#!/bin/sh
# Records the demo's runs into a folder, and says what they show. Each part prints what it does and how long it took.
#
#     scripts/demo.sh runs/demo
set -e
runs=$1
train="--batch 16 --steps 5 --bucket-cap-mb 4"
zero3="--strategy zero3 --layers 32 --width 128 --batch 16 --steps 3"
asleep="--device cpu --steps 2 --warmup 1 --link 1Gbps,1000us --attempts 1 --compute sleep:10ms,20ms,1ms --seq 16 --vocab 100"

part() {
    echo "== $1"
    shift
    began=$(date +%s)
    "$@"
    echo "== took $(($(date +%s) - began)) s"
    echo
}

record() {
    .venv/bin/overlaplab record "$@"
}

# shellcheck disable=SC2086  # options are words
{
    part "all-reduce after the backward pass" record --strategy naive --out "$runs/naive" $train --link auto
    part "an all-reduce per parameter, during the backward pass" \
        record --strategy per-param --out "$runs/per-param" $train --link "$runs/naive"
    part "buckets of gradients" record --strategy bucketed --out "$runs/bucketed" $train --link "$runs/naive"
    part "ZeRO-3, each layer gathered when it is needed" \
        record $zero3 --prefetch 0 --out "$runs/zero3-serial" --link auto
    part "ZeRO-3, gathered one layer ahead" \
        record $zero3 --prefetch 1 --out "$runs/zero3" --link "$runs/zero3-serial"
    part "a ring of four sleeping ranks, hop by hop" \
        record --strategy ring --nproc 4 --layers 2 --bucket-cap-mb 0.2 --out "$runs/ring" $asleep
    part "a pipeline of four sleeping ranks, 1F1B" \
        record --strategy pipeline --schedule 1f1b --stages 4 --microbatches 8 --out "$runs/pipeline" $asleep
    part "tensor parallelism on two sleeping ranks" \
        record --strategy tensor --tp 2 --layers 2 --out "$runs/tensor" $asleep
    part "two pipelines of two sleeping stages, DP × PP" \
        record --strategy pipeline --dp 2 --pp 2 --microbatches 4 --out "$runs/dp-pp" $asleep
}
for name in naive per-param bucketed; do
    .venv/bin/overlaplab summary "$runs/$name"
done
.venv/bin/overlaplab compare "$runs/naive" "$runs/per-param" "$runs/bucketed"
.venv/bin/overlaplab schedule "$runs/zero3"
.venv/bin/overlaplab compare "$runs/zero3-serial" "$runs/zero3"
.venv/bin/overlaplab pipeline "$runs/pipeline"
