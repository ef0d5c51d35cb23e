#!/usr/bin/env bash
# Does this trainer train as llm.c's CPU trainer (train_gpt2.c) does? Its settings, 40 steps and 5 validations, on a
# checkpoint and token shards that are made here and are the same everywhere. llm.c's losses on them are in
# llmc_parity.txt, so llm.c itself is not needed.
#
#     dev/test/cli/test_llmc_parity.sh TRAINER             compares
#     dev/test/cli/test_llmc_parity.sh TRAINER --make DIR  makes the files in DIR that llm.c's train_gpt2 reads, to run
#                                                          it there again
#
# The model is odd on purpose: 96 channels, 3 heads, a vocabulary that needs padding, positions that are never used.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
. dev/test/harness/llmc_files.sh
trainer=$1
allowed=1e-4

# 40 KB of made-up sentences: words by a generator of random numbers that awk computes exactly (Lehmer's, 16807).
text() {
    awk 'function below(n) { s = s * 16807 % 2147483647; return int(s / 65536) % n }
         BEGIN { s = 20240520
             n = split("the a of and to in that is was he for it with as his on be at by had not are but from or " \
                       "have an they which one you were her all she there would their we him been has when who will " \
                       "more no if out so said what up its about into than them can only", w, " ")
             for (bytes = 0; bytes < 40000; ) {
                 line = ""
                 for (k = 4 + below(9); k > 0; k--) line = line w[1 + below(below(n) + 1)] (k > 1 ? " " : ".")
                 print line
                 bytes += length(line) + 1
             } }'
}

# make_files DIR: under the names that llm.c's trainer has built in
make_files() {
    local data=$1/dev/data/tinyshakespeare
    mkdir -p "$data" "$1/made"
    text > "$1/text.txt"
    local bytes
    bytes=$(($(wc -c < "$1/text.txt") * 9 / 10))
    head -c $bytes "$1/text.txt" | tokens > "$data/tiny_shakespeare_train.bin"
    tail -c +$((bytes + 1)) "$1/text.txt" | tokens > "$data/tiny_shakespeare_val.bin"
    "$trainer" -e custom:l3,h3,c96,v1003,t128 -i "$data/tiny_shakespeare_train.bin" -b 4 -t 64 -x 0 -v 0 -s 0 -n 1 \
        -o "$1/made" > "$1/make.log" 2>&1 || { cat "$1/make.log"; exit 1; }
    mv "$1/made/model_00000000.bin" "$1/gpt2_124M.bin"
    # a tokenizer of single bytes, version 2, end of text = newline
    LC_ALL=C awk 'function int32(x) { printf "%c%c%c%c", x % 256, x / 256 % 256, x / 65536 % 256, x / 16777216 }
         BEGIN { int32(20240328); int32(2); int32(1003); int32(10)
             for (i = 4; i < 256; i++) int32(0)
             for (i = 0; i < 1003; i++) printf "\001?"
         }' > "$1/gpt2_tokenizer.bin"
}

if [ "${2:-}" = --make ]; then
    make_files "$3"
    exit
fi

make_files "$work"
data=$work/dev/data/tinyshakespeare
"$trainer" -e "$work/gpt2_124M.bin" -i "$data/tiny_shakespeare_train.bin" -j "$data/tiny_shakespeare_val.bin" -b 4 \
    -t 64 -d 256 -x 40 -l 1e-4 -c 0 --beta2 0.999 --grad-clip 0 -v 10 -m 5 -s 0 -o "$work" > "$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }

# losses as "kind step loss": ours from main.log has fewer digits than the step lines, so from these
awk '/^step +[0-9]+\/40 \| loss/ { split($2, n, "/"); print "train", n[1] - 1, $5 }
    /^val loss/ { print "val", 10 * v++, $3 }' "$work/log" > "$work/ours"

# Each line of llmc_parity.txt is a case: "kind step loss".
compare() {
    awk -v key="$1 $2" -v want="$3" -v allowed=$allowed '
        $1 " " $2 == key { d = $3 - want; ok = d <= allowed && -d <= allowed; print "here it is " $3 }
        END { exit !ok }' "$work/ours"
}
while read -r kind step loss; do
    check "$kind loss of step $step is llm.c's $loss, to $allowed" compare "$kind" "$step" "$loss"
done < <(grep -v '^#' dev/test/cli/llmc_parity.txt)
awk 'FNR == NR { want[$1 " " $2] = $3; next }
    { d = $3 - want[$1 " " $2]; if (d < 0) d = -d; if (d > worst[$1]) worst[$1] = d }
    END { printf "      largest difference: training %.1e, validation %.1e\n", worst["train"], worst["val"] }
    ' dev/test/cli/llmc_parity.txt "$work/ours"
report "there are 45 losses" "$([ $passed = 45 ] || [ -n "$case_word" ] || echo "$passed are right")"
summary
