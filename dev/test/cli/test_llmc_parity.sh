#!/usr/bin/env bash
# Does this trainer train as llm.c's CPU trainer (train_gpt2.c) does? Its settings, 40 steps and 5 validations, on a checkpoint and
# token shards that are made here and are the same everywhere; llm.c's losses on them are in llmc_parity.txt, so that llm.c need not be here.
#
#     dev/test/cli/test_llmc_parity.sh TRAINER             compare
#     dev/test/cli/test_llmc_parity.sh TRAINER --make DIR  make the files in DIR that llm.c's train_gpt2 reads, to run it there again
#
# The model is odd on purpose: 96 channels, 3 heads, a vocabulary that needs padding, positions that are never used.
set -eu
cd "$(dirname "$0")/../../.."
trainer=$1
tokenize=$(dirname "$trainer")/tokenize_bytes
allowed=1e-4

# 40 KB of made-up sentences: words by a generator of random numbers that awk computes exactly (Lehmer's, 16807).
text() {
    awk 'function below(n) { s = s * 16807 % 2147483647; return int(s / 65536) % n }
         BEGIN { s = 20240520
             n = split("the a of and to in that is was he for it with as his on be at by had not are but from or have an they which one you were " \
                       "her all she there would their we him been has when who will more no if out so said what up its about into than them can only", w, " ")
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
    mkdir -p "$data"
    text > "$1/text.txt"
    "$tokenize" "$1/text.txt" "$data/tiny_shakespeare_train.bin" "$data/tiny_shakespeare_val.bin" > /dev/null
    "$trainer" -e custom:l3,h3,c96,v1003,t128 -i "$data/tiny_shakespeare_train.bin" -b 4 -t 64 -x 0 -v 0 -s 0 -n 1 -o "$1" > "$1/make.log" 2>&1 ||
        { cat "$1/make.log"; exit 1; }
    mv "$1/model_00000000.bin" "$1/gpt2_124M.bin"
    # a tokenizer of single bytes, version 2, end of text = newline
    LC_ALL=C awk 'function int32(x) { printf "%c%c%c%c", x % 256, x / 256 % 256, x / 65536 % 256, x / 16777216 }
         BEGIN { int32(20240328); int32(2); int32(1003); int32(10); for (i = 4; i < 256; i++) int32(0); for (i = 0; i < 1003; i++) printf "\001?" }' > "$1/gpt2_tokenizer.bin"
}

if [ "${2:-}" = --make ]; then
    make_files "$3"
    exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make_files "$work"
data=$work/dev/data/tinyshakespeare
"$trainer" -e "$work/gpt2_124M.bin" -i "$data/tiny_shakespeare_train.bin" -j "$data/tiny_shakespeare_val.bin" -b 4 -t 64 -d 256 -x 40 -l 1e-4 \
    -c 0 --beta2 0.999 --grad-clip 0 -v 10 -m 5 -s 0 -o "$work" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }

# losses as "kind step loss": ours from main.log has fewer digits than the step lines, so from these
awk '/^step +[0-9]+\/40 \| loss/ { split($2, n, "/"); print "train", n[1] - 1, $5 } /^val loss/ { print "val", 10 * v++, $3 }' "$work/log" > "$work/ours"
awk -v allowed=$allowed '
    /^#/ { next }
    FNR == NR { want[$1 " " $2] = $3; next }
    { got[$1 " " $2] = $3 }
    END {
        for (k in want) {
            d = (k in got) ? got[k] - want[k] : 99
            if (d < 0) d = -d
            split(k, kind, " ")
            if (d > worst[kind[1]]) worst[kind[1]] = d
            if (d <= allowed) passed++
            else { failed++; print "FAIL " k ": llm.c " want[k] ", here " ((k in got) ? got[k] : "nothing") }
        }
        printf "largest difference from llm.c: %.1e in 40 training losses, %.1e in 5 validation losses, allowed %s\n", worst["train"], worst["val"], allowed
        printf "%d passed, %d failed\n", passed, failed
        exit !(failed == 0 && passed == 45)
    }' dev/test/cli/llmc_parity.txt "$work/ours"
