#!/usr/bin/env bash
# The trainer with files that are no files, disks that are full, and numbers that are not finite.
#
#     dev/test/cli/test_files.sh TRAINER [--case WORD]
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$(realpath "$1")
NP=2
. scripts/env.sh
export OMP_NUM_THREADS=1
start=()
cd "$work" || exit 1
good=(-e custom:l1,h2,c16,v256,t32 -i "$work/text.txt" -b 1 -t 32 -x 2 -v 0 -s 0 --timeout 60)
head -c 20000 "$OLDPWD/dev/data/text/default.txt" > text.txt

# ended STATUS WORDS ARGUMENTS...: a run ends with this status (0, or "failed"), and prints these words. Started by
# "${start[@]}" mpirun; otherwise one rank, without MPI, whose start takes most of a second.
ended() {
    local alone=()
    [[ "${start[*]-}" == *mpirun* ]] || alone=(-pi fs -pf "$work" -pn 1 -pr 0)
    timeout -k 5 200 "${start[@]}" "$trainer" "${good[@]}" "${alone[@]}" "${@:3}" > log 2>&1 < /dev/null
    local status=$?
    cat log
    [ $status -lt 124 ] && [ "$([ $status = 0 ] || echo failed)" = "${1/#0/}" ] && grep -qF -- "$2" log
}
# env_of VARIABLE=VALUE ended ...: the run has this variable
env_of() {
    local start=(env "$1")
    "${@:2}"
}
once() { [ "$(grep -c -- "$1" log)" = 1 ]; }

# ----------------------------------------------------------------------------------------------------------------------
# What is no file: each of these hung, or was read or replaced

mkfifo pipe
ln -s loop loop
mkdir directory piped looped
mkfifo piped/main.log
ln -s main.log looped/main.log
for what in "./pipe a pipe" "/dev/zero a device" "./directory a directory" "./loop symbolic links"; do
    for flag in -e -i -j --config; do
        check "$flag ${what%% *}" ended failed "${what#* }" $flag "${what%% *}"
    done
done
check "-o of a pipe" ended failed "pipe" -o pipe
check "main.log is a pipe" ended failed "piped/main.log: is a pipe" -o piped
check "main.log is a loop of links" ended failed "looped/main.log: cannot be written: Too many" -o looped
mkdir models
mkfifo models/model_00000002.bin
check "a model would replace a pipe" ended failed "model_00000002.bin: is a pipe" -n 2 -o models
report "the pipe is still there" "$([ -p models/model_00000002.bin ] || echo "it is gone")"

# ----------------------------------------------------------------------------------------------------------------------
# Which files

cp text.txt 'a[1].txt'
head -c 10000 text.txt > a1.txt
ln -s text.txt other.txt
printf short > b1.txt
printf shorter > b2.txt
head -c 3000 text.txt > b3.txt
header() { grep -E '^\| (train|val) data pattern' -A1 log | tr -s ' |' ' ' | grep -qxF -- " $1 "; }
check "a literal name comes before a pattern" ended 0 "20000 bytes" -i 'a[1].txt' -j text.txt -v 1
HOME=$work check "~ is the home directory" ended 0 "9000 bytes" -i '~/a1.txt'
check "the same file by another name" ended 0 "text.txt (the last tenth)" -j other.txt -v 1
report "training leaves that tenth out" "$(header "1 file, 18000 bytes" || echo "it does not")" log
check "the same file in an overlapping pattern" ended failed "are the same file" -i '[at]*.txt' -j other.txt -v 1
check "short files are skipped" ended 0 "-i: 2 of 3 files are skipped" -i 'b?.txt'
report "short files are skipped with one line" "$(once skipped || echo "there are more")" log

# ----------------------------------------------------------------------------------------------------------------------
# Full disks: a limit of the size of files stands for one. Its signal ended the process without a word.

# limited KB WHAT...: runs in which no file may become larger
limited() {
    local start=("${MPIRUN:-mpirun}" -np 1 bash -c "ulimit -f $1"' && exec "$@"' -)
    "${@:2}"
}
check "main.log on a full disk: the training goes on" limited 1 ended 0 \
    "full/main.log: cannot be written: File too large" -x 60 -o full
report "main.log on a full disk: it is said once" "$(once 'main.log: cannot be written' || echo "it is not")" log
report "main.log on a full disk: whole lines only" "$(grep -vE '^s:[0-9]+ trl:[0-9.]+ lr:[0-9.]+ norm:[0-9.]+$' \
    full/main.log)" full/main.log
report "main.log on a full disk: rank and host" \
    "$(grep -q "warning: rank 0 on $(hostname): full/main.log" log || echo "they are not named")" log
large=(-e custom:l1,h2,c128,v2048,t32 -n 1 -nk 3 -o models.full)
check "a model on a full disk" limited 1024 ended failed "model_00000001.bin" "${large[@]}"
report "a model on a full disk: rank and host" \
    "$(grep -q "^error: .*model_00000001.bin.*rank 0 on $(hostname)" log || echo "they are not named")" log
report "a model on a full disk: how much room it takes" \
    "$(grep -q '^error: .*-nk 3 needs room for 4 checkpoints.*ckpt prune' log || echo "it is not said")" log
report "no part of a model is left, and no record of collectives" \
    "$(find models.full -name 'model_*' -o -name 'flight_recorder_*')"

# ----------------------------------------------------------------------------------------------------------------------
# Words that others wrote, with what a terminal obeys: ESC, DEL, and CSI as U+009B

words=$'\e[2J\x7f\xc2\x9b31m'
# shown COMMAND...: it succeeds, and its output is text
shown() {
    "$@" && ! LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' log
}
mkdir others locked
: > "others/model_$words.bin"
check "a file name in the output directory" shown ended failed "holds the model_?[2J???31m.bin of" -o others
printf '%s\n' "nonce 12" "host elsewhere$words boot" "process 7 8" "timeout 1000" > locked/run.lock
check "a host in a lock" shown ended failed "process 7 on elsewhere?[2J???31m," -o locked
mkfifo "c$words.txt"
check "a file name that a pattern finds" shown ended failed "c?[2J???31m.txt: is a pipe" -i 'c*.txt'
cp text.txt "d$words.txt"
check "a file name in the header" shown ended 0 "d?[2J???31m.txt" -i "d$words.txt"

# ----------------------------------------------------------------------------------------------------------------------
# What a machine may lack. "Memory" is said only where there is too little of it.

cat > lacks.c << 'END'
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#ifdef PROC
FILE *fopen(const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
    if (strncmp(path, "/proc/", 6) == 0) return errno = ENOENT, NULL;
    return real(path, mode);
}
#else
int memfd_create(const char *name, unsigned flags) { return (void)name, (void)flags, errno = ENOSYS, -1; }
#endif
END
for what in PROC MEMFD; do gcc -shared -fPIC -D_GNU_SOURCE -D$what lacks.c -o $what.so -ldl; done
check "no /proc" env_of LD_PRELOAD="$work/PROC.so" ended 0 "step    2/2"
start=("${MPIRUN:-mpirun}" -np 2 env LD_PRELOAD="$work/MEMFD.so")
check "no memfd: ranks of a host send messages" ended 0 "MPI, messages (ranks of this host cannot map" -z 3
start=("${MPIRUN:-mpirun}" -np 2 bash -c 'ulimit -f 16 && exec "$@"' -)
check "shared memory that is limited: that is the cause" ended failed "ulimit -f" -z 3
report "shared memory that is limited: no word of a smaller model" "$(grep 'smaller model' log)" log
# An ordinary user, if this one may become another; the program is copied, for that user may not see it where it is.
who=()
[ "$(id -u)" != 0 ] || ! command -v setpriv > /dev/null || who=(setpriv --reuid=65534 --regid=65534 --clear-groups)
odd="$work/a b'c\"d"
mkdir "$odd" home
cp "$trainer" "$odd/train" && cp text.txt "$odd"
[ ${#who[@]} = 0 ] || chown -R 65534 "$odd"
chmod 555 home && chmod 711 "$work"
start=(env -C "$odd" HOME="$work/home" "${who[@]}" "${MPIRUN:-mpirun}" -np 2)
trainer=$odd/train check "an ordinary user, a name with blanks and quotes, a HOME that cannot be written" ended 0 \
    "step    2/2" -i "$odd/text.txt" -o "$odd/o ut" -n 2 -z 2
report "its model is there" "$([ -s "$odd/o ut/model_00000002.bin" ] || echo "it is not")" log
start=()
check "-d of more micro-batches than there may be" ended failed "there may be 4294967295: use a smaller -d" -d \
    1000000000000000
check "--plan: -d of more micro-batches than there may be" ended failed "there may be 4294967295" --plan \
    --micro-batches -1 -d 1000000000000000

# ----------------------------------------------------------------------------------------------------------------------
# Numbers that are not finite

ended 0 "wrote" -x 0 -n 1 -o nan > /dev/null
model=nan/model_00000000.bin
# NaN in the embedding of the blank
printf '\0\0\300\177' | dd of="$model" bs=1 seek=$((1024 + 4 * 16 * 32)) conv=notrunc status=none
check "steps in a row that are not finite end the run" ended failed "in 3 steps in a row, from step 1 on" \
    -e "$model" -x 10 --nonfinite-limit 3
report "after the third of them" "$([ "$(grep -c '^step .*|' log)" = 2 ] || echo "not so")" log
check "--nonfinite-limit 0 goes on" ended 0 "step   10/10" -e "$model" -x 10 --nonfinite-limit 0
check "a model that is not finite is not written" ended failed "(wte, element 512): it is not written" -e "$model" \
    -n 1 -o bad
report "there is none" "$(find bad -name 'model*')"

summary
