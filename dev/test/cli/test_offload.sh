#!/usr/bin/env bash
# Optimizer state on a disk, in the trainer: the bits of a run without it, checkpoints that go to and fro, nothing that
# is left after a kill, and what a run says.
#
#     dev/test/cli/test_offload.sh FP32_TRAINER [BF16_TRAINER] [some]
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
model="-e custom:l2,h4,c64,v256,t64 -i dev/data/text/default.txt -b 2 -t 64 -d 1024 -v 0 -s 0 --hash 1"
disk=$work/disk
mkdir "$disk"
some=
[ "${*: -1}" != some ] || { some=1; set -- "${@:1:$#-1}"; }

# train TRAINER RANKS ARGUMENTS...: its output is in $work/log, its hash in $hash
train() {
    # shellcheck disable=SC2086
    (NP=$2; . scripts/env.sh; exec timeout 200 mpirun -np "$2" "$1" $model "${@:3}") > "$work/log" 2>&1
    local status=$?
    hash=$(grep -o 'state hash: .*' "$work/log")
    return $status
}

# same NAME ARGUMENTS...: as train, with the hash $expected
same() {
    local name=$1 wrong=''
    shift
    train "$@" || wrong=", exit status $?"
    [ "$hash" = "$expected" ] || wrong="$wrong, $hash, not $expected"
    ! grep -q "differs from the formula" "$work/log" || wrong="$wrong, bytes differ from the formula"
    report "$name" "${wrong#, }" "$work/log"
}

for trainer in "$@"; do
    name=$(basename "$(dirname "$trainer")")
    train "$trainer" 1 -x 4 -z 1
    expected=$hash
    if [ -z "$some" ]; then
        same "$name: no offload on 2 ranks" "$trainer" 2 -x 4 -z 2
        same "$name: on the disk, stage 3, 4 ranks" "$trainer" 4 -x 4 -z 3 --offload "nvme:$disk"
        same "$name: a part on the disk, stage 1, 2 ranks" "$trainer" 2 -x 4 -z 1 --offload "nvme:$disk" \
            --offload-fraction 0.3
    fi
    train "$trainer" 2 -x 2 -n 2 -z 2 -o "$work/$name" --offload "nvme:$disk"
    cp -r "$work/$name" "$work/$name.copy"
    same "$name: a checkpoint from the disk, resumed without" "$trainer" 1 -x 4 -y 1 -z 3 -n 4 -o "$work/$name"
    same "$name: a checkpoint from the disk, resumed on the disk" "$trainer" 4 -x 4 -y 1 -z 3 -n 4 \
        -o "$work/$name.copy" --offload "nvme:$disk" --offload-fraction 0.7
    [ -z "$some" ] || break
    rm -r "$work/$name"
    train "$trainer" 2 -x 2 -n 2 -z 2 -o "$work/$name"
    same "$name: a checkpoint without, resumed on the disk" "$trainer" 2 -x 4 -y 1 -z 1 -n 4 -o "$work/$name" \
        --offload "nvme:$disk"
done

says() {        # NAME PATTERN: the last run's output has it
    report "$1" "$(grep -qE -- "$2" "$work/log" || echo "it does not say \"$2\"")" "$work/log"
}
part=${some:+0.7}
says "the header says where the state is" "offload .* ${part:-all} of the optimizer state, nvme:"
says "and how it gets there" "^\| +\| (io_uring|threads)"
says "bytes on the disk by formula" "^offload, disk +[0-9]+ Psi/N x ${part:-1} "
[ -z "$some" ] || summary
train "$1" 1 -x 1 --offload cpu
says "--offload cpu on the CPU" "--offload cpu: the host's memory is this device's: nothing is offloaded"
train "$1" 2 -x 1 --offload nvme:/nonexistent && echo "status 0" >> "$work/log"
says "a directory that does not exist" "/nonexistent: no file for offloaded state can be created there: .*choose"
train "$1" 1 -x 1 --offload nvme
says "no directory" "--offload nvme: unknown: use none, cpu, or nvme:DIR"

(NP=2; . scripts/env.sh
    # shellcheck disable=SC2086
    exec timeout 200 mpirun -np 2 "$1" $model -x 100000 -z 2 --offload "nvme:$disk") > "$work/log" 2>&1 &
mpirun=$!
for ((i = 0; i < 1000; i++)); do
    grep -q "^step *2/" "$work/log" && break
    sleep 0.1
done
kill -9 $(pgrep -P "$(pgrep -P $mpirun | head -n 1 || true)" 2> /dev/null) $mpirun 2> /dev/null
wait $mpirun 2> /dev/null
report "nothing is left after kill -9" "$(ls -A "$disk")" "$work/log"
summary
