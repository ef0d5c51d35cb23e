# report.sh: how a shell test of this tree is written. Sourced, after changing to the top directory:
#
#     . dev/test/harness/report.sh
#     check "an empty file is refused" refuses empty.txt     # passes if the command succeeds
#     report "all files are closed" "$wrong" "$log"          # passes if $wrong, which says what is wrong, is empty
#     summary
#
# Cases print `ok` or `FAIL`, summary prints `N passed, N failed` and exits, as test programs do (harness.h). `--case
# WORD` is taken out of the script's arguments: then only cases whose name contains WORD count, and `check` runs no
# other; other work asks `selected NAME`.
passed=0
failed=0
case_word=
work=$(mktemp -d)       # for the script's files
trap 'rm -rf "$work"' EXIT

arguments=()
while [ $# != 0 ]; do
    if [ "$1" = --case ]; then
        case_word=$2
        shift
    else
        arguments+=("$1")
    fi
    shift
done
set -- "${arguments[@]}"

# selected NAME: whether this case is to be run
selected() {
    [[ $1 == *"$case_word"* ]]
}

# report NAME WRONG [LOG]: a case, which passes if WRONG is empty; otherwise prints it and the end of LOG
report() {
    selected "$1" || return 0
    if [ -z "$2" ]; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1: $2"
        [ -z "${3-}" ] || tail -n 20 "$3" | cut -c -300 | sed 's/^/    | /'
    fi
}

# check NAME COMMAND...: a case, which passes if the command succeeds; otherwise prints the end of its output
check() {
    local status
    selected "$1" || return 0
    "${@:2}" > "$work/.check" 2>&1
    status=$?
    [ $status = 0 ] && report "$1" "" || report "$1" "exit status $status of ${*:2}" "$work/.check"
}

summary() {
    [ -z "$case_word" ] || [ $((passed + failed)) != 0 ] || echo "no case has \"$case_word\" in its name"
    echo "$passed passed, $failed failed"
    [ $failed = 0 ] && [ $passed != 0 ]
    exit
}
