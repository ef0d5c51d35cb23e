#!/usr/bin/env bash
# The example that fine-tunes: killed in the middle of a step, it continues on other ranks in another stage, to the bits
# of the run that was never interrupted.
#
#     dev/test/cli/test_examples.sh FINETUNE REGRESSION
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
program=$1
regression=$2
export OMP_NUM_THREADS=1
NP=4
. scripts/env.sh
log=$work/log

# job RANKS ARGUMENTS...
job() { timeout -k 5 200 "${MPIRUN:-mpirun}" -np "$1" "$program" "${@:2}" > "$log" 2>&1; }

hash_of() { grep -o 'parameters .*' "$log"; }
whole() { job 1 0 "$work/whole" && want=$(hash_of) && [ -n "$want" ]; }
learns() { awk '/^step/ { if (!first) first = $4; last = $4 } END { exit !(last < first / 3) }' "$log"; }

# continued RANKS STAGE RANKS STAGE STEP: killed in STEP
continued() {
    rm -f "$work/state"
    job "$1" "$2" "$work/state" "$5" && return 1
    job "$3" "$4" "$work/state" && grep -qx "continues in step $(($5 / 10 * 10))" "$log" &&
        [ "$(hash_of)" = "$want" ] && cmp "$work/state" "$work/whole"
}
# refused WORDS RANKS ARGUMENTS...: told once, and no rank is aborted
refused() {
    ! job "${@:2}" && [ "$(grep -cF -- "$1" "$log")" = 1 ] && ! grep -q 'MPI_ABORT' "$log"
}

check "a run that is not interrupted ends" whole
check "it learns" learns
check "killed on 2 ranks in stage 1, continued on 3 in stage 3" continued 2 1 3 3 37
check "killed on 4 ranks in stage 3, continued on 1 in stage 2" continued 4 3 1 2 19
check "killed on 3 ranks in stage 2, continued on 4 in stage 0" continued 3 2 4 0 55
check "5 ranks are refused" refused "use 1, 2, 3, 4, 6 or 12 ranks" 5 2 "$work/none"
check "no file is refused" refused "usage: " 2 2
check "stage 4 is refused" refused "usage: " 2 4 "$work/none"
program=$regression
check "the regression's stage 4 is refused" refused "usage: " 2 4
summary
