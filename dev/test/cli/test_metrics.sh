#!/usr/bin/env bash
# metrics.jsonl: every line is JSON, every field is there, and the numbers agree with each other and with the formulas,
# also after a run was resumed. The report is drawn from it. The progress line is on a terminal and nowhere else.
#
#     dev/test/cli/test_metrics.sh TRAINER [--case WORD]
#
# Without python3 the cases that read JSON are not run; one line says so.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$1
NP=2
. scripts/env.sh
small=(-e custom:l1,h2,c16,v256,t32 -i dev/data/text/default.txt -b 1 -t 32 -d 128 -v 2 -m 2 -s 0)

# train RANKS DIR FLAGS...
train() {
    timeout -k 5 200 "${MPIRUN:-mpirun}" -np "$1" "$trainer" "${small[@]}" -o "$work/$2" "${@:3}" < /dev/null
}
# The runs, each made by the first case that needs it. The second is the first, killed in step 4 while it wrote a line,
# after the checkpoint of step 2; it is continued on another number of ranks.
whole() { [ -e "$work/whole" ] || train 2 whole -z 2 -x 4 -n 2; }
resumed() {
    [ ! -e "$work/resumed" ] || return 0
    whole && cp -r "$work/whole" "$work/resumed" && rm "$work"/resumed/*_00000004* || return 1
    sed -i '/"step":4/,$d' "$work/resumed/metrics.jsonl"
    printf '{"kind":"step","step":4,"ti' >> "$work/resumed/metrics.jsonl"
    cp "$work/resumed/metrics.jsonl" "$work/half.jsonl"
    train 4 resumed -z 3 -x 6 -n 2 -y 1
}
groups() { [ -e "$work/groups" ] || train 4 groups -z 1 -x 3 --shard-group 2; }

same_losses() {
    losses() { sed -n 's/.*"step":\([1-4]\),.*"loss":\([^,]*\),"loss_z".*/\1 \2/p' "$work/$1/metrics.jsonl"; }
    whole && resumed && [ "$(losses whole | wc -l)" = 4 ] && diff <(losses whole) <(losses resumed)
}
check "a resumed run has the same losses" same_losses
if command -v python3 > /dev/null; then
    # verify RUN LAST STARTS
    verify() { "$1" && dev/test/cli/check_metrics.py metrics "$work/$1" "$2" "$3"; }
    check "a run's records" verify whole 4 1
    check "a resumed run has each step once" verify resumed 6 2
    check "shard groups" verify groups 3 1
    drawn() {
        whole && resumed && groups &&
            scripts/plot.py "$work"/{whole,resumed,groups} -o "$work/report.html" > "$work/said" &&
            grep -qx "report: $work/report.html" "$work/said" &&
            dev/test/cli/check_metrics.py report "$work/report.html" whole resumed groups
    }
    check "the report of three runs" drawn
    unfinished() {
        resumed && scripts/plot.py "$work/half.jsonl" -o "$work/half.html" && grep -q "3 of 4" "$work/half.html"
    }
    check "the report of a run that is not finished" unfinished
    resumed_at_the_end() {      # the report had no times
        resumed && { cat "$work/resumed/metrics.jsonl"; sed -n '/"kind":"run"/s/"step":2/"step":6/p' \
            "$work/resumed/metrics.jsonl"; } > "$work/end.jsonl" && [ "$(grep -c '"kind":"run","step":6' \
            "$work/end.jsonl")" = 1 ] && scripts/plot.py "$work/end.jsonl" -o "$work/end.html" &&
            ! grep -q "No steps" "$work/end.html"
    }
    check "the report of a run that was resumed at its end" resumed_at_the_end
    equal_runs() {
        whole && cp -r "$work/whole" "$work/again" && scripts/plot.py "$work"/{whole,again} -o "$work/equal.html" &&
            [ "$(grep -o 'whole and again are equal' "$work/equal.html" | wc -l)" = 1 ] &&
            ! grep -q 'are equal' "$work/half.html"
    }
    check "runs with the same losses are said to be equal" equal_runs
    no_record() {
        local line said
        whole || return 1
        for line in 1 '{}' '{"kind":"val"}'; do
            { cat "$work/whole/metrics.jsonl"; echo "$line"; } > "$work/none.jsonl"
            said=$(scripts/plot.py "$work/none.jsonl" -o "$work/none.html" 2>&1)
            [ $? = 1 ] && [ "$(wc -l <<< "$said")" = 1 ] &&
                [[ $said == error:*"line $(wc -l < "$work/none.jsonl"):"* ]] || return 1
        done
    }
    check "a line that is no record is named" no_record
    other_optimizer() {     # two charts of memory, each with the states of its optimizer
        local bars
        whole && train 2 lion -z 2 -x 2 --optimizer lion && train 2 whole0 -z 0 -x 2 &&
            scripts/plot.py "$work"/{whole,whole0,lion} -o "$work/two.html" || return 1
        bars=$(grep -oE '(whole|whole0|lion) \(stage [0-3]\), measured|stage 0, by formula' "$work/two.html" | xargs)
        [ "$bars" = "stage 0, by formula whole0 (stage 0), measured whole (stage 2), measured stage 0, by formula lion \
(stage 2), measured" ] || { echo "$bars"; return 1; }
    }
    check "memory of another optimizer has a chart of its own" other_optimizer
    no_run() {
        local said
        mkdir "$work/none"
        said=$(scripts/plot.py "$work/none" 2>&1)
        [ $? = 1 ] && [ "$(wc -l <<< "$said")" = 1 ] &&
            [[ $said == "error: $work/none/metrics.jsonl: cannot be read: No such file or directory: give "* ]]
    }
    check "a directory without a run" no_run
else
    echo "not run: what reads JSON, for there is no python3"
fi
without_o() { train 2 unused -x 2 -o "$work/first" && [ ! -e "$work/unused" ] && [ -e "$work/first/metrics.jsonl" ]; }
check "the file is in the output directory" without_o

# on_terminal [REDIRECTION]: what a terminal shows of a run with 2 ranks
on_terminal() {
    local command
    command=$(printf '%q ' "${MPIRUN:-mpirun}" -np 2 "$trainer" "${small[@]}" -x 4)
    TERM=xterm timeout -k 5 200 script -qec "$command ${1-}" /dev/null < /dev/null
}
progress_is_shown() {
    on_terminal > "$work/shown" && cat -v "$work/shown"
    tr '\r' '\n' < "$work/shown" | grep -qE '^\[#+\.+\] 50%  0:00:[0-9]{2} left, ends [0-9:]+$' &&
        tr '\r' '\n' < "$work/shown" | grep -q $'^\e\\[Kval loss '
}
check "on a terminal there is a progress line" progress_is_shown
nothing_elsewhere() {
    on_terminal "> $work/hidden" && cat -v "$work/hidden"
    grep -q '^step *4/4 ' "$work/hidden" && ! grep -q $'\e\|\r\|left, ends' "$work/hidden"
}
check "in a file there is none, nor below mpirun's own terminals" nothing_elsewhere
summary
