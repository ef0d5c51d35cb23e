# report.sh: how a shell test of this tree is written. Sourced, after changing to the top directory:
#
#     . dev/test/harness/report.sh
#     check "an empty file is refused" refuses empty.txt     # passes if the command succeeds
#     at_once "a pipe is refused" refuses pipe               # the same, beside others
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
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY-passive}     # as in runner.sh: on a busy machine a hundred times as fast

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

# short_timeout FACTOR COMMAND...: runs it, a healthy run, and prints a time-out in seconds that is meant to pass, but
# not before healthy ranks have come: 3, or on a busy machine FACTOR times what the run takes
short_timeout() {
    local began=${EPOCHREALTIME//[.,]/} ms
    "${@:2}" > "$work/.healthy" 2>&1 || cat "$work/.healthy" >&2
    ms=$(($1 * (${EPOCHREALTIME//[.,]/} - began) / 1000))
    echo $((ms > 3000 ? (ms + 999) / 1000 : 3))
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

# at_once NAME COMMAND...: a case like check's that runs beside others, three at a time; all_done waits for them, and
# reports them in order. The command finds a directory of its own in $mine.
pending=()
at_once() {
    selected "$1" || return 0
    local mine=$work/.at_once.$((++at_once_count))
    mkdir "$mine"
    pending+=("$1" "$mine")
    while [ "$(jobs -rp | wc -l)" -ge 3 ]; do wait -n; done
    { "${@:2}" > "$mine/.output" 2>&1; echo "exit status $? of ${*:2}" > "$mine/.status"; } &
}
at_once_count=0

all_done() {
    local i status
    wait
    for ((i = 0; i < ${#pending[@]}; i += 2)); do
        status=$(cat "${pending[i + 1]}/.status")
        report "${pending[i]}" "${status##exit status 0 of *}" "${pending[i + 1]}/.output"
    done
    pending=()
}

summary() {
    all_done

    [ -z "$case_word" ] || [ $((passed + failed)) != 0 ] || echo "no case has \"$case_word\" in its name"
    echo "$passed passed, $failed failed"
    [ $failed = 0 ] && [ $passed != 0 ]
    exit
}
