#!/usr/bin/env bash
# A step on 1 to 8 ranks, as the time of a micro-batch: of numbers of ranks that are no power of two, beside the mean of
# the nearest powers of two; and of two builds. Runs take turns; numbers are medians of the ratios of a round.
#
# On fewer cores than ranks, ranks that the cores cannot share evenly (3 on 2) wait for each other at every unit. Under
# `taskset -c 0` all run on one core, and the time is that of the work alone.
#
#     dev/bench/bench_step.sh TRAINER                  numbers of ranks
#     dev/bench/bench_step.sh TRAINER OTHER_TRAINER    builds: the time of the first over that of the second
#
# ROUNDS=15; MICRO_STEPS=3; TOKENS=32 of a micro-batch: the fewer, the larger the share of the sums
set -eu
cd "$(dirname "$0")/../.."
trainer=$1
other=${2-}
rounds=${ROUNDS:-15}
micro_steps=${MICRO_STEPS:-3}
tokens=${TOKENS:-32}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# micro_batch RANKS TRAINER: milliseconds
micro_batch() {
    (
        export NP=$1 OMP_NUM_THREADS=1
        . scripts/env.sh
        "${MPIRUN:-mpirun}" -np "$1" "$2" -e "custom:l4,h4,c256,v256,t$tokens" -b 1 -t "$tokens" \
            -d $((tokens * $1 * micro_steps)) -i dev/data/text/default.txt -x 8 -z 2 -v 0 -s 0
    ) < /dev/null | awk -v n=$(($1 * micro_steps)) '/^total average iteration time/ { print $5 / n }'
}

median() {
    sort -g | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
}

if [ -n "$other" ]; then
    for ((i = 0; i < rounds; i++)); do
        for n in 1 2 3 4 5 6 7 8; do
            if ((i % 2)); then
                b=$(micro_batch $n "$other") && a=$(micro_batch $n "$trainer")
            else
                a=$(micro_batch $n "$trainer") && b=$(micro_batch $n "$other")
            fi
            echo "$a $b" >> "$work/$n"
        done
    done
    echo "ranks   ms a micro-batch   of the other      ratio"
    for n in 1 2 3 4 5 6 7 8; do
        printf '%5d %18.3f %14.3f %10.3f\n' $n "$(cut -d' ' -f1 "$work/$n" | median)" \
            "$(cut -d' ' -f2 "$work/$n" | median)" "$(awk '{ print $1 / $2 }' "$work/$n" | median)"
    done
    exit
fi
for ((i = 0; i < rounds; i++)); do
    for n in 1 2 3 4 5 6 7 8; do
        micro_batch $n "$trainer" >> "$work/$n"
    done
done
echo "ranks   ms a micro-batch   x the nearest powers of two"
for n in 1 2 3 4 5 6 7 8; do
    below=1
    while ((2 * below <= n)); do below=$((2 * below)); done
    above=$((below == n ? n : 2 * below))
    printf '%5d %18.3f %14.3f\n' $n "$(median < "$work/$n")" \
        "$(paste "$work/$n" "$work/$below" "$work/$above" | awk '{ print 2 * $1 / ($2 + $3) }' | median)"
done
