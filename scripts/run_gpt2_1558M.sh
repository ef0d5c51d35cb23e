#!/bin/bash
# GPT-2 1558M on token shards, on one machine of 8 GPUs with 80 GB: the settings of llm.c's reproduction (32000 steps of
# 1048576 tokens), with ZeRO stage 2: 51 GB per GPU by --plan. Add --plan to see the table for your machine (without a
# GPU: --plan --precision bf16 --transport nccl). The data of that run are FineWeb-EDU: llm.c's fineweb.py -t edu -v
# 100B.
#
#     scripts/run_gpt2_1558M.sh
#     NP=4 scripts/run_gpt2_1558M.sh -z 3 -b 8        options at the end override those below
#     USE_CUDNN=0 scripts/run_gpt2_1558M.sh            attention by the trainer's own kernels, not by cuDNN
#
# A run that ended early goes on from its newest checkpoint in $OUT when the script is called again (-y 1), also with
# another NP that divides the micro-batches of a step (dev/docs/checkpoints.md).
# Untested: it has not been run on 8 GPUs yet.
set -eu
cd "$(dirname "$0")/.."

NP=${NP:-8}
DATA=${DATA:-dev/data/edu_fineweb100B}
OUT=${OUT:-log_gpt2_1558M}

make train_gpt2_zero
mkdir -p "$OUT"
. scripts/env.sh

# -b x -t x NP must divide -d: 16 x 1024 x 8 is an eighth of it, so there are eight micro-steps.
"${MPIRUN:-mpirun}" -np "$NP" ./train_gpt2_zero \
    -i "$DATA/*fineweb_train_*.bin" \
    -j "$DATA/*fineweb_val_*.bin" \
    -o "$OUT" \
    -e d48 \
    -z 2 -r 0 -ge 1 \
    -b 16 -t 1024 -d 1048576 \
    -x 32000 -k cosine -l 0.0006 -q 0.1 -u 700 -c 0.1 \
    -v 250 -m 20 -s 300000 -g 384 \
    -n 2000 -y 1 \
    "$@"
