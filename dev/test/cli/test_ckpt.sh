#!/usr/bin/env bash
# The tool for checkpoints: what is damaged or different is found and named, what is converted continues with the same
# bits, and the last good checkpoint is never deleted.
#
#     dev/test/cli/test_ckpt.sh FP32_TRAINER BF16_TRAINER CKPT [DAMAGES]
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
fp32=$1
bf16=$2
ckpt=$3
damages=${4-30}
export OMP_NUM_THREADS=2
NP=4
. scripts/env.sh

text=$work/text
head -c 18000 dev/data/text/default.txt > "$text"
run=(-e custom:l2,h2,c32,v256,t32 -i "$text" -b 2 -t 32 -v 0 -s 0 -l 0.01 -n 2 --micro-batches 4 --hash 1)
log=$work/log

# job RANKS STEPS TRAINER FLAGS...
job() { timeout -k 5 200 "${MPIRUN:-mpirun}" -np "$1" "$3" "${run[@]}" -x "$2" "${@:4}" > "$log" 2>&1; }

# gives STATUS WORDS ARGUMENTS...: ckpt ends with this status and prints these words
gives() {
    timeout 200 "$ckpt" "${@:3}" > "$log" 2>&1
    local status=$?
    cat "$log"
    [ $status = "$1" ] && grep -qF -- "$2" "$log"
}
count_is() { [ "$(ls "$1" | wc -l)" = "$2" ]; }

check "an fp32 run ends" job 2 6 "$fp32" -z 1 -o "$work/a"
cp "$text" "$work/renamed"
check "the same run in another stage ends" job 4 6 "$fp32" -z 3 -o "$work/b" -i "$work/renamed"
check "a bf16 run ends" job 2 6 "$bf16" -z 2 -w 2 -o "$work/half"
report "it needs no MPI" "$(ldd "$ckpt" | grep -i mpi)"

check "a good directory is listed" gives 0 "step 4: complete" list "$work/a"
check "... with all its checkpoints" test "$(grep -c "4 micro-batches of 2 x 32; fp32, AdamW" "$log")" = 3
check "... and the name of the data" grep -qF "32 positions; trained on text (18000 bytes)" "$log"
check "all are verified" gives 0 "step 2: good" verify "$work/half"
check "one is verified" gives 0 "step 6: good" verify "$work/a" 6
check "there is no such step" gives 2 "there is no step 5; there are 2, 4, 6" verify "$work/a" 5
check "there is no checkpoint" gives 2 "has no checkpoints" verify dev/docs
check "there is no such directory" gives 2 "$work/none: No such file" compare "$work/none" "$work/a"
check "no such command" gives 2 "verity: there is no such command" verity "$work/a"
check "a command with a word too many" gives 2 "list: not with these arguments" list "$work/a" 2

# ---- compare ---------------------------------------------------------------------------------------------------------

check "equal runs are equal" gives 0 "0 of 84 tensors differ" compare "$work/a" "$work/b"
check "... whatever their data are called" grep -qF "checkpoint_00000006.txt: train_file 18000 renamed" "$log"
check "two steps differ" gives 1 "84 of 84 tensors differ" compare "$work/a" "$work/a/checkpoint_00000004.txt"
check "... and say how" grep -qF "checkpoint_00000004.txt: updates 4" "$log"
one_element() {     # element 1000 of layer 1's fcw, in AdamW's v
    cp -r "$work/b" "$work/changed"
    local parameters at
    parameters=$((($(stat -c %s "$work/b/model_00000006.bin") - 1024) / 4))
    at=$((256 * 32 + 32 * 32 + 2 * (2 * 32 + 3 * 32 * 32 + 3 * 32 + 32 * 32 + 32 + 2 * 32) + 4 * 32 * 32 + 1000))
    printf '\0\0\200\77' | dd of="$work/changed/optimizer_00000006.bin" bs=4 seek=$((parameters + at)) conv=notrunc \
        status=none
    gives 1 "AdamW v, layer 1 fcw: 1 of 4096 differ, by " compare "$work/a" "$work/changed" &&
        grep -qF "element 1000 is " "$log" && grep -qF " and 1" "$log" && grep -qF "1 of 84 tensors differ" "$log"
}
check "one element differs" one_element
check "model files are compared" gives 0 "0 of 28 tensors differ" compare "$work"/{a,b}/model_00000006.bin
check "fp32 and bf16 have different states" gives 1 "master weights: only in $work/half" compare "$work/a" "$work/half"

# ---- convert ---------------------------------------------------------------------------------------------------------

there_and_back() {
    gives 0 "nothing is lost" convert "$work/a" "$work/a16" --precision bf16 &&
        gives 0 "step 6: good" verify "$work/a16" && gives 0 "nothing is lost" convert "$work/a16" "$work/a32" \
            --precision FP32 && gives 0 "0 of 84 tensors differ" compare "$work/a" "$work/a32"
}
check "fp32, to bf16 with master weights and back" there_and_back
average_is_exported() {     # the model that it writes has the validation loss of the run
    local flags=(-m 7 -v 1) want
    job 2 6 "$fp32" --ema-decay 0.9 "${flags[@]}" -o "$work/average" || return 1
    want=$(grep 'val loss' "$log" | tail -n 1)
    gives 0 "nothing is lost" convert "$work/average" "$work/average.bin" --average &&
        gives 2 "give a name that ends in .bin" convert "$work/average" "$work/directory" --average &&
        gives 2 "has no moving average" convert "$work/a" "$work/none.bin" --average || return 1
    "${MPIRUN:-mpirun}" -np 2 "$fp32" "${run[@]}" "${flags[@]}" -x 0 -e "$work/average.bin" > "$log" 2>&1 &&
        grep -qxF "$want" "$log"
}
check "the moving average of the weights becomes a model" average_is_exported
continued() {       # a bf16 run that continues it has the state of one that continues the fp32 checkpoint itself
    local hash
    cp -r "$work/a" "$work/itself"
    job 2 8 "$bf16" -w "$1" -y 1 -o "$work/itself" || return 1
    hash=$(grep "state hash" "$log")
    gives 0 "$2" convert "$work/itself/checkpoint_00000006.txt" "$work/w$1" --precision bf16 -w "$1" || return 1
    job 4 8 "$bf16" -z 3 -w "$1" -y 1 -o "$work/w$1" && [ "$hash" = "$(grep "state hash" "$log")" ] &&
        ! grep -F "instead of -w" "$log"
    local status=$?
    rm -r "$work/itself"
    return $status
}
check "fp32 to bf16 -w 2 is continued" continued 2 "nothing is lost"
check "fp32 to bf16 -w 0 loses bits, and is continued" continued 0 "lost: the lower 16 bits of "
loses() {
    gives 0 "lost: the lower 16 bits of " convert "$work/half" "$work/half0" -w 0 && "$ckpt" verify "$work/half0"
}
check "bf16 -w 2 to -w 0" loses
check "bf16 -w 0 to -w 1" gives 0 "nothing is lost" convert "$work/half0" "$work/half1" -w 1
models() {
    gives 0 "nothing is lost" convert "$work/half/model_00000006.bin" "$work/v3.bin" --precision fp32 &&
        gives 0 "nothing is lost" convert "$work/v3.bin" "$work/v5.bin" --precision bf16 &&
        cmp "$work/v5.bin" "$work/half/model_00000006.bin" &&
        gives 0 "0 of 28 tensors differ" compare "$work/v3.bin" "$work/v5.bin" &&
        gives 0 "lost: " convert "$work/a" "$work/a5.bin" --precision bf16 &&
        gives 0 "nothing is lost" convert "$work/a16" "$work/a3.bin" --precision fp32 &&
        cmp "$work/a3.bin" "$work/a/model_00000006.bin"
}
check "model files: version 3 and 5" models
exported() {
    gives 0 "its master weights have more bits" export "$work/half" "$work/hf" && ! grep "nothing is lost" "$log"
}
check "an export of bf16 says that master weights have more bits" exported
check "another M is refused" gives 2 "cannot be converted" convert "$work/a" "$work/m" --micro-batches 8
check "nothing is replaced" gives 2 "exists, and nothing is replaced" convert "$work/a" "$work/b"
too_large() { (ulimit -f 200 && gives 2 "make room" convert "$work/a" "$work/full"); }
check "a file that cannot be written" too_large
report "... leaves nothing" "$(ls "$work/full")"
check "fp32 has no -w 0" gives 2 "leave -w out" convert "$work/a" "$work/w" -w 0
check "a model has no state to convert" gives 2 "model without state" convert "$work/v3.bin" "$work/w"

# ---- damage, prune ---------------------------------------------------------------------------------------------------

RANDOM=1
accepted=
for ((i = 0; i < damages; i++)); do
    all=(model_00000006.bin optimizer_00000006.bin checkpoint_00000006.txt)
    file=${all[i % 3]}
    path=$work/changed/$file
    cp "$work"/b/*00006* "$work/changed"
    at=$(((RANDOM * 32768 + RANDOM) % $(stat -c %s "$path")))
    case $((i / 3 % 5)) in
    3) truncate -s $at "$path" ;;
    4) cp "$work/b/${file/06/04}" "$path" ;;
    *)
        byte=$(od -An -tu1 -j $at -N 1 "$path")
        printf '%b' "\\x$(printf %02x $((byte ^ 1 << RANDOM % 8)))" |
            dd of="$path" bs=1 seek=$at conv=notrunc status=none ;;
    esac
    gives 1 "step 6: not good: $path: " verify "$work/changed" 6 > "$log.damage" ||
        accepted+="damage $i, $path, byte $at: $(cat "$log.damage"); "
done
report "$damages flipped bits, cut and exchanged files are found, and the file is named" "$accepted"
check "what is damaged is not converted" gives 2 "$work/changed" convert "$work/changed" "$work/w"

check "prune --dry-run deletes nothing" gives 1 "step 2: would be deleted" prune "$work/changed" --keep 1 --dry-run
keeps_good() {
    count_is "$work/changed" 14 && gives 1 "step 2: deleted" prune "$work/changed" --keep 1 &&
        gives 1 "step 4: good" verify "$work/changed" && count_is "$work/changed" 10
}
check "the newest is damaged: the one before is kept" keeps_good
check "fewer than --keep: nothing is deleted" gives 0 "nothing is deleted" prune "$work/a" --keep 4
check "--keep 0 is refused" gives 2 "never deleted" prune "$work/a" --keep 0
check "--keep 2" gives 0 "step 2: deleted" prune "$work/a" --keep 2
report "no temporary file is left" "$(find "$work" -name '*.tmp')"
summary
