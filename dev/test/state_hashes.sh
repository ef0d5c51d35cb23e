#!/usr/bin/env bash
# Prints the state hashes of 36 training runs: stages 0 to 3; 1, 2, 3 and 8 ranks; both precisions and every kind of
# master weights; shard groups; both transports; every kind of recomputation. Two versions of the code have the same
# arithmetic if they print the same:
#
#     make train_gpt2_zero PRECISION=FP32 && make train_gpt2_zero PRECISION=BF16
#     dev/test/state_hashes.sh > after.txt            in both trees, on one machine; then diff
set -u
cd "$(dirname "$0")/../.." || exit 1
common="-e custom:l2,h4,c64,v256,t64 -i dev/data/text/default.txt -b 2 -t 64 -x 5 -v 0 -s 0 --hash 1"
failures=0

# hash PRECISION RANKS TOKENS_PER_STEP ARGUMENTS...: one line, "precision ranks arguments: hash"
hash() {
    local precision=$1 ranks=$2 tokens=$3 line
    shift 3
    # shellcheck disable=SC2086
    line=$(NP=$ranks; . scripts/env.sh
        mpirun -np "$ranks" "build/cpu-$precision/train_gpt2_zero" $common -d "$tokens" "$@" 2>&1 |
            grep -o 'state hash: .*')
    [ -n "$line" ] || { failures=$((failures + 1)); line="no hash"; }
    echo "$precision N=$ranks -d $tokens $*: $line"
}

for precision in fp32 bf16; do
    for stage in 0 1 2 3; do
        hash $precision 1 1024 -z $stage
        hash $precision 2 1024 -z $stage -r $((stage % 3))
        hash $precision 3 768 -z $stage
    done
    hash $precision 8 1024 -z 1 --shard-group 4
    hash $precision 8 1024 -z 2 --shard-group 2
    hash $precision 4 1024 -z 3 --shard-group 2 -r 2
    hash $precision 8 1024 -z 3 --prefetch 2 -r 0
    hash $precision 2 1024 -z 1 --transport nccl
    hash $precision 3 768 -z 3 --transport nccl
done
for master in 0 2; do
    hash bf16 1 1024 -z 0 -w $master
    hash bf16 3 768 -z 2 -w $master
    hash bf16 8 1024 -z 3 -w $master
done
exit $((failures != 0))
