#!/usr/bin/env bash
# Builds and runs every test: one line for each program with its own counts, then `N passed, N failed`, the sum of the cases.
#
#     dev/test/run_tests.sh [WORD]        only tests whose name, or whose program's, contains WORD
#
# They run on the CPU and on the emulated GPU, also where there is a GPU; what a real one has to show is asked by scripts/gpu_check.sh.
#
# The list at the end is explicit: what is not in it is not run, and what is in it but missing has failed. Nothing is skipped. A test program reports
# by its exit status and by either cmocka's summary or a line `N passed, N failed`, the last of which counts; one without such a line, or with no
# case in it, has failed, as has one that takes longer than its time-out. Full output is in build/test-logs, and here when a test fails.
set -u
cd "$(dirname "$0")/../.." || exit 1

word=${1:-}
logs=build/test-logs
results=$logs/results       # a line for each line of the table: PASSED FAILED NAME
mkdir -p $logs
: > $results

# So many tests at a time: most wait more than they compute, for ranks, time-outs and each other.
slots=$(nproc 2> /dev/null || echo 1)
[ "$slots" -le 4 ] || slots=4

# Sanitizers stop at the first fault. Leaks are not looked for: MPI and OpenBLAS keep what they allocated until the end.
# Threads that wait do not spin: several tests' ranks may share the cores with somebody else's work.
export OMP_WAIT_POLICY=passive
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1

# count PASSED FAILED NAME WHAT: books one line of the table
count() {
    local verdict=ok
    [ "$2" = 0 ] || verdict=FAILED
    echo "$1 $2 $3" >> $results
    printf '%-6s  %-52s %5d passed, %d failed  %s\n' $verdict "$3" "$1" "$2" "$4"
}

# alone FUNCTION ARGUMENTS...: in a process of its own, and what it prints appears in one piece
alone() {
    local began=$SECONDS output
    output=$("$@")
    [ -z "$output" ] || printf '%s\n' "$output"
}

# in_turn FUNCTION ARGUMENTS...: beside others, as soon as there is a slot
in_turn() {
    while [ "$(jobs -rp | wc -l)" -ge "$slots" ]; do
        wait -n
    done
    alone "$@" &
}

# spend: sets `spent` to the time since `alone` began, and to what the processes in it have had of the cores, which does not depend on others
spend() {
    local stat
    read -r stat < "/proc/$BASHPID/stat"
    # shellcheck disable=SC2086
    set -- ${stat##*) }
    spent="$((SECONDS - began)) s, CPU $(((${14} + ${15} + 50) / 100)) s"
}

# summary LOG: "PASSED FAILED" of a test program, empty if it has not reported. cmocka's skipped tests have not passed.
summary() {
    awk '/^[0-9]+ passed, [0-9]+ failed/ { ours = $1 " " $3 }
         /^\[  PASSED +\] [0-9]+ test\(s\)/ { cmocka = 1; passed += $4 }
         /^\[  (FAILED|SKIPPED) +\] [0-9]+ test\(s\)/ { cmocka = 1; failed += $4 }
         END { if (ours != "") print ours; else if (cmocka) print passed + 0, failed + 0 }' "$1"
}

# make_quietly DEVICE PRECISION GOALS...
make_quietly() {
    local config="DEVICE=$1 PRECISION=$2" log="$logs/build_$1_$2.log"
    shift 2
    # shellcheck disable=SC2086
    if ! make --no-print-directory -k SETUP=true $config "$@" > "$log" 2>&1; then
        count 0 1 "build $config" "does not build"
        grep -v '^  compile\|^  link' "$log" | tail -n 30 | sed 's/^/    | /'
    fi
}

build_now() {
    make_quietly "$@"
    spend
    printf '%-6s  %-52s %s\n' built "$1 $2" "$spent"
}

# build DEVICE PRECISION GOALS...: a build that fails is a failed test; what could be built is run all the same
build() {
    [ -n "$word" ] || alone build_now "$@"
}

# ready NAME PROGRAM ARGUMENTS...: is this test wanted and its program there? With a WORD programs are built one by one, as they are wanted.
ready() {
    local item
    [[ "$1 ${2##*/}" == *"$word"* ]] || return 1
    for item in "${@:2}"; do
        if [ -n "$word" ] && [[ $item =~ ^build/(.*)-(fp32|bf16)/ ]]; then
            make_quietly "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]^^}" "$item"
        fi
    done
    [ -e "$2" ] || count 0 1 "$1" "$2 is missing"
    [ -e "$2" ]
}

# launch RANKS TIMEOUT LOG PROGRAM ARGUMENTS...: RANKS 0 starts the program by itself, otherwise mpirun does
launch() {
    (
        NP=$(($1 ? $1 : 1))
        . scripts/env.sh
        mpirun=()
        [ "$1" = 0 ] || mpirun=("${MPIRUN:-mpirun}" -np "$1")
        exec timeout -k 10 "$2" "${mpirun[@]}" "${@:4}"
    ) > "$3" 2>&1 < /dev/null
}

# run RANKS TIMEOUT NAME PROGRAM ARGUMENTS...: every case that the program reports
run() {
    ready "${@:3}" && in_turn run_now "$@"
}

run_now() {
    local ranks=$1 limit=$2 name=$3 rc p f what
    shift 3
    local log="$logs/${name//[ \/]/_}.log"
    launch "$ranks" "$limit" "$log" "$@"
    rc=$?
    read -r p f <<< "$(summary "$log")"
    spend
    what=$spent
    if [ -z "$p" ]; then
        p=0 f=1 what="$what, it printed no summary (exit status $rc)"
    elif [ "$f" = 0 ] && [ $rc != 0 ]; then
        f=1 what="$what, exit status $rc"
    elif [ "$f" = 0 ] && [ "$p" = 0 ]; then
        f=1 what="$what, no case was run"
    fi
    [ $rc != 124 ] && [ $rc != 137 ] || what="$what: stopped after its time-out of $limit s"
    count "$p" "$f" "$name" "$what"
    [ "$f" = 0 ] || tail -n 30 "$log" | sed 's/^/    | /'
}

# must_fail RANKS TIMEOUT NAME WORDS PROGRAM ARGUMENTS...: one case, passed if the program ends non-zero, in time, and says WORDS
must_fail() {
    ready "$3" "$5" && in_turn must_fail_now "$@"
}

must_fail_now() {
    local ranks=$1 limit=$2 name=$3 words=$4 rc
    shift 4
    local log="$logs/${name//[ \/]/_}.log"
    launch "$ranks" "$limit" "$log" "$@"
    rc=$?
    if [ $rc = 0 ] || [ $rc = 124 ] || [ $rc = 137 ]; then
        count 0 1 "$name" "it must fail, but its exit status is $rc"
    elif ! grep -q -- "$words" "$log"; then
        count 0 1 "$name" "it failed, as it must, but did not say \"$words\""
    else
        spend
        count 1 0 "$name" "failed, as it must, $spent"
    fi
}

# same TIMEOUT NAME REGEX PROGRAM "RANKS [VARIABLE=VALUE] ARGUMENTS"...: a case for each way to run it: it ends well, and what in its output is REGEX is as
# the first time
same() {
    ready "$2" "$4" && in_turn same_now "$@"
}

same_now() {
    local limit=$1 name=$2 words=$3 program=$4 way lines first='' p=0 f=0
    shift 4
    for way in "$@"; do
        local log="$logs/${name//[ \/]/_}_$((p + f + 1)).log" all item arguments=() variables=()
        read -r -a all <<< "${way#* }"
        for item in "${all[@]}"; do
            if [[ $item == [A-Z]*=* ]]; then variables+=("$item"); else arguments+=("$item"); fi
        done
        if launch "${way%% *}" "$limit" "$log" env "${variables[@]}" "$program" "${arguments[@]}" &&
            lines=$(grep -oE -- "$words" "$log") && [ "$lines" = "${first:=$lines}" ]; then
            p=$((p + 1))
        else
            f=$((f + 1))
            echo "    | $way: \"${lines:-nothing like $words}\", expected \"$first\"; the end of its output:"
            tail -n 5 "$log" | sed 's/^/    | /'
        fi
    done
    spend
    count $p $f "$name" "$spent"
}

# agree TIMEOUT NAME TOLERANCE PROGRAM OTHER ARGUMENTS...: one case: both, in one process, print as many losses, and those of each step differ by TOLERANCE at most
agree() {
    ready "$2" "$4" && ready "$2" "$5" && in_turn agree_now "$@"
}

agree_now() {
    local limit=$1 name=$2 tolerance=$3 program=$4 other=$5 verdict
    shift 5
    local log="$logs/${name//[ \/]/_}"
    launch 0 "$limit" "$log.1.log" "$program" "$@" && launch 0 "$limit" "$log.2.log" "$other" "$@"
    verdict=$(awk -v rc=$? -v tolerance="$tolerance" '
        match($0, /loss [0-9.]+ /) { if (NR == FNR) loss[++n] = $5 + 0; else { d = $5 - loss[++m]; if (d < 0) d = -d; if (d > most) most = d } }
        END { ok = rc == 0 && n == m && n > 0 && most <= tolerance
              printf "%d %d largest difference of %d losses: %.1e, allowed %.1e", ok, !ok, m, most, tolerance }' "$log.1.log" "$log.2.log")
    spend
    count "${verdict%% *}" "${verdict:2:1}" "$name" "${verdict:4}, $spent"
}

# ----------------------------------------------------------------------------------------------------------------------
# The list

fp32=build/cpu-fp32
bf16=build/cpu-bf16
asan=build/emulated-fp32
tsan=build/emulated-tsan-fp32
build cpu FP32 all
build cpu BF16 $bf16/{train_gpt2_zero,test_model,test_gpt2_zero,bench_adamw}
build emulated FP32 $asan/{planted_faults,test_emulator,test_kernels,test_model,test_gpt2_zero,test_nccl,train_gpt2_zero}
build emulated BF16 build/emulated-bf16/train_gpt2_zero
build emulated-tsan FP32 $tsan/{planted_faults,train_gpt2_zero}

text=dev/data/text/default.txt

run 0 120 "harness" $fp32/test_harness
run 0 60 "layout" $fp32/test_layout
run 0 60 "random numbers" $fp32/test_random
run 0 60 "data" $fp32/test_data
run 0 60 "options" $fp32/test_options
run 0 60 "plan" $fp32/test_plan
run 0 60 "profile" $fp32/test_profile
run 0 120 "matmul" $fp32/test_matmul
run 0 60 "device header" $fp32/test_emulator
run 0 60 "master weights, all words" $fp32/test_master
run 0 120 "kernels" $fp32/test_kernels
run 0 180 "model fp32" $fp32/test_model
run 0 180 "model bf16" $bf16/test_model
run 0 120 "ranks meet, by TCP" $fp32/test_bootstrap tcp
run 0 120 "ranks meet, by a directory" $fp32/test_bootstrap fs
run 3 60 "ranks meet, by MPI" $fp32/test_bootstrap mpi
for ranks in 1 2 3 4; do
    run $ranks 120 "transport, $ranks ranks" $fp32/test_comm
done
run 2 60 "what overlaps" $fp32/test_overlap
for ranks in 1 2 3 8; do
    run $ranks 120 "NCCL transport, $ranks ranks" $fp32/test_nccl
done
for seed in 0 1 2 3; do     # 0: as little as the host waits for; else a random order of what may run
    CUDA_ON_CPU_STREAMS=$seed CUDA_ON_CPU_PROTECT=1 run $((2 + seed % 2)) 120 "NCCL transport, streams in order $seed" $fp32/test_nccl
done
for ranks in 1 3 8; do
    run $ranks 300 "engine, $ranks ranks" $fp32/test_engine
done
for ranks in 1 2 3 4 8; do
    run $ranks 180 "sharded = unsharded fp32, $ranks ranks" $fp32/test_gpt2_zero
    run $ranks 180 "sharded = unsharded bf16, $ranks ranks" $bf16/test_gpt2_zero
done
for ranks in 5 6 7; do
    run $ranks 180 "sharded = unsharded fp32, $ranks ranks" $fp32/test_gpt2_zero
done
for breakage in order bit replica; do
    must_fail 2 180 "sharded = unsharded notices: $breakage" FAIL $fp32/test_gpt2_zero --break $breakage
done
same 60 "example: the same state on any ranks" "parameters [0-9a-f]+, optimizer [0-9a-f]+" $fp32/regression "1 0" "2 1" "4 2" "8 3" "1 3"

# The trainer itself: 8 micro-batches a step, on 1 to 8 ranks.
tiny="-e custom:l2,h4,c64,v256,t64 -i $text -b 2 -t 64 -d 1024 -x 5 -v 0 -s 0 --hash 1"
for precision in fp32 bf16; do
    same 60 "trainer $precision: the same state on any ranks" "state hash: .*" build/cpu-$precision/train_gpt2_zero \
        "1 -z 0 $tiny" "2 -z 1 $tiny" "4 -z 2 $tiny" "8 -z 3 $tiny" "8 -z 0 $tiny" "2 -z 3 --prefetch 0 $tiny" "8 -z 3 --shard-group 2 $tiny" "4 -z 1 --shard-group 2 $tiny" "2 -z 2 -r 0 -ge 2 $tiny"
done
tiny3=${tiny/-d 1024/-d 768}
for seed in 1 2 3; do
    CUDA_ON_CPU_STREAMS=$seed same 60 "trainer, NCCL, streams in order $seed: the state of MPI" "state hash: .*" $fp32/train_gpt2_zero \
        "1 -z 0 $tiny" "2 -z $seed --transport nccl $tiny" "4 -z $(((seed + 1) % 4)) --transport nccl --nccl-register 1 $tiny" \
        "8 -z $(((seed + 2) % 4)) --transport nccl $tiny" "4 -z $seed --shard-group 2 --transport nccl $tiny"
done
same 90 "trainer, NCCL, shard groups: the state of MPI" "state hash: .*" $fp32/train_gpt2_zero \
    "4 -z 1 --shard-group 2 $tiny" "4 -z 1 --shard-group 2 --transport nccl $tiny" "4 -z 2 --shard-group 2 --transport nccl $tiny" \
    "4 -z 3 --shard-group 2 --transport nccl $tiny" "4 -z 3 --shard-group 2 --transport nccl --nccl-register 1 $tiny"
same 60 "trainer, NCCL, 3 ranks: the state of MPI" "state hash: .*" $fp32/train_gpt2_zero \
    "3 -z 2 $tiny3" "3 -z 0 --transport nccl $tiny3" "3 -z 1 --transport nccl $tiny3" "3 -z 3 --transport nccl $tiny3"
same 60 "trainer bf16, split master weights: the state of -w 1" "state hash: .*" $bf16/train_gpt2_zero \
    "1 -w 1 $tiny" "1 -w 2 $tiny" "2 -w 2 -z 1 $tiny" "4 -w 2 -z 2 $tiny" "8 -w 2 -z 3 $tiny" "8 -w 2 -z 0 $tiny" "8 -w 2 -z 3 --shard-group 2 $tiny"
same 60 "trainer bf16, no master weights: the same state on any ranks" "state hash: .*" $bf16/train_gpt2_zero \
    "1 -w 0 -z 0 $tiny" "2 -w 0 -z 1 $tiny" "4 -w 0 -z 2 $tiny" "8 -w 0 -z 3 $tiny" "8 -w 0 -z 0 $tiny" "8 -w 0 -z 3 --shard-group 2 $tiny"
run 0 300 "fuzz: 60 s of configurations, one seed" $fp32/fuzz --build build/cpu --seconds 60 --seed 1
must_fail 0 300 "fuzz notices another seed" "other numbers" $fp32/fuzz --build build/cpu --break 1 --seed 1
run 0 120 "scripts that start runs, dry" dev/test/cli/test_scripts.sh $fp32/train_gpt2_zero
run 0 300 "command line of the trainer" dev/test/cli/test_cli.sh $fp32/train_gpt2_zero
run 0 400 "124M: the books are what the process takes" dev/test/cli/test_memory.sh $fp32/train_gpt2_zero $bf16/train_gpt2_zero
run 0 300 "a run measures what its plan says" dev/test/cli/test_plan.sh $fp32/train_gpt2_zero $bf16/train_gpt2_zero
run 0 120 "each kind of work has a formula" dev/test/cli/test_profile.sh $fp32/train_gpt2_zero $bf16/train_gpt2_zero
run 0 300 "same losses as llm.c" dev/test/cli/test_llmc_parity.sh $fp32/train_gpt2_zero
run 0 300 "check of a GPU: every line of the script" dev/test/cli/test_gpu_check.sh

# What would run on a GPU never touches the device's memory from the host (dev/device/cpu/protect.cpp; a number above 1 looks less often, for speed).
CUDA_ON_CPU_PROTECT=1 run 0 120 "device memory is out of reach: kernels" $fp32/test_kernels
CUDA_ON_CPU_PROTECT=1 run 2 120 "device memory is out of reach: transport" $fp32/test_comm
CUDA_ON_CPU_PROTECT=5 run 0 120 "device memory is out of reach: engine" $fp32/test_engine
CUDA_ON_CPU_PROTECT=20 run 2 180 "device memory is out of reach: sharded = unsharded" $bf16/test_gpt2_zero
CUDA_ON_CPU_PROTECT=1 same 60 "device memory is out of reach: example" "parameters [0-9a-f]+, optimizer [0-9a-f]+" $fp32/regression "1 0" "2 3"
CUDA_ON_CPU_PROTECT=5 same 60 "device memory is out of reach: trainer" "state hash: .*" $fp32/train_gpt2_zero \
    "1 -z 0 $tiny" "2 -z 2 $tiny" "2 -z 3 $tiny -v 2 -s 3 -g 20"

# The kernels as a GPU runs them: warps, barriers, shared memory, under sanitizers.
run 0 300 "faults planted for the emulated GPU are found" dev/test/emulator/test_planted_faults.sh $asan/planted_faults $tsan/planted_faults
run 0 120 "device header, emulated GPU" $asan/test_emulator
run 0 300 "kernels, emulated GPU" $asan/test_kernels
run 0 300 "model fp32, emulated GPU" $asan/test_model
run 2 300 "sharded = unsharded fp32, emulated GPU, 2 ranks" $asan/test_gpt2_zero
CUDA_ON_CPU_STREAMS=1 run 2 300 "sharded = unsharded fp32, emulated GPU, streams in order 1" $asan/test_gpt2_zero
CUDA_ON_CPU_STREAMS=1 run 2 120 "NCCL transport, emulated GPU, streams in order 1" $asan/test_nccl

# The whole trainer there: blocks, warps and lanes in another order each time (CUDA_ON_CPU_SCHEDULE), and streams (CUDA_ON_CPU_STREAMS).
small="-e custom:l2,h2,c16,v256,t16 -i $text -b 1 -t 16 -d 64 -x 2 -v 0 -s 0 --hash 1"
nccl="--transport nccl $small"
any_order() { echo "CUDA_ON_CPU_SCHEDULE=$1 CUDA_ON_CPU_STREAMS=$1"; }
for precision in fp32 bf16; do
    same 120 "trainer $precision, emulated GPU: the same state in any order" "state hash: .*" build/emulated-$precision/train_gpt2_zero \
        "1 -z 0 -r 0 $small" "1 $(any_order 1) -z 1 -r 1 $small" "1 $(any_order 2) -z 2 -r 2 $small" "1 $(any_order 0) -z 3 -r 1 $small" \
        "2 $(any_order 3) -z 0 -r 2 $nccl" "2 $(any_order 0) -z 1 -r 0 $small" "2 $(any_order 4) -z 2 -r 1 $nccl" "2 $(any_order 1) -z 3 -r 2 $nccl" \
        "4 $(any_order 5) -z 0 -r 1 $small" "4 $(any_order 6) -z 1 -r 2 --inject-delays 2 $nccl" "4 $(any_order 0) -z 2 -r 0 --inject-delays 1 $nccl" \
        "4 $(any_order 7) -z 3 -r 0 --inject-delays 3 $nccl" "4 $(any_order 8) -z 3 -r 1 --shard-group 2 $small" \
        "4 $(any_order 0) -z 1 --shard-group 2 $nccl" "4 $(any_order 1) -z 2 --shard-group 2 $nccl" "4 $(any_order 9) -z 3 --shard-group 2 $nccl"
done
run 0 300 "trainer, emulated GPU: a missing event is noticed" dev/test/emulator/test_missing_waits.sh $asan/train_gpt2_zero
# Its losses are the fast build's, but for the order of sums inside a row.
agree 120 "trainer fp32, emulated GPU: losses of the fast build" 1e-5 $asan/train_gpt2_zero $fp32/train_gpt2_zero \
    -e custom:l2,h1,c80,v256,t40 -i $text -b 1 -t 40 -d 80 -x 20 -l 0.001 -v 0 -s 0
# One thread of OpenMP: ThreadSanitizer does not see the barriers of its library. It is slow: each of a block's threads is a thread to it.
tiniest="OMP_NUM_THREADS=1 -e custom:l2,h2,c16,v256,t16 -i $text -b 1 -t 8 -d 16 -x 1 -v 0 -s 0 --hash 1"
same 120 "trainer fp32, emulated GPU, ThreadSanitizer: the same state" "state hash: .*" $tsan/train_gpt2_zero \
    "1 -z 0 -r 1 $tiniest" "2 $(any_order 2) -z 2 -r 0 $tiniest" "2 $(any_order 3) -z 3 -r 2 --transport nccl $tiniest"

# A test that nobody runs is a failure too. (dev/test/test_cudnn_plan needs nvcc and cuDNN: .ci/run runs it.)
for file in dev/test/*/test_*.*; do
    test=$(basename "${file%.*}")
    grep -q "/$test\b" dev/test/run_tests.sh || count 0 1 "$file" "is not in the list of dev/test/run_tests.sh"
done

# ----------------------------------------------------------------------------------------------------------------------

wait
began=0
spend
if grep -qv '^[0-9]* 0 ' $results; then
    echo
    echo "Failed (full output in $logs):"
    awk '$2 != 0' $results | cut -d' ' -f3- | sed 's/^/  /'
fi
read -r passed failed <<< "$(awk '{ passed += $1; failed += $2 } END { print passed + 0, failed + 0 }' $results)"
echo
[ -z "$word" ] || [ "$passed$failed" != 00 ] || echo "no test has \"$word\" in its name or its program's"
echo "$spent"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
