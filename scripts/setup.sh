#!/bin/sh
# Installs what the build needs and this machine lacks, on Debian, Ubuntu and their relatives (apt). `make` runs it
# every time: when nothing is missing it changes nothing and takes a fraction of a second.
#
#     scripts/setup.sh                    what the build, the tests and the benchmarks need
#     scripts/setup.sh clang-format-14    that too, for `make format` and `make check-format`
#
# A library counts as there if a program compiles and links with it, not if its package is installed: one that was built
# by hand is as good. Without a compiler, MPI, xxHash, cJSON and libyaml nothing can be built, so that is an error. What
# only a benchmark, the default text, a run's report and io_uring need is tried once (build/setup-tried); if it fails,
# one line says what is missing.
# CUDA is not installed: where there is an nvcc it is used, and without one everything runs on the CPU.
#
# Prints one line for each set of packages. apt's own output goes to build/setup.log; if apt fails, its end is printed.
set -u
cd "$(dirname "$0")/.." || exit 1

NEEDED="build-essential openmpi-bin libopenmpi-dev libxxhash-dev libcjson-dev libyaml-dev"
TRIED=build/setup-tried
LOG=build/setup.log

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
    have_compilers && have_mpi && can_build xxhash.h -lxxhash && can_build cjson/cJSON.h -lcjson &&
        can_build yaml.h -lyaml
}

have_all() {
    have_needed && can_build cblas.h -lopenblas && can_build liburing.h -luring && have fio && have python3 &&
        { have bible || [ -e dev/data/text/default.txt ]; }
}

# In a checkout of llm.c (scripts/install_into.sh) nothing is installed, only named.
is_guest() {
    [ -e ../Makefile.zero ]
}

can_install() {
    ! is_guest && have apt-get && { [ "$(id -u)" = 0 ] || have sudo; }
}

# apt ARGUMENTS...: apt-get as root, its output in the log
apt() {
    mkdir -p build
    sudo=$([ "$(id -u)" = 0 ] || echo sudo)
    echo "== apt-get $*" >> $LOG
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >> $LOG 2>&1 < /dev/null && return
    echo "setup: apt-get $1 failed; the end of $LOG:" >&2
    tail -n 15 $LOG | sed 's/^/  | /' >&2
    return 1
}

install() {
    [ -n "${updated-}" ] || apt update || echo "setup: continuing with the package lists that are there" >&2
    updated=yes
    echo "setup: installing $* (log: $LOG)"
    apt install --no-install-recommends "$@"
}

# A program that was asked for by name must be there in the end.
if [ $# != 0 ] && ! have "$1"; then
    if ! can_install || ! install "$1" || ! have "$1"; then
        echo "setup: there is no $1, and it could not be installed" >&2
        exit 1
    fi
fi

if have_all || { have_needed && [ -e $TRIED ]; }; then
    exit 0
fi

# shellcheck disable=SC2086
if can_install && { have_needed || install $NEEDED; }; then
    # One by one: a package that is not available must not keep the others out.
    can_build cblas.h -lopenblas || install libopenblas-openmp-dev
    can_build liburing.h -luring || install liburing-dev
    have fio || install fio
    have bible || install bible-kjv
    have python3 || install python3
fi

if ! have_needed; then
    {
        if is_guest; then
            echo "setup: zero.c installs nothing from within another project's tree: use the package manager"
        elif have apt-get; then
            can_install || echo "setup: installing needs root: run scripts/setup.sh as root, or install sudo"
        else
            echo "setup: there is no apt-get here: use the system's own package manager"
        fi
        echo "setup: this is missing:"
        have_compilers || echo "  - gcc and g++ (C11 and C++17, with OpenMP) and GNU make"
        have_mpi || echo "  - Open MPI with its compiler wrapper: mpicc, mpirun and mpi.h"
        can_build xxhash.h -lxxhash || echo "  - xxHash: xxhash.h and -lxxhash"
        can_build cjson/cJSON.h -lcjson || echo "  - cJSON: cjson/cJSON.h and -lcjson"
        can_build yaml.h -lyaml || echo "  - libyaml: yaml.h and -lyaml"
    } >&2
    exit 1
fi

can_build cblas.h -lopenblas || echo "setup: no OpenBLAS (cblas.h, -lopenblas): bench_matmul cannot be built" >&2
can_build liburing.h -luring || echo "setup: no liburing (liburing.h, -luring): --offload nvme:DIR uses threads" >&2
have fio || echo "setup: no program 'fio': bench_offload.sh compares with nothing" >&2
have bible || echo "setup: no program 'bible' (package bible-kjv): the default text will be other prose" >&2
have python3 || echo "setup: no python3: scripts/plot.py cannot draw a run's report" >&2
mkdir -p build
touch $TRIED
