#!/usr/bin/env bash
# Optimizer state and parameters on a disk, in the trainer: the bits of a run without it, checkpoints that go to and
# fro, nothing that is left after a kill, a file that is truncated on one rank, and what a run says.
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
        for ranks in 1 2 4; do
            same "$name: parameters on the disk, $ranks ranks" "$trainer" $ranks -x 4 -z 3 \
                --offload-params "nvme:$disk" --prefetch $((ranks / 2))
        done
        same "$name: a part of the state and the parameters on the disk" "$trainer" 2 -x 4 -z 3 \
            --offload-params "nvme:$disk" --offload "nvme:$disk" --offload-fraction 0.3
        train "$trainer" 2 -x 2 -n 2 -z 3 -o "$work/$name.params" --offload-params "nvme:$disk"
        cp -r "$work/$name.params" "$work/$name.copy"
        same "$name: a checkpoint of parameters on the disk, resumed without" "$trainer" 1 -x 4 -y 1 -z 1 -n 4 \
            -o "$work/$name.params"
        same "$name: ... resumed on the disk" "$trainer" 4 -x 4 -y 1 -z 3 -n 4 -o "$work/$name.copy" \
            --offload-params "nvme:$disk" --offload "nvme:$disk"
        rm -r "$work/$name.params" "$work/$name.copy"
    fi
    train "$trainer" 2 -x 2 -n 2 -z 2 -o "$work/$name" --offload "nvme:$disk"
    cp -r "$work/$name" "$work/$name.copy"
    same "$name: a checkpoint from the disk, resumed without" "$trainer" 1 -x 4 -y 1 -z 3 -n 4 -o "$work/$name"
    same "$name: a checkpoint from the disk, resumed on the disk" "$trainer" 4 -x 4 -y 1 -z 3 -n 4 \
        -o "$work/$name.copy" --offload "nvme:$disk" --offload-fraction 0.7 ${some:+--offload-params "nvme:$disk"}
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
[ -z "$some" ] || says "the header says where parameters are" "offload +\| parameters, nvme:"
[ -z "$some" ] || summary
train "$1" 1 -x 1 --offload cpu
says "--offload cpu on the CPU" "--offload cpu: the host's memory is this device's: nothing is offloaded"
train "$1" 2 -x 1 --offload nvme:/nonexistent && echo "status 0" >> "$work/log"
says "a directory that does not exist" "/nonexistent: no file for offloaded state can be created there: .*choose"
train "$1" 1 -x 1 --offload nvme
says "no directory" "--offload nvme: unknown: use none, cpu, or nvme:DIR"
train "$1" 1 -x 1 -z 3 --offload-params cpu
says "--offload-params cpu on the CPU" "--offload-params cpu: the host's memory is this device's: nothing is offloaded"
train "$1" 1 -x 1 -z 2 --offload-params cpu
says "parameters that are not sharded" "--offload-params cpu: stage 2 does not shard parameters: use -z 3"

# start RANKS ARGUMENTS...: a run without end, until it has done two steps; $mpirun is its mpirun, $trained its ranks
start() {
    (NP=$1; . scripts/env.sh
        # shellcheck disable=SC2086
        exec timeout 200 mpirun -np "$1" "$trainer" $model -x 100000 "${@:2}") > "$work/log" 2>&1 &
    mpirun=$!
    for ((i = 0; i < 1000; i++)); do
        grep -q "^step *[0-9]*[2-9]/" "$work/log" && break
        sleep 0.1
    done
    trained=$(pgrep -P "$(pgrep -P $mpirun | head -n 1 || true)" 2> /dev/null)
}

trainer=$1
train "$trainer" 2 -x 2 -n 2 -z 3 -o "$work/last" --offload-params "nvme:$disk"
start 2 -y 1 -z 3 -n 0 -o "$work/last" --offload-params "nvme:$disk"
for file in /proc/$(tail -n 1 <<< "$trained")/fd/*; do
    [[ $(readlink "$file") != "$disk/"* ]] || truncate -s 0 "$file"
done
wait $mpirun && echo "status 0" >> "$work/log"
says "a truncated file of one rank ends the run" "rank 1.*$disk: offloaded state: reading .*something has truncated it"
report "... and all its ranks" "$(ps -o pid= -p "$(tr '\n' ' ' <<< "$trained")" 2> /dev/null)" "$work/log"
train "$trainer" 1 -x 4 -z 1
expected=$hash
same "... the last checkpoint is as it was" "$trainer" 2 -x 4 -y 1 -z 2 -n 4 -o "$work/last"

start 2 -z 2 --offload "nvme:$disk"
kill -9 $trained $mpirun 2> /dev/null
wait $mpirun 2> /dev/null
report "nothing is left after kill -9" "$(ls -A "$disk")" "$work/log"
summary
