#!/usr/bin/env bash
# Activations in host memory (--offload-activations cpu), on the emulated GPU, where copies are real: the state of runs
# without, in several orders of streams, with validation and samples in between; bytes by formula; a plan's bytes.
#
#     dev/test/cli/test_activation_offload.sh CPU_TRAINER EMULATED_TRAINER...
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0} OMP_NUM_THREADS=1
L=4 C=16 B=2 T=4        # 4 micro-batches a step
run="-e custom:l$L,h1,c$C,v256,t8 -i dev/data/text/default.txt -b $B -t $T -d $((4 * B * T)) -x 2 -v 1 -m 2 -s 1
    -g 1 --hash 1"

# train STREAMS RANKS TRAINER FLAGS...: the output is in $mine/log
train() (
    NP=$2
    . scripts/env.sh
    [ "$1" = - ] || export CUDA_ON_CPU_STREAMS=$1
    # shellcheck disable=SC2086
    exec timeout -k 5 200 "${MPIRUN:-mpirun}" -np "$2" "$3" $run "${@:4}" > "$mine/log" 2>&1 < /dev/null
)
results() { grep -aoE "^state hash.*|^val loss.*|^step .* loss .* norm [0-9.]+" "$mine/log"; }
bytes_of() { awk -v row="^$1 " '$0 ~ row { print $NF; exit }' "$mine/log"; }

# same EXPECTED STREAMS RANKS TRAINER FLAGS...: trains to that state, with these bytes
same() {
    local b=4 kept=1 G=$((4 / $3)) each
    [[ $4 != *bf16* ]] || b=2
    [[ "$*" != *"order layer"* ]] || kept=$G
    each=$(((L - 1) * B * T * C * b))
    train "${@:2}" --offload-activations cpu || { tail -n 5 "$mine/log"; return 1; }
    results
    grep -E "differs from the formula|^activations" "$mine/log"
    ! grep -q "differs from the formula" "$mine/log" && [ "$(results)" = "$(cat "$1")" ] &&
        [ "$(bytes_of "activations, host")" = $((kept * each)) ] &&
        [ "$(bytes_of "activations, out")" = $((G * each)) ] && [ "$(bytes_of "activations, in")" = $((G * each)) ]
}

# less TRAINER FLAGS...: the device has as many bytes less as the host has more, and a plan says the same
less() {
    local without with host
    train - 2 "$@" && without=$(bytes_of activations) || return 1
    train - 2 "$@" --offload-activations cpu && with=$(bytes_of activations) && host=$(bytes_of "activations, host")
    "$1" --plan --ranks 2 $run "${@:2}" --offload-activations cpu > "$mine/plan" || return 1
    echo "$without bytes, offloaded $with and $host"; grep "^activations" "$mine/plan"
    [ "$host" -gt 0 ] && [ $((with + host)) = "$without" ] &&
        [ "$(awk '/^activations, host/ { print $NF; exit }' "$mine/plan")" = "$host" ] &&
        [ "$(awk '/^activations  / { print $NF; exit }' "$mine/plan")" = "$with" ]
}

# --profile times the copies of rank 0: 2 micro-batches of 3 inputs, each way
profiled() {
    train 1 2 "$@" --offload-activations cpu --profile 1 || return 1
    sed -n '/^profile/,$p' "$mine/log" | cut -c 1-120
    [ "$(grep -cE "^activations (to|from) the host +6\.0 " "$mine/log")" = 2 ] &&
        ! grep -qE "no formula|not measured|calls differ" "$mine/log"
}

says() {        # WORDS COMMAND...
    "${@:2}" > "$mine/log" 2>&1 < /dev/null
    tail -n 3 "$mine/log"
    grep -q -- "$1" "$mine/log"
}

for trainer in "${@:2}"; do
    mine=$work
    train - 1 "$trainer" -z 0 -r 2
    results > "$work/expected"
    name=$(basename "$(dirname "$trainer")")
    report "$name: trains" "$(grep -q "^state hash" "$work/expected" || echo "no state hash")" "$work/log"
    offloaded() { at_once "$name: streams $1, $2 ranks, ${*:3}" same "$work/expected" "$1" "$2" "$trainer" "${@:3}"; }
    offloaded - 1 -z 0 -r 1
    offloaded 0 1 -z 1 -r 2
    offloaded 1 2 -z 3 -r 2 --micro-batch-order layer
    offloaded 0 2 -z 1 -r 1 --micro-batch-order rank
    offloaded 2 4 -z 2 -r 2 --transport nccl
    offloaded 3 4 -z 3 -r 1 --transport nccl --prefetch 2
    offloaded 4 2 -z 2 -r 1 --micro-batch-order layer --transport nccl
    offloaded 5 2 -z 3 -r 2 --offload cpu
    at_once "$name: profile" profiled "$trainer" -r 2 -z 2
    at_once "$name: bytes" less "$trainer" -r 2
    at_once "$name: bytes, layer by layer" less "$trainer" -r 1 -z 2 --micro-batch-order layer
    all_done
done

at_once "the CPU has one memory" says "offload-activations cpu: .* nothing is offloaded" "$1" --print-config \
    --offload-activations cpu
at_once "-r 0 is refused" says "error: --offload-activations cpu: -r 0 .*use -r 1 or 2" "$1" -r 0 \
    --offload-activations cpu
summary
