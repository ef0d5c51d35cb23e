#!/usr/bin/env bash
# The CPU's build for other CPUs than this one. Everything compiles, without a warning, for any x86-64 and for aarch64,
# whose programs then run under qemu-user: the tests of kernels, models, layouts, random numbers and files pass (a part
# of those that take minutes there), and a run has the losses of this machine's build, to rounding.
#
#     dev/test/check_portable.sh [--case WORD]
#
# It is not in the lists of make test: it takes ten minutes on 2 cores, and needs Debian or Ubuntu (apt) on x86-64. The
# cross compiler and qemu-user-static are installed if they are missing. The libraries for aarch64 are not: they are
# unpacked into build/portable/root, which can be removed.
set -u
cd "$(dirname "$0")/../.." || exit 1
. dev/test/harness/report.sh
NP=2
. scripts/env.sh
export OMP_NUM_THREADS=1
[ "$(uname -m)" = x86_64 ] || { echo "this is for a machine with an x86-64 CPU, not $(uname -m)"; exit 3; }
here=$PWD/build/portable
root=$here/root
triple=aarch64-linux-gnu
libs=$root/usr/lib/$triple
tests=(test_{layout,pool,random,data,files,options,output,content_hash,plan,host,master,matmul,kernels,model})
declare -A part=([test_model]="--case kernel_is_wrong" [test_master]=61)    # under qemu-user, where all takes minutes
flags=(-e custom:l2,h2,c48,v256,t40 -i dev/data/text/default.txt -b 1 -t 40 -d 80 -x 20 -l 0.001 -v 0 -s 0)

# get_aarch64: the cross compiler, qemu, and the libraries, with an apt of their own
get_aarch64() {
    local libraries=(lib{openmpi,xxhash,cjson,yaml,openblas-openmp}-dev) packages=() apt deb
    command -v $triple-g++ > /dev/null || packages+=(g++-$triple)
    command -v qemu-aarch64-static > /dev/null || packages+=(qemu-user-static)
    [ ${#packages[@]} = 0 ] || apt-get install -q -y --no-install-recommends "${packages[@]}" || return 1
    [ "$(cat "$root.done" 2> /dev/null)" != "${libraries[*]}" ] || return 0
    mkdir -p "$root" "$here"/apt/{lists,archives}/partial
    : > "$here/apt/status"
    apt=(apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=0
        -o Dir::State::Lists="$here/apt/lists" -o Dir::State::status="$here/apt/status" -o Dir::Cache="$here/apt"
        -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)")
    "${apt[@]}" update && "${apt[@]}" --download-only install "${libraries[@]}" || return 1
    for deb in "$here"/apt/archives/*.deb; do
        dpkg-deb -x "$deb" "$root" || return 1
    done
    echo "${libraries[*]}" > "$root.done"
}

# build KIND PRECISION GOALS...: into build/portable/KIND-PRECISION
build() {
    local kind=$1 precision=$2 variables=()
    case $kind in
    any) variables=(MARCH=) ;;
    x86-64) variables=(MARCH=x86-64) ;;
    aarch64)
        variables=(MARCH= CC=$triple-gcc CXX=$triple-g++ AR=$triple-ar CPPFLAGS="--sysroot=$root"
            LDFLAGS="--sysroot=$root -L$libs/openblas-openmp -Wl,-rpath-link,$libs/openmpi/lib"
            MPI_CFLAGS="-I$libs/openmpi/include -I$root/usr/include/$triple/openblas-openmp"
            MPI_LIBS="-L$libs/openmpi/lib -lmpi")
        ;;
    esac
    make SETUP=true WERROR=1 DEVICE=cpu PRECISION="$precision" BUILD="build/portable/$kind-$precision" \
        "${variables[@]}" "${@:3}"
}

# program KIND COMMAND...: runs a program of this kind
program() {
    if [ "$1" = aarch64 ]; then
        qemu-aarch64-static -L "$root" -E LD_LIBRARY_PATH="$libs:$libs/openmpi/lib:$libs/openblas-openmp" "${@:2}"
    else
        "${@:2}"
    fi
}

# losses KIND PRECISION RANKS: of a run without MPI, whose launcher would have to be of this kind, too
losses() {
    local r pids=() meet
    meet=$(mktemp -d -p "$work")
    for ((r = 0; r < $3; r++)); do
        program "$1" "build/portable/$1-$2/train_gpt2_zero" "${flags[@]}" -pi fs -pf "$meet" -pn "$3" -pr $r \
            > "$meet.$r" 2>&1 < /dev/null &
        pids+=($!)
    done
    for r in "${pids[@]}"; do wait "$r" || { cat "$meet".*; return 1; }; done
    sed -n 's/^step .*| loss \([0-9.]*\) .*/\1/p' "$meet.0"
}

# same_losses KIND PRECISION RANKS TOLERANCE
same_losses() {
    losses "$1" "$2" "$3" > "$mine/losses" && paste "$work/native.$2" "$mine/losses" | awk -v tolerance="$4" '
        { d = $1 - $2; d = d < 0 ? -d : d; most = d > most ? d : most; n += NF == 2 }
        END { printf "%d losses differ by %.1e at most\n", n, most; exit n != 20 || most > tolerance }'
}

check "libraries and compilers for aarch64" get_aarch64
for precision in FP32 BF16; do
    check "this machine, $precision" build native $precision build/portable/native-$precision/train_gpt2_zero
    losses native $precision 1 > "$work/native.$precision"
done
for kind in aarch64 any x86-64; do
    # MARCH= is what gcc takes without -march, which today is MARCH=x86-64.
    dir=build/portable/$kind-FP32
    goals=(all)
    [ $kind != x86-64 ] || goals=($dir/train_gpt2_zero "${tests[@]/#/$dir/}")
    check "$kind, FP32: it builds" build $kind FP32 "${goals[@]}"
    check "$kind, BF16: it builds" build $kind BF16 build/portable/$kind-BF16/t{rain,est}_gpt2_zero
    for test in "${tests[@]}"; do
        words=()
        # shellcheck disable=SC2206    # words
        [ $kind != aarch64 ] || words=(${part[$test]-})
        at_once "$kind: $test" program $kind $dir/$test ${words[@]+"${words[@]}"}
    done
    for ranks in 1 2; do
        at_once "$kind, FP32, ranks: $ranks: losses to rounding" same_losses $kind FP32 $ranks 1e-5
        at_once "$kind, BF16, ranks: $ranks: losses to rounding" same_losses $kind BF16 $ranks 1e-2
    done
    all_done
done
summary
