#!/usr/bin/env bash
# Builds and runs every test, in both precisions, on the CPU and on the emulated GPU (also where there is a GPU: for
# that there is scripts/gpu_check.sh). Prints one line for each test with its own counts, then the sum of the cases,
# `N passed, N failed`.
#
#     dev/test/run_tests.sh [--long] [TEST [CASE]]
#     make test TEST=engine CASE=padding            the same
#     make test TEST=layout SANITIZE=address        under AddressSanitizer (undefined, thread); DEBUG=1: -O0 -g
#     make test-long                                what takes too long for `make test` (--long)
#
# TEST selects the tests whose name, or whose program's, contains that word. CASE selects cases in them: programs get it
# as --case CASE, and tests in which no case matches are left out. With SANITIZE or DEBUG=1 only tests of DEVICE=cpu are
# run, from build directories of their own; those of the emulated GPU have sanitizers anyway.
#
# The lists are dev/test/test_list.sh and test_list_long.sh. A test that is in neither is a failure, as is a program
# that is missing, prints no summary, runs no case, or exceeds its time-out. Nothing is skipped. Full output is in
# build/test-logs, and its end is printed when a test fails. A program runs without the list, too:
#
#     make build/cpu-fp32/test_engine
#     . scripts/env.sh && mpirun -np 2 build/cpu-fp32/test_engine --case padding
#
# Programs in C, C++ and CUDA use dev/test/harness/harness.h, shell scripts dev/test/harness/report.sh.
set -u
cd "$(dirname "$0")/../.." || exit 1

list=dev/test/test_list.sh
case ${1-} in
--long)
    list=dev/test/test_list_long.sh
    shift
    ;;
-*)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' dev/test/run_tests.sh
    exit 2
    ;;
esac
TEST=${1-}
CASE=${2-}

suffix=     # of build directories, as in the Makefile
[ "${DEBUG:-0}" = 0 ] || suffix=-debug
suffix=$suffix${SANITIZE:+-$SANITIZE}
fp32=build/cpu-fp32$suffix
bf16=build/cpu-bf16$suffix
asan=build/emulated-fp32
tsan=build/emulated-tsan-fp32
text=dev/data/text/default.txt

. dev/test/harness/runner.sh
if [ -z "$TEST$CASE$suffix" ] && [ $list = dev/test/test_list.sh ]; then    # for dev/test/cuda/gpu_status.py
    export CUDA_ON_CPU_EVIDENCE=$PWD/build/evidence/emulated.txt
    mkdir -p build/evidence
    rm -f "$CUDA_ON_CPU_EVIDENCE"
fi
. $list

# A test in no list is a failure. (dev/test/cuda/test_cudnn_plan needs nvcc and cuDNN: .ci/run runs it.)
for file in dev/test/*/test_*.*; do
    test=$(basename "${file%.*}")
    [ "$test" = test_cudnn_plan ] || grep -q "/$test\b" dev/test/test_list.sh dev/test/test_list_long.sh ||
        count 0 1 "$file" "is in no list"
done

summary
