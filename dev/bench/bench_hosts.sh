#!/usr/bin/env bash
# A step on two hosts of four ranks with links of 1 Gbit/s, model of 11M parameters, 16 tokens a rank, stage 2: bytes
# travel in one level, and in two. Hosts are namespaces of this machine (dev/test/hosts/up.sh); runs take turns.
#
#     dev/bench/bench_hosts.sh TRAINER [FLAG...]        HOSTS=2 RANKS=4 (of a host) RATE=1gbit ROUNDS=3
set -eu
cd "$(dirname "$0")/../.."
[ -n "${NODES-}" ] || exec dev/test/hosts/up.sh "${HOSTS:-2}" "${RATE:-1gbit}" "$0" "$@"
trainer=$(realpath "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for ((i = 0; i < ${ROUNDS:-3}; i++)); do
    for one_level in 1 0; do
        dev/test/hosts/mpirun.sh "${RANKS:-4}" "$trainer" -e custom:l6,h6,c384,v256,t128 -b 1 -t 16 -x 6 -z 2 -v 0 \
            -s 0 -i "$PWD/dev/data/text/default.txt" --one-level $one_level "$@" < /dev/null |
            awk '/^total average iteration time/ { print $5 }' >> "$work/$one_level"
    done
done
median() {
    sort -g | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
}
printf 'one level %8.0f ms a step, two levels %8.0f ms: %.2f times as fast\n' "$(median < "$work/1")" \
    "$(median < "$work/0")" "$(paste "$work/1" "$work/0" | awk '{ print $1 / $2 }' | median)"
