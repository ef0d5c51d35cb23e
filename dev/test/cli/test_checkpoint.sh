#!/usr/bin/env bash
# Checkpoints: a resumed run is the uninterrupted one, whatever ranks and stages wrote and read; what is damaged or not
# finished is refused by name; nothing good is deleted.
#
#     dev/test/cli/test_checkpoint.sh TRAINER [DAMAGES]     DAMAGES: how many random damages to try
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$1
damages=${2-6}
export OMP_NUM_THREADS=1
NP=8
. scripts/env.sh

# An epoch ends in step 10; validation and samples in between.
text=$work/text
head -c 18000 dev/data/text/default.txt > "$text"
run=(-e custom:l2,h2,c32,v256,t32 -i "$text" -b 2 -t 32 -v 3 -m 5 -s 5 -g 4 -l 0.01 -u 2 -q 0.1 -x 12 --hash 1)
log=$work/log

# job RANKS ARGUMENTS...
job() {
    timeout -k 5 60 "${MPIRUN:-mpirun}" -np "$1" "$trainer" "${run[@]}" --micro-batches 24 "${@:2}" > "$log" 2>&1
}
files() { (cd "$1" && sha256sum -- *"$2"*); }
has() { grep -qF -- "$1" "$log"; }

# same_files RANKS FLAGS...: a run writes the files of the first run
same_files() {
    rm -rf "$work/other"
    job "$@" -o "$work/other" -n 6 && diff <(files "$work/whole" 0) <(files "$work/other" 0) &&
        cmp "$work/whole/main.log" "$work/other/main.log"
}

# broken_off: a run that was killed while it wrote step 12
broken_off() {
    rm -rf "$work/broken"
    cp -r "$work/whole" "$work/broken"
    rm "$work"/broken/{checkpoint,DONE}_00000012*
    echo "s:12 trl:1.0" >> "$work/broken/main.log"
    printf 's:13' >> "$work/broken/main.log"
}

# resumed RANKS FLAGS...: continues from step 6 to the files, the log and the hash of the first run
resumed() {
    broken_off
    job "$@" -y 1 -o "$work/broken" -n 6 && has "checkpoint_00000012.txt: is missing" && has "resumed from step 6" &&
        has "$hash" && diff <(files "$work/whole" 0) <(files "$work/broken" 0) &&
        cmp "$work/whole/main.log" "$work/broken/main.log"
}

# falls_back DAMAGED-FILE: the checkpoint of step 12 is refused by the name of this file, and that of step 6 is used
falls_back() {
    job 2 -y 1 -o "$work/damaged" && has "skipped the checkpoint of step 12: $work/damaged/$1" && has "$hash" &&
        has "resumed from step 6"
}

# refused TEXT RANKS FLAGS...
refused() {
    ! job "${@:2}" && has "error: " && has "$1"
}

job 1 -z 0 -o "$work/whole" -n 6
hash=$(grep 'state hash' "$log")
check "a run that writes checkpoints ends" test -n "$hash" -a -e "$work/whole/DONE_00000012"
for way in "2 -z 1" "3 -z 2" "4 -z 3" "8 -z 3 --shard-group 2" "8 -z 0"; do
    # shellcheck disable=SC2086    # words
    check "the same files, $way" same_files $way
done
for way in "1 -z 2" "2 -z 3" "3 -z 0" "4 -z 1 --shard-group 2" "8 -z 2" "6 -z 3 --transport nccl"; do
    # shellcheck disable=SC2086
    check "resumed = uninterrupted, $way" resumed $way
done

m_is_taken() {
    broken_off
    timeout -k 5 60 "${MPIRUN:-mpirun}" -np 4 "$trainer" "${run[@]}" -y 1 -o "$work/broken" > "$log" 2>&1 && has "$hash"
}
check "the micro-batches of a step are those of the checkpoint" m_is_taken
check "resumed at the end: nothing is trained" job 2 -y 1 -o "$work/whole"
check "resumed at the end: the same state" has "$hash"
begins() { job 2 -y 1 -o "$work/empty" && has "has no checkpoint" && has "$hash"; }
check "-y 1 without a checkpoint begins" begins
check "other micro-batches are refused" refused "use --micro-batches 24" 2 -y 1 -o "$work/whole" --micro-batches 12
check "another seed is refused" refused "--seed 42" 2 -y 1 -o "$work/whole" --seed 43
check "another model is refused" refused "2 layers" 2 -y 1 -o "$work/whole" -e custom:l1,h2,c32,v256,t32
check "other data are refused" refused "other training data" 2 -y 1 -o "$work/whole" -i dev/data/text/default.txt
check "a run that is shorter than the checkpoint is refused" refused "use -x 12" 2 -y 1 -o "$work/whole" -x 11
changed() { broken_off && job 2 -y 1 -o "$work/broken" -l 0.02 && has "-l 0.02 instead of -l 0.01"; }
check "another learning rate is told" changed

skips=(-e custom:l1,h2,c16,v256,t16 -i "$text" -b 1 -t 16 --micro-batches 2 -v 0 -s 0 -x 190 -sg 0.5 --hash 1)
skipped_updates() {
    local steps updates whole
    "${MPIRUN:-mpirun}" -np 1 "$trainer" "${skips[@]}" -n 170 -o "$work/skips" > "$log" 2>&1 || return 1
    whole=$(grep 'state hash' "$log")
    rm "$work"/skips/*190*
    steps=$(sed -n 's/^step //p' "$work/skips/checkpoint_00000170.txt")
    updates=$(sed -n 's/^updates //p' "$work/skips/checkpoint_00000170.txt")
    "${MPIRUN:-mpirun}" -np 2 "$trainer" "${skips[@]}" -y 1 -o "$work/skips" > "$log" 2>&1 || return 1
    [ "$updates" -lt "$steps" ] && has "resumed from step 170" &&
        has "skipping update due to grad z-score of " && has "$whole"
}
check "skipped updates and the window of outliers continue" skipped_updates

# Random damage of the newest checkpoint: a byte, the length, another file in its place.
RANDOM=1
for ((i = 0; i < damages; i++)); do
    rm -rf "$work/damaged"
    cp -r "$work/whole" "$work/damaged"
    all=(model_00000012.bin optimizer_00000012.bin checkpoint_00000012.txt)
    file=${all[i % 3]}
    path=$work/damaged/$file
    size=$(stat -c %s "$path")
    at=$(((RANDOM * 32768 + RANDOM) % size))
    case $((i / 3 % 3)) in
    0)
        byte=$(od -An -tu1 -j $at -N 1 "$path")
        byte=$(printf %02x $((byte ^ 1 << RANDOM % 8)))
        printf '%b' "\\x$byte" | dd of="$path" bs=1 seek=$at conv=notrunc status=none
        what="byte $at flipped" ;;
    1) truncate -s $at "$path" && what="truncated to $at bytes" ;;
    2) cp "$work/whole/${file/12/06}" "$path" && what="that of another step" ;;
    esac
    check "$file, $what: refused by name" falls_back "$file"
done
nothing_left() {
    for step in 06 12; do : > "$work/damaged/optimizer_000000$step.bin"; done
    refused "none of its checkpoints is complete" 2 -y 1 -o "$work/damaged"
}
rm -rf "$work/damaged" && cp -r "$work/whole" "$work/damaged"
check "no checkpoint is complete: an error" nothing_left

keeps_the_good_one() {      # step 12 is damaged; -nk 1 must not delete step 8 for it
    rm -rf "$work/keep" && cp -r "$work/whole" "$work/keep"
    truncate -s 100 "$work/keep/model_00000012.bin"
    job 2 -y 1 -o "$work/keep" -n 4 -nk 1 -x 8
    job 2 -y 1 -o "$work/keep" -x 12 && has "resumed from step 8"
}
check "-nk never deletes the last good checkpoint" keeps_the_good_one
check "no temporary file is left" test -z "$(find "$work" -name '*.tmp')"
summary
