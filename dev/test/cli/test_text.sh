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
    timeout -k 5 200 "${MPIRUN:-mpirun}" -np "$1" "$trainer" "${@:2}" > "$log" 2> stderr < /dev/null
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
cat "$OLDPWD"/dev/data/text/default.txt > text.txt
same_by_threads() {
    OMP_NUM_THREADS=1 "$tokenize" gpt2_tokenizer.bin a.bin b.bin text.txt &&
        OMP_NUM_THREADS=5 "$tokenize" gpt2_tokenizer.bin c.bin d.bin text.txt && cmp a.bin c.bin && cmp b.bin d.bin
}
check "any number of threads makes the same shards" same_by_threads
not_overwritten() { ! "$tokenize" gpt2_tokenizer.bin abab.txt val.bin abab.txt && [ "$(head -c 4 abab.txt)" = abab ]; }
check "a text is not overwritten" not_overwritten
# Several shards.
mkdir -p docs/b
printf 'x\ny' > docs/a.txt
printf '{"text": "ab\\n"}\n\n{"id": 1, "text": "\\u00e4"}' > docs/b/c.jsonl
echo hidden > docs/.hidden
many_shards() {
    "$tokenize" gpt2_tokenizer.bin --shards set --tokens 4 docs two.txt &&
        [ "$(for f in set_val_000000.bin set_train_*.bin; do shard $f; done | xargs)" = \
            "258 120 10 121 258 256 10 258 195 164 258 256 10 256" ] &&
        [ "$(echo set_*)" = "set_shards.txt $(echo set_train_00000{1..3}.bin) set_val_000000.bin" ] &&
        job 1 -e custom:l1,h2,c16,v259,t2 -i 'set_train_*.bin' -j set_val_000000.bin -b 1 -t 2 -x 1 -s 0
}
check "folders, JSONL and texts become shards of N tokens, with llm.c's names" many_shards
check "a set of shards that is complete is left alone" eval \
    'touch -d 2000-01-01 set_* && "$tokenize" gpt2_tokenizer.bin --shards set --tokens 4 docs two.txt &&
     [ -z "$(find . -name "set_*" -newermt 2001-01-01)" ]'
# says WORDS ARGUMENTS...: the tool fails with one message, which has these words
says() { ! "$tokenize" "${@:2}" > /dev/null 2> "$log" && cat "$log" && grep -c . "$log" | grep -qx 1 &&
    grep -qF -- "$1" "$log"; }
check "other settings do not continue it" says "of other texts, or made with another tokenizer, --tokens or" \
    gpt2_tokenizer.bin --shards set --tokens 5 docs two.txt
check "nor do other texts" says "of other texts" gpt2_tokenizer.bin --shards set --tokens 4 docs abab.txt
check "nor does another tokenizer" says "made with another tokenizer" bytes --shards set --tokens 4 docs two.txt
touch other_val_000000.bin
check "somebody else's shards are not overwritten" says "not of this program" bytes --shards other --tokens 4 docs
foreign() {
    mkdir foreign && touch foreign/a_train_000002.bin
    says "a_train_000002.bin: is there, and not of this program" bytes --shards foreign/a --tokens 1 two.txt &&
        [ "$(ls foreign)" = a_train_000002.bin ]
}
check "nor is a later one" foreign
# damaged WORDS COMMAND...: set, after this command in a copy of its directory, is refused and left as it is
damaged() {
    rm -rf damaged && mkdir damaged && cp set_* damaged && (cd damaged && "${@:2}") && cp -r damaged as_it_was &&
        says "$1" gpt2_tokenizer.bin --shards damaged/set --tokens 4 docs two.txt && diff -r damaged as_it_was
    local status=$?
    rm -rf as_it_was
    return $status
}
check "a shard that is missing" damaged "set_train_000002.bin: No such file" rm set_train_000002.bin
check "a shard that was cut" damaged "set_train_000001.bin: has 100 bytes instead of 1032" \
    truncate -s 100 set_train_000001.bin
check "the last shard was cut" damaged "set_train_000003.bin: has 1026 bytes instead of 1028" \
    truncate -s 1026 set_train_000003.bin
check "a shard that is not listed" damaged "set_train_000005.bin: is there" touch set_train_000005.bin
check "a negative number of shards" damaged "set_shards.txt: is damaged" sed -i 's/^shards .*/shards -3/' set_shards.txt
check "shards of another version" damaged "or of another version: remove it and the shards" \
    sed -i 's/^tokenize_text [0-9]*/tokenize_text 1/' set_shards.txt
check "shards among the texts are refused" says "docs/x_val_000000.bin: a folder of texts would hold this output" \
    bytes --shards docs/x --tokens 4 docs
one_shard() { says "use --tokens 1 or less" bytes --shards one --tokens 90 two.txt && [ ! -e one_shards.txt ]; }
check "one shard: nothing would be left to train on" one_shard
check "shards without a name" says '--shards "": is not a name' bytes --shards "" --tokens 2 two.txt
check "shards that have only a directory" says '--shards "docs/": is not a name' bytes --shards docs/ --tokens 2 two.txt
touch empty.txt
empty() { says "empty.txt: is empty" bytes "$@" empty.txt empty.txt && [ -z "$(find . -name 'j_*' -o -name j.bin)" ]; }
check "empty texts are refused" empty j.bin k.bin
check "empty texts are refused: shards" empty --shards j --tokens 2
check "a second writer is refused" eval '! flock . "$tokenize" bytes --shards two --tokens 2 two.txt 2> "$log" &&
    grep -q "another tokenize_text writes into" "$log"'
printf '{"text": "a"}\n{"text": "b", \n' > bad.jsonl
check "JSONL: invalid JSON names file and line" says "bad.jsonl, line 2: is not JSON" bytes x.bin y.bin bad.jsonl
printf '{"body": "b"}\n' > body.jsonl
check "JSONL: without the field" \
    says "body.jsonl, line 1: has no text in its field text: name another one with --field" bytes x.bin y.bin body.jsonl
check "JSONL: --field" eval '"$tokenize" bytes x.bin y.bin --field body body.jsonl && [ "$(shard x.bin)" = 10 ]'
printf '{"text": "a\\u0000b"}\n' > nul.jsonl
check "JSONL: a NUL would end the text" says "nul.jsonl, line 1: has a NUL character" bytes x.bin y.bin nul.jsonl
printf '{"id\\u0000": "\\u0000", "text": "a\\\\u0000"}\n' > id.jsonl
nul_elsewhere() { "$tokenize" bytes x.bin y.bin id.jsonl && [ "$(shard x.bin)" = "10 97 92 117 48 48 48" ]; }
check "JSONL: a NUL in another field" nul_elsewhere
gzip -k two.txt
check "a compressed file is no text" says "two.txt.gz: is not text" bytes x.bin y.bin two.txt two.txt.gz
check "a tokenizer's file is written as it was read" eval \
    '"$tokenize" gpt2_tokenizer.bin --save-tokenizer copy.bin && cmp gpt2_tokenizer.bin copy.bin'

# Killed, and started again: the same bytes as without, by another number of threads.
mkdir whole texts
head -c 1500000 text.txt > texts/1.txt
awk '{ gsub(/["\\\\]/, ""); print "{\"text\": \"" $0 "\"}" }' texts/1.txt | head -n 6000 > texts/2.jsonl
settings=(--tokens 40000 texts)
into() { "$tokenize" gpt2_tokenizer.bin --shards "$1/set" "${settings[@]}"; }
OMP_NUM_THREADS=3 into whole > "$log" || cat "$log"
last=$(find whole -name '*train*' | sort | tail -n 1)
# kills: kills a run that has told of three shards; fails if it was through before that
kills() {
    rm -rf killed && mkdir killed
    "$tokenize" gpt2_tokenizer.bin --shards killed/set "${settings[@]}" > killed.out &
    local pid=$!
    { read -r _ && read -r _ && read -r _; kill -9 $pid; cat > /dev/null; } < killed.out
    wait $pid
    [ $? = 137 ] && [ -e killed/set_train_000002.bin ] && [ ! -e "killed/${last##*/}" ]
}
killed_run() { [ -e killed.out ] || { mkfifo killed.out && { kills || kills || kills || kills || kills; }; }; }
continues_after_kill() {
    killed_run && cp -r killed again && OMP_NUM_THREADS=2 into again && diff -r whole again
}
check "killed in the middle and started again: the same files" continues_after_kill
continues_after_failure() {     # the next shard cannot be written; then it is there, as if killed before it was noted
    local n next
    killed_run && cp -r killed stopped || return 1
    n=$(sed -n 's/^shards //p' stopped/set_shards.txt)
    next=$(printf 'stopped/set_train_%06d.bin' "$n")
    rm -f "$next" && mkdir "$next" && ! into stopped && rmdir "$next" && echo rubbish > "$next" &&
        into stopped | grep "has $n shards; the run goes on" && diff -r whole stopped
}
check "stopped at a shard and started again: the same files" continues_after_failure

no_tokenizer() { ! "$tokenize" abab.txt x.bin y.bin abab.txt 2> "$log" && grep -q "is not a tokenizer file" "$log"; }
check "a file that is no tokenizer is refused" no_tokenizer
check "where a tokenizer comes from" says "nope.bin: cannot be opened: No such file or directory: llm.c's dev/" \
    nope.bin x.bin y.bin abab.txt

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
long_prompt() {
    job 1 --generate 1 -e $model --prompt abababababababababab -g 2 &&
        grep -qE '^\| +\| of which the model sees the last 16 ' "$log"
}
check "a prompt longer than the context: what the model sees of it is said" long_prompt
in_training() { job 2 "${learn[@]}" -x 1 -s 1 -g 2 --prompt abba && sample | grep -q ^abba; }
check "a sample in a training begins with the prompt" in_training
summary
