#!/usr/bin/env bash
# --profile: each kind of work of a run has a formula, and is done as often as it says; the run is the same as without.
#
#     dev/test/cli/test_profile.sh TRAINER...
set -u
cd "$(dirname "$0")/../../.." || exit 1
export OMP_NUM_THREADS=1
. scripts/env.sh
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0

verdict() {     # verdict STATUS NAME
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $2"
        sed -n '/^profile/,$p' "$dir/log" | sed 's/^/    | /'
    fi
}

# profile TRAINER RANKS FLAGS...
profile() {
    local run=(timeout -k 10 60 "${MPIRUN:-mpirun}" -np "$2" "$1" -e custom:l2,h4,c64,v300,t64 -b 2 -t 64 -x 3 -v 0 -s 0 --hash 1 "${@:3}")
    "${run[@]}" > "$dir/plain" 2>&1 && "${run[@]}" --profile 2 > "$dir/log" 2>&1
    verdict $? "$*: runs"
    grep -q "^profile of rank 0, mean of 2 steps" "$dir/log" && ! grep -E "no formula|not measured|calls differ" "$dir/log"
    verdict $? "$*: what is done is what has formulas"
    [ "$(grep "^state hash" "$dir/plain")" = "$(grep "^state hash" "$dir/log")" ]
    verdict $? "$*: the same bits"
}

for trainer in "$@"; do
    profile "$trainer" 1 -z 0 -d 256 -r 0
    profile "$trainer" 2 -z 1 -d 512 -ge 1
    profile "$trainer" 2 -z 0 -d 512 -r 2
    profile "$trainer" 3 -z 2 -d 1152 -ge 2 -r 2
    profile "$trainer" 4 -z 3 -d 1024 --shard-group 2
    profile "$trainer" 2 -z 3 -d 256 --reduce library
done

"${MPIRUN:-mpirun}" -np 1 "$1" -x 3 --profile 3 > "$dir/log" 2>&1
[ $? != 0 ] && grep -q "use -x 4 or more" "$dir/log"
verdict $? "a profile that is longer than the run is refused"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
