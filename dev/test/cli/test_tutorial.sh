#!/usr/bin/env bash
# Runs the commands of dev/docs/tutorial.md, those after "$ ", as they stand, but with a smaller model and fewer steps;
# in a directory that looks like the repository, so that nothing is left in it.
#
#     dev/test/cli/test_tutorial.sh
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
top=$PWD
ln -s "$top"/{Makefile,build,dev,scripts,zero,*.cu} "$work"
cd "$work" || exit 1
export DEVICE=cpu PRECISION=FP32
unset MAKEFLAGS MAKELEVEL OMP_NUM_THREADS

# A line that begins with "> " continues the one before. Smaller: model, steps, samples.
sed -n 's/^    [$>] //p' "$top/dev/docs/tutorial.md" > commands
sed -i 's/custom:l4,h4,c128,/custom:l1,h2,c32,/; s/-x 300/-x 4/; s/-v 100/-v 2/; s/-n 100/-n 2/
    s/model_00000300/model_00000004/g; s/-g 90/-g 20/' commands
smaller() { [ "$(grep -c 'custom:l1' commands)" -ge 3 ] && [ "$(grep -c -- '-x 4' commands)" = 2 ] && cat commands; }
check "commands are found, and made smaller" smaller
ends_well() { timeout -k 5 240 bash -eu commands > log 2>&1 < /dev/null || { tail -n 20 log; false; }; }
check "all commands succeed" ends_well
same_hash() { [ "$(grep -c '^state hash' log)" = 2 ] && [ "$(grep '^state hash' log | sort -u | wc -l)" = 1 ]; }
check "1 and 8 ranks have the same state" same_hash
check "and write the same model" grep -qx equal log
same_sample() {
    [ "$(grep -c '^And the LORD said' log)" = 2 ] && [ "$(grep '^And the LORD' log | sort -u | wc -l)" = 1 ]
}
check "1 and 8 ranks continue the prompt alike" same_sample
# The plan is that of the whole model: what the tutorial shows of it is what was printed.
plan_is_shown() {
    sed -n '/^## 7/,/^Every/p' "$top/dev/docs/tutorial.md" | sed -n 's/^    //p' |
        sed '/^[$>] /d; /^\.\.\.$/d; /^build/d' > shown
    [ "$(grep -c . shown)" -ge 10 ] && ! grep . shown | grep -vxFf log
}
check "the plan of 64 ranks is what the tutorial shows" plan_is_shown
summary
