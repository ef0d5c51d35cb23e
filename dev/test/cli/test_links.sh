#!/usr/bin/env bash
# Checks the links of every Markdown file: a file that is linked to is there; and a link whose text is a function, as in
# [`zero_step`](../../zero/optimizer.c), goes to the file that defines it. A case for each document, and one for the
# search itself.
#
#     dev/test/cli/test_links.sh
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh

# A definition begins in column 1 and is no declaration; its arguments may go on for some lines.
defines() { grep -E "^[a-zA-Z].*\b$2\(" "$1" 2> /dev/null | grep -qvE ';$|^#'; }

# broken FILE: prints the links of a document that lead nowhere
broken() {
    local link text target
    grep -oE '\[[^][]*\]\([^()]+\)' "$1" | while IFS= read -r link; do
        text=${link%%\](*} text=${text#\[} target=${link##*\](} target=${target%)} target=${target%%#*}
        [[ $target != http*://* && -n $target ]] || continue
        target=$(dirname "$1")/$target
        if [ ! -e "$target" ]; then
            echo "$1: $target is not there"
        elif [[ $text =~ ^\`([a-z0-9_]+)\`$ ]] && ! defines "$target" "${BASH_REMATCH[1]}"; then
            echo "$1: $target does not define ${BASH_REMATCH[1]}"
        fi
    done
}

printf 'int g(void);\nint f(int a,\n      int b) {\n' > "$work/code.c"
printf '[`f`](code.c) [`g`](code.c) [`h`](code.c) [f](code.c) [x](y.md), [z](https://a/b)\n' > "$work/planted.md"
found=$(broken "$work/planted.md" | wc -l)
report "planted faults are found" "$([ "$found" = 3 ] || echo "$found of 3 are found")"

mapfile -t documents < <(find . -name '*.md' -not -path './build*' -not -path './.*' | sort)
for document in "${documents[@]}"; do
    broken "$document" > "$work/log"
    report "links of $document" "$([ ! -s "$work/log" ] || echo "lead nowhere")" "$work/log"
done
report "functions are linked in dev/docs/zero.md" "$([ "$(grep -cE '\[`[a-z0-9_]+`\]\(' dev/docs/zero.md)" -ge 20 ] ||
    echo "fewer than 20 lines have such links")"
summary
