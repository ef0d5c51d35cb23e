#!/usr/bin/env bash
# Static checks of the CUDA build, on a machine with nvcc; a GPU is not needed. Writes to build/check_cuda only.
#
#     dev/test/cuda/check_cuda.sh
#
#   1. All programs compile and link without a warning, for sm_90, in FP32 and BF16. In the headers that they see, the
#      types in which CUDA, cuBLASLt, NCCL and cuDNN return their results are [[nodiscard]], so a call whose result is
#      ignored is an error ("(void)" marks those that are meant, as in destructors). In zero/ the same holds for MPI;
#      elsewhere MPI's own handler ends the job.
#   2. The kernels compile without a warning for sm_80, sm_90 and sm_100, and each keeps the rules of check_kernels.awk:
#      enough registers for the threads that it is launched with, no spills, no local arrays, 16-byte accesses where
#      memory is the limit, no sums that are kept in global memory. kernels.txt is the table of all kernels. The
#      trainer launches kernels with the threads that they are compiled for (check_launches.awk; zero/kernels.cu has
#      two numbers only, side by side).
#      Where cuobjdump is found, or can be fetched, the machine code keeps the rules of check_sass.awk: no local memory
#      and no atomics anywhere; in attention on tensor cores matrix instructions and 16-byte accesses. sass.txt has
#      their numbers.
#   3. A driver that is too old for the toolkit is named, with the remedy.
#   4. Each of these checks finds the fault that is planted for it (planted_static.cu, and a few lines here).
#
# Ends with "N passed, N failed"; exit status 0 only if nothing failed.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh

# Not bound by memory: attention computes on tiles in shared memory, the probe of a GPU does nothing, tables are small.
compute_bound='attention|flash|probe|pointers|norm_kernel'
# They update an array in place, each element once.
in_place='gelu_backward|layernorm_backward|wte_backward|classifier|optimizer|exchange_ema'

dir=build/check_cuda
evidence=build/evidence/cuda.txt     # for gpu_status.py
nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2> /dev/null) || {
    echo "$0: no nvcc in PATH or CUDA_HOME/bin"
    exit 1
}
include=$(readlink -f "$(dirname "$nvcc")/../include")
began=$SECONDS

# blame LINES: each line "FAIL what: why" is a failed case
blame() {
    local line
    while read -r _ line; do [ -z "$line" ] || report "${line%%: *}" "${line#*: }"; done <<< "$1"
}

# must NAME LOG COMMAND...: a case: the command succeeds
must() {
    local status
    "${@:3}" > "$2" 2>&1
    status=$?
    [ $status = 0 ] || grep -iE -m 20 'error|warning' "$2"
    report "$1" "$([ $status = 0 ] || echo "exit status $status")" "$2"
    return $status
}

# must_say NAME REGEX LOG COMMAND...: a planted fault: the command must fail, with a message that matches
must_say() {
    local wrong=
    if "${@:4}" > "$3" 2>&1; then
        wrong="planted, but not found"
    elif ! grep -qE -- "$2" "$3"; then
        wrong="it does not compile, but for another reason"
    fi
    report "found: $1" "$wrong" "$3"
}

compile() { make SETUP=true DEVICE=cuda WERROR=1 USE_CUDNN=0 --no-print-directory "$@"; }

# ----------------------------------------------------------------------------------------------------------------------
# Headers in which a result may not be dropped: links to all of CUDA's, and copies of those with the types of results.

headers=$PWD/$dir/include
mpi_headers=$PWD/$dir/include-mpi
rm -rf "$headers" "$mpi_headers"
mkdir -p "$headers" "$mpi_headers"
cp -rs "$include/." "$headers"

# nodiscard HEADER EXPRESSION: applies the sed expression to the whole header, if it exists; it must change something
nodiscard() {
    [ -e "$include/$1" ] || return 0
    rm "$headers/$1"
    sed -zE "$2" "$include/$1" > "$headers/$1"
    if cmp -s "$include/$1" "$headers/$1"; then
        report "$1" "the type of results is not where it was; adapt $0"
    fi
}
nodiscard driver_types.h 's/enum __device_builtin__ cudaError\n/enum [[nodiscard]] __device_builtin__ cudaError\n/'
nodiscard cublas_api.h 's/typedef enum (\{[^}]*\} cublasStatus_t;)/typedef enum [[nodiscard]] \1/'
nodiscard nccl.h 's/typedef enum (\{[^}]*\} ncclResult_t;)/typedef enum [[nodiscard]] \1/'
nodiscard cudnn_graph.h 's/typedef enum (\{[^}]*\} cudnnStatus_t;)/typedef enum [[nodiscard]] \1/'
for incdir in $(mpicc --showme:incdirs); do
    [ -e "$incdir/mpi.h" ] && [ ! -e "$mpi_headers/mpi.h" ] &&
        sed -E 's/^(OMPI_DECLSPEC +)?int +MPI_/[[nodiscard]] &/' "$incdir/mpi.h" > "$mpi_headers/mpi.h"
done
export CPATH=$headers NVCC_PREPEND_FLAGS=-I$headers
mpi_cflags="-I$mpi_headers $(mpicc --showme:compile)"

# ----------------------------------------------------------------------------------------------------------------------
# 1. All programs

for precision in FP32 BF16; do
    build=$dir/${precision,,}
    must "all programs, sm_90, $precision" "$dir/all-$precision.log" \
        compile PRECISION=$precision CUDA_ARCH=90 BUILD="$build" all
done

# The rest of a build with cuDNN is the same, and .ci/run has one.
if [ -e "$include/cudnn_graph.h" ]; then
    must "attention by cuDNN" $dir/cudnn.log \
        compile PRECISION=BF16 USE_CUDNN=1 CUDA_ARCH=90 BUILD=$dir/cudnn \
        $dir/cudnn/dev/device/cuda/{attention_cudnn,cudnn_graph}.o
fi

objects=$(for f in zero/*.c zero/comm/*.c zero/comm/*/*.c; do echo "$dir/mpi/${f%.c}.o"; done)
# shellcheck disable=SC2086
must "zero/: no result of MPI is dropped" $dir/mpi.log \
    compile PRECISION=FP32 BUILD=$dir/mpi MPI_CFLAGS="$mpi_cflags" $objects

# Which calls have been compiled: those of the module and the trainer. NCCL's are looked up by name.
mkdir -p ${evidence%/*}
objects=$(find $dir/{fp32,bf16,cudnn}/{zero,dev/device,dev/gpt2,dev/trainer,train_gpt2_zero.o} -name '*.o' 2> /dev/null)
{
    # shellcheck disable=SC2086
    nm -u $objects | grep -oE '\b(cuda|cublas|cudnn)[A-Z][A-Za-z0-9_]*'
    strings $dir/fp32/zero/comm/nccl/library.o | grep -xE 'nccl[A-Z][A-Za-z0-9]*'
} | sed 's/_internal$//' | sort -u | sed 's/^/compiled - - - /' > $evidence

# ----------------------------------------------------------------------------------------------------------------------
# 2. Kernels

archs=$("$nvcc" --list-gpu-code | grep -xE 'sm_(80|90|100)')
sources=$(grep -lE '__global__|^#include "gpt2/.*\.cuh"' ./*.cu zero/*.cu dev/device/cuda/*.cu)
table=$dir/kernels.txt
columns=$(printf "%-5s %-7s %9s %8s %7s %6s %6s %12s %13s %13s %s" build gpu registers threads shared stack spills \
    occupancy "loads: 16 B/" "stores: 16 B/" kernel)
echo "$columns" > $table

# judge BUILD GPU FILE: the lines of check_kernels.awk for FILE.ptx and FILE.log, with names that can be read
judge() {
    awk -v build="$1" -v arch="$2" -v compute_bound="$compute_bound" -v in_place="$in_place" \
        -f dev/test/cuda/check_kernels.awk "$3.ptx" "$3.log" | c++filt -p
}

# The disassembler is two packages of PyPI, 6 MB. Where neither the toolkit nor Python has them, they are fetched once;
# without a network the machine code is not checked.
tools=build/nvidia_tools
in_packages() {
    PYTHONPATH=$tools python3 -c 'import glob, nvidia; print([f for d in nvidia.__path__ for f in
        glob.glob(d + "/*/bin/cuobjdump")][0])' 2> /dev/null
}
cuobjdump=$(command -v cuobjdump || ls "$(dirname "$nvcc")/cuobjdump" 2> /dev/null || in_packages) || {
    python3 -m pip install -q --no-deps --retries 0 --timeout 10 --target $tools nvidia-cuda-cuobjdump \
        nvidia-cuda-nvdisasm > $dir/pip.log 2>&1
    cuobjdump=$(in_packages)
}
[ -z "$cuobjdump" ] || PATH=$(dirname "$cuobjdump"):$PATH    # it calls nvdisasm
sass_table=$dir/sass.txt
printf '%-7s %10s %10s %10s %10s %10s %10s %10s %s\n' gpu instructions HMMA LDSM LDSM.T LDGSTS.128 STG.128 BAR kernel \
    > $sass_table

# judge_sass GPU FILE: the lines of check_sass.awk for FILE.cubin
judge_sass() { "$cuobjdump" -sass "$2.cubin" | awk -v arch="$1" -f dev/test/cuda/check_sass.awk | c++filt -p; }

for arch in $archs; do
    for precision in FP32 BF16; do
        build=$dir/${precision,,}-$arch
        kernels=
        for source in $sources; do
            source=${source#./}
            [ "$source" = test_gpt2_zero.cu ] || kernels="$kernels $build/${source%.cu}"
        done
        # Always rebuilt: the rules for these files do not track headers.
        # shellcheck disable=SC2086
        rm -f ${kernels// /.cubin }.cubin
        # shellcheck disable=SC2086
        must "kernels, $arch, $precision" "$build.log" \
            compile PRECISION=$precision GENCODE=-arch="$arch" BUILD="$build" \
            $(for k in $kernels; do echo "$k.cubin"; done) || continue
        before=$failed kept=0
        for k in $kernels; do
            lines=$(judge "${precision,,}" "$arch" "$k")
            broken=$(grep '^FAIL' <<< "$lines")
            blame "$broken"
            grep -v '^FAIL' <<< "$lines" >> $table
            echo "$lines" | awk -v source="${k#"$build/"}.cu" '
                sub(/^FAIL [^ ]+ [^ ]+ /, "") { sub(/: .*/, ""); broken[$0]; next }
                { name = $11; for (i = 12; i <= NF; i++) name = name " " $i }
                !(name in broken) { print "compiled", $1, $2, source, name }' >> $evidence
            kernels_broken=$(awk '/^FAIL/ { print $4 }' <<< "$lines" | sort -u | grep -c .)
            kept=$((kept + $(grep -vc '^FAIL' <<< "$lines") - kernels_broken))
        done
        passed=$((passed + kept))
        echo "ok    $kept kernels keep the rules, $((failed - before)) rules are broken ($arch, $precision)"
        if [ -n "$cuobjdump" ]; then
            lines=$(for k in $kernels; do judge_sass "$arch" "$k"; done)
            broken=$(grep '^FAIL' <<< "$lines")
            blame "$broken"
            report "machine code, $arch, $precision" "$([ -z "$broken" ] || echo "see above")"
            awk -v build="${precision,,}" -v gpu="$arch" '
                { name = $5; for (i = 6; i <= NF; i++) name = name " " $i }
                sub(/^FAIL [^ ]+ /, "") { sub(/: .*/, ""); broken[$0]; next }
                $1 == "compiled" && $2 == build && $3 == gpu && !(name in broken) { sub(/^compiled/, "sass"); print }' \
                <(echo "$broken") $evidence > $dir/sass_evidence.txt
            cat $dir/sass_evidence.txt >> $evidence
        fi
        if [ -n "$cuobjdump" ] && [ $precision = BF16 ]; then
            grep -v '^FAIL' <<< "$lines" >> $sass_table
            report "machine code of attention on tensor cores, $arch" \
                "$([ "$(grep -vc '^FAIL' <<< "$lines")" = 12 ] || echo "3 kernels for 4 sizes of heads were not found")"
        fi
        [ $kept -gt 10 ] || report "kernels" "only $kept were found: is this script still looking in the right files?"
    done
done

launches=$(awk -f dev/test/cuda/check_launches.awk dev/gpt2/*.cuh train_gpt2_zero.cu)
blame "$(grep '^FAIL' <<< "$launches")"
launched=$(grep -vc '^FAIL' <<< "$launches")
passed=$((passed + launched - $(grep -c '^FAIL' <<< "$launches")))
echo "ok    $launched launches have the threads of their kernels, except those above"
[ "$launched" -gt 10 ] || report "launches" "only $launched were found: does check_launches.awk match the sources?"

# ----------------------------------------------------------------------------------------------------------------------
# 3. A driver for CUDA 12.4

mkdir -p $dir/old_driver
cat > $dir/old_driver/driver.c << 'END'
int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
END
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 $dir/old_driver/driver.c -o $dir/old_driver/libcuda.so.1
must_say "a driver that is too old" "built with CUDA 1[3-9]\.[0-9]+, and the driver supports at most 12\.4: install" \
    $dir/old_driver.log env LD_LIBRARY_PATH=$dir/old_driver timeout 60 $dir/fp32/train_gpt2_zero

# ----------------------------------------------------------------------------------------------------------------------
# 4. Planted faults

build=$dir/planted
planted=$build/dev/test/cuda/planted_static
plant() {
    rm -f $planted.cubin
    compile PRECISION=FP32 GENCODE=-arch=sm_90 BUILD=$build DEFINES="-I. -Idev -D_GNU_SOURCE $1" $planted.cubin
}

if must "planted faults compile" $dir/planted.log plant ""; then
    judge fp32 sm_90 $planted > $dir/planted.txt
    while read -r kernel words; do
        check "found: $kernel, $words" grep -E "^FAIL .* $kernel: $words" $dir/planted.txt
    done << 'END'
narrow_loads no 16-byte load
narrow_loop a loop has [0-9]+ narrow accesses
local_array [0-9]+ bytes of stack
sum_in_memory a loop updates global memory in place
spills [0-9]+ bytes of spills
no_launch_bounds has no __launch_bounds__
no_launch_bounds [0-9]+ registers x 1024 threads
END
    if [ -n "$cuobjdump" ]; then
        judge_sass sm_90 $planted > $dir/planted_sass.txt
        while read -r kernel words; do
            check "found: $kernel, $words" grep -E "^FAIL .* $kernel: .*$words" $dir/planted_sass.txt
        done << 'END'
flash_without_tensor_cores no matrix instruction
local_array accesses of local memory
global_atomics atomics in global memory
END
    fi
    report "a kernel with nothing wrong is not blamed" \
        "$(cat $dir/planted.txt $dir/planted_sass.txt 2> /dev/null | grep '^FAIL .* nothing_wrong')"
fi
for threads in 128 256; do
    {
        echo "__global__ void __launch_bounds__($threads) k(int n) {}"
        echo "void f() { LAUNCH(ceil_div(n, 2), 128, 0, stream, k, n); }"
    } | awk -f dev/test/cuda/check_launches.awk > $dir/launch-$threads.log
done
check "found: a launch with other threads" \
    grep '^FAIL k: launched with 128 threads, but its __launch_bounds__ are 256' $dir/launch-256.log
report "a launch with the right threads is not blamed" "$(grep FAIL $dir/launch-128.log)"
must_say "too much shared memory" "uses too much shared data" $dir/planted-shared.log plant -DPLANT_SHARED
must_say "a warning of nvcc" "was declared but never referenced" $dir/planted-unused.log plant -DPLANT_UNUSED
must_say "an unchecked call, nvcc" "ignoring return value type" $dir/planted-unchecked.log plant -DPLANT_UNCHECKED

# drop HEADER CALL: a C file that makes the call and ignores its result
drop() {
    printf '#include <%s>\nvoid f(void);\nvoid f(void) { %s; }\n' "$1" "$2" > $dir/dropped.c
    # shellcheck disable=SC2086
    gcc -std=c11 $mpi_cflags -I. -isystem "$include" -Wall -Wextra -Werror -c $dir/dropped.c -o $dir/dropped.o
}
must "a call of which the result is meant to be dropped" $dir/dropped.log drop cuda_runtime_api.h "(void)cudaFree(0)"
while read -r header call; do
    [ -e "$include/$header" ] || [ "$header" = mpi.h ] || continue
    must_say "an unchecked call, $call" "ignoring return value of" $dir/dropped.log drop "$header" "$call"
done << 'END'
cuda_runtime_api.h cudaFree(0)
cublasLt.h cublasLtDestroy(0)
nccl.h ncclGroupStart()
cudnn.h cudnnDestroy(0)
mpi.h MPI_Barrier(MPI_COMM_WORLD)
END

[ -n "$cuobjdump" ] || echo "machine code was not checked: no cuobjdump; pip install nvidia-cuda-{cuobjdump,nvdisasm}"
echo "table of kernels: $table; of machine code: $sass_table; $((SECONDS - began)) s"
summary
