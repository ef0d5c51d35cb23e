#!/bin/sh
# Installs what the build needs and this machine lacks, on Debian and its relatives (apt). When nothing is missing it changes nothing and takes
# a fraction of a second, so `make` calls it every time.
#
# What counts is whether a program with the headers and libraries can be compiled and linked, not which packages a machine says it has: a
# library that was built by hand is as good. Without a compiler, MPI and xxHash nothing can be built, so that is an error; what only the tests,
# the benchmarks and the default text need is tried for once (build/setup-tried says so) and otherwise reported in a line.
# CUDA is not installed: where nvcc is found it is used, and without it everything runs on the CPU.
set -u
cd "$(dirname "$0")/.." || exit 1

NEEDED="build-essential openmpi-bin libopenmpi-dev libxxhash-dev"
TRIED=build/setup-tried

have() {
    command -v "$1" > /dev/null 2>&1
}

# can_build HEADERS FLAGS...: does a program that includes HEADERS compile and link?
can_build() {
    headers=$1
    shift
    {
        for header in $headers; do
            echo "#include <$header>"
        done
        echo 'int main(void) { return 0; }'
    } | gcc -x c - -o /dev/null "$@" > /dev/null 2>&1
}

have_compilers() {
    have make && have gcc && have g++
}

have_mpi() {
    # shellcheck disable=SC2046
    have mpicc && have mpirun && can_build mpi.h $(mpicc --showme:compile && mpicc --showme:link)
}

have_needed() {
    have_compilers && have_mpi && can_build xxhash.h -lxxhash
}

have_all() {
    have_needed && can_build cblas.h -lopenblas && { have bible || [ -e dev/data/text/default.txt ]; }
}

can_install() {
    have apt-get && { [ "$(id -u)" = 0 ] || have sudo; }
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

install() {
    echo "setup: installing $*"
    as_root apt-get install -y -q --no-install-recommends "$@"
}

if have_all || { have_needed && [ -e $TRIED ]; }; then
    exit 0
fi

if can_install; then
    as_root apt-get update -q || echo "setup: apt-get update failed; going on with the lists that are there" >&2
    # shellcheck disable=SC2086
    have_needed || install $NEEDED
    # One by one: one that cannot be had must not keep the others out.
    can_build cblas.h -lopenblas || install libopenblas-openmp-dev
    have bible || install bible-kjv
fi

if ! have_needed; then
    {
        if have apt-get; then
            can_install || echo "setup: installing needs root: run scripts/setup.sh as root, or install sudo."
        else
            echo "setup: there is no apt-get here: please install with the system's own package manager."
        fi
        echo "setup: this is missing:"
        have_compilers || echo "  - gcc and g++ (C11 and C++17, with OpenMP) and GNU make"
        have_mpi || echo "  - Open MPI with its compiler wrapper: mpicc, mpirun and mpi.h"
        can_build xxhash.h -lxxhash || echo "  - xxHash: xxhash.h and -lxxhash"
    } >&2
    exit 1
fi

can_build cblas.h -lopenblas || echo "setup: no OpenBLAS (cblas.h, -lopenblas): all but the benchmark that compares with it can be built" >&2
have bible || echo "setup: no program 'bible' (package bible-kjv): the default text will be made of what prose is here" >&2
mkdir -p build
touch $TRIED
