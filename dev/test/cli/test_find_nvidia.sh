#!/usr/bin/env bash
# Tests that the build finds NVIDIA's libraries where people have them. Trees of empty files stand for machines; nvcc
# and python3 are stand-ins too.
#
#     dev/test/cli/test_find_nvidia.sh
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
unset CPATH CUDA_HOME CUDNN_HOME NCCL_HOME CONDA_PREFIX USE_CUDNN NCCL EXTRA CFLAGS MAKEFLAGS MAKELEVEL
triple=$(uname -m)-linux-gnu
target=$(uname -m | sed 's/aarch64/sbsa/')-linux

# machine FILE...: a new machine in $root with these files; nvcc is of CUDA 13
machine() {
    root=$(mktemp -d "$work/XXXXXX")
    local file
    mkdir -p "$root/bin"
    printf '#!/bin/sh\necho %s/usr/lib/python3\necho %s/site-packages\n' "$root" "$root" > "$root/bin/python3"
    for file in "$@"; do
        mkdir -p "$root/${file%/*}"
        echo > "$root/$file"
        [[ $file != */nvcc ]] || nvcc=$root/$file
        [[ $file != */nvcc ]] || echo 'echo "Cuda compilation tools, release 13.0, V13.0.88"' > "$root/$file"
        [[ $file != */bin/* ]] || chmod +x "$root/$file"
    done
    chmod +x "$root/bin/python3"
}

# on_machine COMMAND...
on_machine() {
    env PATH="$root/bin:$PATH" SYSROOT="$root" "$@" 2>&1
}

# finds NAME LIBRARY INCLUDE FILE [VARIABLE=VALUE...]: on the machine, the script finds LIBRARY's header in INCLUDE and
# the library FILE; "" twice: nowhere
finds() {
    local name=$1 want='' got
    [ -z "$3" ] || want="$2_INCLUDE=$root/$3 $2_LIBRARY=$root/$4"
    got=$(on_machine "${@:5}" scripts/find_nvidia.sh "$nvcc" | grep "^$2_" | tr '\n' ' ')
    report "$name" "$([ "${got% }" = "$want" ] || echo "found \"$got\", not \"$want\"")"
}

nvidia=site-packages/nvidia
pip=(${nvidia}_cudnn_cu13-9.19.1.dist-info/RECORD $nvidia/cudnn/{include/cudnn.h,lib/libcudnn.so.9}
    ${nvidia}_nccl_cu13-2.28.9.dist-info/RECORD $nvidia/nccl/{include/nccl.h,lib/libnccl.so.2})
toolkit=(cuda/bin/nvcc cuda/include/{cuda_runtime,cublasLt}.h cuda/lib64/lib{cudart,cublasLt}.so.13)

machine "${toolkit[@]}" cuda/include/cudnn.h cuda/lib64/libcudnn.so.9
finds "toolkit: its own" CUDART cuda/include cuda/lib64/libcudart.so.13
finds "toolkit: cuDNN unpacked into it" CUDNN cuda/include cuda/lib64/libcudnn.so.9
finds "toolkit: no NCCL anywhere" NCCL "" ""
machine cuda/bin/nvcc "cuda/targets/$target/"{include/cublasLt.h,lib/libcublasLt.so.13}
finds "toolkit: in targets" CUBLASLT "cuda/targets/$target/include" "cuda/targets/$target/lib/libcublasLt.so.13"
machine "${toolkit[@]}" "usr/include/$triple/cudnn.h" "usr/lib/$triple/libcudnn.so.9" usr/include/nccl.h \
    "usr/lib/$triple/libnccl.so.2"
finds "Debian packages: cuDNN" CUDNN "usr/include/$triple" "usr/lib/$triple/libcudnn.so.9"
finds "Debian packages: NCCL" NCCL usr/include "usr/lib/$triple/libnccl.so.2"
machine usr/bin/nvcc usr/include/cuda_runtime.h "usr/lib/$triple/libcudart.so.13"
finds "Debian packages: the toolkit" CUDART usr/include "usr/lib/$triple/libcudart.so.13"
machine "${toolkit[@]}" usr/include/cudnn.h usr/lib64/libcudnn.so.9
finds "RPM packages" CUDNN usr/include usr/lib64/libcudnn.so.9
machine "${toolkit[@]}" env/include/cudnn.h env/lib/libcudnn.so.9
finds "conda" CUDNN env/include env/lib/libcudnn.so.9 CONDA_PREFIX="$root/env"
finds "conda: another environment is active" CUDNN "" "" CONDA_PREFIX="$root/other"
finds "a module's CPATH" CUDNN env/include env/lib/libcudnn.so.9 CPATH="/nowhere/include:$root/env/include/"
machine "${toolkit[@]}" "${pip[@]}"
finds "pip: nvidia/cudnn" CUDNN $nvidia/cudnn/include $nvidia/cudnn/lib/libcudnn.so.9
finds "pip: nvidia/nccl" NCCL $nvidia/nccl/include $nvidia/nccl/lib/libnccl.so.2
finds "CUDNN_HOME is the only place" CUDNN "" "" CUDNN_HOME="$root/cuda"
machine $nvidia/cu13/{bin/nvcc,include/{cuda_runtime,cublasLt,cudnn}.h,lib/lib{cudart.so.13,cublasLt.so.13,cudnn.so.9}}
finds "pip: nvidia/cu13" CUDNN $nvidia/cu13/include $nvidia/cu13/lib/libcudnn.so.9
finds "pip: the toolkit in nvidia/cu13" CUDART $nvidia/cu13/include $nvidia/cu13/lib/libcudart.so.13
machine cuda/bin/nvcc $nvidia/cu13/{include/cublasLt.h,lib/libcublasLt.so.13}
finds "pip: nvidia/cu13, for a toolkit elsewhere" CUBLASLT $nvidia/cu13/include $nvidia/cu13/lib/libcublasLt.so.13
machine "${toolkit[@]}" "${pip[@]/cu13/cu12}"
finds "pip: a package for CUDA 12 is not for CUDA 13" CUDNN "" ""
machine "${toolkit[@]}" cuda/include/cudnn.h usr/include/cudnn.h usr/lib64/libcudnn.so.9
finds "a header without its library is passed over" CUDNN usr/include usr/lib64/libcudnn.so.9
machine "${toolkit[@]}" cuda/include/{cudnn,nccl}.h cuda/lib64/{libcudnn.so.9,libnccl.so.2} usr/include/{cudnn,nccl}.h \
    usr/lib64/{libcudnn.so.9,libnccl.so.2}
printf '#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 1\n' > "$root/cuda/include/cudnn_version.h"
printf '#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 10\n' > "$root/usr/include/cudnn_version_v9.h"
printf '#define NCCL_MAJOR 2\n#define NCCL_MINOR 18\n' > "$root/cuda/include/nccl.h"
printf '#define NCCL_MAJOR 3\n#define NCCL_MINOR 0\n' > "$root/usr/include/nccl.h"
finds "cuDNN 9.1 is passed over" CUDNN usr/include usr/lib64/libcudnn.so.9
finds "NCCL 2.18 is passed over" NCCL usr/include usr/lib64/libnccl.so.2
machine "${toolkit[@]}" a/include/cudnn.h a/lib/libcudnn.so.9 usr/include/cudnn.h usr/lib64/libcudnn.so.9
finds "CUDNN_HOME comes before the system's" CUDNN a/include a/lib/libcudnn.so.9 CUDNN_HOME="$root/a"

# ----------------------------------------------------------------------------------------------------------------------
# What the Makefile makes of it

# prints NAME WORDS ARGUMENTS...: make prints WORDS (as grep -E knows them)
prints() {
    on_machine make -n SETUP=true DEVICE=cuda CUDA_HOME="$root/cuda" "${@:3}" > "$work/log" 2>&1
    report "$1" "$(grep -qE -- "$2" "$work/log" || echo "no \"$2\" in: $(head -n 3 "$work/log")")"
}

machine "${toolkit[@]}"
prints "BF16 without cuDNN: what to install" \
    "^build/cuda-bf16: .*own kernels .*pip install nvidia-cudnn-cu13 .*pip install nvidia-nccl-cu13" all
prints "BF16 without cuDNN: the trainer knows what to install" "-DCUDNN_MISSING=.\"nvidia-cudnn-cu13\". .*reports.c" all
prints "USE_CUDNN=1 without cuDNN is refused" "USE_CUDNN=1 needs .*pip install nvidia-cudnn-cu13" USE_CUDNN=1 all
prints "a wrong CUDNN_HOME is refused" "libcudnn.so.9\) in CUDNN_HOME=/nowhere" CUDNN_HOME=/nowhere all
prints "a wrong NCCL_HOME is refused" "libnccl.so.2\) in NCCL_HOME=/nowhere" NCCL_HOME=/nowhere all
machine cuda/bin/nvcc cuda/include/cuda_runtime.h cuda/lib64/libcudart.so.13
prints "a toolkit without cuBLAS is refused" "cublasLt.h and libcublasLt of CUDA 13 were not found" all
machine "${toolkit[@]}" "${pip[@]}"
at=$root/$nvidia
prints "BF16 with cuDNN uses it" \
    "^build/cuda-bf16-cudnn: .*attention: $at/cudnn/lib/libcudnn.so.9; NCCL: $at/nccl/lib/libnccl.so.2" all
prints "cuDNN is linked by its file" "train_gpt2_zero.* $at/cudnn/lib/libcudnn.so.9 " all
prints "NCCL is on the run path" "train_gpt2_zero.* -Wl,-rpath,$at/nccl/lib " all
prints "the compiler gets their headers" "-isystem $at/cudnn/include -isystem $at/nccl/include .*-c zero/zero.c" all
prints "NVCCFLAGS do not drop -fmad=false" "-c zero/kernels.cu .* -fmad=false -Xcompiler -ffp-contract=off$" \
    NVCCFLAGS=-g EXTRA=-g all
prints "--use_fast_math is refused" "fast_math in the compiler's flags" NVCCFLAGS=--use_fast_math all
prints "USE_CUDNN=0 leaves it out" "^build/cuda-bf16: .*own kernels \(USE_CUDNN=0\)" USE_CUDNN=0 all
prints "FP32 has none" "^build/cuda-fp32: .*own kernels \(cuDNN has none in FP32\)" PRECISION=FP32 all
prints "USE_CUDNN=1 in FP32 is refused" "USE_CUDNN=1 needs .*: cuDNN has none in FP32" USE_CUDNN=1 PRECISION=FP32 all
prints "USE_CUDNN=1 on a CPU does not apply" "^USE_CUDNN=1 does not apply: this is DEVICE=cpu" USE_CUDNN=1 \
    DEVICE=cpu all
prints "NO_USE_MPI=1 does not apply" "^NO_USE_MPI=1 does not apply" NO_USE_MPI=1 all
prints "NCCL=0 leaves it out" "NCCL: NCCL=0" NCCL=0 all
machine "${toolkit[@]}" usr/include/nccl.h "usr/lib/$triple/libnccl.so.2"
cuda="-isystem $root/cuda/include"
prints "the system's directories are no flags" "_GNU_SOURCE [^/]*$cuda $cuda .*-c zero/zero.c" all

summary
