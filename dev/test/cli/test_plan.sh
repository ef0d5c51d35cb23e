#!/usr/bin/env bash
# Does a run measure what its plan predicts? For each stage on 2 and 4 ranks, every category of memory and of the wire,
# to the byte.
#
#     dev/test/cli/test_plan.sh TRAINER...
set -u
cd "$(dirname "$0")/../../.." || exit 1
. scripts/env.sh
export OMP_NUM_THREADS=1
. dev/test/harness/report.sh

# compare PLAN RUN STAGE. A run prints rows of: name (26 columns), formula, bytes by formula, measured min, max; a plan:
# name (30 columns), bytes of stages 0, 1, 2, 3. Ranks differ in how many chunks their optimizer has, so "transport" is
# compared with the formula of rank 0 only.
compare() {
    awk -v stage="$3" -v snapshot="$(grep -c '^checkpoint snapshot' "$1")" '
        function name(s, width) { s = substr(s, 1, width); sub(/ +$/, "", s); return s }
        /^(memory|wire) per rank/ { table = $1; next }
        /^total, GB/ { next }
        NF == 0 || /^(model states|time per|ranks from|  formulas)/ { table = "" }
        FNR == NR && table != "" { plan[table "/" name($0, 30)] = $(NF - 3 + stage); next }
        FNR != NR && table != "" {
            key = table "/" name($0, 26)
            rows++
            if (/differs from the formula/) { print key ": measured is not the formula: " $0; bad = 1; next }
            each = name($0, 26) !~ /^(transport|total)$/
            if (plan[key] != $(NF - 2) || each && ($(NF - 1) != $(NF - 2) || $NF != $(NF - 2))) {
                print key ": planned " plan[key] ", the run prints " $(NF - 2) ", measured " $(NF - 1) " to " $NF
                bad = 1
            }
        }
        END {
            if (rows != 14 + snapshot) { print "the run has " rows " rows, not 10 of memory, 4 of the wire"; bad = 1 }
            exit bad
        }' "$1" "$2"
}

# plan_equals_run TRAINER RANKS STAGE [FLAGS]: of a model with odd sizes, three micro-steps or more
plan_equals_run() {
    # shellcheck disable=SC2206    # words
    local flags=(${4-} -e custom:l3,h3,c72,v256,t64 -i dev/data/text/default.txt -b 2 -t 64 -d 1536 -z "$3"
        --prefetch $(($2 / 2)))
    "$1" --plan --ranks "$2" "${flags[@]}" > "$work/plan" || return 1
    mpirun -np "$2" "$1" "${flags[@]}" -x 2 -v 0 -s 0 > "$work/run" || return 1
    compare "$work/plan" "$work/run" "$3"
}

json_is_well_formed() {
    "$1" --plan json --ranks 12 -e d12 > "$work/json" || return 1
    if command -v python3 > /dev/null; then
        python3 -m json.tool "$work/json" > /dev/null
    else        # without the strings, brackets must pair
        sed 's/"[^"]*"/s/g' "$work/json" |
            awk '{ o += gsub(/[[{]/, ""); c += gsub(/[]}]/, "") } END { exit o == 0 || o != c }'
    fi
}

printed_once_for_the_ranks_of_mpirun() {
    mpirun -np 3 "$1" --plan > "$work/plan" && [ "$(grep -c '^plan: .* ranks N = 3$' "$work/plan")" = 1 ]
}

# groups_cost_more TRAINER GROUP STAGE: the plan and the header of a run of 4 ranks say so
groups_cost_more() {
    "$1" --plan --ranks 4 --shard-group "$2" > "$work/plan" &&
        mpirun -np 4 "$1" -b 1 -t 64 -x 0 -v 0 -s 0 -z "$3" --shard-group "$2" > "$work/run" || return 1
    grep -q "(stage $3: one group, groups cost more wire)" "$work/plan" &&
        grep -q "| one shard group: groups of $2 cost more wire " "$work/run"
}

for trainer in "$@"; do
    for ranks in 2 4; do
        for stage in 0 1 2 3; do
            check "$trainer, stage $stage, $ranks ranks" plan_equals_run "$trainer" $ranks $stage
        done
        check "$trainer, stage $((ranks - 1)), two groups of ranks" \
            plan_equals_run "$trainer" 4 $((ranks - 1)) "--shard-group 2"
    done
    for stage in 1 3; do
        check "$trainer, stage $stage, NCCL" plan_equals_run "$trainer" 3 $stage "--transport nccl"
    done
    check "$trainer, rank by rank" plan_equals_run "$trainer" 3 1 "--micro-batch-order rank"
    check "$trainer, layer by layer" plan_equals_run "$trainer" 3 3 "--micro-batch-order layer"
    check "$trainer, NCCL, two groups of ranks" \
        plan_equals_run "$trainer" 4 3 "--transport nccl --shard-group 2"
    check "$trainer, NCCL, registered buffers" plan_equals_run "$trainer" 2 2 "--transport nccl --nccl-register 1"
    check "$trainer, NCCL, registered buffers, two groups of ranks" \
        plan_equals_run "$trainer" 4 3 "--transport nccl --nccl-register 1 --shard-group 2"
    check "$trainer, NCCL, its own sum" plan_equals_run "$trainer" 2 2 "--transport nccl --reduce library"
    check "$trainer, checkpoints" plan_equals_run "$trainer" 4 3 "-n 2 -o $work/out --overwrite 1"
    for kind in 0 2; do     # of master weights
        [[ $trainer != *bf16* ]] || check "$trainer, -w $kind" plan_equals_run "$trainer" 2 $kind "-w $kind"
    done
    [[ $trainer != *bf16* ]] ||
        check "$trainer, groups that cost more wire are not formed" groups_cost_more "$trainer" 2 1
    for stage in 0 3; do
        check "$trainer, stage $stage, SGD and a moving average" plan_equals_run "$trainer" 2 $stage \
            "--optimizer sgd --ema-decay 0.9"
    done
    check "$trainer, JSON" json_is_well_formed "$trainer"
    check "$trainer, a plan under mpirun" printed_once_for_the_ranks_of_mpirun "$trainer"
done
summary
