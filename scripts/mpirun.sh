#!/usr/bin/env bash
# mpirun that ends when a host is lost.
#
#     scripts/mpirun.sh -np 16 --host node1:8,node2:8 ./train_gpt2_zero ...        # arguments of mpirun
#
# When a host cannot be reached any more, the ranks report which ranks are missing, after --timeout, and end. Open MPI's
# mpirun (4.1) then waits for ever for its daemon on that host. So this script watches: if all ranks of this host have
# ended and mpirun is still there 10 s later, it ends mpirun, and the exit status is not 0. Other hosts' daemons notice
# that mpirun is gone. On a machine without /proc, or that runs no ranks itself, it is plain mpirun.
#
# MPIRUN: another mpirun. Signals, output and exit status are mpirun's own: it takes the place of this script.

patience=10     # seconds

running() { [ -e "/proc/$1/exe" ]; }    # not a zombie

# Whether a child of process $1 is a rank
has_ranks() {
    local child
    for child in $(cat "/proc/$1"/task/*/children 2> /dev/null); do
        grep -qsz '^OMPI_COMM_WORLD_RANK=' "/proc/$child/environ" && return
    done
    return 1
}

watch() {
    local waited=-1     # no rank has been seen yet
    while running "$1" && [ $waited -lt $patience ]; do
        if has_ranks "$1"; then
            waited=0
        elif [ $waited != -1 ]; then
            waited=$((waited + 1))
        fi
        sleep 1
    done
    running "$1" || return
    echo "error: mpirun.sh: the ranks of this host ended $patience s ago, but mpirun still waits for another host:" \
        "ending mpirun" >&2
    kill -KILL "$1"     # SIGTERM makes it wait again, or crash
}

watch $$ > /dev/null < /dev/null &
exec "${MPIRUN:-mpirun}" "$@"
