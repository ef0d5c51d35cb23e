#!/usr/bin/env bash
# One command for a machine with NVIDIA GPUs: builds, tests, measures, and writes one report. No network, under ten minutes.
#
#     scripts/gpu_check.sh                    all of it; the report is build/gpu_check/report.txt; exit status 0 if nothing failed, or lacked time
#     scripts/gpu_check.sh --bundle DIR       on another machine, with a network and the same Debian or Ubuntu: gets MPI and xxHash into DIR.
#                                             Copy DIR to the GPU's machine, as build/bundle there or wherever BUNDLE=DIR says
#     scripts/gpu_check.sh --dry-run          the very same steps on the CPU in sizes of a toy, to test this script
#     LLMC=DIR scripts/gpu_check.sh           builds llm.c's own trainer in DIR, a checkout of it, and trains the same model beside ours
#
# What must be there: nvcc and a driver, g++, make. What is missing otherwise is taken from the bundle. SECONDS_ALL=600 is the time
# for everything; what it no longer suffices for is NOT RUN. Steps that matter most come first; one that fails does not keep others
# from being run. A line for each: PASS, FAIL, or NOT RUN with the reason. What a step said is in build/gpu_check/.
set -u
cd "$(dirname "$0")/.." || exit 1

work=build/gpu_check
report=${REPORT:-$work/report.txt}
bundle=${BUNDLE:-build/bundle}
all=${SECONDS_ALL:-600}
cores=$(nproc)
device=cuda
no_gpu=
results=()
SECONDS=0

# ----------------------------------------------------------------------------------------------------------------------
# The bundle: Debian packages, unpacked where no root is needed. Programs find their way by env.sh.

# Of all that Open MPI and xxHash depend on, what a machine with a compiler does not have anyway. Names differ from release to release.
PACKAGES='^(openmpi-(bin|common)|libopenmpi(-dev|[0-9].*)|libxxhash(-dev|[0-9].*)|libhwloc15.*|libevent-(core|pthreads)-.*|libpmix2.*|libprrte.*|prrte|libltdl7.*|libmunge2.*|libucx0.*|libfabric1.*|libpsm.*|libefa.*|libibverbs1.*|librdmacm1.*|libnl-(3|route-3)-200.*|libnuma1.*|libudev1.*|libjansson4.*|zlib1g)$'

make_bundle() {
    mkdir -p "$1/debs" "$1/root" "$1/bin" || return 1
    local dir triple names
    dir=$(cd "$1" && pwd)
    triple=$(gcc -print-multiarch)
    names=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
        openmpi-bin libopenmpi-dev libxxhash-dev | grep -E "$PACKAGES" | sort -u)
    # shellcheck disable=SC2086
    (cd "$dir/debs" && apt-get download $names) || return 1
    for deb in "$dir"/debs/*.deb; do
        dpkg -x "$deb" "$dir/root" || return 1
    done
    rm -rf "$dir/debs" "$dir/root/usr/share/doc" "$dir/root/usr/share/man"
    (. /etc/os-release && echo "$ID $VERSION_ID $triple") > "$dir/made-for"
    cat > "$dir/env.sh" << END
# Source with BUNDLE set to this directory.
bundle_lib=\$BUNDLE/root/usr/lib/$triple
export PATH="\$BUNDLE/bin:\$PATH" OPAL_PREFIX="\$BUNDLE/root/usr" OPAL_SYSCONFDIR="\$BUNDLE/root/etc/openmpi" PMIX_INSTALL_PREFIX="\$bundle_lib/pmix2"
export PMIX_MCA_pcompress_base_silence_warning=1 LD_LIBRARY_PATH="\$bundle_lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" LIBRARY_PATH="\$bundle_lib" CPATH="\$BUNDLE/root/usr/include"
END
    cat > "$dir/bin/mpicc" << END
#!/bin/sh
# Only what the Makefile asks.
lib=\$BUNDLE/root/usr/lib/$triple
case \$1 in
--showme:compile) echo "-I\$lib/openmpi/include" ;;
--showme:link) echo "-L\$lib/openmpi/lib -L\$lib -lmpi" ;;
*) echo "mpicc of the bundle knows --showme:compile and --showme:link" >&2; exit 1 ;;
esac
END
    cat > "$dir/bin/mpirun" << END
#!/bin/sh
for program in orterun prterun; do
    [ -x "\$BUNDLE/root/usr/bin/\$program" ] && exec "\$BUNDLE/root/usr/bin/\$program" "\$@"
done
echo "no orterun in \$BUNDLE" >&2
exit 1
END
    chmod +x "$dir/bin/mpicc" "$dir/bin/mpirun"
    echo "$dir: $(cat "$dir/made-for"), $(du -sm "$dir" | cut -f1) MB. Copy it to build/bundle on the GPU's machine, or set BUNDLE."
}

case ${1:-} in
--bundle)
    [ $# = 2 ] || { echo "usage: $0 --bundle DIR" >&2; exit 2; }
    make_bundle "$2"
    exit
    ;;
--dry-run) device=cpu ;;
'') ;;
*)
    sed -n '2,/^set -u/s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac

# ----------------------------------------------------------------------------------------------------------------------
# Steps

mkdir -p $work "$(dirname "$report")"
: > "$report"
say() { printf '%s\n' "$*" | tee -a "$report"; }

# verdict PASS|FAIL|NOT_RUN NAME DETAIL
verdict() {
    local line
    line=$(printf '%-8s %-58s %s' "${1/_/ }" "$2" "$3")
    say "$line"
    results+=("$line")
}

log_of() { echo "$work/${1//[^A-Za-z0-9]/_}.log"; }

# timed NAME LIMIT COMMAND...: its output to NAME's log; its exit status, 99 if there is no time left for it, 98 if its program
# was not built, 97 if there is no GPU
timed() {
    local log word limit=$2 left=$((all - SECONDS))
    log=$(log_of "$1")
    : > "$log"
    [ $left -ge 5 ] || return 99
    [ "$3" = make ] || [ -z "$no_gpu" ] || return 97
    for word in "${@:3}"; do
        [[ $3 == make || $word != build/$device-* || -x $word ]] || return 98
    done
    timeout -k 5 $((limit < left ? limit : left)) "${@:3}" > "$log" 2>&1 < /dev/null
}

# conclude STATUS NAME: the verdict, with the numbers of a test's own summary, or the end of what was said
conclude() {
    local log words
    log=$(log_of "$2")
    words=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    case $1 in
    0) verdict PASS "$2" "$words" ;;
    97) verdict NOT_RUN "$2" "there is no GPU" ;;
    98) verdict NOT_RUN "$2" "its program was not built" ;;
    99) verdict NOT_RUN "$2" "the $all s are over" ;;
    124 | 137) verdict FAIL "$2" "stopped after its time limit" ;;
    *)
        verdict FAIL "$2" "exit status $1 $words"
        tail -n 15 "$log" | sed 's/^/         | /' | tee -a "$report"
        ;;
    esac
}

step() {        # NAME LIMIT COMMAND...
    timed "$@"
    conclude $? "$1"
}

# build NAME MAKE_ARGUMENTS...: started here; `built NAME` waits for it
build() {
    timed "$1" 300 make --no-print-directory -j"$cores" -k SETUP=true DEVICE=$device "${@:2}" &
    builder[${1//[^A-Za-z0-9]/_}]=$!
}
built() {
    wait "${builder[${1//[^A-Za-z0-9]/_}]}"
    conclude $? "$1"
}
declare -A builder

# on RANKS [GPUS]: sets the array `mpi`: what starts that many ranks, on all GPUs or the first few
on() {
    mpi=(env OMP_NUM_THREADS=$((cores / $1 > 0 ? cores / $1 : 1)) ${2:+CUDA_VISIBLE_DEVICES=$(echo "$visible" | cut -d, -f1-"$2")} mpirun -np "$1")
}

# same NAME LIMIT "RANKS GPUS ARGUMENTS"...: trainings that must end in one and the same state
same() {
    local name=$1 limit=$2 way ranks gpus rest hash first='' status
    shift 2
    for way in "$@"; do
        read -r ranks gpus rest <<< "$way"
        on "$ranks" "$gpus"
        # shellcheck disable=SC2086
        timed "$name" "$limit" "${mpi[@]}" $bf16/train_gpt2_zero $tiny $rest
        status=$?
        hash=$(grep -o 'state hash: .*' "$(log_of "$name")")
        [ $status = 0 ] && [ -n "$hash" ] && [ "$hash" = "${first:=$hash}" ] && continue
        [ $status != 0 ] || echo "$way: $hash, not $first" >> "$(log_of "$name")"
        conclude $((status ? status : 1)) "$name"
        return
    done
    verdict PASS "$name" "$# ways, $first"
}

# speed NAME RANKS BUILD ARGUMENTS...: a row of the table of speeds
speed() {
    on "$2"
    row "$1" "$2" "${mpi[@]}" "$3/train_gpt2_zero" "${model[@]}" -b "$batch" "${@:4}"
}

# row NAME RANKS COMMAND...: of a trainer that prints llm.c's step lines
row() {
    local name="speed: $1" ranks=$2 status
    timed "$name" 60 "${@:3}"
    status=$?
    if [ $status != 0 ]; then
        conclude $status "$name"
        return
    fi
    # The median of the second half of the steps; bytes of a rank, at their peak.
    verdict PASS "$name" "$(awk -v tokens=$((batch * length * ranks)) '
        /^step/ { for (i = 1; i < NF; i++) if ($(i + 1) == "ms") ms[++n] = $i; for (i = 1; i <= NF; i++) if ($i == "MFU") mfu = ($(i - 1) == "bf16" ? $(i - 2) : $(i - 1)) }
        /^process, bytes/ { for (i = 1; i < NF; i++) if ($i == "mean") bytes = $(i + 1) + 0 }
        END { for (i = int(n / 2) + 1; i <= n; i++) x[++k] = ms[i]
              for (i = 2; i <= k; i++) for (j = i; j > 1 && x[j] < x[j - 1]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
              m = k % 2 ? x[(k + 1) / 2] : (x[k / 2] + x[k / 2 + 1]) / 2
              printf "%9.2f ms  %9.0f tok/s  MFU %s (last step)", m, tokens / m * 1000, mfu
              if (bytes) printf "  %6.2f GB a rank", bytes / 1e9 }' "$(log_of "$name")")"
}

# llmc: the same model, by llm.c's own trainer. With CUDA 13 it wants an overload that CUDA no longer has, and it links with a library that
# the driver has under another name.
llmc() {
    local data=$PWD/$work
    cat > $work/llmc.h << 'END'
#include <cuda_runtime.h>
#if CUDART_VERSION >= 13000
static inline cudaError_t cudaMemAdvise(const void *p, size_t n, cudaMemoryAdvise advice, int device) {
    const cudaMemLocation where = {device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice, device < 0 ? 0 : device};
    return cudaMemAdvise(p, n, advice, where);
}
#endif
END
    ln -sf "$(ldconfig -p | grep -o '/.*libnvidia-ml.so.1$' | head -n 1)" $work/libnvidia-ml.so
    step "build llm.c" 120 make -C "$LLMC" train_gpt2cu NO_MULTI_GPU=1 NVCC="${nvcc:-nvcc} -include $data/llmc.h -L$data"
    step "text for llm.c" 60 $fp32/tokenize_bytes "$text" $work/train.bin $work/val.bin
    row "1 rank, llm.c's own" 1 env -C "$LLMC" ./train_gpt2cu -i "$data/train.bin" -j "$data/val.bin" -e "${model[1]}" -b "$batch" -t "$length" -d $((batch * length)) \
        -x "${model[7]}" -r 0 -v 1000 -s 1000 -m 1 -h 0
}

# ----------------------------------------------------------------------------------------------------------------------
# The machine

say "zero.c, check on a GPU: $(date -u '+%F %T') UTC, commit $(git log -1 --format=%h 2> /dev/null || echo unknown)"
if [ $device = cpu ]; then
    say "DRY RUN on the CPU: tests this script. Nothing below is about a GPU."
fi
say ""
nvcc=$(ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2> /dev/null || command -v nvcc)
cuda=${nvcc%/bin/nvcc}
gpus=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU')
visible=$(seq -s, 0 $((gpus - 1)))
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then        # the others are somebody else's
    visible=$CUDA_VISIBLE_DEVICES
    gpus=$(echo "$visible" | tr , '\n' | grep -c .)
fi
say "$(uname -srm); $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $cores cores; $(awk '/MemTotal/ { printf "%.0f GB", $2 / 1e6 }' /proc/meminfo)"
if command -v nvidia-smi > /dev/null; then
    say "$(nvidia-smi --query-gpu=index,name,compute_cap,memory.total,driver_version,power.limit,clocks.max.sm,mig.mode.current --format=csv 2>&1)"
    say "$(nvidia-smi topo -m 2>&1 | head -n 20)"
else
    say "no nvidia-smi on this machine"
fi
say "nvcc: $("${nvcc:-nvcc}" --version 2>&1 | tail -n 1)"
say "NCCL: $(ldconfig -p 2> /dev/null | grep -o 'libnccl.so.*' | head -n 1)  headers $(find /usr/include "$cuda/include" -name nccl.h 2> /dev/null | head -n 1)"
say "cuDNN: $(ldconfig -p 2> /dev/null | grep -o 'libcudnn.so.*' | head -n 1)  headers $(find /usr/include "$cuda/include" -name cudnn.h 2> /dev/null | head -n 1)"
say ""

# ----------------------------------------------------------------------------------------------------------------------
# What is missing

has() { echo "$2" | gcc -x c - -o /dev/null ${bundle_lib:+-L"$bundle_lib"} "${@:3}" > /dev/null 2>&1 || { missing+=("$1"); false; }; }
missing=()
look() {
    missing=()
    command -v mpirun > /dev/null || missing+=(mpirun)
    # shellcheck disable=SC2046
    has MPI '#include <mpi.h>
        int main(void) { return MPI_Init(0, 0); }' $(mpicc --showme:compile 2> /dev/null; mpicc --showme:link 2> /dev/null)
    has xxHash '#include <xxhash.h>
        int main(void) { return XXH_versionNumber() == 0; }' -lxxhash
}
look
if [ ${#missing[@]} != 0 ] || [ -n "${BUNDLE:-}" ]; then
    why="no ${missing[*]:-}"
    [ ${#missing[@]} != 0 ] || why="BUNDLE is set"
    if [ -r "$bundle/env.sh" ]; then
        BUNDLE=$(cd "$bundle" && pwd)
        export BUNDLE
        . "$BUNDLE/env.sh"
        look
        here=$(. /etc/os-release && echo "${ID:-} ${VERSION_ID:-} $(gcc -print-multiarch)")
        say "$why: using the bundle $bundle, made for $(cat "$bundle/made-for")$([ "$here" = "$(cat "$bundle/made-for")" ] || echo "; this is $here, where it may not run")"
    fi
fi
if [ ${#missing[@]} = 0 ]; then
    verdict PASS "MPI, xxHash" ""
else
    verdict FAIL "MPI, xxHash" "no ${missing[*]}: install them, or make a bundle elsewhere (scripts/gpu_check.sh --bundle DIR) and copy it to $bundle"
fi
if [ $device = cuda ] && [ "$gpus" = 0 ]; then
    verdict FAIL "a GPU" "nvidia-smi finds none: only the builds are checked"
    no_gpu=yes gpus=1
fi
NP=1
. scripts/env.sh
unset OMP_NUM_THREADS

text=dev/data/text/default.txt
if [ ! -r $text ] && ! sh dev/data/prepare_text.sh $text > $work/text.log 2>&1; then
    text=$work/text.txt
    cat README.md ./*.cu zero/*.* dev/*/*.[ch]* > $text
    say "no prose on this machine: training on this project's own source ($(wc -c < $text) bytes)"
fi

# ----------------------------------------------------------------------------------------------------------------------
# Sizes

fp32=build/$device-fp32
bf16=build/$device-bf16
tiny="-e custom:l2,h4,c64,v256,t64 -i $text -b 2 -t 64 -d 1024 -x 5 -v 0 -s 0 --hash 1"
length=1024
batches=(64 32 16 8 4 1)
model=(-e d12 -i "$text" -t "$length" -x 20 -v 0 -s 0)
elements=124475904 repeats=20
tests_bf16=(train_gpt2_zero test_model test_gpt2_zero bench_adamw)
tests_fp32=(test_emulator test_kernels test_matmul test_model test_gpt2_zero test_comm test_engine test_nccl bench_reduce tokenize_bytes)
if [ $device = cpu ]; then
    gpus=2 length=64
    batches=(2)
    model=(-e "custom:l2,h4,c64,v256,t64" -i "$text" -t "$length" -x 4 -v 0 -s 0)
    elements=10000 repeats=2
    tests_bf16=(train_gpt2_zero bench_adamw)
    tests_fp32=(test_emulator test_kernels test_comm bench_reduce tokenize_bytes)      # the others have minutes of `make test` already
fi

# ----------------------------------------------------------------------------------------------------------------------
# Build, and test

builds=("$bf16")
build "build BF16" PRECISION=BF16 USE_CUDNN=0 "${tests_bf16[@]/#/$bf16/}"
build "build FP32" PRECISION=FP32 "${tests_fp32[@]/#/$fp32/}"
if why=$(make -n SETUP=true DEVICE=$device PRECISION=BF16 USE_CUDNN=1 setup 2>&1); then
    build "build BF16 with cuDNN" PRECISION=BF16 USE_CUDNN=1 $bf16-cudnn/{train_gpt2_zero,test_model}
    builds+=("$bf16-cudnn")
fi
built "build BF16"
built "build FP32"
if [ ${#builds[@]} = 2 ]; then
    built "build BF16 with cuDNN"
else
    verdict NOT_RUN "build BF16 with cuDNN" "$(echo "$why" | grep -o 'USE_CUDNN.*' | head -n 1)"
fi

for test in "${tests_fp32[@]}"; do
    case $test in
    test_emulator | test_kernels | test_matmul | test_model) step "$test, FP32" 90 $fp32/"$test" ;;
    esac
done
for build in "${builds[@]}"; do
    [ $device = cpu ] || step "test_model, ${build#build/}" 90 "$build/test_model"
done

# ----------------------------------------------------------------------------------------------------------------------
# The same bits: in each stage, on one GPU, on all with NCCL, and with several ranks on one GPU through host memory. Powers of two of ranks.

most=1
while [ $((2 * most)) -le "$gpus" ] && [ $most -lt 8 ]; do most=$((2 * most)); done
same "same state: stages, ranks that share a GPU" 60 "1 1 -z 0" "1 1 -z 3" "1 1 -z 2 -r 0" "1 1 -z 2 -r 2" \
    "2 1 -z 1 --transport mpi" "2 1 -z 3 --transport mpi" "4 1 -z 2 --transport mpi" "4 1 -z 3 --shard-group 2 --transport mpi"
if [ $most -gt 1 ]; then
    same "same state: NCCL, $most GPUs" 60 "1 1 -z 0" "$most $most -z 0 --transport nccl" "$most $most -z 1 --transport nccl" "$most $most -z 2 --transport nccl" \
        "$most $most -z 3 --transport nccl" "$most $most -z 3 --transport nccl --nccl-register 1" "$most $most -z 3 --prefetch 2 --transport nccl --inject-delays 4"
else
    verdict NOT_RUN "same state: NCCL" "it wants two GPUs"
fi
[ $device = cpu ] || for build in $fp32 $bf16; do
    on 1 1
    step "sharded = unsharded, ${build#build/}, 1 rank" 60 "${mpi[@]}" "$build/test_gpt2_zero"
    on 2 1
    step "sharded = unsharded, ${build#build/}, 2 ranks on a GPU" 90 "${mpi[@]}" "$build/test_gpt2_zero"
done
if [ $device != cpu ] && [ $most -gt 1 ]; then
    on $most $most
    step "sharded = unsharded, $most GPUs" 90 "${mpi[@]}" $bf16/test_gpt2_zero
    step "NCCL transport, $most GPUs" 150 "${mpi[@]}" $fp32/test_nccl
fi
on 2 1
step "MPI transport, 2 ranks on a GPU" 60 "${mpi[@]}" $fp32/test_comm

# ----------------------------------------------------------------------------------------------------------------------
# Speed

say ""
say "GPT-2 (${model[1]}), T = $length, ${model[7]} steps, BF16. MFU = (6 Psi + 6 L C T) FLOPs a token x tokens/s / the GPU's dense bf16 peak (n/a: not known); the last step's."
batch=
for b in "${batches[@]}"; do
    on 1 1
    timed "batch that fits" 60 "${mpi[@]}" $bf16/train_gpt2_zero "${model[@]}" -b "$b" -x 2 -r 0 -z 1
    status=$?
    [ $status != 0 ] || batch=$b
    [ $status = 1 ] || break        # 1: too large for this GPU, or so
done
if [ -n "$batch" ]; then
    say "B = $batch, the largest of ${batches[*]} that one GPU has room for with -r 0"
    for build in "${builds[@]}"; do
        attention=$([ "$build" = $bf16 ] && echo own || echo cuDNN)
        speed "1 rank, $attention attention" 1 "$build" -z 1 -r 0
        speed "1 rank, $attention attention, -ge 2" 1 "$build" -z 1 -r 0 -ge 2
    done
    if [ -n "${LLMC:-}" ]; then
        llmc
    else
        verdict NOT_RUN "speed: 1 rank, llm.c's own" "LLMC=DIR names no checkout of llm.c"
    fi
    best=${builds[-1]}      # with cuDNN if there is
    for stage in 0 1 2 3; do
        speed "$gpus ranks, stage $stage" "$gpus" "$best" -z $stage -r 0
    done
    for recompute in 1 2; do
        speed "$gpus ranks, stage 2, recompute $recompute" "$gpus" "$best" -z 2 -r $recompute
    done
    on "$gpus"
    step "profile" 60 "${mpi[@]}" "$best/train_gpt2_zero" "${model[@]}" -b "$batch" -z 2 --profile 3
    sed -n '/^profile of/,/^$/p' "$(log_of profile)" | tee -a "$report"
else
    conclude "$status" "batch that fits"
fi

on "$gpus"
for transport in nccl mpi; do
    if [ "$gpus" -gt 1 ]; then
        step "bandwidth, $transport, $gpus ranks" 60 "${mpi[@]}" $fp32/bench_reduce $elements $transport "$([ $transport = nccl ] && echo $repeats || echo 2)"
        sed 's/^/         /' "$(log_of "bandwidth, $transport, $gpus ranks")" | tee -a "$report"
    else
        verdict NOT_RUN "bandwidth, $transport" "it wants two GPUs"
    fi
done
step "AdamW and norm" 60 $bf16/bench_adamw $elements
sed 's/^/         /' "$(log_of "AdamW and norm")" | tee -a "$report"

# ----------------------------------------------------------------------------------------------------------------------
# compute-sanitizer: what the emulated GPU looks for, on the real one

sanitizer=$(command -v compute-sanitizer || ls "$cuda/bin/compute-sanitizer" 2> /dev/null)
for tool in memcheck racecheck synccheck; do
    if [ -n "$sanitizer" ]; then
        # shellcheck disable=SC2086
        step "compute-sanitizer $tool, a small run" 60 "$sanitizer" --tool $tool --error-exitcode 9 $bf16/train_gpt2_zero $tiny -x 1 -z 1
    else
        verdict NOT_RUN "compute-sanitizer $tool" "there is none on this machine"
    fi
done

# ----------------------------------------------------------------------------------------------------------------------

count() { printf '%s\n' "${results[@]}" | grep -c "^$1"; }
say ""
say "Summary, after $SECONDS s of $all"
printf '%s\n' "${results[@]}" | grep -v '^PASS' | tee -a "$report"
say "$(count PASS) passed, $(count FAIL) failed, $(count NOT) not run; what each step said: $work; this report: $report"
[ "$(count FAIL)" = 0 ] && ! printf '%s\n' "${results[@]}" | grep -q "the $all s are over"
