#!/bin/sh
# Records the sample runs of traces/ anew, on the CPU behind an emulated link. Run it on a machine with nothing else to do.
set -e
cd "$(dirname "$0")/.."
for strategy in naive per-param bucketed torch-ddp zero2 zero3 torch-fsdp2; do
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
# What the notebooks course and ddp_lessons show beside the runs above.
course() {
    name=$1
    shift
    .venv/bin/overlaplab record --out traces/course/$name --device cpu --warmup 1 --steps 1 --width 64 --vocab 100 "$@"
}
SLEEP="--seq 16 --layers 4 --compute sleep:10ms,20ms,1ms --link 0.2Gbps,500us"
STAGES="--strategy pipeline --seq 16 --batch 16 --link 1Gbps,2000us"
FOUR="$STAGES --nproc 4 --stages 1,2,2,1 --layers 6 --compute sleep:10ms,20ms,1ms"
EIGHT="$STAGES --nproc 4 --stages 1,2,2,2,2,2,2,1 --layers 14 --compute sleep:10ms,20ms,1ms --link 1Gbps,5000us"
course gpipe $FOUR --schedule gpipe --microbatches 6 "$@"
course model-parallel $FOUR --schedule gpipe --microbatches 1 "$@"
course interleaved $EIGHT --schedule interleaved-1f1b --microbatches 8 "$@"
course zero-bubble $EIGHT --schedule zbv --microbatches 6 "$@"
course dp-pp $STAGES --schedule 1f1b --dp 2 --pp 2 --layers 2 --microbatches 4 --compute sleep:10ms,20ms,1ms "$@"
course hsdp --strategy zero3 --hsdp 2x2 $SLEEP --link 0.2Gbps,2000us "$@"
course server --strategy parameter-server --nproc 4 $SLEEP "$@"
course offload --strategy zero2 --offload --host-link 0.4Gbps,50us --nproc 4 --bucket-cap-mb 0.3 $SLEEP "$@"
course full-shard --strategy torch-fsdp2 --nproc 2 $SLEEP --layers 8 --warmup 2 "$@"
course shard-grad-op --strategy torch-fsdp2 --no-reshard-after-forward --nproc 2 $SLEEP --layers 8 --warmup 2 "$@"
course units-layer --strategy zero3 --nproc 4 $SLEEP --layers 8 --link 0.2Gbps,2000us "$@"
course units-small --strategy zero3 --units by_size:10000 --nproc 4 $SLEEP --layers 8 --link 0.2Gbps,2000us "$@"
course tree --strategy tree --nproc 4 --layers 2 --width 128 --vocab 500 --seq 32 --bucket-cap-mb 1.2 \
    --compute sleep:10ms,20ms,1ms --link 1Gbps,5000us "$@"
course zero1 --strategy zero1 --nproc 2 --width 256 --vocab 1000 --batch 16 --bucket-cap-mb 4 \
    --compute sleep:20ms,40ms,2ms --link 1Gbps,1000us "$@"
course local-sgd --strategy local-sgd --every 4 --nproc 2 $SLEEP --layers 2 --steps 8 --link 0.05Gbps,500us "$@"
for checkpointing in none all; do
    course checkpointing-$checkpointing --strategy bucketed --checkpointing $checkpointing --nproc 2 --layers 4 --batch 16 \
        --link 1Gbps,1000us "$@"
done
.venv/bin/python notebooks/ddp_mistakes.py --record traces/ddp-lessons
# `rm -r traces/sweep` first: what is there is not recorded again. Then `make notebooks`, which show it.
.venv/bin/overlaplab sweep --bucket-cap-mb 0.25,1,4,25 --repeats 4 --out traces/sweep --device cpu --nproc 2 --layers 2 \
    --vocab 500 --batch 16 --steps 3 --link 1Gbps,2000us
