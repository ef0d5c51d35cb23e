#!/usr/bin/env bash
# The state after training depends on the number of micro-batches of a step, M, and on nothing of how they are shared
# out: one hash for all of M = 24 on 1, 2, 3, 4, 6, 8, 12 ranks, M = 35 on 1, 5, 7, M = 9 on 1, 3, 9; stages 0 to 3;
# all orders of micro-batches; FP32, and BF16 with -w 0, 1, 2 (1 and 2 have the same hash); shard groups of every size
# that divides the ranks; every transport (shared memory, messages, staged through the host, hosts of two ranks, NCCL).
# The emulated GPU, in several orders of its streams: M = 12 on 1, 2, 3, 4, 6. About 5000 runs, four hours;
# test_list.sh has a selection.
#
#     for p in FP32 BF16; do make train_gpt2_zero DEVICE=cpu PRECISION=$p; done       and DEVICE=emulated
#     dev/test/one_tree.sh [cpu|emulated]
#
# STEPS=100   EVERY=1: of the configurations of each kind, each EVERY-th
set -u
cd "$(dirname "$0")/../.." || exit 1
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
device=${1:-cpu}
steps=${STEPS:-100}
every=${EVERY:-1}
count=0 runs=0 failures=0
declare -A first

# train KIND M RANKS PROGRAM ARGUMENTS...: has the hash of the first run of this kind
train() {
    local key="$1, M = $2" ranks=$3 program=$4 line
    count=$((count + 1))
    ((ranks == 1 || count % every == 0)) || return
    line=$(NP=$ranks; . scripts/env.sh
        timeout 600 "${MPIRUN:-mpirun}" -np "$ranks" "$program" -e custom:l1,h2,c32,v256,t16 \
            -i dev/data/text/default.txt -b 1 -t 16 --micro-batches "$2" -x "$steps" -v 0 -s 0 --hash 1 "${@:5}" 2>&1 |
            grep -o 'state hash: .*')
    runs=$((runs + 1))
    [ -n "$line" ] && [ "$line" = "${first[$key]:=$line}" ] && return
    failures=$((failures + 1))
    echo "$key, $ranks ranks, $program ${*:5}: ${line:-no hash}, expected ${first[$key]}"
}

# stages KIND M RANKS PROGRAM ARGUMENTS...: each stage, in groups of every size
stages() {
    local stage group order
    for order in step rank layer; do
        train "$1" "$2" "$3" "$4" -z 0 --micro-batch-order $order "${@:5}"
        for stage in 1 2 3; do
            for ((group = 1; group <= $3; group++)); do
                if (($3 % group == 0)) && [ "$order$stage" != rank2 ] && [ "$order$stage" != rank3 ]; then
                    train "$1" "$2" "$3" "$4" -z $stage --shard-group $group --micro-batch-order $order "${@:5}"
                fi
            done
        done
    done
}

# ways M RANKS TRANSPORT...: each kind of parameters
ways() {
    local w
    stages "fp32" "$1" "$2" "build/$device-fp32/train_gpt2_zero" "${@:3}"
    for w in 1 2 0; do
        stages "bf16, $([ $w = 0 ] && echo no || echo fp32) master" "$1" "$2" "build/$device-bf16/train_gpt2_zero" \
            -w $w "${@:3}"
    done
}

# sums M RANKS...: each transport
sums() {
    local ranks seed
    for ranks in "${@:2}"; do
        if [ "$device" = emulated ]; then
            for seed in 0 1 2 3; do
                export CUDA_ON_CPU_SCHEDULE=$seed CUDA_ON_CPU_STREAMS=$seed
                ways "$1" "$ranks" --transport "$( ((seed % 2)) && echo nccl || echo mpi)"
            done
        else
            for seed in 0 1 2 3; do
                ways "$1" "$ranks" --transport mpi --inject-delays $seed
            done
            ways "$1" "$ranks" --transport nccl
        fi
    done
}

if [ "$device" = emulated ]; then
    sums 12 1 2 3 4 6
else
    sums 24 1 2 3 4 6 8 12
    sums 35 1 5 7
    sums 9 1 3 9
fi
for key in "${!first[@]}"; do echo "$key: ${first[$key]}"; done
echo "$runs runs, $failures with another hash"
exit $((failures != 0))
