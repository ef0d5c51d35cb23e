#!/usr/bin/env bash
# A directory of llm.c's is continued by -y 1, on any number of ranks. The sets are made from our own checkpoint of step
# 6 (dev/test/unit/test_llmc_state.c), so the run must end in the state of the run without a break.
#
#     dev/test/cli/test_llmc_state.sh TRAINER TEST_LLMC_STATE CKPT
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$1
writer=$2
ckpt=$3
export OMP_NUM_THREADS=1
NP=8
. scripts/env.sh

text=$work/text
head -c 18000 dev/data/text/default.txt > "$text"
run=(-e custom:l2,h2,c32,v256,t32 -i "$text" -b 2 -t 32 -v 3 -m 5 -s 0 -l 0.01 -u 2 -x 12 --micro-batches 24 --hash 1)
log=$work/log
bf16=0
[[ $trainer != *bf16* ]] || bf16=1

# job RANKS ARGUMENTS...
job() { timeout -k 5 200 "${MPIRUN:-mpirun}" -np "$1" "$trainer" "${run[@]}" "${@:2}" > "$log" 2>&1; }
has() { grep -qF -- "$1" "$log"; }

# made_set STEP RANKS STAGE MASTER: llm.c's directory, in $work/set
made_set() {
    rm -rf "$work/set"
    mkdir "$work/set"
    "$writer" --write "$work/whole" "$1" "$work/set" "$2" "$3" "$4" "$(($2 % 2))" &&
        grep -v '^s:\(1[0-9]\|[6-9]\) ' "$work/whole/main.log" > "$work/set/main.log"
}

# whole FLAGS...: the run without a break
whole() {
    rm -rf "$work/whole"
    job 2 -z 2 -n 6 -o "$work/whole" "$@"
    hash=$(grep 'state hash' "$log")
    [ -n "$hash" ]
}

# continued "RANKS STAGE MASTER" RANKS FLAGS...: to the same state, log and model
continued() {
    # shellcheck disable=SC2086    # words
    made_set 6 $1 && "$ckpt" verify "$work/set" 6 &&
        "$ckpt" compare "$work/set" "$work/whole/checkpoint_00000006.txt" && job "${@:2}" -y 1 -o "$work/set" &&
        has "resumed from step 6 of $work/set, which llm.c has written on ${1%% *} rank" && has "$hash" &&
        cmp "$work/set/main.log" "$work/whole/main.log"
}

if [ $bf16 = 0 ]; then
    check "the run without a break ends" whole
    check "1 rank is continued on 2, stage 3" continued "1 0 1" 2 -z 3
    says() { [ "$(grep -c "not as llm.c" "$log")" = "$1" ]; }
    check "one rank of llm.c has our order of the data" says 0
    check "2 ranks, stage 0, are continued on 3, stage 1" continued "2 0 1" 3 -z 1
    check "another order of the data is told" has "not as llm.c would continue: the order of the data"
    check "2 ranks, stage 1, are continued on 4, stage 2" continued "2 1 0" 4 -z 2
    check "4 ranks, stage 1, are continued on 1" continued "4 1 1" 1 -z 0
else
    check "-w 1: the run without a break ends" whole -w 1
    check "-w 1: 4 ranks, stage 1, are continued on 3, stage 3" continued "4 1 1" 3 -z 3 -w 1
    check "another rounding is told" has "the rounding of the weights to bf16"
    check "-w 2: 2 ranks, stage 0, are continued on 2, stage 2" continued "2 0 1" 2 -z 2 -w 2
    check "-w 0: the run without a break ends" whole -w 0
    check "-w 0: 2 ranks, stage 1, are continued on 4, stage 3" continued "2 1 0" 4 -z 3 -w 0
fi

models() {      # llm.c's model; the master weights, as fp32; a checkpoint of ours would need what llm.c does not save
    made_set 6 2 1 $((1 - bf16)) && "$ckpt" convert "$work/set" "$work/same.bin" &&
        cmp "$work/same.bin" "$work/whole/model_00000006.bin" &&
        "$ckpt" convert "$work/set" "$work/fp32.bin" --precision fp32 &&
        "$ckpt" compare "$work/fp32.bin" "$work/same.bin" && ! "$ckpt" convert "$work/set" "$work/ours" 2> "$log" &&
        has "$work/set/DONE_00000006: llm.c does not write down"
}
check "its model is converted" models
refused() { ! job "${@:2}" && has "error: " && has "$1"; }
check "another model is refused" refused "2 layers" 2 -y 1 -o "$work/set" -w "$((bf16 ? 0 : 1))" \
    -e custom:l1,h2,c32,v256,t32
falls_back() {
    made_set 12 2 1 $((1 - bf16)) && mkdir "$work/both" && mv "$work"/set/*00012* "$work/both" &&
        made_set 6 2 1 $((1 - bf16)) && mv "$work"/set/* "$work/both" && truncate -s -4 "$work/both/$1" &&
        job 2 -y 1 -o "$work/both" -w "$((bf16 ? 0 : 1))" &&
        has "skipped the checkpoint of step 12: $work/both/$1" && has "resumed from step 6" && has "$hash"
}
check "a damaged set is skipped by name" falls_back state_00000012_00001.bin
summary
