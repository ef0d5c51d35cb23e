#!/usr/bin/env bash
# --profile: each kind of work of a run has a formula, which gives the number of its calls; the run has the same bits as
# one without.
#
#     dev/test/cli/test_profile.sh TRAINER...         one of DEVICE=emulated, BF16: what it counts is printed, too
set -u
cd "$(dirname "$0")/../../.." || exit 1
export OMP_NUM_THREADS=1
. scripts/env.sh
. dev/test/harness/report.sh
log=$work/log

runs() {
    "${run[@]}" > "$work/plain" 2>&1 && "${run[@]}" --profile 2 > "$log" 2>&1 || { tail "$work/plain" "$log"; false; }
}
all_work_has_a_formula() {
    sed -n '/^profile/,$p' "$log"
    grep -q "^profile of rank 0, mean of 2 steps" "$log" && ! grep -qE "no formula|not measured|calls differ" "$log"
}
same_bits() {
    grep "^state hash" "$work/plain" && [ "$(grep "^state hash" "$work/plain")" = "$(grep "^state hash" "$log")" ]
}

# profile TRAINER RANKS FLAGS...
profile() {
    selected "$*: runs, all work has a formula, the same bits" || return
    local run=(timeout -k 10 200 "${MPIRUN:-mpirun}" -np "$2" "$1" -e custom:l2,h4,c64,v300,t64 -b 2 -t 64 -x 3
        -v 0 -s 0 --hash 1 "${@:3}")
    runs > "$work/output"
    report "$*: runs" "$([ $? = 0 ] || echo "it fails")" "$work/output"
    check "$*: all work has a formula" all_work_has_a_formula
    check "$*: the same bits" same_bits
}

# The emulated GPU: sectors of a request, beside the fewest, beside the formula's bytes; wavefronts beside the fewest.
memory_requests() {
    timeout -k 10 200 "${MPIRUN:-mpirun}" -np 1 "$1" -e custom:l1,h1,c64,v256,t64 -b 1 -t 64 -d 64 -x 2 -v 0 -s 0 \
        --profile 1 > "$log" 2>&1
    sed -n '/^profile/,$p' "$log"
    grep -qE '^residual .* memory +16\.00 +1\.00 +1\.00 *$' "$log" && grep -qE '^flash_forward .* 1\.00$' "$log"
}

for trainer in "$@"; do
    if [[ $trainer == *emulated* ]]; then
        check "$trainer: memory requests are beside the floor" memory_requests "$trainer"
        continue
    fi
    profile "$trainer" 1 -z 0 -d 256 -r 0
    profile "$trainer" 2 -z 1 -d 512 -ge 1
    profile "$trainer" 2 -z 0 -d 512 -r 2 --head-rows 64
    profile "$trainer" 2 -z 1 -d 3072 --micro-batch-order rank
    profile "$trainer" 2 -z 3 -d 1024 --micro-batch-order layer
    profile "$trainer" 3 -z 2 -d 1152 -ge 2 -r 2
    profile "$trainer" 4 -z 3 -d 1024 --shard-group 2
    profile "$trainer" 2 -z 3 -d 256 --reduce library
done

# With NCCL, here its stand-in, whose work is done when the host waits for it: the host waits at the end of a step only;
# so many kernels for 2 layers and 2 micro-steps. -sg makes it wait for the norm, and for the losses of all ranks.
host_waits() {      # TRAINER WHERE KERNELS WAITS FLAGS...
    CUDA_ON_CPU_STREAMS=0 timeout -k 10 200 "${MPIRUN:-mpirun}" -np 2 "$1" -e custom:l2,h1,c64,v256,t32 -b 1 -t 32 \
        -d 128 -x 3 -v 0 -s 0 --profile 2 --transport nccl "${@:5}" > "$log" 2>&1
    grep -E "^the host, per step|^\| update or skip|^error" "$log"
    grep -q "^| update or skip .* $2" "$log" &&
        grep -q "^the host, per step: $3.0 kernels.* waits for the device $4.0 times until" "$log"
}
for trainer in "$@"; do
    for stage in 0 1 3; do
        check "$trainer: stage $stage, NCCL: the host does not wait in a step" host_waits "$trainer" "on the device" \
            "[0-9]*" 0 -z $stage
    done
done
check "NCCL, -sg: the host waits" host_waits "$1" "by the host" "[0-9]*" 2 -z 1 -sg 3

# ... and the all-gathers of parameters run under the next forward: each as late as the stand-in's events allow.
gathers_under_the_forward() {      # TRAINER STAGE
    rm -f "$work"/trace.*
    CUDA_ON_CPU_STREAMS=0 CUDA_ON_CPU_TRACE=$work/trace timeout -k 10 60 "${MPIRUN:-mpirun}" -np 2 "$1" \
        -e custom:l2,h1,c64,v256,t32 -b 1 -t 32 -d 128 -x 2 -v 0 -s 0 --transport nccl -z "$2" > "$log" 2>&1 &&
        awk 'FNR == 1 { updated = n = 0; last = "" }
            /^AdamW 2$/ { updated = 1 }
            updated && n < 6 && $0 != last && /^all-gather [0-9]\/nccl$|^forward [0-9]$/ {
                order[FILENAME] = order[FILENAME] (last = $0) ", "
                n++
            }
            END {
                for (f in order) { files++; print order[f]; wrong += order[f] != wanted }
                exit wrong || files != 2
            }' \
            wanted="all-gather 0/nccl, forward 0, all-gather 1/nccl, forward 1, all-gather 2/nccl, forward 2, " \
            "$work"/trace.*
}
for stage in 1 2; do
    check "stage $stage, NCCL: all-gathers overlap the next forward" gathers_under_the_forward "$1" $stage
done

longer_than_the_run() {
    ! "${MPIRUN:-mpirun}" -np 1 "$1" -x 3 --profile 3 > "$log" 2>&1 && cat "$log" && grep -q "use -x 4 or more" "$log"
}
check "a profile that is longer than the run is refused" longer_than_the_run "$1"

summary
