#!/bin/sh
# Puts zero.c into a checkout of llm.c, and removes it again:
#
#     make install-into LLMC=DIR          or  scripts/install_into.sh install-into DIR
#     make uninstall-from LLMC=DIR        or  make -f Makefile.zero uninstall, in DIR
#
# What comes there, all of it new files: train_gpt2_zero.cu, test_gpt2_zero.cu, Makefile.zero and zero/ (the module, and
# below it dev/, scripts/, and in dev/top/ what is at the top of zero.c's tree). A file that is there and is not from an
# earlier installation is never overwritten: then nothing is installed. zero/installed.sha256 lists what was installed;
# a file that was changed since is kept when zero.c is removed or installed again.
set -eu
export LC_ALL=C

die() {
    echo "error: $*" >&2
    exit 1
}

# Files of zero.c's tree, each with its place in llm.c's: `FROM TO`.
list() {
    for f in train_gpt2_zero.cu test_gpt2_zero.cu; do
        echo "$f $f"
    done
    echo "scripts/Makefile.zero Makefile.zero"
    for f in Makefile README.md LICENSE CONTRIBUTING.md; do
        echo "$f zero/dev/top/$f"
    done
    find zero -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o \
        -name '*.md' \) |
        sed 's/.*/& &/'
    find dev scripts -type f -not -path 'dev/data/text/*' \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o \
        -name '*.cuh' -o -name '*.cpp' -o -name '*.sh' -o -name '*.py' -o -name '*.mk' -o -name '*.awk' -o \
        -name '*.md' -o -name '*.svg' -o -name '*.txt' -o -name '*.sbatch' -o -name 'Makefile.*' \) |
        sed 's|.*|& zero/&|'
}

# In DIR: installed files that are there and were changed since.
changed() {
    sha256sum -c zero/installed.sha256 2> /dev/null | sed -n 's/: FAILED$//p'
}

uninstall_from() {
    cd "$1" 2> /dev/null || die "LLMC=$1: there is no such directory"
    [ -e zero/installed.sha256 ] || die "LLMC=$1: zero.c is not installed there (there is no zero/installed.sha256)"
    kept=$(changed)
    sed 's/^[0-9a-f]*  //' zero/installed.sha256 | while IFS= read -r f; do
        printf '%s\n' "$kept" | grep -qxF -- "$f" || rm -f -- "$f"
    done
    rm -f zero/installed.sha256 zero/dev/data/text/default.txt
    rm -rf build_zero
    for f in train_gpt2_zero test_gpt2_zero; do
        [ ! -L $f ] || rm -f $f
    done
    find zero -depth -type d -empty -delete
    echo "zero.c is removed from $1"
    [ -z "$kept" ] || printf '%s\n' "$kept" | sed 's/^/kept, for it was changed: /'
    [ -n "$kept" ] || [ ! -d zero ] || echo "kept, for there are other files in it: zero/"
}

install_into() {
    [ -f "$1/train_gpt2.cu" ] && [ -d "$1/llmc" ] || die "LLMC=$1: is not a checkout of llm.c (train_gpt2.cu, llmc/)"
    [ ! "$1" -ef . ] || die "LLMC=$1: is zero.c itself"
    target=$(cd "$1" && pwd)
    files=$(list)
    had=
    if [ -e "$target/zero/installed.sha256" ]; then
        had=$(sed 's/^[0-9a-f]*  //' "$target/zero/installed.sha256")
        other=$(cd "$target" && changed)
        [ -z "$other" ] || die "$1/$(echo "$other" | head -n 1): was changed since it was installed: move it away first"
    fi
    [ -n "$had" ] || [ ! -e "$target/build_zero" ] || die "$1/build_zero: is there, and is not zero.c's"
    for f in $(printf '%s\n' "$files" | cut -d' ' -f2); do
        [ ! -e "$target/$f" ] || printf '%s\n' "$had" | grep -qxF -- "$f" ||
            die "$1/$f: is there, and is not zero.c's: nothing was installed"
    done
    # A file of an earlier version that is no longer there goes; the build stays.
    for f in $had; do
        rm -f "$target/$f"
    done
    printf '%s\n' "$files" | while read -r from to; do
        mkdir -p "$target/$(dirname "$to")"
        cp -p "$from" "$target/$to"
    done
    (cd "$target" && printf '%s\n' "$files" | cut -d' ' -f2 | xargs sha256sum > zero/installed.sha256)
    echo "zero.c is installed in $1 ($(printf '%s\n' "$files" | wc -l) files): make -f Makefile.zero"
}

case ${1-} in
install-into | uninstall-from) [ -n "${2-}" ] || die "make $1 LLMC=DIR: DIR is a checkout of llm.c" ;;
*)
    echo "usage: $0 install-into|uninstall-from DIR" >&2
    exit 2
    ;;
esac
if [ "$1" = uninstall-from ]; then
    uninstall_from "$2"
else
    case $2 in /*) dir=$2 ;; *) dir=$PWD/$2 ;; esac
    cd "$(dirname "$0")/.."
    install_into "$dir"
fi
exit
