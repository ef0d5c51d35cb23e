#!/bin/bash
# GPT-2 124M on several machines, started by mpirun over ssh.
#
#     HOSTS=node1:8,node2:8 scripts/run_multi_node_mpi.sh
#
# HOSTS names the machines and the number of ranks on each (its GPUs). ssh from this machine to the others must work
# without a password, all must have the same MPI, and the data must be at the same path on each: a shared file system,
# or copies. The program is copied; where the file system is shared that changes nothing. Ranks of one machine use
# shared memory, ranks of different machines MPI messages (on GPUs through pinned host memory).
#
# Tested on hosts that are network namespaces of one machine (dev/test/hosts), not on a real network.
set -eu
cd "$(dirname "$0")/.."

HOSTS=${HOSTS:?set HOSTS=name:ranks,name:ranks}
DATA=${DATA:-$PWD/dev/data/fineweb10B}
OUT=${OUT:-$PWD/log_gpt2_124M_multi}        # shared: rank 0 writes main.log, every rank its part of the model
NETWORK=${NETWORK:-}                        # the interface between the machines, for example eth0; empty: MPI chooses

make train_gpt2_zero
program=$(readlink -f ./train_gpt2_zero)
mkdir -p "$OUT"

np=0
here=$(hostname)
for host in ${HOSTS//,/ }; do
    name=${host%%:*}
    ranks=${host##*:}
    [ "$ranks" != "$host" ] || { echo "HOSTS: $host has no number of ranks; write $host:8" >&2; exit 1; }
    np=$((np + ranks))
    if [ "$name" != "$here" ] && [ "$name" != localhost ]; then
        # The shell of the other machine reads the command again: names are quoted for it.
        # shellcheck disable=SC2029
        ssh "$name" "mkdir -p $(printf %q "$(dirname "$program")") && cat > $(printf %q "$program.new") &&
            chmod +x $(printf %q "$program.new") && mv $(printf %q "$program.new") $(printf %q "$program")" < "$program"
    fi
done

# Open MPI forwards OMPI_MCA_* itself; the rest of the environment only on request.
forward=()
[ -z "${OMP_NUM_THREADS:-}" ] || forward+=(-x OMP_NUM_THREADS)
[ -z "$NETWORK" ] || forward+=(--mca btl_tcp_if_include "$NETWORK" --mca oob_tcp_if_include "$NETWORK")

scripts/mpirun.sh -np "$np" --host "$HOSTS" --bind-to none ${forward[@]+"${forward[@]}"} "$program" \
    -i "$DATA/fineweb_train_*.bin" \
    -j "$DATA/fineweb_val_*.bin" \
    -o "$OUT" \
    -e d12 \
    -z 2 \
    -b 64 -t 1024 -d $((64 * 1024 * np)) \
    -l 0.0006 -q 0.1 -u 700 -c 0.1 \
    -v 250 -m 20 -s 20000 -g 144 \
    -n 1000 \
    "$@"
