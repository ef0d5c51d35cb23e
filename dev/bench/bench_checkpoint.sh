#!/usr/bin/env bash
# A checkpoint of GPT-2 124M with its optimizer state, written by 8 ranks in the background: how long training waits for
# it, the memory of the processes beside the plan, and the bandwidth to the disk beside that of `dd conv=fsync` for as
# many bytes: blocks of 1 MB, through the page cache, then fsync. They take turns; the ratio is the median of those of
# the rounds.
#
#     dev/bench/bench_checkpoint.sh TRAINER [DIRECTORY]     DIRECTORY: on the disk; ROUNDS=3, STEPS=2
set -eu
cd "$(dirname "$0")/../.."
trainer=$1
work=$(mktemp -d "${2:-.}/bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
export NP=${NP:-8} OMP_NUM_THREADS=1
. scripts/env.sh

median() {
    sort -g "$1" | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
}

for ((i = 0; i < ${ROUNDS:-3}; i++)); do
    rm -rf "$work/run" "$work/dd"
    # two checkpoints: for the first one the pages of the snapshot are new
    "${MPIRUN:-mpirun}" -np "$NP" "$trainer" -e d12 --tokenizer bytes -i dev/data/text/default.txt \
        -b 1 -t 64 -x "${STEPS:-2}" -n 1 -nk 1 -v 0 -s 0 -z 2 -o "$work/run" > "$work/log"
    bytes=$(cat "$work"/run/*_0000000"${STEPS:-2}".bin | wc -c)
    sed -n 's/^wrote .*: .* GB, \(.*\) GB.s; training .*/\1/p' "$work/log" | tail -n 1 >> "$work/ours"
    sed -n 's/^wrote .*, \(.*\) s for the snapshot$/\1/p' "$work/log" | tail -n 1 >> "$work/stall"
    memory=$(sed -n 's/^process, bytes .*, measured to formula //p' "$work/log")
    rm -r "$work/run"
    dd if=/dev/zero of="$work/dd" bs=1M count=$((bytes >> 20)) conv=fsync 2>&1 |
        awk -v bytes="$bytes" 'END { for (i = 2; i <= NF; i++) if ($i == "s,") print bytes / 1e9 / $(i - 1) }' \
            >> "$work/disk"
    paste "$work/ours" "$work/disk" | awk '{ print $1 / $2 }' > "$work/ratio"
done
awk -v bytes="$bytes" -v stall="$(median "$work/stall")" -v ours="$(median "$work/ours")" -v ranks="$NP" \
    -v memory="$memory" -v disk="$(median "$work/disk")" -v ratio="$(median "$work/ratio")" 'BEGIN {
        printf "%.2f GB, %d ranks: training waits %.2f s for the snapshot; %.2f GB/s to the disk, dd %.2f GB/s: %.2f\n",
            bytes / 1e9, ranks, stall, ours, disk, ratio
        printf "memory of the processes beside the plan: %s\n", memory
    }'
