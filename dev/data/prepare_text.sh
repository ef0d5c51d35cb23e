#!/bin/sh
# Makes OUT.txt, a text to train and test with: real English prose, plain ASCII, at least 1 MB, without a network.
#
# The source is the King James Bible of Debian's package bible-kjv (4 MB, public domain): one verse per line, a blank
# line between chapters, verse numbers stripped. Without that package, the prose that a machine has anyway: licences,
# documentation, manual pages; stderr then says so. The result depends only on the packages installed. A finished file
# is left alone: remove it to make it again.
set -eu
export LC_ALL=C

MIN=1000000     # bytes
MAX=2000000     # of the substitute; the Bible is taken whole

if [ $# -ne 1 ]; then
    echo "usage: $0 OUT.txt" >&2
    exit 2
fi
out=$1

size() {
    wc -c < "$1" | tr -d ' '
}

if [ -f "$out" ] && [ "$(size "$out")" -ge $MIN ]; then
    echo "$out: $(size "$out") bytes, already there"
    exit 0
fi

mkdir -p "$(dirname "$out")"
tmp=$out.tmp.$$
trap 'rm -f "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

# Newline and printable ASCII only; at most one blank line at a time.
plain() {
    tr '\t' ' ' | tr -cd '\n -~' | sed 's/ *$//' | cat -s
}

# From "Ge1:1 In the beginning ..." to "In the beginning ..."
bible_text() {
    bible -f Genesis1:1-Revelation22:21 | awk '{
        chapter = substr($1, 1, index($1, ":"))
        if (chapter != last && last != "") print ""
        last = chapter
        print substr($0, index($0, " ") + 1)
    }'
}

# Licences, documentation, manual pages and, as a last resort, the comments of C headers, each in the order of their
# names, until there is enough (then gzip is ended by a signal). Lines of markup (in manual pages those that begin with
# a dot or a quote), preprocessor lines and escapes are dropped; so are lines without a letter.
found_text() {
    {
        find /usr/share/common-licenses -type f | sort
        find /usr/share/doc -type f \( -name 'README*' -o -name '*.txt' -o -name '*.txt.gz' -o -name '*.md.gz' \) | sort
        find /usr/share/man/man* -type f -name '*.gz' | sort
        find /usr/share/perl /usr/lib/python3* -type f \( -name '*.pod' -o -name '*.txt' -o -name 'topics.py' \) | sort
        find /usr/include -type f -name '*.h' | sort
    } 2> /dev/null | while IFS= read -r file; do
        status=0
        gzip -cdf < "$file" 2> /dev/null || status=$?
        [ $status -lt 128 ] || break
    done | sed -e "/^[.'#]/d" -e 's/\\f[A-Z]//g' -e 's/\\-/-/g' -e '/^..*$/{/[A-Za-z]/!d;}' | head -c $MAX
}

source="the King James Bible (bible-kjv)"
if command -v bible > /dev/null 2>&1; then
    bible_text | plain > "$tmp"
fi
if [ ! -s "$tmp" ] || [ "$(size "$tmp")" -lt $MIN ]; then
    source="licences, documentation, manual pages and headers of this machine"
    echo "$0: no program 'bible' (Debian package bible-kjv): using $source" >&2
    found_text | plain > "$tmp"
fi
if [ "$(size "$tmp")" -lt $MIN ]; then
    echo "$0: found only $(size "$tmp") bytes of text; install bible-kjv, or put a text of your own at $out" >&2
    exit 1
fi
mv "$tmp" "$out"
echo "$out: $(size "$out") bytes, from $source"
