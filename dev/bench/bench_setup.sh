#!/usr/bin/env bash
# What a start costs as ranks grow in number: tables of dev/bench/bench_setup.c, all ranks on this machine.
#
#     dev/bench/bench_setup.sh BUILD          RANKS="64 256 1024" (tcp, fs), MPI_RANKS="16 32 64" (on hosts of 8)
set -eu
cd "$(dirname "$0")/../.."
bench=$(realpath "$1")/bench_setup

printf '%-5s %6s %10s %12s %12s %14s %14s %12s\n' way ranks "meeting, s" "exchanges, s" "open files" \
    "KB to a rank" "MB of rank 0" "memory, KB"
for way in tcp fs; do
    for ranks in ${RANKS:-64 256 1024}; do "$bench" $way "$ranks"; done
done

echo
printf '%6s %6s %13s %10s %14s %12s %12s %8s %12s\n' ranks a_host "transport, s" "engine, s" "its messages" \
    "the engine's" "of a step" peers "memory, KB"
for NP in ${MPI_RANKS:-16 32 64}; do
    (. scripts/env.sh; exec "${MPIRUN:-mpirun}" -np "$NP" "$bench" 8)
done
