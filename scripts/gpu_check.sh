#!/usr/bin/env bash
# One command for a machine with NVIDIA GPUs: builds, tests, measures, and writes one report. Needs no network and takes
# at most SECONDS_ALL seconds (480).
#
#     scripts/gpu_check.sh                    runs everything
#     ONLY="speed nccl" scripts/gpu_check.sh  runs only these sections; all are: first bits kernels large nccl speed
#                                             ranks sanitizer
#     scripts/gpu_check.sh --bundle DIR       puts make, MPI, libraries and a text into DIR (23 MB), for a machine
#                                             without a network. Run it on Debian or Ubuntu with a C library that is
#                                             not newer than that machine's, and copy DIR there as build/bundle, or
#                                             set BUNDLE there.
#     scripts/gpu_check.sh --dry-run          runs the same steps on the CPU in small sizes, to test this script
#     LLMC=DIR scripts/gpu_check.sh           also builds llm.c's trainer in DIR, a checkout, and trains the same model
#
# Needs a driver, nvcc and g++; NCCL and cuDNN are looked for where the Makefile looks. What else is missing is taken
# from the bundle. The steps that matter most come first, and a failing step does not keep later ones from running.
# Each prints a line: PASS, FAIL, or NOT RUN with the reason. The exit status is 0 if all were run and none failed.
#
# The report is build/gpu_check/report.txt; logs.txt beside it has the output of every step. If OUT is set, both are in
# $OUT. They are written as the steps end, so a run that is killed leaves what it has found.
set -u
cd "$(dirname "$0")/.." || exit 1

work=build/gpu_check
report=${OUT:-$work}/report.txt
logs=${OUT:-$work}/logs.txt
bundle=${BUNDLE:-build/bundle}
all=${SECONDS_ALL:-480}
cores=$(nproc)
device=cuda
no_gpu=
sections="first bits kernels large nccl speed ranks sanitizer"
SECONDS=0
. scripts/gpu_check/bundle.sh
. scripts/gpu_check/steps.sh

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
for section in ${ONLY:-}; do
    [[ " $sections " == *" $section "* ]] || { echo "ONLY: there is no $section, only $sections" >&2; exit 2; }
done
mkdir -p $work "$(dirname "$report")"
: > "$report"
: > "$logs"

# ----------------------------------------------------------------------------------------------------------------------
# The machine, and what is missing on it

GPU_FACTS=index,name,compute_cap,memory.total,driver_version,power.limit,clocks.max.sm,mig.mode.current

describe_machine() {
    local tool
    note "zero.c, check on a GPU: $(date -u '+%F %T') UTC, commit $(git log -1 --format=%h 2> /dev/null || echo '?')"
    [ $device = cuda ] || note "DRY RUN on the CPU: tests this script. Nothing below is about a GPU."
    note ""
    note "$(uname -srm); $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $cores cores;" \
        "$(awk '/MemTotal/ { printf "%.0f GB", $2 / 1e6 }' /proc/meminfo);" \
        "$(. /etc/os-release && echo "$PRETTY_NAME"), $(getconf GNU_LIBC_VERSION)"
    if command -v nvidia-smi > /dev/null; then
        note "$(nvidia-smi --query-gpu=$GPU_FACTS --format=csv 2>&1)"
        note "$(nvidia-smi topo -m 2>&1 | head -n 20)"
    else
        note "no nvidia-smi on this machine"
    fi
    for tool in "${nvcc:-nvcc}" gcc python3; do
        note "$tool: $("$tool" --version 2>&1 | sed -n '/release\|gcc\|Python\|not found/p' | head -n 1)"
    done
    [ ! -x scripts/find_nvidia.sh ] || [ -z "$nvcc" ] || scripts/find_nvidia.sh "$nvcc" 2>&1 | indent
    note ""
}

# has NAME SOURCE FLAGS...: notes NAME as missing unless the program compiles and links
has() {
    local paths=(${bundle_lib:+-L"$bundle_lib"})
    echo "$2" | gcc -x c - -o /dev/null "${paths[@]}" "${@:3}" > /dev/null 2>&1 || missing+=("$1")
}

find_missing() {
    missing=()
    command -v make > /dev/null || missing+=(make)
    command -v mpirun > /dev/null || missing+=(mpirun)
    # shellcheck disable=SC2046
    has MPI '#include <mpi.h>
        int main(void) { return MPI_Init(0, 0); }' $( (mpicc --showme:compile; mpicc --showme:link) 2> /dev/null)
    has xxHash '#include <xxhash.h>
        int main(void) { return XXH_versionNumber() == 0; }' -lxxhash
    has cJSON '#include <cjson/cJSON.h>
        int main(void) { return cJSON_Version() == 0; }' -lcjson
    has libyaml '#include <yaml.h>
        int main(void) { return yaml_get_version_string() == 0; }' -lyaml
}

# Takes what is missing from the bundle. BUNDLE set: all of it.
check_libraries() {
    local why='' name="make, MPI, xxHash, cJSON, libyaml"
    find_missing
    if [ ${#missing[@]} != 0 ] || [ -n "${BUNDLE:-}" ]; then
        [ ${#missing[@]} = 0 ] || note "no ${missing[*]} on this machine"
        if [ ! -r "$bundle/env.sh" ]; then
            why="install them, or make a bundle elsewhere (scripts/gpu_check.sh --bundle DIR), copied to $bundle"
        elif use_bundle > $work/bundle.log; then
            note "using the bundle $bundle, $(cat "$bundle/made-for")"
            find_missing
        else
            why=$(cat $work/bundle.log)
            note "$why"
        fi
    fi
    if [ ${#missing[@]} != 0 ]; then
        verdict FAIL "$name" "no ${missing[*]}: $why"
    elif why=$(mpi_works); then
        verdict PASS "$name" "$(command -v mpirun)"
    else
        verdict FAIL "$name" "$why"
    fi
}

find_gpus() {
    nvcc=$(ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2> /dev/null || command -v nvcc)
    gpus=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU')
    visible=$(seq -s, 0 $((gpus - 1)))
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then        # the others are in use by somebody else
        visible=$CUDA_VISIBLE_DEVICES
        gpus=$(echo "$visible" | tr , '\n' | grep -c .)
    fi
    if nvidia-smi -L 2> /dev/null | grep -q '^  MIG'; then      # a process sees one MIG device, so count on one
        note "MIG is on: one MIG device is used; set CUDA_VISIBLE_DEVICES to choose it"
        visible=${CUDA_VISIBLE_DEVICES:-0}
        gpus=1
    fi
    most=1      # the largest power of two of GPUs, up to 8
    while [ $((2 * most)) -le "$gpus" ] && [ $most -lt 8 ]; do most=$((2 * most)); done
}

find_text() {
    text=dev/data/text/default.txt
    [ -r $text ] && return
    text=$bundle/text.txt
    [ -r "$text" ] && return
    text=$work/text.txt
    cat README.md ./*.cu zero/*.* dev/*/*.[ch]* > $text
    note "no default text on this machine: training on this project's own source ($(wc -c < $text) bytes)"
}

# ----------------------------------------------------------------------------------------------------------------------
# Sizes

set_sizes() {
    fp32=build/$device-fp32 bf16=build/$device-bf16 cudnn=build/$device-bf16-cudnn
    # Heads of 64, as in GPT-2: cuDNN has an engine for them.
    tiny="-e custom:l2,h2,c128,v256,t64 -i $text -b 2 -t 64 -d 1024 -x 5 -v 0 -s 0 --hash 1"
    large="-e d12 --tokenizer bytes -i $text -b 4 -t 1024 -d 16384 -x 3 -v 0 -s 0 --hash 1"
    length=1024
    batches=(64 32 16 8 4 1)
    model=(-e d12 -i "$text" -t "$length" -x 20 -v 0 -s 0 --tokenizer bytes)
    elements=124475904 repeats=20
    tests_bf16=(train_gpt2_zero test_mma test_model test_gpt2_zero bench_adamw)
    tests_cudnn=(train_gpt2_zero test_model)
    tests_fp32=(test_emulator test_kernels test_matmul test_model test_gpt2_zero test_comm test_nccl test_nccl_calls)
    tests_fp32+=(bench_reduce tokenize_text)
    [ $device = cpu ] || return
    tiny=${tiny/-x 5/-x 2}
    gpus=2 most=2 length=64 cudnn=$bf16/.       # stands for the build with cuDNN
    large=$tiny
    batches=(2)
    model=(-e "custom:l2,h2,c128,v256,t64" -i "$text" -t "$length" -x 4 -v 0 -s 0)
    elements=10000 repeats=2
    tests_bf16=(train_gpt2_zero bench_adamw)
    # `make test` has the others
    tests_fp32=(test_emulator test_kernels test_comm test_nccl_calls bench_reduce tokenize_text)
}

start_builds() {
    build "build BF16" PRECISION=BF16 USE_CUDNN=0 "${tests_bf16[@]/#/$bf16/}"
    build "build FP32" PRECISION=FP32 "${tests_fp32[@]/#/$fp32/}"
    builds=("$bf16") builds_done='' no_cudnn=''
    if [ $device = cpu ]; then
        builds+=("$cudnn") no_cudnn="the CPU has none"
    elif no_cudnn=$(make -n SETUP=true DEVICE=cuda PRECISION=BF16 USE_CUDNN=1 setup 2>&1 | grep -o 'USE_CUDNN=1.*'); \
        [ -z "$no_cudnn" ]; then
        build "build BF16 with cuDNN" PRECISION=BF16 USE_CUDNN=1 "${tests_cudnn[@]/#/$cudnn/}"
        builds+=("$cudnn")
    fi
    built "build BF16"
}

finish_builds() {
    [ -z "$builds_done" ] || return
    builds_done=yes
    built "build FP32"
    if [ -n "${builder[build_BF16_with_cuDNN]:-}" ]; then
        built "build BF16 with cuDNN"
    else
        verdict NOT_RUN "build BF16 with cuDNN" "$no_cudnn"
    fi
}

# ----------------------------------------------------------------------------------------------------------------------
# Sections, the most valuable first

attention_of() { [ "$1" = "$bf16" ] && echo "own attention" || echo "cuDNN"; }

check_first() {
    on 1 1
    # shellcheck disable=SC2086
    step "a small model trains" 60 "${mpi[@]}" $bf16/train_gpt2_zero $tiny
    grep -E '^step|state hash' "$(log_of "a small model trains")" | indent
}

# In each stage and twice in the same one; with several ranks on one GPU, whose data go through host memory.
check_bits() {
    same "same state: stages, ranks that share a GPU" 60 $bf16/train_gpt2_zero "$tiny" \
        "1 1 -z 0" "1 1 -z 0" "1 1 -z 3" "1 1 -z 2 -r 0" "1 1 -z 2 -r 2" "2 1 -z 1 --transport mpi" \
        "2 1 -z 3 --transport mpi" "4 1 -z 2 --transport mpi" "4 1 -z 3 --shard-group 2 --transport mpi"
}

check_kernels() {
    local test build
    finish_builds
    for test in "${tests_fp32[@]}"; do
        case $test in
        test_emulator | test_kernels | test_matmul | test_model) step "$test, FP32" 90 $fp32/"$test" ;;
        esac
    done
    [ $device = cpu ] || step "matrix instructions are as the emulated GPU has them" 60 $bf16/test_mma
    for build in "${builds[@]}"; do
        [ $device = cpu ] || step "test_model, ${build#build/}" 90 "$build/test_model"
    done
}

# With cuDNN, whose backward is chosen to be deterministic: this is where that shows. And at the size of GPT-2 124M,
# where kernels divide their work differently.
check_large() {
    local build
    for build in "${builds[@]:1}"; do
        same "same state: stages, $(attention_of "$build")" 60 "$build/train_gpt2_zero" "$tiny" \
            "1 1 -z 0" "1 1 -z 0" "1 1 -z 3 -r 2" "2 1 -z 2 --transport mpi"
    done
    for build in "${builds[@]}"; do
        same "same state: ${model[1]}, $(attention_of "$build")" 60 "$build/train_gpt2_zero" "$large" \
            "1 1 -z 1" "1 1 -z 1" "1 1 -z 3 -r 0" "2 1 -z 2 --transport mpi"
    done
}

# NCCL's calls on one rank, then the transport with a GPU for each rank
check_nccl() {
    local group=$((most / 2)) way ways=("1 1 -z 0")
    step "NCCL: the calls, one rank" 60 $fp32/test_nccl_calls
    grep -E '^NCCL|returned' "$(log_of "NCCL: the calls, one rank")" | indent
    if [ $most -gt 1 ]; then
        for way in "-z 0" "-z 1" "-z 2" "-z 3" "-z 3 --nccl-register 1" "-z 3 --prefetch 2 --inject-delays 4" \
            "-z 2 --shard-group $group" "-z 3 --shard-group $group"; do
            ways+=("$most $most $way --transport nccl")
        done
        same "same state: NCCL, $most GPUs" 60 $bf16/train_gpt2_zero "$tiny" "${ways[@]}"
        on $most $most
        [ $device = cpu ] || step "NCCL: transport, $most GPUs" 150 "${mpi[@]}" $fp32/test_nccl
    else
        verdict NOT_RUN "same state: NCCL" "needs two GPUs"
    fi
    check_nccl_on_one_gpu
}

# Two ranks on one GPU, which NCCL allows from 2.30 on
check_nccl_on_one_gpu() {
    local version way ways=("1 1 -z 0") name="NCCL, ranks that share a GPU" path=${LD_LIBRARY_PATH:-}
    [ ! -r "$bundle/nccl/libnccl.so.2" ] || path=$(cd "$bundle/nccl" && pwd):$path
    version=$(LD_LIBRARY_PATH=$path timeout 60 $fp32/test_nccl_calls --case library 2> /dev/null |
        sed -n 's/^NCCL version //p')
    if [ $device = cuda ] && [ "${version:-0}" -lt 23000 ]; then
        verdict NOT_RUN "same state: $name" "needs NCCL 2.30, this is ${version:-no NCCL}"
        return
    fi
    note "NCCL $version, with NCCL_MULTI_RANK_GPU_ENABLE=1"
    for way in "-z 0" "-z 1" "-z 2" "-z 3" "-z 3 --nccl-register 1" "-z 2 --shard-group 1"; do
        ways+=("2 1 $way --transport nccl")
    done
    export NCCL_MULTI_RANK_GPU_ENABLE=1 LD_LIBRARY_PATH=$path
    same "same state: $name" 60 $bf16/train_gpt2_zero "$tiny" "${ways[@]}"
    on 2 1
    [ $device = cpu ] || step "$name: transport" 150 "${mpi[@]}" $fp32/test_nccl
    unset NCCL_MULTI_RANK_GPU_ENABLE
}

find_batch() {
    local b
    batch=
    for b in "${batches[@]}"; do
        on 1 1
        timed "batch that fits" 60 "${mpi[@]}" "${builds[-1]}/train_gpt2_zero" "${model[@]}" -b "$b" -x 2 -r 0
        status=$?
        [ $status != 0 ] || batch=$b
        [ $status = 1 ] || break        # 1: it does not fit
    done
}

check_speed() {
    local build stage recompute status
    note ""
    note "GPT-2 (${model[1]}), T = $length, ${model[7]} steps, BF16. MFU = (6 Psi + 6 L C T) FLOPs per token" \
        "x tokens/s / the GPU's dense bf16 peak (n/a: not known), of the last step."
    find_batch
    if [ -z "$batch" ]; then
        conclude "$status" "batch that fits"
        return
    fi
    note "B = $batch, the largest of ${batches[*]} that fits on one GPU with -r 0"
    for build in "${builds[@]}"; do
        speed "1 rank, $(attention_of "$build")" 1 "$build" -z 1 -r 0
        speed "1 rank, $(attention_of "$build"), -ge 2" 1 "$build" -z 1 -r 0 -ge 2
        on 1 1
        step "profile, $(attention_of "$build")" 60 "${mpi[@]}" "$build/train_gpt2_zero" "${model[@]}" \
            -b "$batch" -z 2 --profile 3
        sed -n '/^profile of/,/^$/p' "$(log_of "profile, $(attention_of "$build")")" | tee -a "$report"
    done
    build=${builds[-1]}      # with cuDNN if there is
    for stage in 0 1 2 3; do
        speed "$gpus ranks, stage $stage" "$gpus" "$build" -z $stage -r 0
    done
    for recompute in 1 2; do
        speed "$gpus ranks, stage 2, recompute $recompute" "$gpus" "$build" -z 2 -r $recompute
    done
    step "AdamW and norm" 60 $bf16/bench_adamw $elements
    indent < "$(log_of "AdamW and norm")"
    if [ -n "${LLMC:-}" ]; then
        train_llmc
    else
        verdict NOT_RUN "speed: 1 rank, llm.c" "LLMC is not set to a checkout of llm.c"
    fi
}

# The same model by llm.c's trainer. With CUDA 13 it needs an overload that CUDA no longer has, and it links with a
# library that the driver has under another name.
train_llmc() {
    local data=$PWD/$work
    cat > $work/llmc.h << 'END'
#include <cuda_runtime.h>
#if CUDART_VERSION >= 13000
static inline cudaError_t cudaMemAdvise(const void *p, size_t n, cudaMemoryAdvise advice, int device) {
    const cudaMemLocation where = {device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice,
                                   device < 0 ? 0 : device};
    return cudaMemAdvise(p, n, advice, where);
}
#endif
END
    ln -sf "$(ldconfig -p | grep -o '/.*libnvidia-ml.so.1$' | head -n 1)" $work/libnvidia-ml.so
    step "build llm.c" 120 make -C "$LLMC" train_gpt2cu NO_MULTI_GPU=1 \
        NVCC="${nvcc:-nvcc} -include $data/llmc.h -L$data"
    step "text for llm.c" 60 $fp32/tokenize_text bytes $work/train.bin $work/val.bin "$text"
    row "1 rank, llm.c" 1 env -C "$LLMC" ./train_gpt2cu -i "$data/train.bin" -j "$data/val.bin" -e "${model[1]}" \
        -b "$batch" -t "$length" -d $((batch * length)) -x "${model[7]}" -r 0 -v 1000 -s 1000 -m 1 -h 0
}

# Programs of several ranks, on a GPU each and sharing one.
check_ranks() {
    local build transport
    on 2 1
    step "MPI transport, 2 ranks on a GPU" 60 "${mpi[@]}" $fp32/test_comm
    [ $device = cpu ] || for build in $bf16 $fp32; do
        on 1 1
        step "sharded = unsharded, ${build#build/}, 1 rank" 60 "${mpi[@]}" "$build/test_gpt2_zero"
        on 2 1
        step "sharded = unsharded, ${build#build/}, 2 ranks on a GPU" 90 "${mpi[@]}" "$build/test_gpt2_zero"
    done
    if [ $device != cpu ] && [ $most -gt 1 ]; then
        on $most $most
        step "sharded = unsharded, $most GPUs" 90 "${mpi[@]}" $bf16/test_gpt2_zero
    fi
    on "$gpus"
    for transport in nccl mpi; do
        if [ "$gpus" -gt 1 ]; then
            step "bandwidth, $transport, $gpus ranks" 60 "${mpi[@]}" $fp32/bench_reduce $elements $transport \
                "$([ $transport = nccl ] && echo $repeats || echo 2)"
            indent < "$(log_of "bandwidth, $transport, $gpus ranks")"
        else
            verdict NOT_RUN "bandwidth, $transport" "needs two GPUs"
        fi
    done
}

# What the emulated GPU looks for, on the real one
check_sanitizer() {
    local tool sanitizer
    sanitizer=$(command -v compute-sanitizer || ls "${nvcc%/nvcc}/compute-sanitizer" 2> /dev/null)
    for tool in memcheck racecheck synccheck; do
        if [ -n "$sanitizer" ]; then
            # shellcheck disable=SC2086
            step "compute-sanitizer $tool, a small run" 60 "$sanitizer" --tool $tool --error-exitcode 9 \
                $bf16/train_gpt2_zero $tiny -x 1 -z 1
        else
            verdict NOT_RUN "compute-sanitizer $tool" "there is none on this machine"
        fi
    done
}

count() { printf '%s\n' "${results[@]}" | grep -c "^$1"; }

# ----------------------------------------------------------------------------------------------------------------------

find_gpus
describe_machine
check_libraries
if [ $device = cuda ] && [ "$gpus" = 0 ]; then
    verdict FAIL "a GPU" "nvidia-smi finds none: only the builds are checked"
    no_gpu=yes gpus=1
fi
NP=1
. scripts/env.sh
unset OMP_NUM_THREADS
find_text
set_sizes
start_builds
[ -z "${ONLY:-}" ] || finish_builds
for section in ${ONLY:-$sections}; do
    "check_$section"
done

note ""
note "Summary, after $SECONDS s of $all"
printf '%s\n' "${results[@]}" | grep -v '^PASS' | tee -a "$report"
note "$(count PASS) passed, $(count FAIL) failed, $(count NOT) not run"
note "this report: $report; the output of each step: $logs"
[ "$(count FAIL)" = 0 ] && ! printf '%s\n' "${results[@]}" | grep -q "the $all s are over"
