#!/usr/bin/env bash
# What llm.c's users and scripts expect of flags, log lines and files, without llm.c (test_llmc_scripts.sh has its own
# scripts).
#
#     dev/test/cli/test_llmc_flags.sh TRAINER [--case WORD]
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
. dev/test/harness/llmc_files.sh
trainer=$(realpath "$1")
export OMP_NUM_THREADS=1
NP=4
. scripts/env.sh
log=$work/log
model=custom:l1,h2,c16,v256,t32

cd "$work" || exit 1    # llm.c's paths are relative
mkdir -p dev/data/hellaswag
text=$OLDPWD/dev/data/text/default.txt
head -c 1000 "$text" | tokens > train_1.bin
head -c 777 "$text" | tokens > train_2.bin
tail -c 700 "$text" | tokens > val.bin
run=(-e $model -i 'train_*.bin' -j val.bin -b 4 -t 16 -d 256 -v 0 -s 0)

# job RANKS ARGUMENTS...: it ends well, and says nothing on stderr
job() {
    timeout -k 5 200 "${MPIRUN:-mpirun}" -np "$1" "$trainer" "${run[@]}" "${@:2}" > "$log" 2> stderr < /dev/null &&
        [ ! -s stderr ]
}
# has COUNT REGEX [FILE]: so many lines
has() { [ "$(grep -cE -- "$2" "${3:-$log}")" = "$1" ] || { cat stderr "${3:-$log}"; return 1; }; }
# prints COUNT REGEX RANKS ARGUMENTS...: the run prints so many such lines
prints() { job "${@:3}" && has "$1" "$2"; }
train_losses() { sed -n 's/.* trl:\([0-9.]*\) .*/\1/p' "$1"; }

# 1777 tokens are 8 steps of 200, although the shards have only 4 + 3 whole micro-batches of 200.
check "-x -1: all tokens / d" prints 6 '^step +[0-9]+/6 ' 2
check "-x -1: what is left of each shard counts" prints 8 '^step +[0-9]+/8 ' 1 -d 200 -b 8 -t 25
check "-x -1: a step that ends in the next epoch" prints 1 '^step +1/1 ' 1 -d 1728 -b 9 -t 32

check "-n without -o" prints 1 '^-n 2: no checkpoints are written, for there is no -o' 1 -x 2 -n 2
check "-nk without -n" prints 1 '^-nk: no checkpoints are written' 1 -x 1 -nk 2 -o nk
check "the average time of one step is not a number" prints 1 '^total average iteration time: -?nan ms$' 1 -x 1
check "-lg on a CPU" prints 1 '^-lg 1: there is no GPU' 1 -x 1 -lg 1
check "-s -1: no sample" prints 0 generating 1 -x 2 -s -1
check "-g 0: an empty sample" prints 1 '^generating:$' 2 -x 1 -s 1 -g 0
check "-pn, -pr and -pg that agree with MPI" prints 1 '^-ps: not used' 2 -x 1 -pn 2 -pg 2 -pi mpi -ps ::1
check "-m is a total over ranks" prints 1 '\| 5 micro-batches \(-m\), over all ranks +\|' 2 -x 1 -v 1 -m 5
first_losses() {
    rm -rf a b
    job 2 -a 1 -x 3 -o a && has 1 'train data pattern +\| val.bin' && job 1 -i val.bin -j train_1.bin --shuffle 0 \
        -x 1 -o b && [ "$(train_losses a/main.log | head -n 1)" = "$(train_losses b/main.log)" ]
}
check "-a 1: the first batch of the validation data" first_losses
many_skips() {
    job 1 -x 140 -d 64 -l 0 "$2" 0.0001 && grep -cE "^skipping update due to $1 z-score of [0-9]+\.[0-9]{6}\$" "$log" &&
        has 140 '^step' && has 1 '^\| update or skip .*decided by the host, which waits'
}
check "-sl prints llm.c's line" many_skips loss -sl
check "-sg prints llm.c's line" many_skips grad -sg
writes() {
    rm -rf models
    job 2 -x 3 -n 1 -nk 2 -o models && has 3 '^Writing checkpoint at step [123]$' &&
        has 1 '^Writing model to models/model_00000003.bin$' && has 1 '^Deleting checkpoint at step 1$' &&
        [ -e models/DONE_00000003 ] && [ ! -s models/DONE_00000003 ] && [ ! -e models/DONE_00000001 ]
}
check "checkpoints: llm.c's lines, and DONE files" writes

# HellaSwag
check "-h 1 without its file: one line" prints 1 \
    '^HellaSwag eval not found at dev/data/hellaswag/hellaswag_val.bin, skipping its evaluation$' 2 -x 1 -h 1

yes ab | tr -d '\n' | head -c 4000 | tokens > abab.bin
learn=(-i abab.bin -j abab.bin -x 40 -l 0.01 -d 256 -h 1 -v 30 --hash 1)
score() {   # LABEL RIGHT RANKS ARGUMENTS...
    swag "$1" 7 > dev/data/hellaswag/hellaswag_val.bin
    rm -rf swag
    job "$3" "${learn[@]}" -o swag "${@:4}" && has 2 "^HellaSwag: $2/7 = [01]\.[0-9]{6}\$" &&
        has 1 "^s:30 eval:$(($2 / 7))\.0000\$" swag/main.log && has 1 "^s:40 eval:$(($2 / 7))\.0000\$" swag/main.log
}
check "HellaSwag: all right, 1 rank" score 1 7 1 -z 0
check "HellaSwag: all right, 2 ranks, stage 3" score 1 7 2 -z 3
check "HellaSwag: all right, 3 ranks that each fit less than an example" score 1 7 3 -b 1 -d 240
check "HellaSwag: all wrong" score 2 0 2
# An untrained model's answers, not all right or wrong, on any ranks
same_score() {
    local n first=''
    { int32 20240522 1 60 58; head -c 1008 /dev/zero
      for n in {0..59}; do
          int16 65535 58 "$n" $((n % 4)) 4 4 $((n + 40)) $((n + 1)) 97 98 3 $((n + 9)) 122 122 5 97 98 97 98 \
              $((n + 7)) 3 120 $((n + 3)) 120 4 99 99 120 $((n + 2))
      done; } > dev/data/hellaswag/hellaswag_val.bin
    for n in "1 -z 0" "2 -z 3" "3 -z 1 -d 192" "4 -z 2"; do
        # shellcheck disable=SC2086
        job $n -x 0 -h 1 && has 1 '^HellaSwag: [1-9][0-9]*/60' || return 1
        : "${first:=$(grep ^HellaSwag: "$log")}"
        [ "$first" = "$(grep ^HellaSwag: "$log")" ] || { echo "$n: other than $first"; cat "$log"; return 1; }
    done
}
check "HellaSwag: the same score on 1 to 4 ranks" same_score
too_long() { ! job 2 -x 1 -h 1 -t 8 && has 1 '^error: -h 1: .* 9 tokens: use -t 9 or more' stderr; }
check "HellaSwag: examples longer than -t are refused" too_long
summary
