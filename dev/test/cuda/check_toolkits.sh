#!/usr/bin/env bash
# Compiles for toolkits that are not installed, with their packages on PyPI. Needs a network, but no GPU and no nvcc.
#
#     dev/test/cuda/check_toolkits.sh
#
#   1. CUDA 12.4 to 12.9: all C files of a CUDA build with the headers of that version, without a warning; all kernels
#      with its NVRTC, the same compiler as nvcc's for device code, for sm_80 and sm_90. (Host code in .cu files needs
#      nvcc, which PyPI does not have for CUDA 12.)
#   2. The newest CUDA 13: trainer and tests with its nvcc, as `make` does with CUDA_HOME.
#   3. A planted fault in a kernel and one in a C file are found.
#
# Ends with "N passed, N failed"; exit status 3 and "NOT RUN" if PyPI cannot be reached. Everything below build/toolkits
# is this script's own; packages stay there.
set -u
cd "$(dirname "$0")/../../.." || exit 1
kits=build/toolkits
mkdir -p $kits/host $kits/libraries
. dev/test/harness/report.sh

# get DIRECTORY PACKAGE...: installs packages without what they depend on
get() {
    [ -e "$kits/$1/complete" ] && return
    rm -rf "${kits:?}/$1"
    python3 -m pip install -q --disable-pip-version-check --no-deps --target "$kits/$1" "${@:2}" &&
        touch "$kits/$1/complete"
}
if ! get probe nvidia-nvtx-cu12 > $kits/pip.log 2>&1; then
    tail -n 3 $kits/pip.log
    echo "NOT RUN: other toolkits, because pip cannot install from PyPI"
    exit 3
fi

# ----------------------------------------------------------------------------------------------------------------------
# NVRTC knows no host: headers with what the sources use, and launches that only check types

(
    cd $kits/host || exit 1
    for header in errno float limits math stdarg stdio stdlib string time; do echo '#pragma once' > $header.h; done
    echo '#define INFINITY __int_as_float(0x7f800000)' >> math.h
    echo '#define FLT_MAX 3.402823466e38f' >> float.h
    cat > stddef.h << 'END'
#pragma once
typedef decltype(sizeof 0) size_t;
#define NULL 0
#define offsetof(type, member) __builtin_offsetof(type, member)
END
    cat > stdint.h << 'END'
#pragma once
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t, uintptr_t;
#define UINT32_MAX 0xffffffffu
#define UINT64_MAX 0xfffffffffffffffful
END
    cat > stdio.h << 'END'
#pragma once
typedef struct FILE FILE;
#define stderr ((FILE *)0)
int fprintf(FILE *, const char *, ...);
int vfprintf(FILE *, const char *, va_list);
int snprintf(char *, size_t, const char *, ...);
int fflush(FILE *);
END
    cat > runtime.h << 'END'
#include <stddef.h>
#include <stdint.h>
#include <driver_types.h>
template <class T> struct Same { typedef T type; };
template <class... P>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *, void (*)(P...), typename Same<P>::type...);
template <class T> cudaError_t cudaFuncSetAttribute(T *, cudaFuncAttribute, int);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
int __builtin_popcountll(unsigned long long);
int __builtin_clzll(unsigned long long);
const char *cudaGetErrorString(cudaError_t);
const char *cudaGetErrorName(cudaError_t);
END
    cat > nvrtc.py << 'END'
# nvrtc.py LIBRARY SOURCE CUBIN OPTION...: compiles, prints NVRTC's messages, and fails if there are any
import ctypes, sys
library, source, cubin, *options = sys.argv[1:]
nvrtc, program, size = ctypes.CDLL(library), ctypes.c_void_p(), ctypes.c_size_t()
nvrtc.nvrtcCreateProgram(ctypes.byref(program), open(source, "rb").read(), source.encode(), 0, None, None)
status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*map(str.encode, options)))
nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetProgramLog(program, log)
sys.stdout.write(log.value.decode())
if status == 0:
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    open(cubin, "wb").write(code.raw)
sys.exit(status != 0 or len(log.value) > 1)
END
)

# include DIRECTORY: options for the headers in what `get DIRECTORY` installed
include() {
    local dir
    for dir in "$kits/$1"/nvidia/*/include $kits/probe/nvidia/*/include; do echo "-I$dir"; done
}

# nvrtc DIRECTORY SOURCE CUBIN OPTION...
nvrtc() {
    # shellcheck disable=SC2046
    python3 $kits/host/nvrtc.py "$(echo "$kits/$1"/nvidia/*/lib/libnvrtc.so.1?)" "$2" "$3" -default-device -std=c++17 \
        --pre-include=runtime.h -I$kits/host -I. -Idev $(include "$1") "${@:4}"
}

# kernel_names SOURCE: of the source and of the headers that it includes
kernel_names() {
    # shellcheck disable=SC2046
    cat "$1" $(sed -n 's/^#include "\(.*\.cuh\)"/\1/p' "$1" | sed 's,^gpt2,dev/&,') | tr -s '\n ' ' ' |
        grep -oE '__global__ void (__launch_bounds__\([^)]*\) )?[a-z_]+' | grep -oE '[a-z_]+$'
}

# kernels DIRECTORY SM SOURCE OPTION...: the machine code of SOURCE has all its kernels
kernels() {
    local cubin=$kits/$1/kernels.cubin name names
    nvrtc "$1" "$3" "$cubin" --gpu-architecture=sm_"$2" "${@:4}" || return
    names=$(kernel_names "$3")
    [ -n "$names" ] || { echo "no kernels in $3"; return 1; }
    for name in $names; do
        grep -q "$name" "$cubin" || { echo "no kernel $name"; return 1; }
    done
}

# c_files DIRECTORY FILE...: compile without a warning
c_files() {
    # shellcheck disable=SC2046
    gcc -std=c11 -fsyntax-only -Wall -Wextra -Wno-missing-field-initializers -Werror -D_GNU_SOURCE -DPRECISION_BF16 \
        -DUSE_CUDNN -I. -Idev $(include "$1" | sed 's/^-I/-isystem /') -isystem $kits/libraries \
        $(mpicc --showme:compile) -fopenmp "${@:2}"
}

# NCCL's and cuDNN's headers are those of this machine.
if nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2> /dev/null); then
    eval "$(scripts/find_nvidia.sh "$nvcc")"
fi
for header in ${NCCL_INCLUDE:+"$NCCL_INCLUDE"/nccl*} ${CUDNN_INCLUDE:+"$CUDNN_INCLUDE"/cudnn*}; do
    ln -sfn "$header" $kits/libraries
done
c=(zero/*.c zero/*/*.c zero/*/*/*.c dev/gpt2/*.c dev/trainer/*.c dev/data/*.c ${CUDNN_INCLUDE:+dev/device/cuda/*.c})
for file in dev/gpt2/*.cuh; do echo "#include \"${file#dev/}\""; done > $kits/model.cu

# ----------------------------------------------------------------------------------------------------------------------

for version in 12.4 12.5 12.6 12.8 12.9; do
    packages=()
    for part in runtime nvrtc nvcc; do packages+=("nvidia-cuda-$part-cu12==$version.*"); done
    check "CUDA $version: packages" get $version "${packages[@]}" || continue
    report "CUDA $version: ${#c[@]} C files" "$(c_files $version "${c[@]}" > $kits/c.log 2>&1 || echo "a warning")" \
        $kits/c.log
    for sm in 80 90; do
        check "CUDA $version: kernels of the module, sm_$sm" kernels $version $sm zero/kernels.cu -fmad=false
        check "CUDA $version: kernels of the model, FP32, sm_$sm" kernels $version $sm $kits/model.cu
        check "CUDA $version: kernels of the model, BF16, sm_$sm" kernels $version $sm $kits/model.cu -DPRECISION_BF16
    done
done

newest=(nvidia-cuda-{nvcc,crt,runtime,cccl} nvidia-nvvm nvidia-nvtx nvidia-cublas)
if check "newest CUDA 13: packages" get 13 "${newest[@]}"; then
    version=$($kits/13/nvidia/cu13/bin/nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    for precision in FP32 BF16; do
        build=$kits/build-${precision,,}
        check "CUDA $version: trainer and tests by make, $precision" \
            make DEVICE=cuda PRECISION=$precision CUDA_ARCH=90 CUDA_HOME="$PWD/$kits/13/nvidia/cu13" WERROR=1 \
            SETUP=true BUILD="$build" "$build"/{train_gpt2_zero,test_engine}
    done
fi

cp zero/kernels.cu $kits/planted.cu
echo '__global__ void planted(float *x) { __viaddmax_s64(x); }' >> $kits/planted.cu
echo '#include <cuda_runtime_api.h>
void planted(void) { cudaLaunchHostFunc(0); }' > $kits/planted.c
report "a fault in a kernel is found" "$(kernels 12.4 90 $kits/planted.cu > $kits/planted.log && echo "it is not")"
report "a fault in a C file is found" "$(c_files 12.4 $kits/planted.c > $kits/planted.log 2>&1 && echo "it is not")"
summary
