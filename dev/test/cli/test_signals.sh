#!/usr/bin/env bash
# A run that is asked to end by a signal saves and ends, however started; what it saved continues to the state of a
# run without a break. A rank that is killed under run_resilient.sh costs the steps since the last checkpoint, and no
# bits. Ranks that do not see the same output directory publish nothing.
#
#     dev/test/cli/test_signals.sh TRAINER [--case WORD]
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$(realpath "$1")
NP=2
export OMP_NUM_THREADS=1
. scripts/env.sh
mpirun=${MPIRUN:-mpirun}
run=("$trainer" -e custom:l1,h2,c16,v256,t32 -i "$PWD/dev/data/text/default.txt" -b 1 -t 32 --micro-batches 2 -v 0 -s 0
    -k constant --timeout 60 --hash 1)

# wait_for COMMAND...: until it succeeds; on a busy machine that takes long
wait_for() {
    for _ in {1..1600}; do
        "$@" > /dev/null 2>&1 && return
        sleep 0.05
    done
    blame "waited for nothing: $*"
    return 1
}
has_step() { grep -q '^step ' "$mine/log"; }
has_checkpoint() { ls "$mine"/out/DONE_*; }
hash_of() { grep '^state hash' "$1"; }

# continues: from the step at which the run ended, on one rank, 20 more steps, to the state of a run without a break
continues() {
    local step alone=("$mpirun" -np 1 "${run[@]}")
    step=$(sed -n 's/.*: the run ends after step \([0-9]*\).*/\1/p' "$mine/log" | head -n 1)
    [ -n "$step" ] && [ -e "$mine/out/DONE_$(printf %08d "$step")" ] || { blame "no checkpoint"; return 1; }
    "${alone[@]}" -x $((step + 20)) -o "$mine/out" -y 1 > "$mine/next" < /dev/null || { blame "resuming"; return 1; }
    "${alone[@]}" -x $((step + 20)) > "$mine/whole" < /dev/null || { blame "a run without a break"; return 1; }
    grep "^resumed from step $step " "$mine/next" || { blame "not resumed from step $step"; return 1; }
    diff <(hash_of "$mine/whole") <(hash_of "$mine/next") || { blame "another state"; return 1; }
}
blame() { cat "$mine/log"; echo "$1"; }

by_mpirun() {
    "$mpirun" -np 2 "${run[@]}" -x 1000000 -o "$mine/out" > "$mine/log" 2>&1 < /dev/null &
    local job=$!
    wait_for has_step && kill -USR1 $job
    wait $job || { blame "exit status $?"; return 1; }
    continues
}
at_once "SIGUSR1 to mpirun" by_mpirun

# start_both FLAGS...: two ranks without MPI; their processes are in `ranks`
start_both() {
    local r
    ranks=()
    mkdir "$mine/meet"
    for r in 0 1; do
        "${run[@]}" -x 1000000 -o "$mine/out" -pi fs -pf "$mine/meet" -pn 2 -pr $r "$@" >> "$mine/log" 2>&1 \
            < /dev/null &
        ranks+=($!)
    done
    wait_for has_step
}
without_mpi() {
    start_both
    kill "-$1" "${ranks[1]}"
    wait "${ranks[0]}" || { blame "exit status $? of rank 0"; return 1; }
    wait "${ranks[1]}" || { blame "exit status $? of rank 1"; return 1; }
    continues
}
at_once "SIGUSR1 to a rank, without MPI" without_mpi USR1
at_once "SIGTERM to a rank, without MPI" without_mpi TERM
after_a_death() {       # the other one cannot agree any more: it must not save what it has alone
    start_both --timeout 3
    kill -KILL "${ranks[1]}" && kill -TERM "${ranks[0]}"
    ! wait "${ranks[0]}" && ! has_checkpoint && [ -z "$(find "$mine/out" -name '*.bin')" ]
}
at_once "SIGTERM after another rank has died" after_a_death

restarted() {
    PAUSE=0 NP=2 scripts/run_resilient.sh "${run[@]}" -x 1000000 -n 20 -nk 2 -o "$mine/out" > "$mine/log" 2>&1 \
        < /dev/null &
    local job=$!
    wait_for has_checkpoint && kill -KILL "$(pgrep -nf "^$trainer .*-o $mine/out")" &&
        wait_for grep '^resumed from step' "$mine/log" && kill -TERM $job || { kill -KILL $job; return 1; }
    wait $job || { blame "exit status $?"; return 1; }
    grep "^run_resilient: status .* again on 2 ranks, from 0" "$mine/log" ||
        { blame "no restart: $(grep run_resilient "$mine/log")"; return 1; }
    continues
}
at_once "a rank is killed under run_resilient.sh" restarted

two_directories() {
    mkdir "$mine/a" "$mine/b"
    "$mpirun" -np 1 -wdir "$mine/a" "${run[@]}" -x 4 -n 2 -o out : -np 1 -wdir "$mine/b" "${run[@]}" -x 4 -n 2 -o out \
        > "$mine/log" 2>&1 < /dev/null && return 1
    cat "$mine/log"
    grep -q '^error: .*the same on all hosts' "$mine/log" && [ -z "$(find "$mine" -name '*.bin' -o -name '*.tmp')" ]
}
at_once "ranks that do not see the same output directory" two_directories
summary
