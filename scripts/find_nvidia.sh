#!/bin/sh
# Finds NVIDIA's libraries: in the CUDA toolkit, in the system's packages, in conda environments, and in pip's packages
# (site-packages/nvidia, with a libcudnn.so.9 but no plain libcudnn.so).
#
#     scripts/find_nvidia.sh NVCC
#
# Prints CUDA_MAJOR=13, then for each of CUDART, CUBLASLT, CUDNN and NCCL, if it is found:
#
#     CUDNN_INCLUDE=/usr/include/x86_64-linux-gnu
#     CUDNN_LIBRARY=/usr/lib/x86_64-linux-gnu/libcudnn.so.9
#
# Header and library come from the first place that has both, cuDNN of 9.10 or later, NCCL of 2.19 or later: CUDA_HOME,
# NVCC's toolkit, the parents of the directories in CPATH, CONDA_PREFIX, /usr/local, /usr, and those of python3's
# packages that are made for this major version of CUDA. If CUDNN_HOME or NCCL_HOME is set, that library is only
# searched there. SYSROOT=DIR stands for / (for tests).
set -u
nvcc=$1
machine=$(uname -m)
triple=$machine-linux-gnu
target=$machine-linux
[ "$machine" != aarch64 ] || target=sbsa-linux
major=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\).*/\1/p')
real=$(readlink -f "$nvcc")
sites=$(python3 -c 'import sys; print(*sys.path[1:], sep="\n")' 2> /dev/null)

# new_enough DIRECTORY HEADER VERSION: the header, or HEADER_version.h beside it, defines ..._MAJOR and ..._MINOR
new_enough() {
    cat "$1/${2%.h}".h "$1/${2%.h}"_version*.h 2> /dev/null | awk -v least="$3" '
        $1 == "#define" && $2 ~ /^[A-Z]*_MAJOR$/ { major = $3 }
        $1 == "#define" && $2 ~ /^[A-Z]*_MINOR$/ { minor = $3 }
        END { split(least, l, "."); exit !(major == "" || major > l[1] || major == l[1] && minor >= l[2] + 0) }'
}

# search NAME HEADER LIBRARY VERSION ROOT...: prints the first ROOT that has both, of this version or later
search() {
    name=$1 header=$2 library=$3 version=$4
    shift 4
    for root in "$@"; do
        for include in "$root/include" "$root/include/$triple" "$root/targets/$target/include"; do
            [ -e "$include/$header" ] && new_enough "$include" "$header" "$version" || continue
            for lib in "$root/lib64" "$root/lib" "$root/lib/$triple" "$root/targets/$target/lib"; do
                if [ -e "$lib/$library" ]; then
                    echo "${name}_INCLUDE=$include"
                    echo "${name}_LIBRARY=$lib/$library"
                    return
                fi
            done
        done
    done
}

# pip_roots PACKAGE: nvidia/PACKAGE is made for the CUDA in its package's name, nvidia/cu13 for CUDA 13
pip_roots() {
    for site in $sites; do
        for info in "$site/nvidia_$1_cu$major"-*.dist-info; do
            [ ! -e "$info" ] || echo "$site/nvidia/$1"
        done
        echo "$site/nvidia/cu$major"
    done
}

# find NAME PACKAGE HEADER LIBRARY VERSION
find() {
    eval "home=\${$1_HOME:-}"
    if [ -n "$home" ]; then
        search "$1" "$3" "$4" "$5" "$home"
        return
    fi
    # shellcheck disable=SC2046,SC2086
    search "$1" "$3" "$4" "$5" ${CUDA_HOME:-} "${nvcc%/bin/nvcc}" "${real%/bin/nvcc}" \
        $(echo "${CPATH:-}" | tr : '\n' | sed -n 's,/include/*$,,p') ${CONDA_PREFIX:-} \
        "${SYSROOT:-}/usr/local" "${SYSROOT:-}/usr" $(pip_roots "$2")
}

echo "CUDA_MAJOR=$major"
find CUDART cuda_runtime cuda_runtime.h "libcudart.so.$major" 0
find CUBLASLT cublas cublasLt.h "libcublasLt.so.$major" 0
find CUDNN cudnn cudnn.h libcudnn.so.9 9.10
find NCCL nccl nccl.h libnccl.so.2 2.19
