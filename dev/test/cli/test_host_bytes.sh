#!/usr/bin/env bash
# Bytes that leave a host in a step, by its interface (dev/test/hosts/up.sh), are those of the formula within 1 %, and
# at most 2.1 times a ring's, in every stage, on hosts of several sizes. The bits are those of one rank.
#
#     dev/test/cli/test_host_bytes.sh TRAINER
set -u
cd "$(dirname "$0")/../../.." || exit 1
if [ "${1-}" != inside ]; then
    . dev/test/harness/report.sh
    trainer=$(realpath "$1")
    for shape in "2 2" "2 4" "4 2" "3 3"; do
        # shellcheck disable=SC2086
        set -- $shape
        dev/test/hosts/up.sh "$1" unlimited "$0" inside "$trainer" "$2" "$work" > "$work/lines" 2>&1 < /dev/null
        for stage in 0 1 2 3; do
            name="$1 hosts of $2 ranks, stage $stage: bytes between hosts"
            report "$name" "$(grep "^stage $stage: ok" "$work/lines" > /dev/null ||
                { echo "not as expected"; grep "^stage $stage" "$work/lines"; })" "$work/lines"
        done
    done
    summary
    exit
fi

trainer=$2 ranks=$3 work=$4
hosts=$(wc -w <<< "$NODES")
flags=(-e custom:l2,h4,c192,v256,t32 -i "$PWD/dev/data/text/default.txt" -b 1 -t 32 -d $((hosts * ranks * 2 * 32))
    -v 0 -s 0 -n 0 --hash 1)

# run STEPS FLAG...: prints what node1 sent
run() {
    local before
    before=$(dev/test/hosts/sent.sh node1)
    dev/test/hosts/mpirun.sh "$ranks" "$trainer" "${flags[@]}" -x "$@" > "$work/log" 2>&1 < /dev/null
    echo $(($(dev/test/hosts/sent.sh node1) - before))
}
# table TITLE: the sum of a column of the table of this title; $2: awk's expression of it
table() {
    awk -v title="$1" 'index($0, title) == 1 { table = 1; next } /^$/ { table = 0 }
        table && /^(gradients|parameters|scalars)/ { sum += '"$2"' } END { print sum + 0 }' "$work/log"
}

"$trainer" "${flags[@]}" -x 5 > "$work/one" 2>&1
one=$(grep -o 'state hash: .*' "$work/one")
for stage in 0 1 2 3; do
    few=$(run 1 -z $stage --one-level 1)
    ring=$(table "wire per rank" '$(NF - 1)')       # what a rank receives is what a ring passes on to a host
    few=$(run 1 -z $stage)
    many=$(run 5 -z $stage)
    sent=$(((many - few) / 4)) expected=$(table "sent by each host" '$NF')
    [ -n "$one" ] && grep -q "$one" "$work/log" && [ "$expected" -gt 1000000 ] && [ "$sent" -ge "$expected" ] &&
        [ "$sent" -le $((expected * 101 / 100)) ] && [ "$sent" -le $((ring * 21 / 10)) ] && ok=ok || ok=no
    echo "stage $stage: $ok: sent $sent, expected $expected, a ring $ring; $(grep -o 'state hash: .*' "$work/log")"
done
