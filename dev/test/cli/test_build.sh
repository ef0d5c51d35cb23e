#!/usr/bin/env bash
# Tests what the Makefile promises: flags from outside cannot make the module round differently; objects made for
# another CPU are rebuilt; a program reports that the CPU lacks its instructions; and WERROR, DEBUG and SANITIZE.
#
#     dev/test/cli/test_build.sh
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
unset EXTRA CFLAGS CXXFLAGS CPPFLAGS NVCCFLAGS LDFLAGS MARCH WERROR DEBUG SANITIZE MAKEFLAGS MAKELEVEL

cpu=(SETUP=true DEVICE=cpu PRECISION=FP32 --no-print-directory)
build() { make "${cpu[@]}" BUILD="$work/build" "$@" > "$work/log" 2>&1; }
# command_of OBJECT [VARIABLE=VALUE...]: the command that compiles it
command_of() {
    make "${cpu[@]}" BUILD="$work/none" -n V=1 "${@:2}" "$work/none/$1" 2> /dev/null | grep -e "-o $work/none/$1"
}

# ----------------------------------------------------------------------------------------------------------------------
# a * b + c stays two roundings

last=" -ffp-contract=off"
for object in zero/kernels.o zero/state.o dev/test/harness/baseline.o; do
    [ -e "${object%.o}.c" ] || [ -e "${object%.o}.cu" ] || report "$object" "there is no such source"
    wrong=
    for flags in EXTRA=-g CFLAGS=-g CXXFLAGS=-g "EXTRA=-ffp-contract=fast" LAST= NO_FMA_CU= HOST_FAST=-O2; do
        [[ $(command_of $object "$flags") == *"$last" ]] || wrong="$wrong $flags"
        [[ $(export "${flags?}" && command_of $object) == *"$last" ]] || wrong="$wrong $flags (environment)"
    done
    report "$object: nothing comes after -ffp-contract=off" "$wrong"
done

fused='\b(vfn?m(add|sub)|fn?m(add|sub)|fml[as])'
march=$([ "$(uname -m)" = x86_64 ] && echo x86-64-v3 || echo native)
for object in zero/kernels.o dev/test/harness/baseline.o; do
    flags=(MARCH="$march" EXTRA="-g -ffp-contract=fast" CXXFLAGS=-std=gnu++17 CFLAGS=-std=gnu11)
    build "${flags[@]}" "$work/build/$object"
    n=$(objdump -d "$work/build/$object" | grep -cE "$fused")
    report "$object: no fused multiply-add in the machine code" "$([ "$n" = 0 ] || echo "$n")" "$work/log"
    mkdir -p "$work/none/${object%/*}"
    eval "$(command_of $object "${flags[@]}" | sed 's/-ffp-contract=off$//')"
    n=$(objdump -d "$work/none/$object" | grep -cE "$fused")
    report "$object: there would be, without the flag" "$([ "$n" != 0 ] || echo "none: this test sees nothing")"
done

for flags in EXTRA=-ffast-math CFLAGS=-Ofast CXXFLAGS=-funsafe-math-optimizations "CXX=g++ -ffast-math" \
    EXTRA=-Xcompiler=-ffast-math "EXTRA=-Xcompiler '-g,-ffinite-math-only'" EXTRA=--use_fast_math; do
    build -n "$flags" all
    report "$flags is refused" "$(grep -q "promises the same bits" "$work/log" || echo "it is not")" "$work/log"
done

for flags in EXTRA=-fno-fast-math CFLAGS=-fno-unsafe-math-optimizations; do
    build -n "$flags" all
    report "$flags is accepted" "$(grep "promises the same bits" "$work/log")" "$work/log"
done

# ----------------------------------------------------------------------------------------------------------------------
# make run

for np in 0 -1 two ""; do
    build -n run NP="$np"
    report "make run NP=$np is refused" \
        "$(grep -q "NP=$np: NP is the number of ranks" "$work/log" || echo "it is not")" "$work/log"
done
build -n run NP=3 RUN_DIR="$work/a b" MPIRUN="printf '%s\\n'"
grep -e ^mkdir.*/a -e '-np 3' "$work/log" > "$work/run.sh"
sh "$work/run.sh" > "$work/words" 2>&1
report "RUN_DIR with a space" "$([ -d "$work/a b" ] && grep -qx "$work/a b" "$work/words" || echo "it is split")" \
    "$work/words"

# ----------------------------------------------------------------------------------------------------------------------
# The CPU

object=$work/build/dev/data/random.o
build "$object"
build "$object"
report "nothing changed: nothing is rebuilt" "$(grep compile "$work/log")"
build "$object" EXTRA=-g
report "other flags: rebuilt" "$(grep -q compile "$work/log" || echo "it is not")"
build "$object"
mkdir "$work/bin"
# shellcheck disable=SC2016
printf '#!/bin/sh\nfor a; do shift; [ "$a" != -march=native ] || a=-march=%s; set -- "$@" "$a"; done\nexec %s "$@"\n' \
    "$([ "$(uname -m)" = x86_64 ] && echo x86-64 || echo armv8-a)" "$(command -v gcc)" > "$work/bin/gcc"
chmod +x "$work/bin/gcc"
PATH="$work/bin:$PATH" build "$object"
report "another CPU: rebuilt" "$(grep -q compile "$work/log" || echo "it is not")"

# check NAME STATUS OUTPUT ARGUMENTS...: a program with the check_cpu.o that make builds with ARGUMENTS
echo 'int main(void) { return 0; }' > "$work/main.c"
check() {
    local output status
    build "${@:4}" "$work/build/check_cpu.o"
    gcc "$work/main.c" "$work/build/check_cpu.o" -o "$work/program" 2>> "$work/log"
    output=$("$work/program" 2>&1)
    status=$?
    [ $status = "$2" ] && grep -qxE -- "$3" <<< "$output" && status=
    report "$1" "${status:+exit status $status, $output}" "$work/log"
}
check "this CPU's instructions: runs" 0 ""
if [ "$(uname -m)" = x86_64 ]; then
    other=$(for f in xop avx512f; do grep -q " $f " /proc/cpuinfo || echo $f; done | head -n 1)
    message="error: this program was built for a CPU with.* $other.*make clean.*"
    check "-m$other, which this CPU lacks: a message" 1 "$message" EXTRA="-m$other"
    check "-m$other for C++ only" 1 "$message" CXXFLAGS="-m$other"
fi
build -n V=1 "$work/build/tokenize_text"
linked=" $work/build/check_cpu.o -o $work/build/tokenize_text"
report "programs are linked with it" "$(grep -q -e "$linked" "$work/log" || echo "they are not")"

# ----------------------------------------------------------------------------------------------------------------------
# Kinds of builds

# compiles NAME FILE WANTED UNWANTED ARGUMENTS...: the command that makes FILE has the flags WANTED, but not UNWANTED
compiles() {
    make "${cpu[@]}" -n -B V=1 "${@:5}" "$2" > "$work/log" 2>&1
    local line
    line=$(grep -e "-o $2" "$work/log")
    [[ " $line " == *" $3 "* && " $line " != *" $4 "* ]] && line=
    report "$1" "${line:+without $3, or with $4: $line}" "$work/log"
}
compiles "warnings are no errors" build/cpu-fp32/zero/zero.o -Wall -Werror
compiles "with WERROR=1 they are" build/cpu-fp32/zero/zero.o -Werror -w WERROR=1
compiles "DEBUG=1" build/cpu-fp32-debug/zero/zero.o "-O0 -g" -O3 DEBUG=1
for sanitizer in address undefined thread; do
    for file in build/cpu-fp32-$sanitizer/{zero/zero.o,test_layout}; do
        compiles "SANITIZE=$sanitizer, ${file##*/}" "$file" -fsanitize=$sanitizer -O0 SANITIZE=$sanitizer
    done
done

summary
