#!/bin/sh
# Puts the module where other programs find it, and removes it again:
#
#     make install PREFIX=DIR [DEVICE=cpu|cuda] [DESTDIR=STAGE]
#     make uninstall PREFIX=DIR [DESTDIR=STAGE]                   of all devices
#
#     lib/libzero-cpu.so, .a          the module; it exports zero_* and nothing else
#     lib/libcuda-on-cpu.so, .a       CUDA's runtime for the CPU, which DEVICE=cuda does not need
#     include/zero-cpu/zero/          the module's headers, and installed_for.h, which refuses another device's runtime
#     include/cuda-on-cpu/            cuda_runtime_api.h and what else stands for CUDA's headers
#     lib/pkgconfig/zero-cpu.pc       flags; zero-cpu-static.pc: for the .a
#     share/zero.c/cpu.files          what was put there, directories that it made included
#
# The .pc files find their own place, so the tree may be moved. A file that is there and is not from an earlier
# installation is never overwritten: then nothing is installed.
set -eu
export LC_ALL=C

die() {
    echo "error: $*" >&2
    exit 1
}

usage() {
    echo "usage: make install|uninstall PREFIX=DIR [DESTDIR=STAGE] ($0 says more)" >&2
    exit 2
}

# Headers of the module's interface: zero.h, the transports, and what these include.
PUBLIC="accounting.h cost.h layout.h settings.h types.h zero.h comm/comm.h comm/mesh.h comm/transport_registry.h
    comm/bootstrap/bootstrap.h comm/bootstrap/mpi.h"

# Files with their places: `FROM TO`. What begins with $new was written for this installation.
list() {
    for f in $PUBLIC; do
        echo "zero/$f include/zero-$device/zero/$f"
    done
    echo "$new/installed_for.h include/zero-$device/zero/installed_for.h"
    for f in zero-"$device" zero-"$device"-static; do
        echo "$new/$f.pc lib/pkgconfig/$f.pc"
    done
    for f in "$build"/libzero-"$device".so "$build"/libzero-"$device".a; do
        echo "$f lib/${f##*/}"
    done
    [ "$device" = cpu ] || return 0
    echo "$new/cuda-on-cpu.pc lib/pkgconfig/cuda-on-cpu.pc"
    for f in "$build"/libcuda-on-cpu.so "$build"/libcuda-on-cpu.a; do
        echo "$f lib/${f##*/}"
    done
    for f in cuda_runtime_api.h cuda_runtime.h cuda_bf16.h; do
        echo "dev/device/cpu/$f include/cuda-on-cpu/$f"
    done
}

# pc NAME DESCRIPTION REQUIRES CFLAGS LIBS
pc() {
    {
        printf 'prefix=${pcfiledir}/../..\nincludedir=${prefix}/include\nlibdir=${prefix}/lib\n\n'
        printf 'Name: %s\nDescription: %s\nVersion: 0\n' "$1" "$2"
        printf 'Requires: %s\nCflags: %s\nLibs: %s\n' "$3" "$4" "$5"
    } > "$new/$1.pc"
}

write_files() {
    mpi_cflags=$(mpicc --showme:compile)
    mpi_libs=$(mpicc --showme:link)
    run_path='-Xlinker -rpath=${libdir}'    # nvcc has no -Wl, and takes no file that is not called .so
    what="ZeRO-sharded data parallelism for a training loop in C or CUDA"
    cflags="-I\${includedir}/zero-$device"
    if [ "$device" = cpu ]; then
        other='!defined CUDA_ON_CPU'
        remedy="-I PREFIX/include/cuda-on-cpu must come before any directory of CUDA's"
        pc cuda-on-cpu "CUDA's runtime on the CPU, for programs of zero-cpu" "" '-I${includedir}/cuda-on-cpu' \
            '-L${libdir} -lcuda-on-cpu'
        pc zero-cpu "$what" cuda-on-cpu "$cflags $mpi_cflags" "-L\${libdir} $run_path -lzero-cpu $mpi_libs"
        # NCCL's stand-in is looked up in the program itself.
        runtime='-rdynamic -Wl,-u,ncclGetVersion -l:libcuda-on-cpu.a'
        cflags="$cflags -I\${includedir}/cuda-on-cpu"
    else
        other='defined CUDA_ON_CPU'
        remedy="-I PREFIX/include/cuda-on-cpu belongs to zero-cpu"
        runtime="-L${CUDA_LIBRARY%/*} -l:${CUDA_LIBRARY##*/}"
        run_path="$run_path:${CUDA_LIBRARY%/*}"
        cflags="$cflags -I$CUDA_INCLUDE"
        pc zero-cuda "$what" "" "$cflags $mpi_cflags" "-L\${libdir} $run_path -lzero-cuda $runtime $mpi_libs"
    fi
    uring=$(echo '#include <liburing.h>' | gcc -E - > /dev/null 2>&1 && echo -luring)
    runtime="$runtime -lxxhash $uring $mpi_libs -lstdc++ -lgomp -lpthread -ldl -lrt -lm"
    pc "zero-$device-static" "$what, static" "" "$cflags $mpi_cflags" \
        "-L\${libdir} $run_path -l:libzero-$device.a $runtime"
    cat > "$new/installed_for.h" << END
// installed_for.h: these headers belong to libzero-$device. With the CUDA runtime's headers of another device a program
// would compile, and fail when it runs.
#include <cuda_runtime_api.h>
#if $other
#error "zero-$device with another device's cuda_runtime_api.h: $remedy (pkg-config --cflags zero-$device)"
#endif
END
}

# Prints the directories of a file, outermost first, below $root and without it.
directories() {
    case $1 in */*) directories "${1%/*}" && echo "${1%/*}" ;; esac
}

remove() {  # FILE: what a .files has, the last first
    [ -e "$1" ] || return 0
    sed -n 's/^file //p' "$1" | while IFS= read -r f; do
        rm -f "$root/$f"
    done
    rm -f "$1"
}

remove_directories() {  # of the list on stdin, those that are empty
    sed -n 's/^directory //p' | sort -r | while IFS= read -r d; do
        rmdir "$root/${d#.}" 2> /dev/null || :
    done
}

install_files() {
    case $prefix in *\'*) die "PREFIX=$prefix: flags could not be quoted: choose a name without an apostrophe" ;; esac
    record=share/zero.c/$device.files
    new=$(mktemp -d)
    trap 'rm -rf "$new"' EXIT
    write_files
    list > "$new/list"
    had=$(cat "$root/$record" 2> /dev/null || :)
    while IFS=' ' read -r from to; do
        [ ! -e "$root/$to" ] || printf '%s\n' "$had" | grep -qxF -- "file $to" ||
            die "$root/$to: is there, and is not from make install: nothing was installed"
    done < "$new/list"
    remove "$root/$record"
    {
        printf '%s\n' "$had" | grep '^directory ' || :
        [ -d "$root" ] || echo "directory ."
        for to in $(sed 's/.* //' "$new/list") $record; do
            directories "$to"
        done | sort -u | while IFS= read -r d; do
            [ -d "$root/$d" ] || echo "directory $d"
        done
        sed 's/.* /file /' "$new/list"
    } > "$new/record"
    mkdir -p "$root/share/zero.c"
    cp "$new/record" "$root/$record"
    while IFS=' ' read -r from to; do
        mkdir -p "$root/${to%/*}"
        cp "$from" "$root/$to"
        chmod 644 "$root/$to" "$root/$record"
    done < "$new/list"
    echo "zero-$device is installed in $root: PKG_CONFIG_PATH='$prefix/lib/pkgconfig', then pkg-config --cflags" \
        "--libs zero-$device"
}

uninstall_files() {
    set -- "$root"/share/zero.c/*.files
    [ -e "$1" ] || die "PREFIX=$prefix: zero.c is not installed there (there is no share/zero.c)"
    had=$(cat "$@")
    for f; do
        remove "$f"
    done
    printf '%s\n' "$had" | remove_directories
    echo "zero.c is removed from $root"
}

[ $# -ge 3 ] && [ -n "$2" ] || usage
case $2 in /*) prefix=${2%/} ;; *) prefix=$PWD/${2%/} ;; esac
root=$3$prefix
cd "$(dirname "$0")/.."
case $1 in
install)
    device=$4
    build=$5
    install_files
    ;;
uninstall) uninstall_files ;;
*) usage ;;
esac
exit
