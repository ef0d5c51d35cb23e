#!/usr/bin/env bash
# make install: a program outside of this tree is compiled with what pkg-config says, links, runs on ranks, and is
# refused with the headers of another device; make uninstall removes what was installed.
#
#     dev/test/cli/test_install.sh
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
unset EXTRA CFLAGS CXXFLAGS CPPFLAGS LDFLAGS MAKEFLAGS MAKELEVEL DEVICE PRECISION SANITIZE DEBUG LD_LIBRARY_PATH
scripts/setup.sh pkg-config || exit 1
export OMP_NUM_THREADS=1
NP=2
. scripts/env.sh
prefix="$work/a prefix"
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
cp dev/examples/regression.c "$work"

installs() { make --no-print-directory SETUP=true DEVICE=cpu install PREFIX="$1" "${@:2}"; }
uninstalls() { make --no-print-directory uninstall PREFIX="$1" "${@:2}"; }
refused() {     # refused WORDS COMMAND...
    ! "${@:2}" > "$work/log" 2>&1
    local status=$?
    cat "$work/log"
    [ $status = 0 ] && grep -qF -- "$1" "$work/log"
}
# compiles FILE PACKAGE FLAGS...: to $work/PACKAGE; eval, for pkg-config quotes the space in the prefix
compiles() {
    (cd "$work" && eval "${CC:-gcc} -std=c11 -Wall -Werror ${*:3} $1 $(pkg-config --cflags --libs "$2") -lm -o $2")
}
# hash_of PACKAGE RANKS STAGE
hash_of() { timeout -k 5 200 "${MPIRUN:-mpirun}" -np "$2" "$work/$1" "$3" 2>&1 | grep -o 'parameters .*'; }

installs_quoted() {
    installs "$prefix" > "$work/log"
    local status=$?
    cat "$work/log"
    [ $status = 0 ] && grep -qF "PKG_CONFIG_PATH='$PKG_CONFIG_PATH'," "$work/log"
}
check "it is installed, the prefix has a space" installs_quoted
check "it is installed again" installs "$prefix"
check "the example compiles outside, with pkg-config alone" compiles regression.c zero-cpu
if command -v clang > /dev/null; then
    CC=clang check "it does so by clang, too" compiles regression.c zero-cpu
else
    echo "not run: the example compiled with clang: there is none"
fi
same_everywhere() {
    local one two
    one=$(hash_of zero-cpu 1 0)
    two=$(hash_of zero-cpu 2 3)
    echo "$one, $two"
    [ -n "$one" ] && [ "$one" = "$two" ]
}
check "it runs: the same state on 1 and 2 ranks" same_everywhere
static() {
    compiles regression.c zero-cpu-static && ! ldd "$work/zero-cpu-static" | grep -E "zero|cuda" &&
        [ -n "$(hash_of zero-cpu-static 1 0)" ] && [ "$(hash_of zero-cpu-static 2 2)" = "$(hash_of zero-cpu 1 0)" ]
}
check "linked statically it has the same state" static
exports_zero() {    # FILE FLAGS OF nm...
    nm --defined-only "${@:2}" "$prefix/lib/$1" | awk 'NF == 3 { print $NF }' > "$work/symbols"
    grep -v '^zero_' "$work/symbols"
    grep -qx zero_create "$work/symbols" && ! grep -qv '^zero_' "$work/symbols"
}
check "the shared library exports zero_* only" exports_zero libzero-cpu.so -D
check "the static library defines zero_* only" exports_zero libzero-cpu.a -g
runtime_exports() {
    nm -D --defined-only "$prefix/lib/libcuda-on-cpu.so" | awk '{ print $NF }' | grep -vE \
        '^(_ZN?[0-9]*)?(cuda|nccl|nvtx)|^(block|thread)Idx$|^(grid|block)Dim$'
    [ "${PIPESTATUS[2]}" = 1 ]
}
check "the CPU's CUDA runtime exports CUDA, NCCL and NVTX only" runtime_exports
cat > "$work/alone.c" << 'END'
#include <stdio.h>
#include "zero/comm/transport_registry.h"
#include "zero/layout.h"
int main(void) {
    const zero_tensor tensor = { "t", 100, 0, 0 };
    const zero_comm_config config = { 0 };
    zero_layout layout;
    const char *why;
    char message[200];
    if (zero_layout_create(&layout, &tensor, 1, 2, &why)) return 1;
    zero_layout_destroy(&layout);
    const int nccl = zero_transport_available(zero_transport_find("nccl"), &config, message, sizeof message);
    printf("%s\n", message);
    return !nccl;
}
END
alone() {   # without MPI's or CUDA's libraries on the command line
    (cd "$work" && gcc -I"$prefix/include/zero-cpu" -I"$prefix/include/cuda-on-cpu" alone.c -L"$prefix/lib" \
        -lzero-cpu -Wl,-rpath,"$prefix/lib" -o alone && ./alone)
}
check "libzero alone links, and finds the stand-in of NCCL" alone
static_nccl() { compiles alone.c zero-cpu-static && "$work/zero-cpu-static"; }
check "linked statically it finds that, too" static_nccl

# Another CUDA's headers first, as with -I/usr/local/cuda/include.
mkdir "$work/cuda"
echo 'typedef struct CUstream_st *cudaStream_t;' > "$work/cuda/cuda_runtime_api.h"
check "a GPU's headers with the CPU's library are a compile error" refused "another device's cuda_runtime_api.h" \
    compiles regression.c zero-cpu -I"$work/cuda"
mixed() {   # what zero-cuda has; make install DEVICE=cuda needs nvcc
    mkdir -p "$work/mixed/zero"
    sed 's/!defined CUDA_ON_CPU/defined CUDA_ON_CPU/' "$prefix/include/zero-cpu/zero/installed_for.h" \
        > "$work/mixed/zero/installed_for.h"
    compiles regression.c zero-cpu -I"$work/mixed"
}
check "the CPU's headers with a GPU's library are a compile error" refused "another device's cuda_runtime_api.h" mixed

not_overwritten() {
    mkdir -p "$work/other/lib" && echo mine > "$work/other/lib/libzero-cpu.so"
    refused "is not from make install" installs "$work/other" && [ "$(cd "$work/other" && find . -type f)" = \
        ./lib/libzero-cpu.so ] && [ "$(cat "$work/other/lib/libzero-cpu.so")" = mine ]
}
check "a file that is there is not overwritten, and nothing is installed" not_overwritten
check "an apostrophe in PREFIX is refused" refused "apostrophe" installs "$work/it's"
staged() {
    installs /opt/zero DESTDIR="$work/stage" && [ ! -e /opt/zero/share/zero.c ] &&
        PKG_CONFIG_PATH=$work/stage/opt/zero/lib/pkgconfig pkg-config --exists zero-cpu &&
        uninstalls /opt/zero DESTDIR="$work/stage" && [ ! -e "$work/stage/opt/zero" ]
}
check "DESTDIR: staged, and removed from there" staged
removes() {
    touch "$prefix/lib/mine" && uninstalls "$prefix" && [ "$(find "$prefix" -type f)" = "$prefix/lib/mine" ] &&
        [ ! -e "$prefix/include" ]
}
check "make uninstall removes what was installed, and no more" removes
check "removed twice is refused" refused "is not installed there" uninstalls "$prefix"
check "make install is not for the emulated GPU" refused "DEVICE=cpu and cuda" \
    make install SETUP=true DEVICE=emulated PREFIX="$work/none"
summary
