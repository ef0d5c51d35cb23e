#!/usr/bin/env bash
# One of four ranks dies or stops, in each phase of a run (faults.c plants that): all others end, non-zero, in time;
# the error is on a line of its own and names the rank, its host and the true phase; no process is left, and no lock or
# temporary file after the next start. Or it gets no more memory: then the job ends in the same way, and says so, or the
# run needed none and is complete.
#
#     dev/test/cli/test_failures.sh FAULTY_TRAINER few|some|all [--case WORD]
#
# few takes seconds, some minutes; all is the whole matrix. A stopped rank is told by the others. A rank that dies under
# mpirun is told by mpirun, which ends the others: they say in which phase that was.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$(realpath "$1")
much=$2
NP=4
. scripts/env.sh
flags=(-e custom:l2,h2,c16,v256,t32 -i "$PWD/dev/data/text/default.txt" -b 1 -t 32 -d 128 -x 6 -v 2 -m 4 -s 3 -g 8 -n 2)
host=$(hostname)

# job DIRECTORY WAY FLAGS...: prints the output of all ranks; status of the job, or, without mpirun, the lowest one of
# the ranks that were not stopped. mpirun may drop the last lines of ranks that it ends: they write into files.
job() {
    local dir=$1 way=$2 r status=255 pids=()
    shift 2
    case $way in
    mpi | nccl)
        # shellcheck disable=SC2016    # for the ranks
        timeout -k 1 $limit "${MPIRUN:-mpirun}" -np 4 \
            bash -c 'exec "$@" > "$0.$OMPI_COMM_WORLD_RANK" 2>&1' "$dir.rank" \
            "$trainer" "${flags[@]}" -o "$dir" --transport "$way" "$@"
        status=$?
        cat "$dir".rank.?
        return $status
        ;;
    fs) mkdir -p "$dir.meet" && set -- -pi fs -pf "$dir.meet" "$@" ;;
    tcp) set -- -pi tcp -ps "127.0.0.1:$((21000 + RANDOM % 9000))" "$@" ;;
    esac
    for r in 0 1 2 3; do
        FAULT_SELF=$r "$trainer" "${flags[@]}" -o "$dir" "$@" -pn 4 -pr $r &
        pids[r]=$!
    done
    for r in 0 1 2 3; do
        [ $r = "${FAULT%% *}" ] && continue
        timeout $limit tail -f /dev/null --pid="${pids[r]}"
        kill -9 "${pids[r]}" 2> /dev/null && echo "rank $r did not end"
        wait "${pids[r]}"
        r=$?
        [ $r -ge $status ] || status=$r
    done
    kill -CONT "${pids[${FAULT%% *}]}" 2> /dev/null      # nobody else ends a rank that was stopped; it ends by itself
    timeout $limit tail -f /dev/null --pid="${pids[${FAULT%% *}]}"
    kill -9 "${pids[${FAULT%% *}]}" 2> /dev/null && echo "the stopped rank did not end"
    return $status
}

# lose WAY STAGE RANK KIND PHASE [TOLD]: a case. TOLD: what the messages call the phase
lose() {
    local name="$1, stage $2: rank $3, $4 in $5" dir wrong='' log phase=${6-$5} began=$SECONDS status words
    dir=$work/${name//[^a-z0-9]/_}
    log=$dir.log
    rm -rf "$dir" "$dir".*
    FAULT="$3 $4 $5" job "$dir" "$1" -z "$2" > "$log" 2>&1 < /dev/null
    status=$?
    [ $((SECONDS - began)) -lt $limit ] || wrong=", it does not end"
    [ $status != 0 ] || { [ "$4" = memory ] && grep -q "^total average" "$log"; } || wrong="$wrong, exit status $status"
    grep -q "rank $3: $4 in " "$log" || wrong="$wrong, the fault did not come"
    if [ "$4" = memory ]; then      # MPI, glibc and C++ have errors of their own
        words="^error: .*rank $3[: ].*memory|out of (dynamic )?memory|^terminate called"
        [ $status = 0 ] || grep -qE "$words" "$log" || wrong="$wrong, no error is about memory"
    elif [ "$4" = stop ] || [[ $1 == [tf]* ]]; then
        # in MPI's own calls nobody knows which rank is missing
        grep '^error: ' "$log" | grep -E "rank $3 |ranks .*$3|MPI_" | grep -qE -- "$phase" ||
            wrong="$wrong, no error names rank $3 and \"$phase\""
        # ... nor where it is, before all have met
        [[ $5 == MPI_* || $5 == destroying* || $5 == finding* ]] ||
            grep '^error: ' "$log" | grep -q "rank $3 is process [0-9]* on $host" ||
            wrong="$wrong, no error names the host"
    else
        [[ $5 == MPI_* ]] || grep -qE "^rank [0-3] was ended by SIGTERM, in .*$phase|^error: .*$phase" "$log" ||
            wrong="$wrong, nobody says that it was in \"$phase\""
        grep -qE "rank $3 .*on node $host|exited on signal|exiting improperly|non-zero exit" "$log" ||
            wrong="$wrong, mpirun does not name it"
    fi
    grep -q 'did not end' "$log" && wrong="$wrong, $(grep 'did not end' "$log" | xargs)"
    for _ in {1..200}; do pgrep -f -- "-o $dir " > /dev/null || break; sleep 0.1; done
    pgrep -f -- "-o $dir " > /dev/null && wrong="$wrong, processes are left"
    # rank 0 may have been killed before it could tidy up: the next start recognises a dead run's lock, and does it
    "$trainer" "${flags[@]}" --timeout 60 -x 0 -v 0 -s 0 -n 0 -o "$dir" --overwrite 1 > "$dir.next" 2>&1 ||
        wrong="$wrong, the next start fails: $(grep '^error' "$dir.next")"
    [ -z "$(find "$dir" -name '*.tmp' -o -name 'flight_recorder_*.txt' -o -name run.lock 2> /dev/null)" ] ||
        wrong="$wrong, left: $(ls "$dir" | xargs)"
    { echo "$name ($((SECONDS - began)) s)"; echo "${wrong#, }"; } > "$dir.result"
}

# Cases run a few at a time: they mostly wait. On a busy machine a run may reach its time-out before the fault; then it
# is started again.
results=()
plan() {
    local name="$1, stage $2: rank $3, $4 in $5"
    selected "$name" || return
    results+=("$work/${name//[^a-z0-9]/_}")
    while [ "$(jobs -rp | wc -l)" -ge 3 ]; do wait -n; done
    for _ in 1 2 3; do
        lose "$@"
        grep -q "the fault did not come" "${results[-1]}.result" || break
    done &
}

# phases WAY STAGE RANK KIND
phases() {
    if [ "$1" = mpi ] || [ "$1" = nccl ]; then
        plan "$@" MPI_Init
        plan "$@" "destroying the engine" "the end of the run|MPI_Finalize"     # without MPI nobody would notice
        plan "$@" MPI_Finalize
    fi
    plan "$@" "finding the ranks" ""
    plan "$@" "data headers" ""
    plan "$@" transport ""
    plan "$@" "creating the engine" "start-up|agreement of the ranks"
    plan "$@" "reading the weights" "start-up|reading the weights"
    plan "$@" "reduce-scatter of gradients" training
    plan "$@" "gradient norm" training
    plan "$@" optimizer "training|validation"
    [ "$2" != 3 ] || plan "$@" "all-gather of parameters" "training|validation"
    plan "$@" validation
    plan "$@" sampling
    plan "$@" "writing a checkpoint"
    plan "$@" "the end of the run" "the end of the run|MPI_Finalize"
}

limit=200   # seconds, of a job
timeout=$(FAULT="-1 none none" short_timeout 2 job "$work/healthy" mpi)     # mpirun takes longest to start
flags+=(--timeout "$timeout")
limit=$((60 + 4 * timeout))
case $much in
few)
    plan mpi 1 2 stop validation
    plan mpi 3 0 stop sampling
    plan mpi 1 2 kill "writing a checkpoint"
    plan fs 3 2 kill "reduce-scatter of gradients" training
    ;;
some)
    phases mpi 1 2 stop
    phases tcp 3 2 kill
    plan nccl 3 0 stop "all-gather of parameters" "training|validation"
    plan mpi 3 1 exit optimizer "training|validation"
    plan mpi 1 0 abort "writing a checkpoint"
    plan mpi 3 2 memory "creating the engine"
    plan mpi 3 2 memory "all-gather of parameters"
    plan fs 1 2 memory "reduce-scatter of gradients"
    ;;
all)
    for way in mpi nccl tcp fs; do
        for stage in 1 3; do
            for kind in kill stop exit abort memory; do phases $way $stage 2 $kind; done
            phases $way $stage 0 stop
        done
    done
    ;;
esac
wait
for result in ${results[@]+"${results[@]}"}; do
    { read -r name; read -r wrong; } < "$result.result"
    report "$name" "$wrong" "$result.log"
done
summary
