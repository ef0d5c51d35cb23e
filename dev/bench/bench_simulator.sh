#!/usr/bin/env bash
# The simulated time of a step (--plan) beside the measured one, on hosts that are namespaces of this machine with slow
# links (dev/test/hosts/up.sh): eight ways to run. Computing is calibrated from one run with fast links, and shared by
# the ranks of all hosts, which have the same cores. The rate of a link is that of `tc`, less headers. Needs root.
#
#     dev/bench/bench_simulator.sh TRAINER          STEPS=4 of a run; the median of all but the first one
#
# Open MPI sends large messages after a handshake, which waits in the same connection behind what goes the other way, so
# that hosts send in turns. So messages go in fragments, through small buffers of sockets: OPEN_MPI.
set -eu
export OMP_NUM_THREADS=1
cd "$(dirname "$0")/../.."
trainer=$(realpath "$1")
OPEN_MPI=(-mca btl_tcp_flags 1 -mca btl_tcp_sndbuf 131072)
model=(-e "custom:l4,h4,c256,v256,t64" -b 1 -t 16)

# The command inside: prints the milliseconds of a step.
if [ "${2-}" = run ]; then
    shift 2
    dev/test/hosts/mpirun.sh "$1" "${OPEN_MPI[@]}" "$trainer" "${model[@]}" -i "$PWD/dev/data/text/default.txt" \
        -x "${STEPS:-4}" -v 0 -s 0 "${@:2}" < /dev/null |
        sed -n '/^step *1\//d; s/^step .* | \([0-9.]*\) ms |.*/\1/p' | sort -g |
        awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
    exit
fi

# measure HOSTS RANKS_OF_A_HOST RATE FLAGS...
measure() { dev/test/hosts/up.sh "$1" "$3" "$0" "$trainer" run "$2" "${@:4}"; }

# simulate HOSTS RANKS_OF_A_HOST MBIT FLAGS...: milliseconds, of the stage that FLAGS end with; all else costs nothing
simulate() {
    local ranks=$(($1 * $2))
    "$trainer" --plan "${model[@]}" --ranks $ranks --ranks-per-host "$2" --link-latency 0 --net-latency 0 \
        --link-gbs 1e9 --memory-gbs 1e9 --net-gbs "$(awk -v m="$3" 'BEGIN { print m / 8000 * 1448 / 1514 }')" --mfu 1 \
        --peak-tflops "$(awk -v r="$rate" -v n=$ranks 'BEGIN { print r / n / 1e12 }')" "${@:4}" |
        awk -v stage="${!#}" '/^step, with what overlaps/ { print $(NF - 3 + stage) }'
}

flops=$("$trainer" --plan "${model[@]}" | awk '/FLOPs a token/ { print $6 * 16 }')      # of a micro-batch
calibrated=$(STEPS=12 measure 2 2 unlimited -z 2)
rate=$(awk -v f="$flops" -v ms="$calibrated" 'BEGIN { print 4 * f / (ms / 1000) }')     # FLOP/s of all ranks
echo "calibrated: $calibrated ms a step on 2 x 2 ranks, unlimited, stage 2"
printf '%-7s %-6s %-6s %-42s %10s %12s %8s\n' hosts ranks mbit flags measured simulated ratio
while read -r hosts ranks mbit flags; do
    # shellcheck disable=SC2086
    measured=$(measure "$hosts" "$ranks" "${mbit}mbit" $flags) simulated=$(simulate "$hosts" "$ranks" "$mbit" $flags)
    awk -v h="$hosts" -v r="$ranks" -v m="$mbit" -v f="$flags" -v a="$measured" -v b="$simulated" \
        'BEGIN { printf "%-7d %-6d %-6d %-42s %10.0f %12.0f %8.2f\n", h, r, m, f, a, b, b / a }'
done << CONFIGURATIONS
2 1 20 -z 3
2 2 20 -d 128 -z 1
2 4 15 -z 2
4 2 30 -z 0
3 3 60 --prefetch 0 -z 3
2 2 20 --shard-group 2 -z 2
2 2 20 -d 128 --micro-batch-order rank -z 1
2 2 20 -d 128 --micro-batch-order layer -z 3
CONFIGURATIONS
