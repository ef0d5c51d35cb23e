#!/usr/bin/env bash
# make install-into LLMC=DIR: zero.c builds in a checkout of llm.c, whose own files, goals and builds stay as they are.
#
#     dev/test/cli/test_install_into.sh          into a small tree that looks like llm.c's; nothing large is built
#     LLMC=DIR dev/test/cli/test_install_into.sh  into a copy of this checkout of llm.c, and builds and trains there
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
unset EXTRA CFLAGS CXXFLAGS CPPFLAGS NVCCFLAGS LDFLAGS MAKEFLAGS MAKELEVEL DEVICE PRECISION
guest=$work/guest
log=$work/log
llmc=${LLMC-}
unset LLMC
ours=(train_gpt2_zero.cu test_gpt2_zero.cu Makefile.zero zero build_zero train_gpt2_zero test_gpt2_zero)

# A tree with the names that a pattern for our own files would match.
stand_in() {
    mkdir -p "$guest"/{llmc,dev/{cuda,test,data,eval},scripts/multi_node,build}
    echo 'void other(void);' | tee "$guest"/train_gpt2.cu "$guest"/test_gpt2.cu "$guest"/llmc/zero.cuh \
        "$guest"/dev/cuda/adamw.cu "$guest"/dev/test/test_dataloader.c "$guest"/dev/data/tool.c > /dev/null
    echo 'int main(void) { return 0; }' > "$guest/train_gpt2.c"
    printf '# not ours\n' | tee "$guest/README.md" "$guest/.gitignore" "$guest/scripts/run_gpt2_124M.sh" > /dev/null
    printf 'all: train_gpt2 build/a.o\ntrain_gpt2: train_gpt2.c\n\t$(CC) $< -o $@\nbuild/a.o: train_gpt2.c\n%s' \
        $'\t$(CC) -c $< -o $@\nclean:\n\trm -f train_gpt2 build/*.o\n' > "$guest/Makefile"
}
if [ -z "$llmc" ]; then
    stand_in
else
    mkdir "$guest"
    tar -C "$llmc" --exclude=.git --exclude='*.bin' "${ours[@]/#/--exclude=./}" -cf - . | tar -C "$guest" -xf -
fi

# theirs: all files of the guest, with their content and time
theirs() {
    local prune=() f
    for f in "${ours[@]}"; do prune+=(-path "./$f" -prune -o); done
    (cd "$guest" && find . "${prune[@]}" -type f -printf '%p %T@ ' -exec sha256sum {} \; | sort)
}
# goals: what make would do there
goals() {
    (cd "$guest" && for goal in all train_gpt2 clean nonsense train_gpt2cu; do make -n "$goal" 2>&1; done)
}
zero() { make -C "$guest" -f Makefile.zero SETUP=true DEVICE=cpu PRECISION=FP32 "$@"; }
install() { make --no-print-directory install-into LLMC="$guest"; }
remove() { make --no-print-directory uninstall-from LLMC="$guest"; }

# refused WORDS COMMAND...
refused() {
    ! "${@:2}" > "$log" 2>&1
    local status=$?
    cat "$log"
    [ $status = 0 ] && grep -qF -- "$1" "$log"
}

(cd "$guest" && make train_gpt2 && mkdir -p build && touch build/keep.o) > "$log" 2>&1 || cat "$log"
theirs > "$work/theirs"
goals > "$work/goals"
unchanged() { theirs | diff "$work/theirs" - && goals | diff "$work/goals" -; }

check "a directory that is not llm.c's is refused" refused "is not a checkout of llm.c" \
    make install-into LLMC="$work"
check "no directory is refused" refused "LLMC=DIR" make install-into
mkdir "$guest/zero"
echo mine > "$guest/zero/zero.h"
check "a file that is there is not overwritten" refused "zero/zero.h: is there" install
not_installed() { [ "$(cat "$guest/zero/zero.h")" = mine ] && [ ! -e "$guest/Makefile.zero" ] && unchanged; }
check "then nothing is installed" not_installed
rm -r "$guest/zero"

check "it is installed" install
check "installed: llm.c's files and goals are as before" unchanged
check "it is installed again" install

# All sources that the programs are made of, by what make would run.
sources() { zero -n V=1 all 2> "$log" | sed -nE 's/.* -c ([^ ]+) -o .*/\1/p' | sort -u; }
only_ours() {
    local other
    sources > "$work/sources"
    [ "$(wc -l < "$work/sources")" -gt 80 ] || { cat "$log"; return 1; }
    other=$(cd "$guest/build_zero" && while read -r f; do
        case $(realpath "$f") in
        "$(realpath ..)"/zero/* | "$(realpath ..)"/*_gpt2_zero.cu) ;;
        *) echo "$f" ;;
        esac
    done < "$work/sources")
    echo "$other"
    [ -z "$other" ]
}
check "only our files are compiled" only_ours
same_sources() {    # as in our own tree
    make -n V=1 SETUP=true DEVICE=cpu PRECISION=FP32 all BUILD="$work/none" CKPT_DIR="$work/none/ckpt" \
        2> /dev/null |
        sed -nE 's/.* -c ([^ ]+) -o .*/\1/p' | sort -u | diff - "$work/sources"
}
check "they are those of our own tree" same_sources
builds() {
    local object=build/cpu-fp32/zero/layout.o
    make -C "$guest/build_zero" SETUP=true DEVICE=cpu PRECISION=FP32 $object && [ -s "$guest/build_zero/$object" ]
}
check "an object is built, in build_zero" builds
without_compiler() {    # no package manager is asked, whatever is missing
    mkdir -p "$work/bin"
    printf '#!/bin/sh\ntouch %s/asked\n' "$work" > "$work/bin/apt-get"
    printf '#!/bin/sh\nexit 1\n' > "$work/bin/mpicc"
    chmod +x "$work"/bin/*
    PATH="$work/bin:$PATH" make -C "$guest" -f Makefile.zero DEVICE=cpu setup > "$log" 2>&1
    cat "$log"
    grep -q "installs nothing" "$log" && [ "$(wc -l < "$log")" -lt 20 ]
}
check "what is missing is named, not installed" without_compiler
check "apt-get is not called" test ! -e "$work/asked"
check "built: llm.c's files and goals are as before" unchanged

if [ -n "$llmc" ]; then
    builds_all() { zero train_gpt2_zero test_gpt2_zero && [ -x "$guest/train_gpt2_zero" ]; }
    check "the trainer is built there" builds_all
    trains() { (cd "$guest" && ./train_gpt2_zero -e custom:l1,h2,c16,v256,t32 -i README.md -b 1 -t 32 -x 2 -v 0 -s 0); }
    check "it trains" trains
    check "its tests run there" zero test TEST=layout
    check "sharded = unsharded there" env OMP_NUM_THREADS=2 "$guest/test_gpt2_zero"
    if command -v nvcc > /dev/null || [ -e /usr/local/cuda/bin/nvcc ]; then
        kernels=build/cuda-bf16/zero/kernels.o
        for_gpus() { make -C "$guest/build_zero" SETUP=true DEVICE=cuda PRECISION=BF16 USE_CUDNN=0 $kernels; }
        check "kernels are compiled for GPUs there" for_gpus
    fi
    check "trained: llm.c's files and goals are as before" unchanged
fi

cleans_ours() { zero clean && [ ! -e "$guest/build_zero" ] && [ ! -e "$guest/train_gpt2_zero" ] && unchanged; }
check "our clean removes only ours" cleans_ours
cleans_theirs() {
    zero build_zero && touch "$guest/build_zero/mine.o" && (cd "$guest" && make clean) &&
        [ ! -e "$guest/build/keep.o" ] && [ -e "$guest/build_zero/mine.o" ] && [ -e "$guest/zero/zero.h" ]
}
check "llm.c's clean removes only its own" cleans_theirs
theirs > "$work/theirs"
goals > "$work/goals"

echo "// mine" >> "$guest/train_gpt2_zero.cu"
check "a file that was changed is not overwritten" refused "train_gpt2_zero.cu: was changed" install
touch "$guest/zero/notes"
keeps() {
    remove > "$log" && cat "$log" && grep -q "kept, for it was changed: train_gpt2_zero.cu" "$log" &&
        [ "$(cd "$guest" && ls -d "${ours[@]}" 2> /dev/null | xargs)" = "train_gpt2_zero.cu zero" ] &&
        [ "$(find "$guest/zero" -type f)" = "$guest/zero/notes" ]
}
check "removed: what the user has made is kept" keeps
rm -r "$guest/train_gpt2_zero.cu" "$guest/zero"
again() {
    install && (cd "$guest" && make -f Makefile.zero uninstall) && unchanged &&
        [ -z "$(cd "$guest" && ls -d "${ours[@]}" 2> /dev/null)" ]
}
check "installed and removed: nothing stays" again
check "removed twice is refused" refused "is not installed there" remove
summary
