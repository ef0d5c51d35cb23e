#!/usr/bin/env bash
# Is the memory accounting complete? GPT-2 124M is trained for a step, and the process's own peak, as Linux counts it,
# is compared with the sum of the formulas: at most 5% off. Memory that is not accounted is also far less than one copy
# of the parameters, so in stage 3 no rank ever holds one: not while it draws them, not in a step, a validation or a
# sample.
#
#     dev/test/cli/test_memory.sh FP32_TRAINER BF16_TRAINER [some]
set -u
cd "$(dirname "$0")/../../.." || exit 1

. dev/test/harness/report.sh
log=$work/log
psi=124475904

# measure RANKS PROGRAM BYTES_PER_PARAMETER ARGUMENTS...
measure() {
    local ranks=$1 program=$2 bytes=$3 copy=$(($3 * psi)) wrong=
    shift 3
    selected "$ranks ranks, $program $*" || return
    (
        NP=$ranks
        . scripts/env.sh
        timeout 200 "${MPIRUN:-mpirun}" -np "$ranks" "$program" -e d12 --tokenizer bytes \
            -i dev/data/text/default.txt -b 1 -t 64 \
            -x 1 -v 1 -m 1 -s 1 -g 2 "$@"
    ) > "$log" 2>&1 < /dev/null
    # A line ends with: formula, least, most, "mean", M:, +P%
    awk -v copy="$copy" -v ranks="$ranks" -v psi="$psi" -v bytes="$bytes" -v stage="$2" '
        / differs from the formula/ { wrong = 1 }
        /^wire per rank/ { wire = 1 }
        /^parameters/ && stage == 3 && !wire && $NF > bytes * psi / ranks * 1.01 { wrong = 1 }
        /^process, bytes/ { seen = 1; percent = $NF + 0; mean = $(NF - 1) + 0; formula = $(NF - 5)
            if (percent < -5 || percent > 5 || mean - formula > copy / 4) wrong = 1 }
        END { exit wrong || !seen }' "$log" || wrong="it takes other memory than the formulas say"
    sed -n '/^memory per rank/,$p' "$log" > "$work/table"
    report "$ranks ranks, $program $*" "$wrong" "$work/table"
    grep "^process, bytes" "$log" | sed "s|^|      |"
}

measure 2 "$1" 4 -z 1
measure 8 "$2" 2 -z 3 --prefetch 2
if [ "${3-}" != some ]; then
    measure 1 "$1" 4 -z 0
    measure 4 "$2" 2 -z 3 --prefetch 0
fi
summary
