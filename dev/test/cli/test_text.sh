#!/usr/bin/env bash
# Text in and out: text that a model cannot read is refused, text becomes shards, prompts become tokens, and samples are
# the same on any number of ranks.
#
#     dev/test/cli/test_text.sh TRAINER TOKENIZE_TEXT [--case WORD]
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
. dev/test/harness/llmc_files.sh
trainer=$(realpath "$1")
tokenize=$(realpath "$2")
export OMP_NUM_THREADS=1
NP=3
. scripts/env.sh
log=$work/log
cd "$work" || exit 1

# A tokenizer: the bytes, then "ab".
{
    int32 20240328 2 259 258
    head -c 1008 /dev/zero
    for byte in {0..255}; do printf '%b' "\\x01$(printf '\\x%02x' "$byte")"; done
    printf '\2ab\1\1\1\2'   # 256, 257 (not used), 258: end of text
} > gpt2_tokenizer.bin
for i in {1..400}; do printf 'abababab'; done > abab.txt
printf 'ab\nab' > two.txt

# job RANKS ARGUMENTS...
job() {
    timeout -k 5 60 "${MPIRUN:-mpirun}" -np "$1" "$trainer" "${@:2}" > "$log" 2> stderr < /dev/null
    local status=$?
    cat stderr "$log" | tail -n 20
    return $status
}
sample() { sed -n '/^---$/,/^---$/p' "$log" | sed '1d;$d'; }
refused() { ! job "${@:2}" && [ "$(grep -c ^error: stderr)" = 1 ] && grep ^error: stderr | grep -qF -- "$1"; }
shard() { od -An -v -tu2 -j1024 "$1" | xargs; }

makes_shards() {
    "$tokenize" gpt2_tokenizer.bin train.bin val.bin abab.txt two.txt && [ "$(od -An -td4 -N12 train.bin | xargs)" = \
        "20240520 1 1444" ] && [ "$(shard val.bin | tail -c 19)" = "256 258 256 10 256" ] &&
        [ "$(shard train.bin | cut -c 1-11)" = "258 256 256" ] && [ -z "$(ls ./*.tmp 2> /dev/null)" ]
}
check "texts become shards, an end-of-text token before each" makes_shards
short_texts() {     # each too short to train on, together enough
    local i
    mkdir short && for i in {1..30}; do echo "text $i" > "short/$i"; done
    "$tokenize" bytes s.bin t.bin short/* &&
        job 2 -e custom:l1,h2,c16,v256,t16 -i s.bin -j t.bin -b 1 -t 16 -x 2 -m 1 -s 0 &&
        [ "$(od -An -v -tu2 -j1024 -N18 s.bin | xargs)" = "10 116 101 120 116 32 49 10 10" ]
}
check "short texts train together" short_texts
same_by_threads() {
    cat "$OLDPWD"/dev/data/text/default.txt > text.txt
    OMP_NUM_THREADS=1 "$tokenize" gpt2_tokenizer.bin a.bin b.bin text.txt &&
        OMP_NUM_THREADS=5 "$tokenize" gpt2_tokenizer.bin c.bin d.bin text.txt && cmp a.bin c.bin && cmp b.bin d.bin
}
check "any number of threads makes the same shards" same_by_threads
not_overwritten() { ! "$tokenize" gpt2_tokenizer.bin abab.txt val.bin abab.txt && [ "$(head -c 4 abab.txt)" = abab ]; }
check "a text is not overwritten" not_overwritten
no_tokenizer() { ! "$tokenize" abab.txt x.bin y.bin abab.txt 2> "$log" && grep -q "is not a tokenizer file" "$log"; }
check "a file that is no tokenizer is refused" no_tokenizer

gpt2=(-e custom:l1,h2,c16,v50257,t16 -i abab.txt -b 1 -t 16 -x 1 -v 0 -s 0)
check "text for GPT-2's vocabulary is refused" refused "tokenize_text gpt2_tokenizer.bin" 2 "${gpt2[@]}"
check "--tokenizer bytes takes it" job 2 "${gpt2[@]}" --tokenizer bytes
check "a prompt without a tokenizer is refused" refused "/nope: cannot be opened" 1 --generate 1 \
    -e custom:l1,h2,c16,v50257,t16 --prompt ab --tokenizer /nope
check "a prompt outside of the vocabulary is refused" refused "vocabulary is 256" 1 --generate 1 \
    -e custom:l1,h2,c16,v256,t16 --prompt abab --tokenizer gpt2_tokenizer.bin

# A model that has learnt "abab...", in bytes.
learn=(-e custom:l1,h2,c16,v256,t16 -i abab.txt -b 4 -t 16 -x 60 -l 0.01 -v 0 -s 0)
model=models/model_00000060.bin
job 2 "${learn[@]}" -n 60 -o models > /dev/null
check "a model is trained" test -e $model
continues() {
    local ranks
    for ranks in "1 -z 0" "2 -z 3" "3 -z 1"; do
        # shellcheck disable=SC2086
        job $ranks --generate 1 -e $model --prompt ba -g 6 "$@" && [ "$(sample)" = babababa ] || return 1
    done
}
check "a prompt is continued, the same on any ranks, temperature 0" continues --temperature 0
check "of the one most likely token: the same" continues --top-k 1
kinds() { sample | tr -d '\n' | fold -w 1 | sort -u | wc -l; }
hot() {
    job 1 --generate 1 -e $model --prompt ba -g 200 --temperature 50 && sample > hot &&
        job 2 --generate 1 -e $model --prompt ba -g 200 --temperature 50 && sample | cmp - hot &&
        [ "$(kinds)" -ge 20 ]
}
check "a high temperature gives other tokens, the same on any ranks" hot
few() { job 1 --generate 1 -e $model --prompt ba -g 200 --temperature 50 --top-k 3 && [ "$(kinds)" -le 10 ]; }
check "--top-k limits the tokens" few
in_training() { job 2 "${learn[@]}" -x 1 -s 1 -g 2 --prompt abba && sample | grep -q ^abba; }
check "a sample in a training begins with the prompt" in_training
summary
