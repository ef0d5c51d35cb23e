#!/usr/bin/env bash
# Executes nvcc's PTX of every kernel without a GPU: as a GPU's driver would get it, and not what g++ makes of the
# source. Needs nvcc; .ci/run runs it where that is found. Writes to build/ptx, and to the builds of DEVICE=emulated.
#
#     dev/test/ptx/check_ptx.sh
#
#   1. nvcc compiles the trainer, the module and the tests to PTX, for sm_80, with the flags of a real build.
#      translate.py makes C++ of it, and the tests of the emulated GPU are linked with that: the same references,
#      tolerances, bits and diagnoses.
#   2. Each entry of each PTX file must have been executed. (Entries with the same instructions count as one.)
#   3. Faults planted in the PTX of real kernels must be found by these tests. An instruction that is not known, an
#      entry that was not executed and a kernel without PTX must be named.
#
# Not modelled: order of memory accesses between threads that a barrier does not order, rounding inside mma, errors of
# the approximate instructions, what ptxas makes of the PTX.
#
# Ends with "N passed, N failed"; exit status 0 only if nothing failed.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh

for tool in nvcc:"${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" python3:; do
    command -v "${tool%%:*}" > /dev/null || [ -x "${tool#*:}" ] || { echo "$0: no ${tool%%:*}"; exit 3; }
done
arch=sm_80
text=dev/data/text/default.txt
root=build/ptx
translate="python3 -B dev/test/ptx/translate.py"
began=$SECONDS
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_WAIT_POLICY=passive

model="train_gpt2_zero test_gpt2_zero dev/test/unit/test_model"
declare -A sources programs
sources[fp32]="zero/kernels $model dev/test/emulator/test_emulator"
sources[bf16]="zero/kernels $model dev/test/unit/test_attention dev/test/emulator/test_mma"
programs[fp32]="train_gpt2_zero test_gpt2_zero test_model test_emulator test_kernels"
programs[bf16]="train_gpt2_zero test_gpt2_zero test_model test_attention test_mma"

# ----------------------------------------------------------------------------------------------------------------------
# 1. PTX and C++

ptx_of() { echo "$root/$1/cuda/$2.ptx"; }

compile_ptx() {     # PRECISION SOURCES...
    local files=() s
    for s in "${@:2}"; do files+=("$(ptx_of "$1" "$s")"); done
    make SETUP=true DEVICE=cuda PRECISION="${1^^}" USE_CUDNN=0 GENCODE=-arch=$arch BUILD=$root/"$1"/cuda \
        --no-print-directory "${files[@]}"
}

translate_ptx() {   # PRECISION SOURCES...
    local files=() s
    for s in "${@:2}"; do files+=("$(ptx_of "$1" "$s"):$s.cu"); done
    $translate --output $root/"$1" "${files[@]}"
}

# make_programs PRECISION PROGRAMS...
make_programs() {
    local p paths=()
    for p in "${@:2}"; do paths+=("$root/$1/$p"); done
    make SETUP=true DEVICE=emulated PRECISION="${1^^}" PTX_DIR=$root/"$1" --no-print-directory "${paths[@]}"
}

for precision in fp32 bf16; do
    mkdir -p $root/$precision
    rm -f $root/$precision/{ptx,fault}_* $root/$precision/executed.txt
    # shellcheck disable=SC2086
    check "PTX of nvcc, $arch, $precision" compile_ptx $precision ${sources[$precision]}
    # shellcheck disable=SC2086
    check "all of it is understood, $precision" translate_ptx $precision ${sources[$precision]}
done

# ----------------------------------------------------------------------------------------------------------------------
# 3. Faults. In an entry, the nth match of a pattern is replaced (0: all); a case of a program must fail.

faults=()
# plant NAME PRECISION SOURCE ENTRY NTH PATTERN TEXT PROGRAM CASE
plant() {
    local n=$((${#faults[@]} + 1))
    faults+=("$1|$2|$8|$9")
    check "planted: $1" $translate --output $root/"$2" --fault $n --entry "$4" --nth "$5" --replace "$6" "$7" \
        "$(ptx_of "$2" "$3"):$3.cu"
}

module=zero/kernels model=dev/test/unit/test_model attention=dev/test/unit/test_attention
number='[^,;]*'
vector='\{[^}]*\}'
plant "no barrier in block_sum" fp32 $model 17classifier_kernel 3 'bar\.sync\s+0;' '' test_model classifier
plant "no barrier before shared memory is used again" fp32 dev/test/emulator/test_emulator 11sums_kernel 0 \
    'bar\.sync\s+0;' '' test_emulator every_thread
plant "a shuffle down instead of across" fp32 $model 24layernorm_forward_kernel 1 'shfl\.sync\.bfly' 'shfl.sync.down' \
    test_model layernorm
plant "a shuffle by another distance" fp32 $model 24layernorm_forward_kernel 1 \
    "(shfl\.sync\.bfly\.b32\s+$number, $number,) $number" '\1 3' test_model layernorm
plant "a misaligned vector load" fp32 $model 15residual_kernel 1 \
    "(ld\.global(?:\.nc)?\.v4\.\w+\s+$vector, \[%rd\d+)\]" '\1+4]' test_model elementwise
plant "a misaligned vector store" fp32 $model 15residual_kernel 1 '(st\.global\.v4\.\w+\s+\[%rd\d+)\]' '\1+8]' \
    test_model elementwise
plant "a bound too high by one pack" fp32 $model 15residual_kernel 0 'setp\.lt\.u64' 'setp.le.u64' \
    test_model elementwise
plant "a bound too low by one pack" fp32 $model 15residual_kernel 1 \
    'setp\.ge\.u64(\s+%p\d+, %rd\d+), (%rd\d+);' 'sub.s64 \2, \2, 8; setp.ge.u64\1, \2;' test_model elementwise
plant "a branch is taken where it must not be" fp32 $model 15residual_kernel 2 '@(%p\d+ bra)' '@!\1' \
    test_model elementwise
plant "another parameter" fp32 $model 15residual_kernel 1 '_param_1\]' '_param_2]' test_model elementwise
plant "the read-only path to what the kernel writes" fp32 $module '16optimizer_kernelI5adamwf' 0 \
    'ld\.global\.v4' 'ld.global.nc.v4' test_kernels adamw_is
plant "a sum that loses additions" fp32 $module 17square_sum_kernel 0 \
    "atom\.shared\.add\.u64\s+%rd\d+, (\[[^]]*\]), ($number);" 'st.shared.u64 \1, \2;' test_kernels square_sum
plant "a product and a sum become one rounding" fp32 $module 15rounding_kernel 1 \
    '(mul\.rn\.f32\s+(%f\d+), (%f\d+), (%f\d+);(?:.|\n)*?)add\.rn\.f32(\s+%f\d+), \2, (%f\d+);' \
    '\1fma.rn.f32\5, \3, \4, \6;' test_kernels products
plant "a shared array too short by one" fp32 dev/test/emulator/test_emulator 11sums_kernel 1 \
    '(\.shared \.align 4 \.b8 [\w$]+)\[128\]' '\1[124]' test_emulator every_thread
plant "halves of a pair of bf16 swapped" bf16 $model 15residual_kernel 1 \
    '(cvt\.rn\.bf16x2\.f32 %r\d+), (%f\d+), (%f\d+)' '\1, \3, \2' test_model elementwise
plant "mma: rows of an operand swapped" bf16 $attention 'flash_forward_kernelILi64E' 0 \
    "(mma\.sync\S+\s+$vector, \{)(%r\d+), *(%r\d+)" '\1\3, \2' test_attention attention_kernel
plant "mma: sums that begin again" bf16 $attention 'flash_dq_kernelILi64E' 0 \
    "(mma\.sync\S+\s+$vector, *$vector, *$vector, )$vector" '\1{0f00000000, 0f00000000, 0f00000000, 0f00000000}' \
    test_attention attention_kernel
plant "ldmatrix: a matrix is not transposed" bf16 $attention 'flash_forward_kernelILi64E' 1 \
    'ldmatrix(\S+)\.trans' 'ldmatrix\1' test_attention attention_kernel
plant "ldmatrix: a row that is misaligned" bf16 $attention 'flash_dkv_kernelILi64E' 1 \
    "(ldmatrix\S+\s+$vector, \[%r\d+)\]" '\1+2]' test_attention attention_kernel
plant "cp.async: no wait" bf16 $attention 'flash_forward_kernelILi64E' 0 'cp\.async\.wait_group\s+0;' '' \
    test_attention attention_kernel
plant "cp.async: no commit" bf16 $attention 'flash_dq_kernelILi64E' 0 'cp\.async\.commit_group;' '' \
    test_attention attention_kernel
plant "cp.async: rows after the last are read" bf16 $attention 'flash_forward_kernelILi64E' 0 \
    "(cp\.async\.cg\S+\s+\[%r\d+\], *\[%rd\d+\], *16,) *%r\d+" '\1 16' test_attention attention_kernel
plant "no barrier between tiles" bf16 $attention 'flash_dkv_kernelILi64E' 0 'bar\.sync\s+0;' '' \
    test_attention attention_kernel
plant "no bar.warp.sync before rows are stored" bf16 $attention 'flash_forward_kernelILi64E' 0 \
    'bar\.warp\.sync\s+-1;' '' test_attention attention_kernel

# An instruction and a modifier that no GPU has.
for edit in 'add\.s32|addx.s32|unknown instruction' 'add\.s32|add.cc.s32|unknown modifiers' \
    'ld\.global|ld.weak.global|unknown modifiers'; do
    IFS='|' read -r pattern replacement message <<< "$edit"
    $translate --output $root/fp32 --fault 999 --entry 24layernorm_forward_kernel --replace "$pattern" "$replacement" \
        "$(ptx_of fp32 $model):$model.cu" > $root/unknown.log 2>&1
    report "found: $replacement" "$(grep -q "$message" $root/unknown.log || echo "translated")" $root/unknown.log
done
rm -f $root/fp32/fault_999.cpp

# ----------------------------------------------------------------------------------------------------------------------
# Programs, and what they say without a fault

for precision in fp32 bf16; do
    # shellcheck disable=SC2086
    check "programs with it, $precision" make_programs $precision ${programs[$precision]}
done

# run PRECISION RANKS PROGRAM ARGUMENTS...
run() {
    local mpirun=()
    [ "$2" = 1 ] || mpirun=(mpirun -np "$2")
    NP=$2
    . scripts/env.sh
    PTX_EXECUTED=$root/$1/executed.txt timeout -k 10 300 "${mpirun[@]}" "$root/$1/$3" "${@:4}"
}

# The same state on one rank and sharded over two.
same_state() {
    local tiny="-e custom:l2,h1,c64,v256,t16 -i $text -b 1 -t 16 -d 32 -x 2 -v 0 -s 0 --hash 1"
    # shellcheck disable=SC2086
    run "$1" 1 train_gpt2_zero -z 0 $tiny > "$mine/1" && run "$1" 2 train_gpt2_zero -z 3 $tiny > "$mine/2" || {
        cat "$mine"/*
        return 1
    }
    grep -h "state hash" "$mine/1" && diff <(grep "state hash" "$mine/1") <(grep "state hash" "$mine/2")
}

for precision in fp32 bf16; do
    for p in ${programs[$precision]}; do
        case $p in
        train_gpt2_zero) at_once "the trainer, $precision, the same state sharded" same_state $precision ;;
        test_gpt2_zero) at_once "$p, $precision, 2 ranks" run $precision 2 $p ;;
        # Its other cases count what the C++ asks of memory.
        test_attention) at_once "$p, $precision" run $precision 1 $p --case attention ;;
        *) at_once "$p, $precision" run $precision 1 "$p" ;;
        esac
    done
done
all_done

# ----------------------------------------------------------------------------------------------------------------------
# 2. Every entry

# not_executed ENTRIES EXECUTED: the entries without a launch
not_executed() { awk 'NR == FNR { hash[$1]; next } !($1 in hash) { print $2 ": " $3 }' "$2" "$1" | c++filt -p; }

# executed_of PRECISION GPU DIRECTORY: lines for gpu_status.py
executed_of() {
    awk -v p="$1" -v gpu="$2" 'NR == FNR { hash[$1]; next } $1 in hash { print "ptx", p, gpu, $2, $3 }' \
        $hashes "$3"/entries.txt
}

# What check_cuda.sh has compiled for other GPUs counts as executed where it is the same instructions.
mkdir -p build/evidence
: > build/evidence/ptx.txt
hashes=$root/executed.txt
sort -u $root/*/executed.txt > $hashes
for precision in fp32 bf16; do
    dir=$root/$precision
    report "all $(wc -l < $dir/entries.txt) entries were executed, $precision" \
        "$(not_executed $dir/entries.txt $hashes | tr '\n' ' ')"
    grep -v "$(awk 'END { print $1 }' $dir/entries.txt)" $hashes > $dir/all_but_one.txt
    report "found: an entry that is not executed, $precision" \
        "$([ -n "$(not_executed $dir/entries.txt $dir/all_but_one.txt)" ] || echo "not named")"
    executed_of $precision $arch $dir >> build/evidence/ptx.txt
    for other in sm_90 sm_100; do   # nvcc chooses other instructions for sm_100
        made=build/check_cuda/$precision-$other
        [ -e $made/train_gpt2_zero.ptx ] || continue
        mkdir -p $dir/$other
        check "$other is understood, $precision" $translate --output $dir/$other \
            $made/zero/kernels.ptx:zero/kernels.cu $made/train_gpt2_zero.ptx:train_gpt2_zero.cu
        executed_of $precision $other $dir/$other >> build/evidence/ptx.txt
        echo "      of $(wc -l < $dir/$other/entries.txt) entries for $other" \
            "$(executed_of $precision $other $dir/$other | wc -l) have the same instructions, and count as executed"
    done
done

# ----------------------------------------------------------------------------------------------------------------------
# What they say with a fault

# must_find N PRECISION PROGRAM CASE: the program must fail, by a case or by a diagnosis, not by a time-out.
must_find() {
    local status found
    PTX_FAULT=$1 timeout -k 10 120 "$root/$2/$3" --case "$4" > "$mine/log" 2>&1
    status=$?
    found=$(grep -m 1 -oE '^FAIL .*|emulated GPU: .*|AddressSanitizer: [^ ]*|runtime error.*' "$mine/log")
    [ $status != 0 ] && [ $status != 124 ] && [ -n "$found" ] || {
        echo "planted, but not found: exit status $status"
        return 1
    }
}

n=0
for fault in "${faults[@]}"; do
    IFS='|' read -r name precision program case <<< "$fault"
    at_once "found: $name" must_find $((++n)) "$precision" "$program" "$case"
done
all_done

echo "$((SECONDS - began)) s"
summary
