#!/usr/bin/env bash
# Is every event that orders the streams of a training step needed, and would its absence be seen?
#
#     dev/test/emulator/test_missing_waits.sh EMULATED_TRAINER
#
# Two ranks train on the emulated GPU over NCCL's transport, which has a stream of its own. Then they do so again for each place in the program where
# a stream or the host waits for an event, without that wait (CUDA_ON_CPU_FORGET, dev/device/cpu/emulated.cpp), in one order of streams after another,
# until something is otherwise: a loss, a norm, the state; or the program ends with an error. Five layers: with fewer, no buffer of the pool is used twice.
set -u
cd "$(dirname "$0")/../../.." || exit 1

trainer=$1
passed=0
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# train N STREAMS ARGUMENTS...: what a run without the N-th wait says of its results; 0: with all of them
train() (
    NP=2
    . scripts/env.sh
    [ "$1" = 0 ] || export CUDA_ON_CPU_FORGET=$1
    export CUDA_ON_CPU_STREAMS=$2
    timeout -k 5 60 "${MPIRUN:-mpirun}" -np 2 "$trainer" -e custom:l5,h2,c16,v256,t16 -i dev/data/text/default.txt -b 1 -t 8 -d 32 -x 3 -v 0 -s 0 \
        --hash 1 --timeout 10 --transport nccl "${@:3}" > "$log" 2>&1 < /dev/null
    echo "exit status $?"
    grep -aoE "loss [0-9.a-z]+|norm [0-9.a-z]+|state hash: .*" "$log"
)

report() {   # report PASSED TEXT
    if [ "$1" = 1 ]; then
        passed=$((passed + 1))
        echo "ok    $2"
    else
        failed=$((failed + 1))
        echo "FAIL  $2"
    fi
}

# check COVERED ARGUMENTS: every place but those in functions that match COVERED, where another wait makes up for it, so that nobody can notice
check() {
    local covered=$1 arguments=$2 n want have place noticed streams
    # shellcheck disable=SC2086
    want=$(train 0 0 $arguments)
    [[ $want == "exit status 0"*"state hash"* ]]
    report $((! $?)) "$arguments: trains"
    for ((n = 1; n < 100; n++)); do
        noticed=0
        for streams in 1 0 2 3 4 5; do
            # shellcheck disable=SC2086
            have=$(train $n $streams $arguments)
            place=$(grep -ao "emulated GPU: forgets .*" "$log" | head -n 1 | cut -d' ' -f4-)
            [ -n "$place" ] || break
            [ "$have" = "$want" ] || noticed=1
            if [ $noticed = 1 ] || [[ $place =~ $covered ]]; then break; fi
        done
        [ -n "$place" ] || break        # there are no more
        if [[ $place =~ $covered ]]; then
            echo "      $arguments: covered by another wait: $place"
        else
            report $noticed "$arguments: noticed without $place"
        fi
    done
    [ $n -gt 5 ]
    report $((! $?)) "$arguments: $((n - 1)) places wait for events"
}

check "nothing" "-z 1 -r 1"
# nccl_window_open: each fetch, when it begins, waits for the same stream. nccl_window_close: who acquired a unit has waited for its fetch. nccl_reusable: who has
# waited for the parameters of a later unit has waited for all that the transport's stream had to do before.
check "nccl_window_open|nccl_window_close|nccl_reusable" "-z 3 -r 0"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
