#!/usr/bin/env bash
# Is every event that orders the streams of a training step needed, and would its absence be seen?
#
#     dev/test/emulator/test_missing_waits.sh EMULATED_TRAINER 1|3|optimizer|activations
#
# The stage, or the host's update of optimizer state, or copies of activations.
#
# Two ranks train on the emulated GPU over NCCL's transport, which has a stream of its own. Then they do so again for
# each place in the program where a stream or the host waits for an event, without that wait (CUDA_ON_CPU_FORGET,
# dev/device/cpu/emulated.cpp), in one order of streams after another, until something differs (a loss, a norm, the
# state) or the program fails. Five layers: with fewer, no buffer of the pool is used twice.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}     # MPI keeps some memory until the end

trainer=$1
log=$work/log

# train N STREAMS ARGUMENTS...: prints the results of a run without the N-th wait; 0: with all of them
train() (
    NP=2
    . scripts/env.sh
    [ "$1" = 0 ] || export CUDA_ON_CPU_FORGET=$1
    export CUDA_ON_CPU_STREAMS=$2
    timeout -k 5 200 "${MPIRUN:-mpirun}" -np 2 "$trainer" -e custom:l5,h2,c16,v256,t16 -i dev/data/text/default.txt \
        -b 1 -t 8 -d 32 -x 3 -v 0 -s 0 --hash 1 --timeout $([ "$1" = 0 ] && echo 100 || echo 10) \
        --transport nccl "${@:3}" > "$log" 2>&1 < /dev/null
    echo "exit status $?"
    grep -aoE "loss [0-9.a-z]+|norm [0-9.a-z]+|state hash: .*" "$log"
)

# every_place COVERED ARGUMENTS [ONLY]: leaves out each wait in turn, except in functions that match COVERED, where
# another wait makes it redundant; with ONLY, in places that match it
every_place() {
    local covered=$1 arguments=$2 only=${3-} n want have place wrong streams
    # shellcheck disable=SC2086
    want=$(train 0 0 $arguments)
    report "$arguments: trains" "$([[ $want == "exit status 0"*"state hash"* ]] || echo "no state hash")" "$log"
    for ((n = 1; n < 100; n++)); do
        wrong="nothing shows it"
        for streams in 1 0 {2..20}; do      # on two ranks the order is not the seed's alone
            # shellcheck disable=SC2086
            have=$(train $n $streams $arguments)
            place=$(grep -ao "emulated GPU: forgets .*" "$log" | head -n 1 | cut -d' ' -f4-)
            [ -n "$place" ] || [ "$have" = "$want" ] || continue    # the machine is busy: it ended before
            [[ -n $place && $place =~ $only ]] || break
            [ "$have" = "$want" ] || wrong=
            if [ -z "$wrong" ] || [[ $place =~ $covered ]]; then break; fi
        done
        [ -n "$place" ] || break        # there are no more
        [[ $place =~ $only ]] || continue
        if [[ $place =~ $covered ]]; then
            echo "      $arguments: covered by another wait: $place"
        else
            report "$arguments: noticed without $place" "$wrong"
        fi
    done
    report "$arguments: more than 4 places wait for events" "$([ $n -gt 5 ] || echo "only $((n - 1)) do")"
}

# zero_destroy ends what is unfinished, and the trainer leaves nothing unfinished: the wait of a discard cannot show
# here. test_engine_failure discards in the middle.
unfinished="in zero_grads_abandon"
case $2 in
1) every_place "$unfinished" "-z 1 -r 1" ;;
# nccl_window_open: each gather waits for the same stream when it begins. nccl_window_close: a rank that acquired a unit
# has waited for its gather. nccl_reusable: a rank that has waited for the parameters of a later unit has waited for all
# earlier work of the transport's stream.
3) every_place "$unfinished|nccl_window_open|nccl_window_close|nccl_reusable" "-z 3 -r 0" ;;
# The host's update: with several units each slot is used twice. In stage 0 the all-gathers of sums order it, too.
optimizer) every_place none "-z 1 -r 0 --offload cpu" host_update ;;
# A copy waits for computing, computing for a copy out and a copy in. Layer by layer, a layer that is computed again has
# waited for its input before.
activations)
    every_place none "-z 0 -r 2 --offload-activations cpu" activation_offload
    every_place "in layer_.*, in gpt2_backward_by_layer" \
        "-z 2 -r 1 --offload-activations cpu --micro-batch-order layer" activation_offload
    ;;
esac
summary
