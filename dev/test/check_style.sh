#!/usr/bin/env bash
# Checks the form of every file in the repository: formatting (.clang-format, by clang-format 14 and no other version),
# 120 columns, // comments, at most 600 lines in a file and 80 in a function. Each check is tried on planted faults too.
#
#     dev/test/check_style.sh            make check-format: prints what is wrong, then `N passed, N failed`
#     dev/test/check_style.sh --fix      make format: formats all C, C++ and CUDA files in place
set -u
cd "$(dirname "$0")/../.." || exit 1

# The model's passes, the training loop and main stay in one file.
FILE_LINES=600
FILE_LINES_TRAINER=1400
FUNCTION_LINES=80
COLUMNS=120

formatter=clang-format
if ! $formatter --version 2> /dev/null | grep -q "version 14\."; then
    formatter=clang-format-14
    if ! scripts/setup.sh $formatter; then
        echo "$0: install the package clang-format-14, or pip install clang-format==14.0.6" >&2
        echo "0 passed, 1 failed"
        exit 1
    fi
fi

files() { git ls-files --cached --others --exclude-standard -- "$@"; }
c_files=('*.c' '*.h' '*.cu' '*.cuh' '*.cpp')
shell_files=('*.sh' '*.sbatch' .ci/run)
text_files=(Makefile '*.mk' '*.md' '*.awk' '*.yml' .clang-format .editorconfig .gitignore)

if [ "${1-}" = --fix ]; then
    files "${c_files[@]}" | xargs -d '\n' -r $formatter -i
    exit
fi

# The checks: print `file:line: what is wrong` for the files that are given
formatting() { $formatter --dry-run "$@" 2>&1 | sed -nE 's/^([^:]*:[0-9]*):.*clang-format.*/\1: run make format/p'; }
columns() { LC_ALL=C.UTF-8 lines "longer than $COLUMNS columns" "^.{$((COLUMNS + 1))}" "$@"; }
comments() { lines "a block comment, not //" '^[[:space:]]*/\*|^([^/]|/[^/*])*/\*([^*]|\*[^/])*$' "$@"; }
lines() { grep -nHE -- "$2" "${@:3}" | sed -E "s|^([^:]*:[0-9]*:).*|\1 $1|"; }
file_lengths() {
    awk -v most=$FILE_LINES -v trainer=$FILE_LINES_TRAINER '
        FNR == (FILENAME == "train_gpt2_zero.cu" ? trainer : most) + 1 {
            print FILENAME ":" FNR ": more than " FNR - 1 " lines"
        }' "$@"
}
# A function starts with a line in column 1, its last `) {` may be some lines below, and it ends with } in column 1.
function_lengths() {
    awk -v most=$FUNCTION_LINES '
        FNR == 1 { inside = 0 }
        inside && /^}/ {
            if (FNR - start + 1 > most) print FILENAME ":" start ": a function of " FNR - start + 1 " lines"
            inside = 0
        }
        !inside && /^[^ \t#\/}]/ { start = FNR }
        !inside && /\) \{$/ { inside = 1 }' "$@"
}

passed=0
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# check NAME FUNCTION PLANTED FILES...: FUNCTION finds nothing in FILES, and something in a file with the text PLANTED
check() {
    local wrong
    wrong=$("$2" "${@:4}")
    printf '%b' "$3" > "$work/planted.c"
    cp .clang-format "$work"
    [ "$("$2" "$work/planted.c" | wc -l)" = 1 ] || wrong="$wrong"$'\n'"$0: $1: it does not find the planted fault"
    if [ -z "$wrong" ]; then
        passed=$((passed + 1))
        echo "ok    $1: $(($# - 3)) files"
    else
        failed=$((failed + 1))
        echo "FAIL  $1: $(grep -c . <<< "$wrong") places"
        grep . <<< "$wrong"
    fi
}

mapfile -t c < <(files "${c_files[@]}")
mapfile -t code < <(files "${c_files[@]}" "${shell_files[@]}")
mapfile -t all < <(files "${c_files[@]}" "${shell_files[@]}" "${text_files[@]}")
spaces() { printf '%*s' "$1" ''; }
check "formatting" formatting 'int  x;\n' "${c[@]}"
check "$COLUMNS columns" columns "short\n$(spaces $((COLUMNS + 1)))\n" "${all[@]}"
check "// comments" comments 'int x /* inline */;\n// in dev/*.c\n/* block\n*/\n' "${c[@]}"
body=$(spaces $((FUNCTION_LINES - 1)) | sed 's/ /    a++;\\n/g')
check "functions of $FUNCTION_LINES lines" function_lengths \
    "int t[] = {\n    1,\n};\nint f(int a,\n      int b) {\n$body}\nint g(void) {\n}\n" "${code[@]}"
check "files of $FILE_LINES lines" file_lengths "$(spaces $((FILE_LINES + 1)) | sed 's/ /\\n/g')" "${code[@]}"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
