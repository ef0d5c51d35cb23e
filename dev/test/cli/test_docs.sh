#!/usr/bin/env bash
# Documents that quote programs: the cases that dev/test/README.md names exist, and the examples in dev/docs/planner.md
# and the tables in dev/docs/scaling.md are what their commands print.
#
#     dev/test/cli/test_docs.sh TRAINER [--case WORD]
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$(realpath "$1")

# cases_exist FILE: each `test_name`: "words of a case" in it is in the source of that test
cases_exist() {
    local quoted name words named=0 gone=0
    while read -r quoted; do
        name=${quoted#\`} words=${quoted#*\"}
        name=${name%%\`*} words=${words%\"}
        named=$((named + 1))
        grep -qF -- "$words" dev/test/*/"$name"{,.c,.cu} 2> /dev/null && continue
        echo "$name has no case \"$words\""
        gone=1
    done < <(tr '\n' ' ' < "$1" | tr -s ' ' | grep -oE '`test_[a-z0-9_]+(\.sh)?`: "[^"]+"')
    [ $named -gt 30 ] && [ $gone = 0 ]
}
check "cases that dev/test/README.md names exist" cases_exist dev/test/README.md
sed 's/"padding stays zero/"padding stays one/' dev/test/README.md > "$work/README.md"
gone_is_noticed() { ! cases_exist "$work/README.md"; }
check "a case that is gone is noticed" gone_is_noticed

# Each example begins with a command; its lines but the last end with a backslash.
sed -n 's/^    //p' dev/docs/planner.md |
    awk -v to="$work/example" '/^\.\/train_gpt2_zero / { n++ } { print > to n }'
# plan_is_printed EXAMPLE
plan_is_printed() {
    local command
    command=$(awk '{ print } !/\\$/ { exit }' "$1")
    eval "$(printf %q "$trainer") ${command#* }" > "$work/printed" || return 1
    awk 'output && NF; !/\\$/ { output = 1 }' "$1" > "$work/quoted"
    [ "$(wc -l < "$work/quoted")" -gt 4 ] && ! diff "$work/quoted" "$work/printed" | grep '^<'
}
check "the plan in dev/docs/planner.md is what its command prints" plan_is_printed "$work/example1"
check "what fits in dev/docs/planner.md is what its command prints" plan_is_printed "$work/example2"
sed -i 's/13317193728/13317193729/' "$work/example1"
another_is_noticed() { ! plan_is_printed "$work/example1" && [ -s "$work/printed" ]; }
check "a plan with another number is noticed" another_is_noticed

scaling_is_printed() {
    dev/bench/print_scaling.sh "$trainer" > "$work/scaling" && [ "$(grep -c '^    ./train' "$work/scaling")" = 8 ] &&
        diff dev/docs/scaling.md "$work/scaling"
}
check "the tables in dev/docs/scaling.md are what their commands print" scaling_is_printed
summary
