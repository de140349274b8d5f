#!/bin/sh
# Records the sample runs of traces/ anew, on the CPU behind an emulated link. Run it on a machine with nothing else to do.
set -e
cd "$(dirname "$0")/.."
for strategy in naive per-param bucketed torch-ddp; do
    .venv/bin/overlaplab record --strategy $strategy --out traces/$strategy --device cpu --nproc 2 \
        --link 1Gbps,1000us --batch 16 --bucket-cap-mb 4 --steps 3 "$@"
    .venv/bin/overlaplab summary traces/$strategy
done
for strategy in zero2 zero3 torch-fsdp2; do
    .venv/bin/overlaplab record --strategy $strategy --out traces/$strategy --device cpu --nproc 2 \
        --link 1Gbps,1000us --batch 16 --bucket-cap-mb 4 --steps 3 "$@"
    .venv/bin/overlaplab summary traces/$strategy
done
.venv/bin/overlaplab record --strategy zero3 --prefetch 0 --out traces/zero3-serial --device cpu --nproc 2 \
    --link 1Gbps,1000us --batch 16 --bucket-cap-mb 4 --steps 3 "$@"
.venv/bin/overlaplab record --strategy ring --out traces/ring --device cpu --nproc 4 --compute sleep:10ms,20ms,1ms \
    --link 1Gbps,5000us --layers 2 --width 128 --vocab 500 --seq 32 --bucket-cap-mb 1.2 --steps 2 "$@"
.venv/bin/overlaplab record --strategy torch-ddp --out traces/torch-ddp-gloo --device cpu --nproc 2 --layers 2 \
    --width 64 --vocab 100 --seq 16 --bucket-cap-mb 0.15 --steps 2 --accumulate 2 "$@"
.venv/bin/overlaplab record --strategy pipeline --schedule 1f1b --stages 1,2,2,1 --out traces/pipeline --device cpu \
    --nproc 4 --compute sleep:10ms,20ms,1ms --link 1Gbps,2000us --layers 6 --width 64 --vocab 100 --seq 16 --batch 16 \
    --microbatches 6 --warmup 1 --steps 1 "$@"
.venv/bin/overlaplab record --strategy parameter-server --asynchronous --out traces/parameter-server --device cpu \
    --nproc 4 --compute sleep:10ms,20ms,1ms --link 1Gbps,4000us --layers 2 --width 64 --vocab 100 --seq 16 --steps 4 "$@"
for mesh in "--tp 2 --out traces/tensor" "--dp 2 --tp 2 --slow-rank 3:1.3 --out traces/dp-tp"; do
    .venv/bin/overlaplab record --strategy tensor $mesh --device cpu --link 0.05Gbps,1000us --layers 2 --width 128 --heads 4 \
        --seq 32 --vocab 200 --batch 8 --bucket-cap-mb 0.5 --steps 3 --compute sleep:20ms,40ms,2ms "$@"
done
# `rm -r traces/sweep` first: what is there is not recorded again. Then `make notebooks`, which show it.
.venv/bin/overlaplab sweep --bucket-cap-mb 0.25,1,4,25 --repeats 4 --out traces/sweep --device cpu --nproc 2 --layers 2 \
    --vocab 500 --batch 16 --steps 3 --link 1Gbps,2000us
