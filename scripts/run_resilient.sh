#!/bin/bash
# Keeps a run going: starts it, and starts it again from its newest checkpoint when it fails.
#
#     NP=8 scripts/run_resilient.sh ./train_gpt2_zero -o DIR -n 500 -d 524288 ...
#
# The command is started on NP ranks by mpirun. After a failure it is started on the largest number of ranks that are
# left (GPUs that nvidia-smi lists, at most NP) and by which the micro-batches of a step can be divided, so a step, and
# with it the bits, stays the same: -d or --micro-batches must be given. It waits PAUSE seconds (10) before that, twice
# as long after each further failure, and gives up after TRIES (3) failures in a row in which no checkpoint was added.
#
# SIGTERM, SIGINT (Ctrl-C) or SIGUSR1 asks the run to write a checkpoint and end: Open MPI's mpirun passes SIGUSR1 on,
# while after the other two it kills the ranks within a second. The second signal ends everything at once.
#
# A script may source this file and define start N COMMAND..., which must exec what starts N ranks, and count_ranks,
# which sets `left`; then it calls `resilient COMMAND...` (run_multi_node.sbatch does).

declare -F start > /dev/null || start() {
    exec "$(dirname "${BASH_SOURCE[0]}")/mpirun.sh" -np "$1" "${@:2}"
}

declare -F count_ranks > /dev/null || count_ranks() {
    left=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU')
    [ "$left" != 0 ] && [ "$left" -lt "$NP" ] || left=$NP
}

# value_of FLAG LONG_FLAG COMMAND...: what the command gives for it; the last of equal flags counts
value_of() {
    local value='' short=$1 long=$2
    shift 2
    while [ $# != 0 ]; do
        case $1 in
        -"$short" | --"$long") value=${2-} ;;
        --"$long"=*) value=${1#*=} ;;
        esac
        shift
    done
    echo "$value"
}

newest_checkpoint() {
    find "$1" -maxdepth 1 -name 'DONE_*' -o -maxdepth 1 -name 'model_*.bin' 2> /dev/null |
        sed -n 's/.*_\([0-9]*\)\(\.bin\)\{0,1\}$/\1/p' | sort -n | tail -n 1
}

asked=0
ask() {
    asked=$((asked + 1))
    [ -n "${job-}" ] || return 0
    if [ $asked = 1 ]; then
        echo "run_resilient: asking the run to write a checkpoint and end; a second signal ends it at once" >&2
        kill -USR1 "$job" 2> /dev/null
    else
        kill -TERM -- "-$job" 2> /dev/null
    fi
}

# nap SECONDS: sleep that a signal interrupts
nap() {
    sleep "$1" &
    wait $!
    kill $! 2> /dev/null
}

# choose_ranks COMMAND...: sets np; the command's own plan says whether a number of ranks is possible
choose_ranks() {
    count_ranks
    for ((np = left; np > 0; np--)); do
        "$@" --plan --ranks $np > /dev/null 2>&1 && return
    done
    return 1
}

# resilient COMMAND...: returns the status of the last try
resilient() {
    local dir failures=0 status before after how=()
    dir=$(value_of o output-dir "$@")
    [ -n "$dir" ] || { echo "error: run_resilient.sh: the command needs -o DIR, and -n STEPS" >&2; return 1; }
    [ -n "$(value_of d total-batch-tokens "$@")$(value_of micro-batches micro-batches "$@")" ] || {
        echo "error: run_resilient.sh: the command needs -d or --micro-batches, so that a step stays the same" >&2
        return 1
    }
    np=$NP
    trap ask TERM INT USR1
    before=$(newest_checkpoint "$dir")
    [ -z "$before" ] || how=(-y 1)
    while :; do
        set -m      # a process group of its own: Ctrl-C reaches this script only
        (start "$np" "$@" "${how[@]}") < /dev/null &
        job=$!
        set +m
        [ $asked = 0 ] || kill -USR1 "$job" 2> /dev/null                # asked before `job` was set
        while kill -0 "$job" 2> /dev/null; do wait "$job"; done         # wait also returns when a signal has come
        wait "$job"
        status=$?
        job=
        [ $status != 0 ] && [ $asked = 0 ] || return $status
        after=$(newest_checkpoint "$dir")
        [ "$after" = "$before" ] || failures=0
        before=$after
        failures=$((failures + 1))
        if [ $failures -ge "${TRIES:-3}" ]; then
            echo "error: run_resilient.sh: $failures failures in a row without a new checkpoint: given up" >&2
            return $status
        fi
        nap $((${PAUSE:-10} << (failures - 1)))
        [ $asked = 0 ] || return $status
        how=(-y 1)
        [ -n "$after" ] || how=(--overwrite 1)      # it has saved nothing: from the beginning
        choose_ranks "$@" || { echo "error: run_resilient.sh: no number of ranks up to $left suits" >&2; return 1; }
        echo "run_resilient: status $status; again on $np ranks, from ${after:-the beginning}" >&2
    done
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -u
    [ $# != 0 ] || { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 1; }
    NP=${NP:-8}
    . "$(dirname "$0")/env.sh"
    resilient "$@"
fi
