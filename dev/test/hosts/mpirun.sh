#!/usr/bin/env bash
# mpirun.sh RANKS [OPTION OF MPIRUN...] PROGRAM...: RANKS ranks on each host of up.sh, by scripts/mpirun.sh on node1
set -eu
ranks=$1
shift
np=$(($(wc -w <<< "$NODES") * ranks))
list=$(printf ",%s:$ranks" $NODES)
printf -v command '%q ' scripts/mpirun.sh -np $np --host "${list#,}" -x OMP_NUM_THREADS "$@"
exec ssh node1 "cd $(printf %q "$PWD"); export NP=$np OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}; . scripts/env.sh
    exec $command"
