#!/usr/bin/env bash
# Every planted fault must be found, and the same kernel without it must pass in every schedule.
#
#     test_planted_faults.sh ASAN_PROGRAM [TSAN_PROGRAM]
#
# In each schedule blocks, warps and lanes run in another order, and streams too (dev/device/cpu/emulated.cpp,
# streams.cpp). The programs are dev/test/emulator/planted_faults.cu, built for the emulated GPU with AddressSanitizer
# and UBSan, and with ThreadSanitizer. One line for each fault: its name, the program that must find it, and how:
#   wrong      the output of some schedule is not the clean version's
#   differs    the output depends on the schedule
#   otherwise  words that must appear in the message of a program that fails, in some schedule
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh

asan=${1-}
tsan=${2-}
if [ ! -x "$asan" ]; then
    echo "usage: $0 ASAN_PROGRAM [TSAN_PROGRAM]" >&2
    exit 2
fi

# run PROGRAM FAULT VERSION: for each schedule one line, with the exit status and all that the program printed
run() {
    local schedules="0 1 2 3"
    [ "$1" = "$tsan" ] && schedules="0 2"       # it is slow, and finds a race in any order
    for s in $schedules; do
        output=$(CUDA_ON_CPU_SCHEDULE=$s CUDA_ON_CPU_STREAMS=$s "$1" "$2" "$3" 2>&1)
        echo "$? $(echo "$output" | tr '\n' ' ')"
    done 2>/dev/null                            # the shell's own "Aborted"
}

# find_fault PROGRAM FAULT EXPECTED WORDS
find_fault() {
    local program=$1 name=$2 clean faulty found=
    shift 2
    selected "$name, clean: the same in every schedule" || selected "$name, faulty: found ($*)" || return
    clean=$(run "$program" "$name" clean | sort -u)
    faulty=$(run "$program" "$name" faulty | sort -u)
    report "$name, clean: the same in every schedule" \
        "$([[ $clean == "0 "* ]] && [ "$(grep -c . <<< "$clean")" = 1 ] || echo "$clean")"
    case $* in
    wrong) grep -qvxF "$clean" <<< "$faulty" ;;
    differs) [ "$(grep -c '^0 ' <<< "$faulty")" -gt 1 ] ;;
    *) grep -v '^0 ' <<< "$faulty" | grep -qF "$*" ;;
    esac || found=$faulty
    report "$name, faulty: found ($*)" "$found"
}

find_fault "$asan" global_overrun heap-buffer-overflow
find_fault "$asan" shared_overrun global-buffer-overflow
find_fault "$asan" dynamic_overrun heap-buffer-overflow
find_fault "$asan" misaligned misaligned access
find_fault "$asan" misaligned_store misaligned access
find_fault "$asan" misaligned_bf16 misaligned access
find_fault "$asan" unset_shared wrong
find_fault "$asan" unset_global wrong
find_fault "$asan" missing_barrier wrong
find_fault "$asan" missing_second_barrier differs
find_fault "$asan" missing_syncwarp wrong
find_fault "$asan" neighbour_race differs
find_fault "$asan" divergent_barrier after some threads of the block have ended
find_fault "$asan" two_barriers threads of a block wait at different __syncthreads
find_fault "$asan" early_return after some threads of the block have ended
find_fault "$asan" uneven_loop after some threads of the block have ended
find_fault "$asan" short_mask a shuffle reads a lane that its mask does not name
find_fault "$asan" half_a_shuffle deadlock
find_fault "$asan" late_copy_wait wrong
find_fault "$asan" missing_copy_wait ends before asynchronous copies that it has not waited for
find_fault "$asan" short_copy_wait wrong
find_fault "$asan" missing_copy_commit ends before asynchronous copies that it has not waited for
find_fault "$asan" missing_copy_barrier wrong
find_fault "$asan" copy_over_a_tile_in_use wrong
find_fault "$asan" copy_overrun heap-buffer-overflow
find_fault "$asan" copy_to_the_wrong_memory an address that must be in shared memory is not
find_fault "$asan" matrix_without_syncwarp wrong
find_fault "$asan" half_a_product lanes of a warp meet in different warp operations
find_fault "$asan" two_products lanes of a warp meet in different warp operations
find_fault "$asan" misaligned_matrix misaligned access
find_fault "$asan" matrix_in_global_memory an address that must be in shared memory is not
find_fault "$asan" swapped_quarters wrong
find_fault "$asan" swapped_halves wrong
find_fault "$asan" matrix_not_transposed wrong
find_fault "$asan" block_race differs
find_fault "$asan" shared_sum differs
find_fault "$asan" float_atomic differs
find_fault "$asan" too_many_threads larger than 1024 threads
find_fault "$asan" too_much_shared too much dynamic shared memory
find_fault "$asan" too_much_opted_in invalid argument
find_fault "$asan" too_tall_a_grid the grid is larger
find_fault "$asan" half_a_warp not a multiple of 32 threads
find_fault "$asan" missing_event wrong
find_fault "$asan" early_event wrong
find_fault "$asan" reused_source wrong
find_fault "$asan" reused_input wrong
find_fault "$asan" freed heap-use-after-free
find_fault "$asan" missing_wait wrong
export CUDA_ON_CPU_PROTECT=1
find_fault "$asan" host_reads the host touches device memory
find_fault "$asan" host_writes the host touches device memory
find_fault "$asan" host_pointer neither the device\'s nor pinned
find_fault "$asan" host_fill invalid argument
find_fault "$asan" wrong_kind invalid argument
unset CUDA_ON_CPU_PROTECT
if [ -x "$tsan" ]; then
    for fault in missing_barrier missing_second_barrier missing_syncwarp neighbour_race shared_sum \
        missing_copy_barrier copy_over_a_tile_in_use matrix_without_syncwarp; do
        find_fault "$tsan" $fault data race
    done
fi

summary
