#!/usr/bin/env bash
# The bandwidth of optimizer states on a disk (zero/offload/) beside fio's on the same file system: a sequential reader
# and a sequential writer, O_DIRECT, the same blocks and as many in flight. They take turns; the ratio is the median of
# those of the rounds.
#
#     dev/bench/bench_offload.sh BUILD [DIRECTORY]     DIRECTORY: on the disk; ROUNDS=3, MB=3072
set -eu
build=$1
mb=${MB:-3072}
command -v fio > /dev/null || { echo "no program 'fio': run scripts/setup.sh"; exit 0; }
work=$(mktemp -d "${2:-.}/bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
record_kb=4096 records=12                   # as AdamW's: four pieces of master weight, m and v
depth=$((record_kb / 512 * records / 4))    # of each direction

median() {
    sort -g "$1" | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
}

fio_bandwidth() {       # GB/s of both directions together, into FILE
    fio --directory="$work" --filename=fio --size="${mb}M" --direct=1 --bs=512k --ioengine="$engine" \
        --iodepth="$depth" --group_reporting --output-format=terse --terse-version=3 \
        --name=read --rw=read --name=write --rw=write 2> /dev/null |
        awk -F ';' '{ sum += $7 + $48 } END { print sum * 1024 / 1e9 }' >> "$1"
}

engine=io_uring
fio --directory="$work" --filename=fio --size="${mb}M" --direct=1 --bs=1M --ioengine=$engine --iodepth=16 \
    --name=fill --rw=write > /dev/null 2>&1 || engine=psync
for ((i = 0; i < ${ROUNDS:-3}; i++)); do
    fio_bandwidth "$work/theirs"
    "$build/bench_swap" "$work" "$mb" $record_kb $records 1 >> "$work/ours" 2> "$work/how"
    paste "$work/ours" "$work/theirs" | awk '{ print $1 / $2 }' > "$work/ratio"
done
awk -v how="$(cat "$work/how")" -v engine=$engine -v ours="$(median "$work/ours")" \
    -v theirs="$(median "$work/theirs")" -v ratio="$(median "$work/ratio")" 'BEGIN {
        printf "read and written by %s: %.2f GB/s, fio (%s) %.2f GB/s: %.2f\n", how, ours, engine, theirs, ratio
    }'
