# llmc_files.sh: writes small files in llm.c's formats, for shell tests. Sourced.

# int16 NUMBER..., int32 NUMBER...: as llm.c's files have them
int16() { local n; for n; do printf '%b' "$(printf '\\x%02x\\x%02x' $((n & 255)) $((n >> 8 & 255)))"; done; }
int32() { local n; for n; do int16 $((n & 65535)) $((n >> 16)); done; }

# tokens: a token shard whose tokens are the bytes of standard input
tokens() {
    local bytes
    bytes=$(od -An -v -tu1 -w1 | awk '{ printf "\\x%02x\\x00", $1 }')
    int32 20240520 1 $((${#bytes} / 8))
    head -c 1012 /dev/zero
    printf '%b' "$bytes"
}

# swag LABEL COUNT: a HellaSwag file of so many examples. Completion 1 goes on as a text "abab..." would, the others do
# not; it is the right one if LABEL is 1.
swag() {
    local e
    int32 20240522 1 "$2" 58
    head -c 1008 /dev/zero
    for ((e = 0; e < $2; e++)); do
        int16 65535 58 $e "$1" 4 4 97 98 97 98 3 122 122 122 5 97 98 97 98 97 3 120 99 120 4 99 99 120 120
    done
}
