#!/usr/bin/env bash
# Faults planted in attention on tensor cores must be found by test_attention.
#
#     test_planted_attention.sh [TEST_ATTENTION]       (build/emulated-bf16/test_attention, which must pass)
#
# Each fault is an edit, by sed, of a copy of dev/gpt2/flash_attention.cuh or dev/device/cpu/tensor_cores.cpp. All of
# them are planted in one program, and PLANTED=n in its environment chooses one: in the edits, FAULT is true for the
# chosen one. It is found if the test fails, stops or is stopped by a sanitizer, in one of two schedules. With PLANTED=0
# the program must pass.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh

program=${1:-build/emulated-bf16/test_attention}
build=${program%/*}
planted=$build/planted_attention
name=$(basename "$program")
case=attention_kernel

names=()
mkdir -p "$planted/gpt2"
for file in gpt2/flash_attention.cuh tensor_cores.cpp; do
    {
        echo "#include <cstdlib>"
        echo 'static const int planted = getenv("PLANTED") ? atoi(getenv("PLANTED")) : 0;'
        cat "dev/$file" "dev/device/cpu/$file" 2> /dev/null
    } > "$planted/$file"
done

# plant NAME FILE EXPRESSION: sed -E with the expression must change FILE
plant() {
    names+=("$1")
    local expression=${3//FAULT/planted == ${#names[@]}}
    sed -E "$expression" "$planted/$2" > "$planted/edited"
    ! cmp -s "$planted/$2" "$planted/edited" || report "$1" "the edit changes nothing: adapt $0"
    mv "$planted/edited" "$planted/$2"
}

flash=gpt2/flash_attention.cuh
emulator=tensor_cores.cpp
in_forward='/ flash_forward_kernel\(/,/^}/'
in_dq='/ flash_dq_kernel\(/,/^}/'
in_dkv='/ flash_dkv_kernel\(/,/^}/'
in_loop='/^    for \(int [kq]0/,/^    }/'
wait='s/^( +copy_wait<0>)/    if (!(FAULT)) \1/'
barrier='s/^( +__syncthreads)/    if (!(FAULT)) \1/'

plant "forward: no copy_wait" $flash "$in_forward $wait"
plant "forward: a wait for one group less" $flash \
    "$in_forward { $in_loop s/copy_wait<0>\(\);/if (FAULT) copy_wait<1>(); else copy_wait<0>();/ }"
plant "dq: no copy_wait in the loop" $flash "$in_dq { $in_loop $wait }"
plant "dk, dv: no copy_wait in the loop" $flash "$in_dkv { $in_loop $wait }"
plant "forward: no copy_commit" $flash "$in_forward s/copy_commit\(\);/if (!(FAULT)) copy_commit();/"
plant "forward: no barrier in the loop" $flash "$in_forward { $in_loop $barrier }"
plant "dq: no barrier in the loop" $flash "$in_dq { $in_loop $barrier }"
plant "dk, dv: no barrier in the loop" $flash "$in_dkv { $in_loop $barrier }"
plant "dq: no barrier before the loop" $flash "$in_dq s/^    __syncthreads/    if (!(FAULT)) __syncthreads/"
plant "forward: the next tile comes to the place of this one" $flash \
    "$in_forward s/(copy\(k0 \+ COLS, shared \+) 2 \* TILE - now\)/\1 (FAULT ? now : 2 * TILE - now))/"
plant "forward: the output goes over a tile in use" $flash \
    "$in_forward s/shared \+ now \+ 16 \* warp/shared + (FAULT ? 2 * TILE - now : now) + 16 * warp/"
plant "no __syncwarp before the rows are stored" $flash \
    '/^DEV void store_rows/,/^}/ s/^( +)__syncwarp\(\);$/\1if (!(FAULT)) __syncwarp();/'
plant "halves of an operand swapped" $flash \
    's/pack_bf16\(sums\[2 \* k\]\[0\], sums\[2 \* k\]\[1\]\)/pack_bf16(sums[2 * k][FAULT], sums[2 * k][!(FAULT)])/'
plant "rows and columns of an operand swapped" $flash \
    '/round_to_operands\(uint32_t/,/^}/ { s/a\[k\]\[1\]/a[k][FAULT ? 2 : 1]/; s/a\[k\]\[2\]/a[k][FAULT ? 1 : 2]/ }'
plant "columns swapped" $flash '/^DEV void add_weighted/,/^}/ s/col\[0\], col\[1\]/col[FAULT], col[!(FAULT)]/'
plant "a matrix is not transposed" $flash \
    '/^DEV void add_weighted/,/^}/ s/ldmatrix_transposed(\(.*)$/if (FAULT) ldmatrix\1 else ldmatrix_transposed\1/'
plant "addresses of ldmatrix in another order" $flash \
    's/(\* STRIDE<HS> \+ 16 \* k \+) lane \/ 16 \*/\1 (FAULT ? 1 - lane \/ 16 : lane \/ 16) */'
plant "rows after the last are read" $flash 's/from, row < valid\)/from, FAULT || row < valid)/'
plant "a warp without rows returns" $flash "$in_forward s/^    clear\(o\);/    if (FAULT \&\& mine < 0) return;\n&/"
plant "half of a warp multiplies" $flash \
    '/^DEV void add_weighted/,/^}/ s/^( +)mma\(sums\[2 \* n\],/\1if (!(FAULT) || lane < 16) mma(sums[2 * n],/'
plant "forward: no mask" $flash '/^DEV void forward_tile/,/^}/ s/if \(!WHOLE\) mask/if (!WHOLE \&\& !(FAULT)) mask/'
plant "dk, dv: the mask is turned" $flash 's/mask<false>(\(.*)$/{ if (FAULT) mask<true>\1 else mask<false>\1 }/'
plant "dk, dv: a tile on the diagonal is taken for a whole one" $flash "$in_dkv s/g\.cut < 0 &&/g.cut < (FAULT) \&\&/"
plant "forward, dq: a group too few" $flash 's/min\(cut \+ 1, COLS/min(FAULT ? cut : cut + 1, COLS/'
plant "dk, dv: a group too few" $flash 's/\(T - q0 \+ 15\) \/ 16/(T - q0 + (FAULT ? 0 : 15)) \/ 16/'
plant "old sums are not shrunk" $flash 's/o\[n\]\[2 \* r\] \*= shrink;/if (!(FAULT)) o[n][2 * r] *= shrink;/'
plant "half of a row's sum" $flash \
    's/return v \+ __shfl_xor_sync\(0xffffffffu, v, 2\);/return FAULT ? v : v + __shfl_xor_sync(0xffffffffu, v, 2);/'
plant "statistics after the last query" $flash 's/q0 \+ col < T\)/FAULT || q0 + col < T)/'
plant "the emulated product: rows and columns of a" $emulator \
    's/g \+ i % 2 \* 8\]\[2 \* t \+ i \/ 2 \* 8/g + (FAULT ? i \/ 2 : i % 2) * 8][2 * t + (FAULT ? i % 2 : i \/ 2) * 8/'
plant "the emulated product: columns of d" $emulator \
    's/b\[2 \* t \+ i % 2\]\[k\]/b[FAULT ? t + i % 2 * 4 : 2 * t + i % 2][k]/'
plant "the emulated ldmatrix: pairs" $emulator 's/row\[2 \* t\] \|/row[FAULT ? t : 2 * t] |/'

# The commands that the Makefile has for objects and program, with the planted headers first.
commands() { make -Bn --no-print-directory SETUP=true V=1 DEVICE=emulated PRECISION=BF16 "$1"; }
compile() {
    local words
    words=$(commands "$build/$1.o" | grep -- "-c $1\.") || return
    words=$(sed -E "s| -c [^ ]+ -o [^ ]+| -iquote $planted -w -Wno-error -c $2 -o $3|; s/ -MMD -MP//" <<< "$words")
    eval "$words"
}
link() {
    local words
    words=$(commands "$program" | sed -e ':a' -e '/\\$/N; s/\\\n//; ta' | grep -- "-o $program ") || return
    words=${words/ $build\/dev\/test\/unit\/$name.o / $planted\/test.o $planted\/emulator.o }
    eval "${words/ -o $program / -o $planted\/test }"
}
check "the program with all faults compiles" compile "dev/test/unit/$name" "dev/test/unit/$name.cu" "$planted/test.o"
check "the emulator with all faults compiles" compile dev/device/cpu/tensor_cores "$planted/tensor_cores.cpp" \
    "$planted/emulator.o"
check "they link" link
check "passes if none is chosen" env PLANTED=0 timeout 300 "$planted/test" --case $case

for ((n = 1; n <= ${#names[@]}; n++)); do
    what=${names[n - 1]} found=
    selected "$what" && [ -x "$planted/test" ] || continue
    for schedule in 0 1; do
        output=$(PLANTED=$n CUDA_ON_CPU_SCHEDULE=$schedule timeout 300 "$planted/test" --case $case 2>&1) || {
            found=$(grep -m 1 -oE 'emulated GPU: .*|AddressSanitizer: [^ ]*|runtime error.*|[^,]*: error [0-9.naif]+' \
                <<< "$output" || echo "another way")
            break
        }
    done 2> /dev/null
    report "$what${found:+: $(cut -c 1-90 <<< "$found")}" "$([ -n "$found" ] || echo "planted, but not found")"
done

rm -rf "$planted"
summary
