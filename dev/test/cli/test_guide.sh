#!/usr/bin/env bash
# zero/README.md, followed to the letter: its edits are applied to a copy of llm.c (apply_guide.awk), built there with
# its commands, and train_gpt2.c gives llm.c's losses on 1, 2 and 4 ranks in each stage. Where there is an nvcc,
# train_gpt2.cu compiles and links.
#
#     LLMC=DIR dev/test/cli/test_guide.sh TRAINER       DIR: a checkout of llm.c; TRAINER makes its model and data
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$1
llmc=$LLMC
unset EXTRA CFLAGS CXXFLAGS CPPFLAGS NVCCFLAGS LDFLAGS MAKEFLAGS MAKELEVEL DEVICE PRECISION SANITIZE LLMC
scripts/setup.sh pkg-config || exit 1
export OMP_NUM_THREADS=1 CC=gcc
NP=4
. scripts/env.sh
guide=$PWD/zero/README.md
allowed=1e-5

bash dev/test/cli/test_llmc_parity.sh "$trainer" --make "$work/files" || exit 1
mkdir -p "$work/llm.c"
cp -r "$llmc"/{Makefile,train_gpt2.c,train_gpt2.cu,llmc} "$work/llm.c"
cp "$work"/llm.c/train_gpt2.c "$work/original.c"
make SETUP=true DEVICE=cpu install PREFIX="$work/zero" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
export PKG_CONFIG_PATH=$work/zero/lib/pkgconfig

# follow SECTION FILE: applies its edits to a file of llm.c
follow() { (cd "$work/llm.c" && awk -v section="$1" -f "$edits" "$guide" "$2" > "$2.new" && mv "$2.new" "$2"); }
edits=$PWD/dev/test/cli/apply_guide.awk

# losses PROGRAM RANKS STAGE: its 46 losses, one a line
losses() {
    (cd "$work/files" && timeout -k 5 120 "${MPIRUN:-mpirun}" -np "$2" "$work/$1" "${3-}" 2>&1) |
        sed -nE 's/^step [0-9]+: train loss ([^ ]*).*/\1/p; s/^val loss (.*)/\1/p'
}
equal() {   # equal FILE: to llm.c's
    paste "$work/wanted" "$1" | awk -v allowed=$allowed '
        { d = $1 - $2; if (d < 0) d = -d; if (!(d <= worst)) worst = d; n += NF }
        END { print n / 2 " losses, largest difference " worst; exit !(n == 92 && worst <= allowed) }'
}
# The losses of a program are llm.c's.
trains() { losses "$@" > "$work/losses" && equal "$work/losses"; }

# The lines of `diff`, as the guide's table has them. counts ROW FILE
counts() {
    local added removed
    added=$(diff "$work/original.c" "$2" | grep -c '^>')
    removed=$(diff "$work/original.c" "$2" | grep -c '^<')
    echo "added $added, removed $removed"
    grep -F "$1" "$guide" | grep -qF "| $added | $removed |"
}

# llm.c's own Makefile, with the variables that the guide gives
builds() {
    (cd "$work/llm.c" && make train_gpt2 INCLUDES="$(pkg-config --cflags zero-cpu)" \
        LDLIBS="$(pkg-config --libs zero-cpu) -lm") && mv "$work/llm.c/train_gpt2" "$work/$1"
}

(cd "$work/llm.c" && make train_gpt2 > "$work/log" 2>&1) || { cat "$work/log"; exit 1; }
mv "$work/llm.c/train_gpt2" "$work/original"
losses original 1 > "$work/wanted"
check "the comparison accepts llm.c's own losses" equal "$work/wanted"
other_losses() { sed '40s/.$/9/; 40s/..$/99/' "$work/wanted" > "$work/changed" && ! equal "$work/changed"; }
check "the comparison notices one that differs by more than $allowed" other_losses

check "step 1: the edits apply" follow "Step 1: one unit" train_gpt2.c
check "step 1: the guide's counts of lines are right" counts "[step 1]" "$work/llm.c/train_gpt2.c"
check "step 1: it builds" builds step1
for ranks in 1 2 4; do
    check "step 1: llm.c's losses on $ranks ranks" trains step1 $ranks
done
refused() {
    (cd "$work/files" && ! timeout -k 5 120 "${MPIRUN:-mpirun}" -np 3 "$work/step1" > "$work/log" 2>&1) &&
        grep -q "has to divide the batch" "$work/log"
}
check "step 1: 3 ranks, which do not divide the batch, are refused" refused

check "step 2: the edits apply" follow "Step 2: one unit a layer" train_gpt2.c
check "step 2: the guide's counts of lines are right" counts "[step 2]" "$work/llm.c/train_gpt2.c"
check "step 2: it builds" builds step2
for stage in 0 1 2 3; do
    for ranks in 1 2 4; do
        check "step 2: llm.c's losses on $ranks ranks in stage $stage" trains step2 $ranks $stage
    done
done
# Work that the host has to wait for is done as late as it may be.
CUDA_ON_CPU_STREAMS=0 check "step 2: the host waits for what it reads" trains step2 2 3
poisoned() {
    sed -i 's/\.prefetch = 1/&, .delay_seed = 1/' "$work/llm.c/train_gpt2.c" && builds poisoned && trains poisoned 4 3
}
check "step 2: no pointer is used after its release" poisoned

nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)
if [ -n "$nvcc" ]; then
    cuda=${nvcc%/bin/nvcc}
    PATH=$cuda/bin:$PATH
    cp "$work/llm.c/train_gpt2.cu" "$work/original.c"
    check "train_gpt2.cu: the edits apply" follow 'In `train_gpt2.cu`' train_gpt2.cu
    check "train_gpt2.cu: the edit for CUDA 13 applies" follow 'In `llmc/cuda_utils.cuh`' llmc/cuda_utils.cuh
    check "train_gpt2.cu: the guide's counts of lines are right" counts "[on GPUs]" "$work/llm.c/train_gpt2.cu"
    mkdir "$work/driver"    # libnvidia-ml, which llm.c links, comes with the driver: an empty one
    gcc -shared -x c /dev/null -o "$work/driver/libnvidia-ml.so"
    links() (
        make SETUP=true DEVICE=cuda CUDA_ARCH=90 install PREFIX="$work/zero" && cd "$work/llm.c" && make train_gpt2cu \
            PRECISION=BF16 FORCE_NVCC_O=0 GPU_COMPUTE_CAPABILITY=90 NO_MULTI_GPU=1 NO_USE_MPI=1 \
            NVCC_INCLUDES="$(pkg-config --cflags zero-cuda)" \
            NVCC_LDLIBS="-cudart shared $(pkg-config --libs zero-cuda) -L$work/driver" && [ -x train_gpt2cu ]
    )
    check "train_gpt2.cu compiles and links" links
fi
summary
