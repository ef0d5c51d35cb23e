#!/bin/bash
# GPT-2 124M on token shards, on one machine: the settings of llm.c's reproduction of GPT-2 (10 billion tokens of
# FineWeb, 18865 steps of 524288 tokens), with ZeRO stage 2. Shards are in llm.c's format: its dev/data/fineweb.py makes
# them.
#
#     scripts/run_gpt2_124M.sh                                8 GPUs (or CPU ranks)
#     NP=4 OUT=log4 scripts/run_gpt2_124M.sh -x 100 -u 10     options at the end override those below
#     USE_CUDNN=0 scripts/run_gpt2_124M.sh                    attention by the trainer's own kernels, not by cuDNN
#
# A run that ended early goes on from its newest checkpoint in $OUT when the script is called again (-y 1), also with
# another NP that divides the micro-batches of a step (dev/docs/checkpoints.md). The settings are for GPUs, and
# this script has not been run on 8 of them. To try it on a CPU: -b 1 -t 256 -d 2048 -x 10 -u 0 -v 0 -s 0
set -eu
cd "$(dirname "$0")/.."

NP=${NP:-8}
DATA=${DATA:-dev/data/fineweb10B}
OUT=${OUT:-log_gpt2_124M}

make train_gpt2_zero
mkdir -p "$OUT"
. scripts/env.sh

# -b x -t x NP must divide -d: 64 x 1024 x 8 = 524288 is one micro-step. With less memory take -b 16: four micro-steps.
"${MPIRUN:-mpirun}" -np "$NP" ./train_gpt2_zero \
    -i "$DATA/fineweb_train_*.bin" \
    -j "$DATA/fineweb_val_*.bin" \
    -o "$OUT" \
    -e d12 \
    -z 2 -r 0 \
    -b 64 -t 1024 -d 524288 \
    -l 0.0006 -q 0.0 -u 700 -c 0.1 \
    -v 250 -m 20 -s 20000 -g 144 \
    -n 5000 -y 1 \
    "$@"
