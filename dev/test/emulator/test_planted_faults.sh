#!/bin/sh
# Every planted fault must be found, and the same kernel without it must pass in every schedule.
#
#     test_planted_faults.sh ASAN_PROGRAM [TSAN_PROGRAM]
#
# In each schedule blocks, warps and lanes run in another order, and streams too (dev/device/cpu/emulated.cpp, streams.cpp).
# The programs are dev/test/emulator/planted_faults.cu, built for the emulated GPU with AddressSanitizer and UBSan, and with ThreadSanitizer.
# One line for each fault: its name, the program that must find it, and how:
#   wrong      the output of some schedule is not the clean version's
#   differs    the output depends on the schedule
#   otherwise  words that must appear in the message of a program that fails, in some schedule

asan=$1
tsan=$2
passed=0
failed=0
if [ ! -x "$asan" ]; then
    echo "usage: $0 ASAN_PROGRAM [TSAN_PROGRAM]" >&2
    exit 2
fi

# run PROGRAM FAULT VERSION: for each schedule one line, with the exit status and everything that the program said
run() {
    schedules="0 1 2 3"
    [ "$1" = "$tsan" ] && schedules="0 2"       # it is slow, and finds a race in any order
    for s in $schedules; do
        output=$(CUDA_ON_CPU_SCHEDULE=$s CUDA_ON_CPU_STREAMS=$s "$1" "$2" "$3" 2>&1)
        echo "$? $(echo "$output" | tr '\n' ' ')"
    done 2>/dev/null                            # the shell's own "Aborted"
}

report() {   # report PASSED TEXT
    if [ "$1" = 1 ]; then
        passed=$((passed + 1))
        echo "ok    $2"
    else
        failed=$((failed + 1))
        echo "FAIL  $2"
    fi
}

check() {   # check PROGRAM FAULT EXPECTED WORDS
    program=$1
    name=$2
    shift 2
    clean=$(run "$program" "$name" clean | sort -u)
    faulty=$(run "$program" "$name" faulty | sort -u)
    same=$(echo "$clean" | grep -c .)
    case $clean in
    "0 "*) [ "$same" = 1 ] && good=1 || good=0 ;;
    *) good=0 ;;
    esac
    report $good "$name, clean: the same in every schedule"
    [ $good = 1 ] || echo "$clean"

    found=0
    case $* in
    wrong) echo "$faulty" | grep -qvxF "$clean" && found=1 ;;
    differs) [ "$(echo "$faulty" | grep -c '^0 ')" -gt 1 ] && found=1 ;;
    *) echo "$faulty" | grep -v '^0 ' | grep -qF "$*" && found=1 ;;
    esac
    report $found "$name, faulty: found ($*)"
    [ $found = 1 ] || echo "$faulty"
}

check "$asan" global_overrun heap-buffer-overflow
check "$asan" shared_overrun global-buffer-overflow
check "$asan" dynamic_overrun heap-buffer-overflow
check "$asan" misaligned misaligned access
check "$asan" misaligned_store misaligned access
check "$asan" misaligned_bf16 misaligned access
check "$asan" unset_shared wrong
check "$asan" unset_global wrong
check "$asan" missing_barrier wrong
check "$asan" missing_second_barrier differs
check "$asan" missing_syncwarp wrong
check "$asan" neighbour_race differs
check "$asan" divergent_barrier after some threads of the block have ended
check "$asan" two_barriers threads of a block wait at different __syncthreads
check "$asan" early_return after some threads of the block have ended
check "$asan" uneven_loop after some threads of the block have ended
check "$asan" short_mask a shuffle reads a lane that its mask does not name
check "$asan" half_a_shuffle deadlock
check "$asan" block_race differs
check "$asan" shared_sum differs
check "$asan" float_atomic differs
check "$asan" too_many_threads larger than 1024 threads
check "$asan" too_much_shared too much dynamic shared memory
check "$asan" too_much_opted_in invalid argument
check "$asan" too_tall_a_grid the grid is larger
check "$asan" half_a_warp not a multiple of 32 threads
check "$asan" missing_event wrong
check "$asan" early_event wrong
check "$asan" reused_source wrong
check "$asan" reused_input wrong
check "$asan" freed heap-use-after-free
check "$asan" missing_wait wrong
export CUDA_ON_CPU_PROTECT=1
check "$asan" host_reads the host touches device memory
check "$asan" host_writes the host touches device memory
check "$asan" host_pointer neither the device\'s nor pinned
check "$asan" host_fill invalid argument
check "$asan" wrong_kind invalid argument
unset CUDA_ON_CPU_PROTECT
if [ -x "$tsan" ]; then
    for fault in missing_barrier missing_second_barrier missing_syncwarp neighbour_race shared_sum; do
        check "$tsan" $fault data race
    done
fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
