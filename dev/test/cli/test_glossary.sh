#!/usr/bin/env bash
# Looks for the phrases of dev/test/glossary.txt in every file of the repository and prints each place with the
# replacement. A case for each phrase, and one for the search itself.
#
#     dev/test/cli/test_glossary.sh [FILE...]         default: all files under version control
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
glossary=dev/test/glossary.txt

# search FILE...: prints "phrase|file:line: write ..." for each place. A line is compared together with the one before
# it, both without indentation and comment signs, so that a wrapped phrase is found too.
search() {
    awk '
        function plain(s) {
            gsub(/^[ \t]*(\/\/|#)?[ \t]*|[ \t]+$/, "", s)
            return tolower(s)
        }
        FNR == NR {
            if (!/^#/ && (at = index($0, " -> "))) {
                phrase[++n] = tolower(substr($0, 1, at - 1))
                instead[n] = substr($0, at + 4)
            }
            next
        }
        FNR == 1 { before = "" }
        {
            line = plain($0)
            both = before " " line
            for (i = 1; i <= n; i++)
                if (index(line, phrase[i]) || (index(both, phrase[i]) && !index(before, phrase[i])))
                    print phrase[i] "|" FILENAME ":" FNR ": \"" phrase[i] "\" -> " instead[i]
            before = line
        }' $glossary "$@"
}

printf '    // Ranks Dawdle, and updates are rounded by\n    // chance.\n' > "$work/planted"
found=$(search "$work/planted" | wc -l)
report "planted phrases are found, also wrapped" "$([ "$found" = 2 ] || echo "$found of 2 are found")"

if [ $# = 0 ]; then
    mapfile -t files < <(git ls-files 2> /dev/null ||
        find . -type f -not -path './build*' -not -path './dev/data/text/*')
    for file in "${files[@]}"; do
        [[ $file == *"$glossary" ]] || [[ $file == *test_glossary.sh ]] || [ ! -f "$file" ] || set -- "$@" "$file"
    done
fi
search "$@" > "$work/found"
while read -r phrase; do
    grep -F "$phrase|" "$work/found" | cut -d'|' -f2- > "$work/places"
    report "\"$phrase\" is not used" "$([ ! -s "$work/places" ] || echo "it is")" "$work/places"
done < <(sed -n '/^#/d; s/ -> .*//p' $glossary | tr '[:upper:]' '[:lower:]')
summary
