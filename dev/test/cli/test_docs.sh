#!/usr/bin/env bash
# Documents that quote programs: the cases that dev/test/README.md names exist, and the example in dev/docs/planner.md
# is what its command prints.
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

# The first lines of the example, to one that does not end with a backslash, are the command.
sed -n 's/^    //p' dev/docs/planner.md > "$work/example"
plan_is_printed() {
    local command
    command=$(awk '{ print } !/\\$/ { exit }' "$work/example")
    eval "$(printf %q "$trainer") ${command#* }" > "$work/printed" || return 1
    awk 'output && NF; !/\\$/ { output = 1 }' "$work/example" > "$work/quoted"
    [ "$(wc -l < "$work/quoted")" -gt 20 ] && ! diff "$work/quoted" "$work/printed" | grep '^<'
}
check "the plan in dev/docs/planner.md is what its command prints" plan_is_printed
sed -i 's/13317193728/13317193729/' "$work/example"
another_is_noticed() { ! plan_is_printed && [ -s "$work/printed" ]; }
check "a plan with another number is noticed" another_is_noticed
summary
