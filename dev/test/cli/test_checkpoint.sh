#!/usr/bin/env bash
# Checkpoints: a resumed run is the uninterrupted one, whatever ranks and stages wrote and read; what is not finished is
# refused by name (what is damaged: test_damages.sh); nothing good is deleted.
#
#     dev/test/cli/test_checkpoint.sh TRAINER OTHER few|all [--case WORD]
#
# OTHER: the trainer in the other precision. all: files written, and a run resumed, by 1, 2, 3, 4 and 8 ranks in each
# stage.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$1
other=$2
much=$3
export OMP_NUM_THREADS=1
NP=8
. scripts/env.sh

# An epoch ends in step 10; validation and samples in between.
text=$work/text
default=dev/data/text/default.txt
head -c 18000 $default > "$text"
run=(-e custom:l2,h2,c32,v256,t32 -i "$text" -b 2 -t 32 -v 3 -m 5 -s 5 -g 4 -l 0.01 -u 2 -q 0.1 -x 12 --hash 1)
log=$work/log

# job RANKS ARGUMENTS...
job() {
    timeout -k 5 200 "${MPIRUN:-mpirun}" -np "$1" "$trainer" "${run[@]}" --micro-batches 24 "${@:2}" > "$log" 2>&1
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

# refused TEXT RANKS FLAGS...
refused() {
    ! job "${@:2}" && has "error: " && has "$1"
}

job 1 -z 0 -o "$work/whole" -n 6
hash=$(grep 'state hash' "$log")
check "a run that writes checkpoints ends" test -n "$hash" -a -e "$work/whole/DONE_00000012"
writers=("2 -z 1 --micro-batch-order rank" "3 -z 2" "4 -z 3" "8 -z 3 --shard-group 2" "8 -z 0")
readers=("1 -z 2" "2 -z 3" "3 -z 0" "4 -z 1 --shard-group 2" "8 -z 2" "6 -z 3 --transport nccl"
    "3 -z 1 --micro-batch-order rank")
if [ "$much" = all ]; then
    for n in 1 2 3 4 8; do
        for stage in 0 1 2 3; do
            writers+=("$n -z $stage")
            readers+=("$n -z $stage")
        done
    done
fi
for way in "${writers[@]}"; do
    # shellcheck disable=SC2086    # words
    check "the same files, $way" same_files $way
done
for way in "${readers[@]}"; do
    # shellcheck disable=SC2086
    check "resumed = uninterrupted, $way" resumed $way
done

m_is_taken() {
    broken_off
    timeout -k 5 200 "${MPIRUN:-mpirun}" -np 4 "$trainer" "${run[@]}" -y 1 -o "$work/broken" > "$log" 2>&1 &&
        has "$hash"
}
check "the micro-batches of a step are those of the checkpoint" m_is_taken
check "resumed at the end: nothing is trained" job 2 -y 1 -o "$work/whole"
check "resumed at the end: the same state" has "$hash"
begins() { job 2 -y 1 -o "$work/empty" && has "has no checkpoint" && has "$hash"; }
check "-y 1 without a checkpoint begins" begins
check "other micro-batches are refused" refused "use --micro-batches 24" 2 -y 1 -o "$work/whole" --micro-batches 12
check "another seed is refused" refused "--seed 42" 2 -y 1 -o "$work/whole" --seed 43
check "another model is refused" refused "2 layers" 2 -y 1 -o "$work/whole" -e custom:l1,h2,c32,v256,t32
check "other data are refused, by name" refused \
    "(1 file, 253 micro-batches): file 1 was text (18000 bytes), and is default.txt ($(stat -c %s $default) bytes)" \
    2 -y 1 -o "$work/whole" -i $default
other_contents() {
    mkdir "$work/changed" && tr e E < "$text" > "$work/changed/text" &&
        refused "the files have the same names and lengths, and other contents" 2 -y 1 -o "$work/whole" \
            -i "$work/changed/text"
}
check "data of the same name and length, and of other contents, are refused" other_contents
check "another part of the same data is refused" refused "another part of the same files" 2 -y 1 -o "$work/whole" \
    -j $default
other_name() {      # the text is the same
    mkdir "$work/elsewhere" && cp "$text" "$work/elsewhere/renamed" && broken_off &&
        job 2 -y 1 -o "$work/broken" -n 6 -i "$work/elsewhere/renamed" && has "$hash" && ! has "changed since" &&
        grep -qxF "train_file 18000 text" "$work/broken/checkpoint_00000006.txt" &&
        grep -qxF "train_file 18000 renamed" "$work/broken/checkpoint_00000012.txt" &&
        grep -qxF "val_file 18000 renamed" "$work/broken/checkpoint_00000012.txt"
}
check "the same data in another directory under another name are resumed" other_name
other_validation() {    # the whole text is trained on; one or the other is validated with
    rm -rf "$work/validated"
    head -c 9000 "$text" > "$work/val"
    job 2 -x 2 -n 2 -j "$work/val" -o "$work/validated" && job 2 -x 2 -y 1 -j $default -o "$work/validated" &&
        has "other validation data (-j): file 1 was val (9000 bytes), and is default.txt ($(stat -c %s $default) bytes)"
}
check "other validation data are told, by name" other_validation
shorter() {     # by the flag, and not by where in the run it was
    refused "-x 11: $work/whole" 2 -y 1 -o "$work/whole" -x 11 && has "use -x 12 or more" && ! has "this was in"
}
check "a run that is shorter than the checkpoint is refused" shorter
check "another optimizer is refused" refused "the state of AdamW, and this run uses Lion" 2 -y 1 -o "$work/whole" \
    --optimizer lion
check "ranks that M cannot be shared by are refused" refused "continue on one of 1, 2, 3, 4, 6, 8, 12, 24 ranks" 5 \
    -y 1 -o "$work/whole"
average=(--optimizer lion -l 0.001 --ema-decay 0.9)
average_continues() {   # 4 ranks write, 3 resume; the average is what was validated
    job 4 -z 3 "${average[@]}" -n 6 -o "$work/average" || return 1
    local whole
    whole=$(grep 'state hash' "$log")
    rm "$work"/average/*12*
    job 3 -z 1 "${average[@]}" -y 1 -o "$work/average" && has "resumed from step 6" && has "$whole"
}
check "a moving average is resumed" average_continues
average_begins() {
    broken_off
    job 2 -y 1 --ema-decay 0.9 -o "$work/broken" && has "no moving average: it begins with the weights"
}
check "a moving average that the checkpoint does not have begins" average_begins
check "a moving average that is forgotten is refused" refused "or --ema-decay 0 to drop it" 2 --optimizer lion \
    -l 0.001 -y 1 -o "$work/average"
average_ends() {
    job 2 "${average[@]}" --ema-decay 0 -y 1 -o "$work/average" && has "resumed from step 6" &&
        has "--ema-decay 0 instead of --ema-decay 0.9"
}
check "a moving average is no longer wanted" average_ends
changed() { broken_off && job 2 -y 1 -o "$work/broken" -l 0.02 && has "-l 0.02 instead of -l 0.01"; }
check "another learning rate is told" changed

# An update is skipped between the checkpoint and the end, and an epoch ends; validation and samples in between.
skips=(-e custom:l1,h2,c16,v256,t16 -i "$text" -b 1 -t 16 --micro-batches 24 -v 50 -m 2 -s 60 -g 4 -x 160 -sg 0.5
    --hash 1 -n 150)
skipping() {
    timeout -k 5 120 "${MPIRUN:-mpirun}" -np "$1" "$trainer" "${skips[@]}" "${@:2}" > "$log" 2>&1
}
resumed_over_a_skip() {
    rm -rf "$work/broken"
    cp -r "$work/skips" "$work/broken"
    rm "$work"/broken/*00000160*
    skipping "$@" -y 1 -o "$work/broken" && has "resumed from step 150" && has "$whole" && has "skipping update" &&
        diff <(files "$work/skips" 0) <(files "$work/broken" 0)
}
skipping 1 -z 0 -o "$work/skips"
whole=$(grep 'state hash' "$log")
updates_are_fewer() {
    local steps updates
    steps=$(sed -n 's/^step //p' "$work/skips/checkpoint_00000150.txt")
    updates=$(sed -n 's/^updates //p' "$work/skips/checkpoint_00000150.txt")
    [ "$updates" -lt "$steps" ]
}
check "skipped updates are not counted" updates_are_fewer
ways=("2 -z 1")
[ "$much" = few ] || ways=("${readers[@]}")
for way in "${ways[@]}"; do
    # shellcheck disable=SC2086
    check "skipped updates and the window of outliers continue, $way" resumed_over_a_skip $way
done

# Weights of 1e20 give losses that are not finite, from step 3 on. The run ends in step 7, when the checkpoint of step 6
# is still being written.
bad_numbers() {
    local nan=(-l 1e6 -c 1e6 -u 0 --nonfinite-limit 5 -v 0 -s 0 -o "$work/nan")
    job 2 "${nan[@]}" -x 4 -n 4 && ! job 1 "${nan[@]}" -x 8 -n 1 -y 1 && has "in 5 steps in a row, from step 3 on" &&
        has "this was in training, step 7" && [ -e "$work/nan/DONE_00000006" ]
}
check "steps that are not finite are counted on; the last good state is written to its end" bad_numbers

# at_6 DIRECTORY TRAINER FLAGS...: reads the state of step 6
at_6() {
    rm -rf "$work/six"
    mkdir "$work/six"
    cp "$1"/*_00000006* "$work/six"
    timeout -k 5 200 "${MPIRUN:-mpirun}" -np 2 "$2" "${run[@]}" --micro-batches 24 -x 6 -y 1 -o "$work/six" "${@:3}" \
        > "$log" 2>&1 && has "resumed from step 6"
}
hash_of() { sed -n "s/^state hash:.*$1 \([0-9a-f]*\).*/\1/p" "$log"; }
exact() {       # master weights (in fp32 they are the parameters) and moments
    at_6 "$@" && [ "$(hash_of optimizer)" = "$optimizer" ]
}
lossy() { at_6 "$@" && has "their lower 16 bits are lost" && [ "$(hash_of optimizer)" != "$optimizer" ]; }
at_6 "$work/whole" "$trainer"
optimizer=$(hash_of optimizer)
if [[ $trainer == *bf16* ]]; then
    check "-w 1, then -w 2: exact" exact "$work/whole" "$trainer" -w 2
    check "-w 1, then fp32: exact" exact "$work/whole" "$other"
    check "-w 1, then -w 0: it says what is lost" lossy "$work/whole" "$trainer" -w 0
    same_arrays() {
        job 2 -z 1 -w 2 -o "$work/split" -n 6 &&
            cmp "$work/whole/model_00000006.bin" "$work/split/model_00000006.bin" &&
            cmp "$work/whole/optimizer_00000006.bin" "$work/split/optimizer_00000006.bin"
    }
    check "-w 2 writes the arrays of -w 1" same_arrays
    check "-w 2, then -w 1: exact" exact "$work/split" "$trainer" -w 1
    job 2 -z 1 -w 0 -o "$work/none" -n 6
    at_6 "$work/none" "$trainer" -w 0
    optimizer=$(hash_of optimizer)
    check "-w 0, then -w 1: the stored weights, exactly" exact "$work/none" "$trainer" -w 1
    check "-w 0, then fp32: the stored weights, exactly" exact "$work/none" "$other"
else
    check "fp32, then -w 1: exact" exact "$work/whole" "$other" -w 1
    check "fp32, then -w 2: exact" exact "$work/whole" "$other" -w 2
    check "fp32, then -w 0: it says what is lost" lossy "$work/whole" "$other" -w 0
fi

nothing_left() {
    for step in 06 12; do : > "$work/damaged/optimizer_000000$step.bin"; done
    refused "none of its checkpoints is complete" 2 -y 1 -o "$work/damaged" &&
        has "another -o, or --overwrite 1 instead of -y 1: it moves log and models to"
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
