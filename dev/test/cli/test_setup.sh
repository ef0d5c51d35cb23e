#!/usr/bin/env bash
# Tests scripts/setup.sh on machines that lack something: what it installs, what it prints, and what it does when that
# fails. gcc, apt-get and id are stand-ins, and PATH has nothing else but the tools that the script needs.
#
#     dev/test/cli/test_setup.sh
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh

# machine [PROGRAM...]: a new one in $root, with apt-get; the programs are there already
machine() {
    root=$(mktemp -d "$work/XXXXXX")
    mkdir -p "$root/bin" "$root/repo"
    cp -r scripts "$root/repo"
    local tool
    for tool in sh env mkdir touch tail sed dirname cat seq ln; do ln -s "$(command -v $tool)" "$root/bin/$tool"; done
    program id 'echo 0'
    # Each package that a machine can have is a program here, and gcc links with OpenBLAS if it is one of them.
    program apt-get 'echo "$*" >> "$ROOT/apt"
seq -f "Get:%g http://deb.example/debian stable/main" 300
case " $* " in *" ${UNAVAILABLE-none} "*) echo "E: Unable to locate package $UNAVAILABLE"; exit 100 ;; esac
case $* in
*build-essential*) add="make gcc g++ mpicc mpirun" ;;
*openblas*) add=openblas ;;
*liburing*) add=uring ;;
*fio*) add=fio ;;
*bible*) add=bible ;;
*python3*) add=python3 ;;
*clang*) add=clang-format-14 ;;
esac
for p in ${add-}; do ln -s ../"$p" "$ROOT/bin/$p"; done'
    for tool in make g++ mpicc mpirun bible openblas uring fio python3 clang-format-14; do
        printf '#!/bin/sh\n' > "$root/$tool"
    done
    printf '#!/bin/sh\ncat > "$ROOT/source"\nfor l in openblas uring; do
    case $* in *-l$l*) [ -e "$ROOT/bin/$l" ] || exit 1 ;; esac; done\n' > "$root/gcc"
    chmod +x "$root"/*
    for tool in "$@"; do ln -s ../"$tool" "$root/bin/$tool"; done
}
program() { printf '#!/bin/sh\n%s\n' "$2" > "$root/bin/$1" && chmod +x "$root/bin/$1"; }
everything=(make gcc g++ mpicc mpirun openblas uring fio bible python3)

# setup NAME STATUS CALLS OUTPUT [VARIABLE=VALUE...] [clang-format-14]: it exits with STATUS after so many CALLS of
# apt-get, and prints OUTPUT (as grep -E knows it, with a "/" between lines), which is at most 30 lines
setup() {
    local name=$1 status=$2 calls=$3 output=$4 wrong='' got variables=()
    shift 4
    while [[ ${1-} == *=* ]]; do variables+=("$1") && shift; done
    rm -f "$root/apt"
    env -i PATH="$root/bin" ROOT="$root" "${variables[@]}" "$root/repo/scripts/setup.sh" "$@" > "$root/log" 2>&1
    got=$?
    [ $got = "$status" ] || wrong=", exit status $got, not $status"
    got=$(cat "$root/apt" 2> /dev/null | wc -l)
    [ "$got" = "$calls" ] || wrong="$wrong, $got calls of apt-get, not $calls"
    grep -qE -- "^$output/?$" <<< "$(tr '\n' '/' < "$root/log")" || wrong="$wrong, does not print \"$output\""
    [ "$(wc -l < "$root/log")" -le 30 ] || wrong="$wrong, prints $(wc -l < "$root/log") lines"
    report "$name" "${wrong#, }" "$root/log"
}
line='setup: installing [^/]* \(log: build.setup.log\)'

machine
setup "a fresh machine: a line for each set of packages" 0 7 "$line/$line/$line/$line/$line/$line"
setup "it has everything then: nothing is printed, apt is not asked" 0 0 ""
report "apt's output is in the log" "$(grep -q "Get:300 " "$root/repo/build/setup.log" || echo "it is not")"

missing='this is missing:/.*gcc and .*Open MPI.*xxHash.*cJSON.*libyaml[^/]*'
machine
setup "what is needed cannot be installed: the log's end, and what is missing" 1 2 \
    "$line/setup: apt-get install failed; .*package openmpi-bin/.*$missing" \
    UNAVAILABLE=openmpi-bin
machine make gcc g++ mpicc mpirun bible python3 uring fio
setup "what is not needed cannot be installed: what cannot be built" 0 2 \
    "$line/setup: apt-get install failed; .*/setup: no OpenBLAS[^/]*bench_matmul cannot be built" \
    UNAVAILABLE=libopenblas-openmp-dev
setup "it is not tried again" 0 0 "" UNAVAILABLE=libopenblas-openmp-dev
machine make gcc g++ mpicc mpirun bible python3 openblas fio
setup "no liburing: it is installed, and if that fails, threads take its place" 0 2 \
    "$line/setup: apt-get install failed; .*/setup: no liburing[^/]*uses threads" UNAVAILABLE=liburing-dev
machine make gcc g++ mpicc mpirun bible openblas uring fio
setup "no python3: it is installed, and if that fails, there are no reports" 0 2 \
    "$line/setup: apt-get install failed; .*/setup: no python3: scripts/plot.py [^/]*" UNAVAILABLE=python3
machine make gcc g++ mpicc mpirun openblas uring fio python3
setup "the package lists cannot be updated: it installs all the same" 0 2 \
    "setup: apt-get update failed; .*continuing with[^/]*/$line" UNAVAILABLE=update
machine
rm "$root/bin/apt-get"
setup "no apt" 1 0 "setup: there is no apt-get here: [^/]*/setup: this is missing:/.*xxHash.*cJSON.*libyaml[^/]*"
machine
program id 'echo 1000'
setup "not root" 1 0 "setup: installing needs root: .*/setup: this is missing:/.*xxHash.*cJSON.*libyaml[^/]*"
program sudo 'exec "$@"'
setup "not root, but there is sudo" 0 7 "$line/$line/$line/$line/$line/$line"
machine "${everything[@]}"
setup "clang-format is installed when asked for" 0 2 "$line" clang-format-14
setup "it is there then" 0 0 "" clang-format-14
machine "${everything[@]}"
setup "clang-format cannot be installed" 1 2 \
    "$line/setup: apt-get .*/setup: there is no clang-format-14, [^/]*" UNAVAILABLE=clang-format-14 clang-format-14

summary
