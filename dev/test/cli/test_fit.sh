#!/usr/bin/env bash
# What --plan --fit finds is what a run with these flags measures, to the byte: with that many bytes it trains, with one
# less it is refused on all ranks, by the plan and by the allocator. And a limit of the system (ulimit -v) is named.
#
#     dev/test/cli/test_fit.sh TRAINER... [some]
set -u
cd "$(dirname "$0")/../../.." || exit 1
. scripts/env.sh
export OMP_NUM_THREADS=1
. dev/test/harness/report.sh
ranks_to_try=(1 2 4)
some=
[ "${*: -1}" != some ] || { some=1 ranks_to_try=(2); set -- "${@:1:$#-1}"; }
of_model=(-e custom:l3,h3,c72,v256,t64 -t 64 -d 1536)
run=(-t 64 -i dev/data/text/default.txt -x 2 -v 0 -s 0)

# found TRAINER RANKS BYTES: the flags and the bytes of the answer, whether it fits or not
found() {
    "$1" --plan --fit --ranks "$2" --memory-limit "$3" "${of_model[@]}" |
        sed -n '2s/^.*: \(-e .*\)/\1/p; 3s/^ *\([0-9]*\) bytes a rank.*/\1/p' | tr '\n' ' '
}

# trains RANKS COMMAND...: its output is in $mine/log
trains() {
    timeout -k 5 200 mpirun -np "$1" "${@:2}" > "$mine/log" 2>&1 < /dev/null
}

# refused WORDS: the last run, by all ranks, in one line
refused() {
    grep ^error: "$mine/log"
    [ "$(grep -c '^error:' "$mine/log")" = 1 ] && grep '^error:' "$mine/log" | grep -q "$1"
}

# measured_is_found TRAINER RANKS LIMIT
measured_is_found() {
    local flags bytes
    read -r -a flags <<< "$(found "$@")"
    echo "${flags[@]}"
    bytes=${flags[-1]}
    flags[-1]=--memory-limit
    flags=("${flags[@]/nvme:DIR/nvme:$mine}")
    local less=$((bytes - 1))
    trains "$2" "$1" "${run[@]}" "${flags[@]}" "$bytes" || { tail -n 5 "$mine/log"; return 1; }
    grep -E "^total .*the most at a time|differs from the formula|^(read|written) " "$mine/log"
    ! grep -q "differs from the formula" "$mine/log" || return 1
    [ "$bytes" -le "$3" ] &&
        [ "$(awk '/^total .*the most at a time/ { print $NF }' "$mine/log")" = "$bytes" ] || return 1
    trains "$2" "$1" "${run[@]}" "${flags[@]}" $less && return 1
    refused "needs $bytes bytes .*may have $less (--memory-limit): none is left for .*: use .*--force 1" || return 1
    trains "$2" "$1" "${run[@]}" "${flags[@]}" $less --force 1 && return 1
    grep ^error: "$mine/log" | grep "memory for .* of the limit of $less bytes are taken.*: use "
}

# a_disk_helps TRAINER RANKS: with one byte less than what suffices without a disk
a_disk_helps() {
    local of_model=(-e custom:l12,h2,c64,v256,t64 -t 64 -d 512) least
    least=$(found "$1" "$2" 1K | awk '{ print $NF }')
    [ "$(found "$1" "$2" $((least - 1)) | grep -c "nvme:DIR")" = 0 ] || return 1
    of_model+=(--disk-space 1)
    found "$1" "$2" $((least - 1)) | grep "nvme:DIR" && measured_is_found "$1" "$2" $((least - 1))
}

# tells_whether_it_fits TRAINER: by its exit status, as text and as JSON
tells_whether_it_fits() {
    local form
    for form in text json; do
        "$1" --plan $form --fit --ranks 2 --memory-limit 1G "${of_model[@]}" || return 1
        "$1" --plan $form --fit --ranks 2 --memory-limit 1K "${of_model[@]}" && return 1
    done
    "$1" --plan --fit --ranks 5 "${of_model[@]}" 2>&1 | grep -- "-d 1536: not a multiple of -t 64 x 5 ranks"
}

# limited KB WORDS COMMAND...: one rank that may have so much address space is refused
limited() {
    (ulimit -v "$1" && timeout -k 5 200 "${@:3}") > "$mine/log" 2>&1 < /dev/null && return 1
    refused "$2"
}

for trainer in "$@"; do
    at_once "$trainer, tells whether it fits" tells_whether_it_fits "$trainer"
    for ranks in "${ranks_to_try[@]}"; do
        most=$(found "$trainer" "$ranks" 1G)
        least=$(found "$trainer" "$ranks" 1K)
        most=$(awk '{ print $NF }' <<< "$most") least=$(awk '{ print $NF }' <<< "$least")
        for bytes in $least $(((least + most) / 2)) $most; do
            [ "$some$bytes" = "1$most" ] || at_once "$trainer, $ranks ranks, $bytes bytes" measured_is_found \
                "$trainer" "$ranks" "$bytes"
        done
    done
    at_once "$trainer, offloaded to a disk" a_disk_helps "$trainer" 2
    [[ $trainer != *-address* && $trainer != *-thread* ]] || continue   # sanitizers need more
    large=("$trainer" "${run[@]}" -e custom:l3,h12,c768,v256,t64 -b 1)
    at_once "$trainer, ulimit -v: before it is allocated" \
        limited 600000 "(ulimit -v): none is left for .*: use " "${large[@]}"
    at_once "$trainer, ulimit -v: the allocation fails" limited 600000 "memory for .*(ulimit -v): use " \
        "${large[@]}" --force 1
done
summary
