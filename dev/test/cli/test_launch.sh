#!/usr/bin/env bash
# How the trainer is started: launchers that contradict MPI, command lines that differ between ranks, calls of MPI that
# never return. Each used to end in a hang, or in several runs that write the same files.
#
#     dev/test/cli/test_launch.sh TRAINER [--case WORD]
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$(realpath "$1")
NP=2
. scripts/env.sh
good=(-e custom:l1,h2,c16,v256,t32 -i "$PWD/dev/data/text/default.txt" -b 1 -t 32 -x 1 -v 0 -s 0 --timeout 60)

# refused WORDS COMMAND...: it ends, non-zero, with exactly one line that begins with "error:", which has these words
refused() {
    timeout -k 5 200 "${@:2}" > "$mine/log" 2>&1 < /dev/null
    local status=$?
    cat "$mine/log"
    [ $status != 0 ] && [ $status -lt 124 ] && [ "$(grep -c '^error:' "$mine/log")" = 1 ] &&
        grep '^error:' "$mine/log" | grep -qF -- "$1"
}

# accepted COMMAND...: it trains, plans or helps
accepted() {
    timeout -k 5 200 "$@" > "$mine/log" 2>&1 < /dev/null
    local status=$?
    cat "$mine/log"
    [ $status = 0 ] && grep -qE '^step |^plan:|^usage:' "$mine/log"
}

mpirun=${MPIRUN:-mpirun}
run=("$trainer" "${good[@]}")

# differ WORDS "FLAGS OF RANK 0" "FLAGS OF RANK 1"
differ() {
    # shellcheck disable=SC2086
    refused "$1" "$mpirun" -np 1 "${run[@]}" $2 : -np 1 "${run[@]}" $3
}

# ----------------------------------------------------------------------------------------------------------------------
# Another launcher started more processes than MPI reports

at_once "MPICH's mpiexec, Open MPI's program" refused "started 4 processes (PMI_SIZE)" env PMI_SIZE=4 PMI_RANK=2 \
    "${run[@]}"
at_once "srun without PMIx" refused "srun --mpi=pmix" env SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 "${run[@]}"
at_once "mpirun of another Open MPI" refused "OMPI_COMM_WORLD_SIZE" env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 \
    "${run[@]}"
at_once "torchrun" refused "torchrun" env WORLD_SIZE=8 RANK=3 "${run[@]}"
at_once "torchrun, and -pn with another number" refused "use -pn 8" env WORLD_SIZE=8 RANK=3 "${run[@]}" -pi fs -pn 2 \
    -pr 0 -pf "$work"
at_once "a number without a rank is no launcher's" accepted env WORLD_SIZE=8 "${run[@]}"
at_once "one launcher that agrees is enough" accepted env SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 "$mpirun" -np 2 \
    "${run[@]}"
at_once "a job's variables outside of a step" accepted env SLURM_NTASKS=4 SLURM_PROCID=0 "${run[@]}"
at_once "--plan may be asked anywhere" accepted env PMI_SIZE=4 PMI_RANK=2 "${run[@]}" --plan
cat > "$work/no_mpi.c" << 'END'
#include <unistd.h>
int MPI_Init(int *argc, char ***argv);
int MPI_Init(int *argc, char ***argv) { for (;;) pause(); }
END
gcc -shared -fPIC "$work/no_mpi.c" -o "$work/no_mpi.so"
for flag in --plan --help; do
    at_once "$flag of a process that is no rank does not start MPI" accepted timeout 60 env \
        LD_PRELOAD="$work/no_mpi.so" "${run[@]}" $flag
done
at_once "--help may be asked anywhere" accepted env PMI_SIZE=4 PMI_RANK=2 "${run[@]}" --help

# ----------------------------------------------------------------------------------------------------------------------
# Flags that differ between ranks; the first six hung

at_once "--plan on one rank" differ "rank 1 has --plan off, rank 0 has --plan text" --plan ""
at_once "--help on one rank" differ "rank 1 has --help, rank 0 has no --help" "" --help
at_once "--inject-delays differs" differ "rank 1 has --inject-delays 3, rank 0 has --inject-delays 2" \
    "--inject-delays 2" "--inject-delays 3"
at_once "--transport differs" differ "rank 1 has --transport nccl" "--transport mpi" "--transport nccl"
at_once "--shard-group differs" differ "rank 1 has --shard-group 2, rank 0 has --shard-group 0" "" "--shard-group 2"
at_once "-z differs" differ "rank 1 has -z 3, rank 0 has -z 1" "-z 1" "-z 3"
at_once "-l differs in the last bit" differ "rank 1 has -l 0.00030000000000000003, rank 0 has -l 0.0003" "-l 3e-4" \
    "-l 3.0000000000000003e-4"
at_once "-o on one rank" differ "rank 1 has no -o, rank 0 has -o $work/out" "-o $work/out" ""
echo '{"zero_optimization": {"stage": 3}}' > "$work/a.json"
echo '{"zero_optimization": {"stage": 1}}' > "$work/b.json"
at_once "--config has another setting" differ "rank 1 has -z 1, rank 0 has -z 3" "--config $work/a.json" \
    "--config $work/b.json"
at_once "the same value, written in another way" accepted "$mpirun" -np 1 "${run[@]}" -l 3e-4 : -np 1 "${run[@]}" --lr \
    0.0003
at_once "another rank's flags may not reach the terminal" differ "rank 0 has -o ?[2J" -o\ $'\e[2J' ""
without_mpi() {
    local fs=(-pi fs -pf "$mine" -pn 2) status
    "${run[@]}" "${fs[@]}" -pr 1 -z 1 > "$mine/rank1" 2>&1 < /dev/null &
    refused "$1" "${run[@]}" "${fs[@]}" -pr 0 -z 3
    status=$?
    wait
    return $status
}
at_once "-z differs, without MPI" without_mpi "rank 1 has -z 1, rank 0 has -z 3"

# Each rank that mpirun ended, because the first one had ended, added a line about SIGTERM.
alone() {
    refused "$1" "$mpirun" -np 8 "${run[@]}" "${@:2}" && ! grep -q 'was ended by' "$mine/log"
}
at_once "a wrong flag on 8 ranks: one line" alone "-Q: unknown flag" -Q 1
at_once "a missing model on 8 ranks: one line" alone "nope.bin" -e nope.bin

# ----------------------------------------------------------------------------------------------------------------------
# One name, another content on another host (here: in another directory). A mixture of two models trained, exit
# status 0.

mkdir "$work/a" "$work/b"
head -c 100000 dev/data/text/default.txt | tee "$work/a/text" "$work/b/text" "$work/a/val" "$work/b/val" \
    > "$work/a/same"
cp "$work/a/same" "$work/b/same"
printf X | dd of="$work/b/text" bs=1 seek=50000 conv=notrunc status=none
printf X | dd of="$work/b/val" bs=1 seek=99999 conv=notrunc status=none
all_done

model() { (cd "$1" && "$trainer" "${good[@]}" -i same --seed "$2" -n 1 -o models > /dev/null && mv \
    models/model_00000001.bin model.bin); }
model "$work/a" 1 && model "$work/b" 2

# elsewhere COMMAND WORDS FLAGS...: rank 0 in directory a, rank 1 in b
elsewhere() {
    local common=("$trainer" "${good[@]}" -i same "${@:3}")
    [ "$1" = accepted ] && { accepted "$mpirun" -np 1 -wdir "$work/a" "${common[@]}" : -np 1 -wdir "$work/b" \
        "${common[@]}"; return; }
    refused "$2" "$mpirun" -np 1 -wdir "$work/a" "${common[@]}" : -np 1 -wdir "$work/b" "${common[@]}"
}
at_once "the same content in two places" elsewhere accepted ""
for stage in 0 1 2 3; do
    at_once "another model, stage $stage" elsewhere refused "-e ./model.bin: rank 1 has another content" \
        -e ./model.bin -z $stage
    at_once "another text, stage $stage" elsewhere refused "-i text: rank 1 has another content" -i text -z $stage
done
at_once "another validation text" elsewhere refused "-j val: rank 1 has another content" -j val -v 1

# ----------------------------------------------------------------------------------------------------------------------
# Cores and memory

for threads in 0 two 100000; do
    at_once "OMP_NUM_THREADS=$threads" refused "OMP_NUM_THREADS=$threads: use a number from 1" \
        env OMP_NUM_THREADS=$threads "$mpirun" -np 2 "${run[@]}"
done
at_once "OMP_NUM_THREADS is empty" accepted env OMP_NUM_THREADS= "$mpirun" -np 2 "${run[@]}"
# Bound to a core each, ranks had one thread where they could have had as many as cores, and the header did not say so.
bound() {
    local cores first last who="for rank 0 alone"
    cores=$(sed -n 's/^Cpus_allowed_list:[[:blank:]]*//p' /proc/self/status)    # as 0-3,8
    first=${cores%%[,-]*} last=${cores##*[,-]}
    [ "$first" != "$last" ] || who="shared by 2 ranks"
    env -u OMP_NUM_THREADS "$mpirun" -np 1 taskset -c "$first" "${run[@]}" : -np 1 taskset -c "$last" "${run[@]}" \
        > "$mine/log" 2>&1 < /dev/null
    cat "$mine/log"
    grep -q "^| cores  *| 1, $who" "$mine/log" && grep -q '^| threads per rank  *| 1[ ,]' "$mine/log"
}
at_once "ranks that are bound to cores of their own" bound
many=$(($(nproc) + 1))
oversubscribed() {
    env -u OMP_WAIT_POLICY OMP_NUM_THREADS=$many "$mpirun" -np 2 "${run[@]}" > "$mine/log" 2>&1 < /dev/null
    cat "$mine/log"
    grep -q "^| threads per rank  *| $many, waiting passively" "$mine/log" &&
        grep -q 'warning: more threads' "$mine/log"
}
at_once "more threads than cores wait passively" oversubscribed
# On a busy machine a step took ten times as long, because threads span for those that had no core.
spins() {       # TURNS ENVIRONMENT...: what gcc's library prints
    env -u OMP_WAIT_POLICY "${@:2}" OMP_DISPLAY_ENV=verbose "${run[@]}" 2>&1 < /dev/null | tee "$mine/log" |
        grep -q "GOMP_SPINCOUNT = '$1'" || { cat "$mine/log"; return 1; }
}
if [ "$(env -u OMP_NUM_THREADS nproc)" != 1 ]; then      # which reads it, too
    at_once "threads soon sleep while they wait" spins 10000 OMP_NUM_THREADS=2
    at_once "threads soon sleep while they wait, no OMP_NUM_THREADS" spins 10000 -u OMP_NUM_THREADS
    at_once "threads spin as long as the environment says" spins 77 GOMP_SPINCOUNT=77 OMP_NUM_THREADS=2
fi
large=(-e custom:l100,h128,c16384,v256,t32)
at_once "a model that does not fit: before it is allocated" refused "--force 1" "$mpirun" -np 2 "${run[@]}" \
    "${large[@]}"
at_once "--force 1 tries it" refused "smaller model" "${run[@]}" "${large[@]}" --force 1

# ----------------------------------------------------------------------------------------------------------------------
# MPI_Init and MPI_Finalize that do not return

at_once "a process that never calls MPI_Init" refused "rank 0: MPI_Init has not returned after 2 s" \
    "$mpirun" -np 1 "${run[@]}" --timeout 2 : -np 1 sleep 100
printf '#include <unistd.h>\nint MPI_Finalize(void);\nint MPI_Finalize(void) { for (;;) pause(); }\n' > "$work/stuck.c"
gcc -shared -fPIC "$work/stuck.c" -o "$work/stuck.so"
# In MPI_Init a rank waits as long, which must be enough for it on a busy machine.
finalize_never_returns() {
    local seconds
    for seconds in 2 20 100; do
        refused "rank 0: MPI_Finalize has not returned after $seconds s" env LD_PRELOAD="$work/stuck.so" "${run[@]}" \
            --timeout $seconds && return
        grep -q "MPI_Init has not returned" "$mine/log" || return 1
    done
    return 1
}
at_once "MPI_Finalize never returns" finalize_never_returns
# wait_for REGEX: until the log has such a line
wait_for() {
    for _ in {1..1200}; do
        grep -qE -- "$1" "$mine/log" && return
        sleep 0.05
    done
    tail -n 5 "$mine/log"
}
# Stopped for longer than the time-out and continued: the clock of the watchdog counts only time in which the process
# ran.
suspended() {
    # shellcheck disable=SC2016    # for rank 1
    "$mpirun" -np 1 "${run[@]}" --timeout $short : -np 1 sh -c 'until [ -e "$0" ]; do sleep 0.1; done; exec "$@"' \
        "$mine/continued" "${run[@]}" --timeout $short > "$mine/log" 2>&1 < /dev/null &
    local mpirun_process=$! child i
    for i in {1..600}; do
        child=$(pgrep -P $mpirun_process -x "$(basename "$trainer" | cut -c 1-15)") && break
        sleep 0.05
    done
    kill -STOP "$child" || return 1
    sleep $((short + 2))
    kill -CONT "$child"
    touch "$mine/continued"
    wait $mpirun_process && grep -q '^step ' "$mine/log" || { cat "$mine/log"; return 1; }
}
short=$(short_timeout 4 "$mpirun" -np 2 "${run[@]}")
at_once "a rank that is suspended in MPI_Init and continued" suspended
# A job that is suspended as a whole, for longer than the time-out, in a step: one rank waits for the other all the
# time.
suspended_job() {
    "$mpirun" -np 2 "${run[@]}" -x 1000000000 -o "$mine/out" --timeout $short --transport "$1" > "$mine/log" 2>&1 \
        < /dev/null &
    local mpirun_process=$! ranks=() step
    wait_for '^step '
    mapfile -t ranks < <(pgrep -P $mpirun_process -f "${trainer##*/}")
    [ ${#ranks[@]} = 2 ] || { echo "${#ranks[@]} ranks were found"; kill $mpirun_process; return 1; }
    kill -STOP "${ranks[1]}"
    sleep 0.5
    kill -STOP "${ranks[0]}" && sleep $((short + 2))
    step=$(tail -n 1 "$mine/out/metrics.jsonl" | grep -o '"step":[0-9]*')
    kill -CONT "${ranks[@]}"
    for _ in {1..600}; do
        tail -n 1 "$mine/out/metrics.jsonl" | grep -q "$step," || break
        sleep 0.05
    done
    kill -USR1 $mpirun_process      # then it saves and ends
    wait $mpirun_process && grep 'the run ends after step' "$mine/log" || { tail -n 5 "$mine/log"; return 1; }
}
for transport in mpi nccl; do
    at_once "a job that is suspended and continued, $transport" suspended_job $transport
done
# Ctrl-C, on a run without mpirun: it ended without a word, and all its steps were lost. (A shell ignores SIGINT in
# what it starts in the background.)
interrupted() {
    local process
    env --default-signal=INT "${run[@]}" -x 1000000000 -o "$mine/out" > "$mine/log" 2>&1 < /dev/null &
    process=$!
    wait_for '^step '
    kill -INT $process
    wait $process && grep 'ends after step' "$mine/log" && ls "$mine"/out/DONE_*
}
twice() {   # a sample has no steps at which it could end
    local process
    env --default-signal=INT "$trainer" --generate 1 -e "${good[1]}" --tokenizer bytes -g 16000000 > "$mine/log" 2>&1 \
        < /dev/null &
    process=$!
    wait_for '^generating'
    kill -INT $process
    wait_for '^SIGINT: .* a second one'
    kill -INT $process
    ! wait $process && grep 'rank 0 was ended by SIGINT, in sampling' "$mine/log"
}
at_once "Ctrl-C: the run saves and ends" interrupted
at_once "a second Ctrl-C ends it at once" twice
summary
