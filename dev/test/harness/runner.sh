# runner.sh: how dev/test/run_tests.sh builds and runs tests; its lists (dev/test/test_list.sh, test_list_long.sh) are
# calls of run, must_fail, same and agree.
#
# Expects TEST and CASE, the words that select (empty: all). Several tests run at a time: most wait more than they
# compute, for ranks, time-outs and each other. Each prints its line of the table in one piece when it ends.

logs=build/test-logs
results=$logs/results       # a line for each line of the table: PASSED FAILED NAME
mkdir -p $logs
: > $results

slots=$(($(nproc 2> /dev/null || echo 1) + 1))
[ "$slots" -le 4 ] || slots=4

# Sanitizers stop at the first fault. Leaks are reported where a test asks for it (ASAN_OPTIONS=$leaks), but not those
# of Open MPI, which its libraries' names tell; that takes full stacks of every allocation.
# Threads that wait do not spin: the ranks of several tests share the cores.
export OMP_WAIT_POLICY=passive
leaks=detect_leaks=1:fast_unwind_on_malloc=0
export LSAN_OPTIONS="suppressions=$PWD/dev/test/lsan.supp print_suppressions=0"
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1

# count PASSED FAILED NAME REMARK: adds a line to the table
count() {
    local verdict=ok
    [ "$2" = 0 ] || verdict=FAILED
    echo "$1 $2 $3" >> $results
    printf '%-6s  %-52s %5d passed, %d failed  %s\n' $verdict "$3" "$1" "$2" "$4"
}

# alone FUNCTION ARGUMENTS...: runs it in a process of its own and prints its output in one piece
alone() {
    local began=$SECONDS output
    output=$("$@")
    [ -z "$output" ] || printf '%s\n' "$output"
}

# in_turn FUNCTION ARGUMENTS...: runs it in the background as soon as a slot is free
in_turn() {
    while [ "$(jobs -rp | wc -l)" -ge "$slots" ]; do
        wait -n
    done
    alone "$@" &
}

# spend: sets `spent` to the time since `alone` began, and to the CPU time of its processes, which does not depend on
# what runs beside them
spend() {
    local stat
    read -r stat < "/proc/$BASHPID/stat"
    # shellcheck disable=SC2086
    set -- ${stat##*) }
    spent="$((SECONDS - began)) s, CPU $(((${14} + ${15} + 50) / 100)) s"
}

# make_quietly DEVICE PRECISION GOALS...: a failed build is a failed test
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

# build DEVICE PRECISION GOALS...: builds them all. With TEST, `ready` builds programs one by one instead.
build() {
    [ -n "$TEST" ] || { [ -n "$suffix" ] && [ "$1" != cpu ]; } || alone build_now "$@"
}

# ready NAME PROGRAM ARGUMENTS...: whether this test is selected and its program exists
ready() {
    local item
    [[ "$1 ${2##*/}" == *"$TEST"* ]] || return 1
    for item in "${@:2}"; do
        if [ -n "$TEST" ] && [[ $item =~ ^build/(fuzz-gcc|ckpt(-(.*))?)/ ]]; then
            SANITIZE=${BASH_REMATCH[3]} make_quietly cpu FP32 "$item"
        elif [[ $item =~ ^build/([^/]*)-(fp32|bf16)[^/]*/ ]]; then
            [ -z "$suffix" ] || [ "${BASH_REMATCH[1]}" = cpu ] || return 1
            [ -z "$TEST" ] || make_quietly "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]^^}" "$item"
        fi
    done
    [ -e "$2" ] || count 0 1 "$1" "$2 is missing"
    [ -e "$2" ]
}

# launch RANKS TIMEOUT LOG PROGRAM ARGUMENTS...: RANKS 0 starts the program without mpirun. TIMEOUT is in seconds on
# an idle machine; a busy one has $patience times that.
patience=4
launch() {
    (
        NP=$(($1 ? $1 : 1))
        . scripts/env.sh
        mpirun=()
        [ "$1" = 0 ] || mpirun=("${MPIRUN:-mpirun}" -np "$1")
        exec timeout -k 10 $((patience * $2)) "${mpirun[@]}" "${@:4}"
    ) > "$3" 2>&1 < /dev/null
}

# run RANKS TIMEOUT NAME PROGRAM ARGUMENTS...: a program of cases (harness.h, report.sh): prints `N passed, N failed`
run() {
    ready "${@:3}" && in_turn run_now "$@"
}

run_now() {
    local ranks=$1 limit=$2 name=$3 rc p f remark
    shift 3
    local log="$logs/${name//[ \/]/_}.log"
    launch "$ranks" "$limit" "$log" "$@" ${CASE:+--case "$CASE"}
    rc=$?
    [ -z "$CASE" ] || ! grep -q "^no case has \"" "$log" || return 0
    read -r p f <<< "$(awk '/^[0-9]+ passed, [0-9]+ failed/ { line = $1 " " $3 } END { print line }' "$log")"
    spend
    remark=$spent
    if [ -z "$p" ]; then
        p=0 f=1 remark="$remark, no summary (exit status $rc)"
    elif [ "$f" = 0 ] && [ $rc != 0 ]; then
        f=1 remark="$remark, exit status $rc"
    elif [ "$f" = 0 ] && [ "$p" = 0 ]; then
        f=1 remark="$remark, no case was run"
    fi
    [ $rc != 124 ] && [ $rc != 137 ] || remark="$remark: stopped after its time-out of $((patience * limit)) s"
    count "$p" "$f" "$name" "$remark"
    [ "$f" = 0 ] || tail -n 30 "$log" | sed 's/^/    | /'
}

# must_fail RANKS TIMEOUT NAME WORDS PROGRAM ARGUMENTS...: one case: it exits non-zero, in time, and prints WORDS
must_fail() {
    [[ $3 == *"$CASE"* ]] && ready "$3" "$5" && in_turn must_fail_now "$@"
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
        count 0 1 "$name" "it failed, but did not print \"$words\""
    else
        spend
        count 1 0 "$name" "failed as expected, $spent"
    fi
}

# same TIMEOUT NAME REGEX PROGRAM "RANKS [VARIABLE=VALUE] ARGUMENTS"...: a case for each way to run it: it succeeds, and
# what matches REGEX in its output is as in the first way. CASE selects by NAME and the ways' texts, all ways or none.
same() {
    [[ "$2 ${*:5}" == *"$CASE"* ]] && ready "$2" "$4" && in_turn same_now "$@"
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

# agree TIMEOUT NAME TOLERANCE PROGRAM OTHER ARGUMENTS...: one case: both, in one process, print as many losses, and
# those of each step differ by at most TOLERANCE
agree() {
    [[ $2 == *"$CASE"* ]] && ready "$2" "$4" && ready "$2" "$5" && in_turn agree_now "$@"
}

agree_now() {
    local limit=$1 name=$2 tolerance=$3 program=$4 other=$5 verdict
    shift 5
    local log="$logs/${name//[ \/]/_}"
    launch 0 "$limit" "$log.1.log" "$program" "$@" && launch 0 "$limit" "$log.2.log" "$other" "$@"
    verdict=$(awk -v rc=$? -v tolerance="$tolerance" '
        !match($0, /loss [0-9.]+ /) { next }
        NR == FNR { loss[++n] = $5 + 0; next }
        { d = $5 - loss[++m]; if (d < 0) d = -d; if (d > most) most = d }
        END { ok = rc == 0 && n == m && n > 0 && most <= tolerance
              printf "%d %d largest difference of %d losses: %.1e, allowed %.1e", ok, !ok, m, most, tolerance
        }' "$log.1.log" "$log.2.log")
    spend
    count "${verdict%% *}" "${verdict:2:1}" "$name" "${verdict:4}, $spent"
}

# any_order N: variables that put blocks, warps, lanes and streams of the emulated GPU in the N-th order
any_order() { echo "CUDA_ON_CPU_SCHEDULE=$1 CUDA_ON_CPU_STREAMS=$1"; }

# in_any_order PRECISION: the whole trainer on the emulated GPU, in another order each time
in_any_order() {
    local small="-e custom:l2,h2,c16,v256,t16 -i $text -b 1 -t 16 -d 64 -x 2 -v 0 -s 0 --hash 1"
    local nccl="--transport nccl $small" offload="--offload-activations cpu"
    same 120 "trainer $1, emulated GPU: the same state in any order" "state hash: .*" \
        build/emulated-$1/train_gpt2_zero \
        "1 -z 0 -r 0 $small" "1 $(any_order 1) -z 1 -r 1 $small" "1 $(any_order 2) -z 2 -r 2 $small" \
        "1 $(any_order 0) -z 3 -r 1 $small" "2 $(any_order 3) -z 0 -r 2 $nccl" "2 $(any_order 0) -z 1 -r 0 $small" \
        "2 $(any_order 4) -z 2 -r 1 $offload $nccl" "2 $(any_order 1) -z 3 -r 2 $offload $nccl" \
        "4 $(any_order 5) -z 0 -r 1 $small" "4 $(any_order 6) -z 1 -r 2 $offload --inject-delays 2 $nccl" \
        "4 $(any_order 0) -z 2 -r 0 --inject-delays 1 $nccl" \
        "4 $(any_order 7) -z 3 -r 0 --inject-delays 3 $nccl" "4 $(any_order 8) -z 3 -r 1 --shard-group 2 $small" \
        "4 $(any_order 0) -z 1 --shard-group 2 $nccl" "4 $(any_order 1) -z 2 --shard-group 2 $nccl" \
        "4 $(any_order 9) -z 3 --shard-group 2 $nccl"
}

# summary: waits for all tests; prints what failed and the sum; returns the exit status
summary() {
    local passed failed began=0
    wait
    spend
    if grep -qv '^[0-9]* 0 ' $results; then
        printf '\nFailed (full output in %s):\n' $logs
        awk '$2 != 0' $results | cut -d' ' -f3- | sed 's/^/  /'
    fi
    read -r passed failed <<< "$(awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }' $results)"
    [ "$passed$failed" != 00 ] || printf '\nno test matches TEST="%s" CASE="%s"\n' "$TEST" "$CASE"
    printf '\n%s\n%d passed, %d failed\n' "$spent" "$passed" "$failed"
    [ "$failed" = 0 ] && [ "$passed" != 0 ]
}
