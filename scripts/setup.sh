#!/bin/sh
# Installs what the build needs and this machine lacks, on Debian and its relatives (apt). When nothing is missing it changes nothing and takes
# a fraction of a second, so `make` calls it every time.
#
# What counts is whether a program with the headers and libraries can be compiled and linked, not which packages a machine says it has:
# a library that was built by hand is as good. CUDA is not installed: where nvcc is found it is used, and without it everything runs on the CPU.
set -u

PACKAGES="build-essential openmpi-bin libopenmpi-dev libopenblas-openmp-dev libcmocka-dev libxxhash-dev"
TEXT_PACKAGE="bible-kjv"

have() {
    command -v "$1" > /dev/null 2>&1
}

# can_build HEADERS FLAGS...: does a program that includes HEADERS compile and link?
can_build() {
    probe_headers=$1
    shift
    for probe_header in $probe_headers; do
        echo "#include <$probe_header>"
    done | { cat; echo 'int main(void) { return 0; }'; } | gcc -x c - -o /dev/null "$@" > /dev/null 2>&1
}

C_HEADERS="stdarg.h stddef.h stdint.h setjmp.h"     # cmocka.h wants these before it

all_there() {
    have make && have g++ && have mpicc && have mpirun && mpi=$(mpicc --showme 2> /dev/null) &&
        can_build "$C_HEADERS mpi.h cblas.h xxhash.h cmocka.h" ${mpi#* } -lopenblas -lxxhash -lcmocka
}

# In words, for whoever has to install it by hand.
missing() {
    have gcc && have g++ && have make || echo "  - gcc and g++ (C11 and C++17, with OpenMP) and GNU make"
    { have mpicc && have mpirun && can_build mpi.h $(mpicc --showme:compile 2> /dev/null); } ||
        echo "  - Open MPI with its compiler wrapper: mpicc, mpirun and mpi.h"
    can_build cblas.h -lopenblas || echo "  - OpenBLAS with its header: cblas.h and -lopenblas (a build with OpenMP is the fastest)"
    can_build xxhash.h -lxxhash || echo "  - xxHash: xxhash.h and -lxxhash"
    can_build "$C_HEADERS cmocka.h" -lcmocka || echo "  - cmocka, for the tests: cmocka.h and -lcmocka"
}

give_up() {
    echo "setup: $1" >&2
    missing >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

apt_install() {
    as_root apt-get install -y -q --no-install-recommends "$@"
}

can_install() {
    have apt-get && { [ "$(id -u)" = 0 ] || have sudo; }
}

updated=
update_once() {
    [ -n "$updated" ] || as_root apt-get update -q || echo "setup: apt-get update failed; going on with the lists that are there" >&2
    updated=yes
}

if ! all_there; then
    have apt-get || give_up "no apt-get here. Please install with the system's own package manager:"
    can_install || give_up "installing needs root: run scripts/setup.sh as root, install sudo, or install:"
    echo "setup: installing $PACKAGES"
    update_once
    apt_install $PACKAGES || give_up "apt-get could not install everything. Missing still:"
    all_there || give_up "the packages are installed, but these cannot be used:"
fi

# The text to train on is a convenience: dev/data/prepare_text.sh finds other prose where there is none.
if ! have bible && [ ! -e dev/data/text/default.txt ]; then
    if ! can_install || ! { update_once && apt_install $TEXT_PACKAGE; }; then
        echo "setup: $TEXT_PACKAGE cannot be had; the default text will be made of what prose this machine has" >&2
    fi
fi
exit 0
