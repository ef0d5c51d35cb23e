#!/usr/bin/env bash
# The trainer as its user meets it: mistakes must be reported with messages that help, and what is promised must be seen
# in the output and in the files.
#
#     dev/test/cli/test_cli.sh TRAINER
#
# A mistake is a run that must end by itself, non-zero, with exactly one line that begins with "error:" in the output of
# all ranks together. That line has a word that the table gives, mostly the flag or file at fault. No crash, and nothing
# half-written: no model, no *.tmp. Mistakes do not depend on each other, so several are made at a time; mpirun mostly
# waits.
#
# Then come good runs, and jobs that lose a rank. Model and data are tiny, and made here.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$1
tokenize=$(dirname "$trainer")/tokenize_text
NP=2
. scripts/env.sh

# job RANKS ARGUMENTS...: one rank without mpirun and MPI, which take most of a second, unless it has a -pi of its own
job() {
    if [ "$1" = 1 ]; then
        local alone=(-pi fs -pf "$work" -pn 1 -pr 0)
        [[ " $* " != *" -pi "* ]] || alone=()
        timeout -k 5 200 "$trainer" "${alone[@]}" "${@:2}" < /dev/null
        return
    fi
    timeout -k 5 200 "${MPIRUN:-mpirun}" -np "$1" "$trainer" "${@:2}" < /dev/null
}

int32() {
    local v byte='\\x%02x'
    for v; do
        # shellcheck disable=SC2059
        printf '%b' "$(printf "$byte$byte$byte$byte" $((v & 255)) $((v >> 8 & 255)) $((v >> 16 & 255)) \
            $((v >> 24 & 255)))"
    done
}

# patched FROM TO OFFSET INT32...: a copy with other words at OFFSET
patched() {
    cp "$1" "$2"
    int32 "${@:4}" | dd of="$2" bs=1 seek="$3" conv=notrunc status=none
}

# ----------------------------------------------------------------------------------------------------------------------
# Model and data

small=custom:l1,h2,c16,v256,t32
parameters=$((256 * 16 + 32 * 16 + 12 * 16 * 16 + 13 * 16 + 2 * 16))
text=$work/text.txt
cat README.md zero/*.c zero/*.h zero/comm/*.[ch] > "$text"
train=$work/train.bin
"$tokenize" bytes "$train" "$work/val.bin" "$text" > "$work/log" || { cat "$work/log"; exit 1; }
short=(-b 2 -t 32 -x 2 -v 0 -s 0)
good=(-e $small -i "$text" "${short[@]}")
job 1 "${good[@]}" -x 0 -n 1 -o "$work" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
model=$work/good.bin
mv "$work/model_00000000.bin" "$model"

: > "$work/empty.txt"
head -c 60 "$text" > "$work/short.txt"
mkdir "$work/dir" "$work/mixed" "$work/full"
ln -s "$text" "$work/mixed/a"
ln -s "$train" "$work/mixed/b"
ln -s /dev/full "$work/full/main.log"
head -c 5000 "$train" > "$work/cut_shard.bin"
patched "$train" "$work/shard_magic.bin" 0 20240521
patched "$train" "$work/shard_version.bin" 4 2
head -c 9000 "$model" > "$work/cut_model.bin"
head -c 100 "$model" > "$work/stub_model.bin"
cat "$model" "$work/short.txt" > "$work/long_model.bin"
patched "$model" "$work/model_magic.bin" 0 7
patched "$model" "$work/model_version.bin" 4 1
cp "$train" "$work/optimizer_1.bin"
patched "$model" "$work/state_1.bin" 0 20240527
patched "$model" "$work/model_channels.bin" 24 -16
patched "$model" "$work/model_heads.bin" 20 3
# a shard of words that small does not have (token 0x2020), and one that is large, and takes no space
{ int32 20240520 1 4000; head -c 1012 /dev/zero; head -c 8000 /dev/zero | tr '\0' ' '; } > "$work/words.bin"
{ int32 20240520 1 $((1 << 30)); } > "$work/large.bin"
truncate -s $((1024 + (2 << 30))) "$work/large.bin"

# ----------------------------------------------------------------------------------------------------------------------
# Mistakes

at_a_time=4
mistakes=()

# start RANKS WORD NAME ARGUMENTS...
start() {
    local n=${#mistakes[@]} name="${3//"$work/"/}, $1 rank(s)"
    selected "$name" || return
    mistakes+=("$2"$'\t'"$name")
    { job "$1" "${@:4}" > "$work/mistake.$n" 2>&1; echo $? > "$work/mistake.$n.status"; } &
    while [ "$(jobs -rp | wc -l)" -ge $at_a_time ]; do wait -n; done
}

# mistake RANKS WORD ARGUMENTS...: after flags that are right (the last of equal flags counts)
mistake() {
    start "$1" "$2" "${*:3}" "${good[@]}" -n 1 -o "$work/out.${#mistakes[@]}" "${@:3}"
}

# bare RANKS WORD ARGUMENTS...: nothing but these
bare() {
    start "$1" "$2" "nothing but ${*:3}" "${@:3}"
}

# The command line
mistake 2 "-Q" -Q 1
mistake 1 "--no-such-flag" --no-such-flag 1
mistake 2 "--max-steps" --max 5
mistake 2 "stray" stray
mistake 2 "quotes" -i "$text" "$train"
mistake 2 "-b: its value is missing" -b
mistake 2 "-b four" -b four
mistake 2 "-b 0" -b 0
mistake 2 "-b 100000000" -b 100000000
mistake 2 "-x 1.5" -x 1.5
mistake 2 "-l nan" -l nan
mistake 1 "-l -1" -l -1
mistake 2 "cosine|linear" -k step
mistake 2 "-q 2" -q 2
mistake 2 "empty" -o ""
mistake 2 "--seed" --seed 99999999999
# What is not there yet
mistake 2 "-z 7" -z 7
mistake 2 "-y 2" -y 2
mistake 2 "-h 2" -h 2
mistake 2 "error: --tp 2: this trainer" --tp 2
mistake 2 "error: --pp 3: this trainer" --pp 3
mistake 2 "error: --shard-group 3: a shard group" --shard-group 3
mistake 2 "--nccl-register 1" --nccl-register 1
mistake 1 "-pi tcp: each process has to be told" -pi tcp       # without MPI each rank reports its own mistake
mistake 1 "-Q: unknown" -Q 1 -pi fs
mistake 2 "-pn 3: MPI has 2 processes" -pn 3
mistake 2 "-pr 0: this is rank 1" -pr 0
mistake 2 "-pg 1: rank 0 is on" -pg 1
# Flags that do not fit together
bare 2 "-o DIR" -y 1
bare 2 "add -i" -j "$text"
mistake 2 "-nk" -nk -1
mistake 2 "-d 0" -d 0
mistake 3 "-d 100" -d 100
mistake 3 "192 and 384" -d 256
mistake 2 "-m 0" -v 1 -m 0
mistake 2 "-t 64" -t 64
mistake 2 "-x" -d 1280000 -x -1
# Models
mistake 2 "-e" -e d13
mistake 2 "-e" -e gpt3:c5140
mistake 2 "-e" -e custom:l0,h2,c16,v256,t32
mistake 2 "-e" -e custom:l1,h3,c16,v256,t32
mistake 2 "-e" -e custom:l1,h4,c16,v256,t32
mistake 1 "-e" -e custom:l1,h2,c16,v256
mistake 2 "README.md" -e README.md
mistake 2 "nope.bin" -e nope.bin
mistake 2 "$work/dir" -e "$work/dir"
mistake 2 "$text" -e "$text"
mistake 2 "train.bin" -e "$train"
mistake 2 "cut_model.bin" -e "$work/cut_model.bin"
mistake 2 "stub_model.bin" -e "$work/stub_model.bin"
mistake 2 "long_model.bin" -e "$work/long_model.bin"
mistake 2 "model_magic.bin" -e "$work/model_magic.bin"
mistake 1 "is an optimizer file" -e "$work/optimizer_1.bin"
mistake 1 "is an optimizer file" -e "$work/state_1.bin"
mistake 2 "model_version.bin" -e "$work/model_version.bin"
mistake 1 "model_channels.bin" -e "$work/model_channels.bin"
mistake 2 "model_heads.bin" -e "$work/model_heads.bin"
# Data
mistake 2 "nope.txt" -i nope.txt
mistake 2 "nope" -v 1 -j 'nope*.bin'
mistake 2 "empty.txt" -i "$work/empty.txt"
mistake 3 "short.txt" -i "$work/short.txt"
mistake 2 "$work/dir" -i "$work/dir"
mistake 2 "one kind" -i "$work/mixed/*"
mistake 2 "good.bin" -i "$model"
mistake 2 "cut_shard.bin" -i "$work/cut_shard.bin"
mistake 2 "cut_shard.bin" -v 1 -j "$work/cut_shard.bin"
mistake 2 "shard_magic.bin" -i "$work/shard_magic.bin"
mistake 2 "shard_version.bin" -i "$work/shard_version.bin"
mistake 2 "vocabulary is 64" -e custom:l1,h2,c16,v64,t32
mistake 2 "words.bin" -i "$work/words.bin"
# Memory and disk
mistake 2 "-b 16777216" -i "$work/large.bin" -b 16777216
mistake 2 "smaller model" -e custom:l1000,h1024,c131072,v256,t32
mistake 2 "text.txt: is a file" -o "$text"
mistake 2 "text.txt" -o "$text/out"
mistake 2 "/proc/nope" -o /proc/nope
mistake 2 "directory above" -o "$work/no/such"
mistake 2 "full/main.log" -o "$work/full"
# A limit of 1 MiB for files stands for a full disk. One rank alone: several share memory through files without names.
timeout -k 5 200 "${MPIRUN:-mpirun}" -np 1 bash -c 'trap "" XFSZ; ulimit -f 1024; exec "$@"' - \
    "$trainer" "${good[@]}" -e custom:l1,h2,c128,v2048,t32 -n 1 -o "$work/out.limit" > "$work/limit" 2>&1 < /dev/null
echo $? > "$work/limit.status"
# not even the control blocks fit
timeout -k 5 200 "${MPIRUN:-mpirun}" -np 2 bash -c 'trap "" XFSZ; ulimit -f 8; exec "$@"' - "$trainer" "${good[@]}" \
    > "$work/blocks" 2>&1 < /dev/null
echo $? > "$work/blocks.status"
# one rank of several, with a command line of its own
timeout -k 5 200 "${MPIRUN:-mpirun}" -np 1 "$trainer" "${good[@]}" : -np 1 "$trainer" "${good[@]}" -z 7 \
    > "$work/other" 2>&1 < /dev/null
echo $? > "$work/other.status"
wait

# judge WHAT WORD LOG
judge() {
    local wrong='' status errors
    status=$(cat "$3.status")
    errors=$(grep -c '^error:' "$3")
    if [ "$status" = 0 ]; then
        wrong="it must fail, but its exit status is 0"
    elif [ "$status" -ge 124 ]; then
        wrong="exit status $status: it crashed or did not end"
    elif [ "$errors" != 1 ]; then
        wrong="$errors lines begin with \"error:\", not 1"
    elif ! grep '^error:' "$3" | grep -qF -- "$2"; then
        wrong="the message does not contain \"$2\""
    elif grep -qE 'Segmentation|Assert|assert|Sanitizer' "$3"; then
        wrong="it crashed"
    fi
    report "$1" "$wrong" "$3"
}

for n in "${!mistakes[@]}"; do
    judge "${mistakes[n]#*$'\t'}" "${mistakes[n]%%$'\t'*}" "$work/mistake.$n"
done
judge "a model on a full disk" model_00000001.bin "$work/limit"
judge "the cause of missing memory is lost" "RLIMIT_FSIZE (ulimit -f)" "$work/blocks"
judge "one rank's command line is wrong" "-z 7" "$work/other"
left=$(find "$work"/out.* "$work"/full -name '*.tmp' -o -name 'model_*' 2> /dev/null)
report "no mistake leaves a file behind" "$left"

# ----------------------------------------------------------------------------------------------------------------------
# Good runs

log=$work/log

# wanted NAME CONDITION...: a case about the last run: the condition holds
wanted() {
    report "$1" "$("${@:2}" > /dev/null || echo "not so: ${*:2}")" "$log"
}

# ran RANKS NAME ARGUMENTS...: a case: it succeeds, and stderr is empty
ran() {
    local wrong=''
    job "$1" "${@:3}" > "$log" 2> "$work/stderr" || wrong="exit status $?"
    [ ! -s "$work/stderr" ] || wrong="$wrong, on stderr: $(head -n 3 "$work/stderr")"
    report "$2" "$wrong" "$log"
}

has() { [ "$(grep -cE -- "$2" "${3:-$log}")" = "$1" ]; }                # has COUNT REGEX [FILE]: so many lines
val_loss() { awk '/^val loss/ { loss = $3 } END { print loss }' "$log"; }
same() { [ -n "$1" ] && [ "$1" = "$2" ]; }
state_hash() { grep -oE 'params [0-9a-f]{16} optimizer [0-9a-f]{16}' "$log"; }
models() { (cd "$1" && echo model_*); }

ran 2 "--help" --help
all_flags() {
    local flag
    for flag in i j e o n nk nm y b t d x k l u q c sl sg v m s g h a f w ge z r lg pn pr pg pi ps pf; do
        has 1 "^  -$flag +--[a-z]" || return 1
    done
    for flag in beta1 beta2 eps grad-clip shuffle seed hash transport prefetch reduce tp pp timeout help; do
        has 1 "^ +--$flag " || return 1
    done
}
wanted "--help has every flag, once" all_flags

chosen() {      # WORDS ARGUMENTS...: the plan says what was chosen, and not what was given
    job 1 --plan "${@:2}" > "$log" && has 1 "^chosen, since not given: -e .*; $1\$"
}
check "what is chosen for the built-in model" chosen \
    "with settings that suit it: -t 128 -l 0.003 -q 0.05 -u 50 -s 1000000 -g 256" -b 3 -x 2 -v 0
check "ranks that cannot share the micro-batches of a step" chosen \
    "with settings .*; 8 micro-batches cannot be shared by 3 ranks: 3 are used" --ranks 3

ran 3 "3 ranks, nothing but training" "${good[@]}" -o "$work/silent"
wanted "-v 0: no validation, -s 0: no sample" has 0 'val loss|generating'
wanted "-v 0: none in main.log" has 0 'tel:' "$work/silent/main.log"
steps_cut() { [ "$(grep '^step' "$log" | cut -c20-28 | grep -cxE ' *[0-9]+\.[0-9]+ *')" = 2 ]; }
wanted "step lines have the loss in columns 20 to 28" steps_cut
z='\([+-][a-z0-9.]+z\)'
wanted "step lines are llm.c's" has 2 \
    "^step +[12]/2 \| loss [0-9.]+ $z\| norm [0-9.]+ $z\| lr 3.00e-04 \| [0-9.]+ ms \| .* MFU \| [0-9]+ tok/s\$"

ran 2 "-n 2" "${good[@]}" -x 5 -v 2 -s 5 -g 8 -n 2 -o "$work/n"
wanted "main.log: training lines" \
    has 5 '^s:[0-4] trl:[0-9]\.[0-9]{4} lr:0\.000300 norm:[0-9]+\.[0-9]{2}$' "$work/n/main.log"
wanted "main.log: validation lines" has 4 '^s:[0245] tel:[0-9]\.[0-9]{4}$' "$work/n/main.log"
wanted "main.log: no other lines" has 9 '' "$work/n/main.log"
wanted "a sample at the end" has 1 '^generating:$'
wanted "models of steps 2 4 5" [ "$(models "$work/n")" = "model_00000002.bin model_00000004.bin model_00000005.bin" ]
wanted "models have the right size" [ "$(stat -c %s "$work/n/model_00000005.bin")" = $((1024 + 4 * parameters)) ]
wanted "models have the right header" \
    [ "$(od -An -v -td4 -N36 "$work/n/model_00000005.bin" | xargs)" = "20240326 3 32 256 1 2 16 256 0" ]
loss=$(val_loss)
ran 1 "-e a model that was written" "${good[@]}" -e "$work/n/model_00000005.bin" -x 0 -v 1
wanted "-e: the same validation loss ($loss)" same "$(val_loss)" "$loss"
wanted "-x 0: only validates" has 0 '^step'

ran 2 "-nk 1" "${good[@]}" -x 5 -n 2 -nk 1 -o "$work/nk"
wanted "-nk 1 keeps the last model" [ "$(models "$work/nk")" = model_00000005.bin ]
ran 2 "-nk 1 -nm 2" "${good[@]}" -x 5 -n 1 -nk 1 -nm 2 -o "$work/nm"
wanted "-nm 2 keeps others" [ "$(models "$work/nm")" = "model_00000002.bin model_00000004.bin model_00000005.bin" ]

# hash_of RANKS STAGE: nothing on stderr, and a hash of the state, into a file
hash_of() {
    job "$1" "${good[@]}" -d 512 -z "$2" --hash 1 > "$mine/log" 2> "$mine/stderr" && [ ! -s "$mine/stderr" ] &&
        log=$mine/log state_hash > "$work/hash.$1.$2" && return
    cat "$mine/log" "$mine/stderr"
    return 1
}
ways=("1 0" "2 0" "4 0" "1 1" "2 1" "4 1" "1 2" "2 2" "4 2" "2 3")
for way in "${ways[@]}"; do
    at_once "--hash 1, ${way% *} ranks, -z ${way#* }" hash_of "${way% *}" "${way#* }"
done
all_done
first=$(cat "$work/hash.1.0" 2> /dev/null)
for way in "${ways[@]}"; do
    wanted "the same hash ($first), ${way% *} ranks, -z ${way#* }" same "$(cat "$work/hash.${way/ /.}")" "$first"
done

ran 2 "-a 1" "${good[@]}" -a 1 -x 40 -l 0.01
overfits() {
    awk '/^step/ { n++; if (n == 1) before = $5; after = $5 } END { exit !(n == 40 && after < before / 2) }' "$log"
}
wanted "-a 1: the loss falls below half" overfits

# A model in bf16 is the upper halves of the same words.
{
    int32 20240326 5
    tail -c +9 "$model" | head -c 1016
    tail -c +1025 "$model" | od -An -v -tx1 -w4 | awk '{ printf "\\x%s\\x%s", $3, $4 }' |
        { read -r bytes; printf '%b' "$bytes"; }
} > "$work/bf16.bin"
ran 1 "-e of the other kind, for comparison" "${good[@]}" -e "$model" -x 0 -v 1
loss=$(val_loss)
ran 2 "-e of the other kind" "${good[@]}" -e "$work/bf16.bin" -x 0 -v 1
wanted "-e of the other kind: loss $loss, to rounding" \
    awk -v a="$loss" -v b="$(val_loss)" 'BEGIN { exit !(b > a - 0.01 && b < a + 0.01) }'

# A NaN in the embedding of the blank.
patched "$model" "$work/nan.bin" $((1024 + 4 * 16 * 32)) $((0x7fc00000))
ran 2 "NaN, no step" "${good[@]}" -e "$work/nan.bin" -x 0 --hash 1 -z 2
first=$(state_hash)
ran 2 "NaN, a step" "${good[@]}" -e "$work/nan.bin" -x 1 --hash 1 -z 2
wanted "NaN: one line says that all ranks skip" has 1 'all ranks skip'
wanted "NaN: the state is what it was" same "$(state_hash)" "$first"

# ----------------------------------------------------------------------------------------------------------------------
# Jobs that lose a rank

# The process that is rank R of mpirun PID
rank_process() {
    local stat words
    for stat in /proc/[0-9]*/stat; do
        read -r -a words 2> /dev/null < "$stat" || continue
        [ "${words[3]}" = "$1" ] && tr '\0' '\n' 2> /dev/null < "${stat%stat}environ" | grep -qx "PMIX_RANK=$2" &&
            echo "${words[0]}"
    done
}

# A second run emptied main.log under the first, and both went on. A killed run's lock and temporary files must not
# stay.
second_run() {
    local mpirun status i
    selected "$1" || return
    "${MPIRUN:-mpirun}" -np 1 "$trainer" "${good[@]}" -x 1000000000 -o "$work/twice" > "$log" 2>&1 < /dev/null &
    mpirun=$!
    for i in {1..1200}; do
        grep -q '^s:9 ' "$work/twice/main.log" 2> /dev/null && break
        sleep 0.05
    done
    job 2 "${good[@]}" -o "$work/twice" > "$work/second" 2>&1
    echo $? > "$work/second.status"
    judge "$1" "another run is writing into it" "$work/second"
    wanted "$1: the first one's main.log stays" has 1 '^s:9 ' "$work/twice/main.log"
    kill $mpirun
    wait $mpirun
}
second_run "a second run into the same -o"
: > "$work/twice/model_00000001.bin.0123456789abcdef.tmp"
job 1 "${good[@]}" -o "$work/twice" > "$work/third" 2>&1
echo $? > "$work/third.status"
judge "a run into the files of another one" "holds the main.log of another run" "$work/third"
ran 1 "--overwrite 1, after the first was ended" "${good[@]}" -o "$work/twice" --overwrite 1
wanted "--overwrite 1: the first one's main.log is kept" has 1 '^s:9 ' "$work/twice/replaced.1/main.log"
wanted "nothing of the first one stays" [ "$(ls "$work/twice" | xargs)" = "main.log metrics.jsonl replaced.1" ]
{ echo nonce 1234; echo host elsewhere 5678; echo process 1 1; echo timeout 1; } > "$work/twice/run.lock"
touch -d '-1 minute' "$work/twice/run.lock"
ran 1 "the lock of a host that is gone" "${good[@]}" -o "$work/twice" --overwrite 1
echo > "$work/twice/run.lock"
job 1 "${good[@]}" -o "$work/twice" --overwrite 1 > "$work/third" 2>&1
echo $? > "$work/third.status"
judge "a lock that is none" "not a lock of a run" "$work/third"

# lose RANKS SIGNAL RANK|mpirun WORD ARGUMENTS...: the signal is sent in the middle of a run; the job ends, non-zero, in
# time, leaves no process behind, and prints WORD
lose() {
    local ranks=$1 signal=$2 victim=$3 word=$4 mpirun processes wrong='' i log=$mine/log
    : > "$log"
    "${MPIRUN:-mpirun}" -np "$ranks" "$trainer" "${good[@]}" -x 1000000000 "${@:5}" > "$log" 2>&1 < /dev/null &
    mpirun=$!
    for i in {1..1200}; do
        grep -q '^step' "$log" && break
        sleep 0.05
    done
    read -r -a processes <<< "$(for ((i = 0; i < ranks; i++)); do rank_process $mpirun $i; done | xargs) $mpirun"
    [ ${#processes[@]} = $((ranks + 1)) ] || wrong=", not all ranks were found"
    [ "$victim" = mpirun ] && victim=$ranks
    kill "-$signal" "${processes[victim]}"
    for ((i = 0; i < 200 + 10 * short; i++)); do
        kill -0 $mpirun 2> /dev/null || break
        sleep 0.1
    done
    # a zombie is only waiting for its parent; one that was just killed may take its time
    for i in "${processes[@]}"; do
        for _ in {1..200}; do
            grep -q '^State:.[^Z]' "/proc/$i/status" 2> /dev/null || continue 2
            sleep 0.1
        done
        kill -9 "$i" && wrong="$wrong, process $i lives on"
    done
    wait $mpirun && wrong="$wrong, exit status 0"
    grep -qE -- "$word" "$log" || wrong="$wrong, it does not print \"$word\""
    [ -n "$wrong" ] || return 0
    cat "$log"
    echo "${wrong#, }"
    return 1
}

# Flags that decide the bits: the header has them from options.c.
readme_names_what_decides() {
    local flag flags
    flags=$(job 1 "${good[@]}" -x 0 | sed -n '/^| bits are decided by/,/^+/p' | grep -oE -- ' --?[a-z][-a-z0-9]*')
    [ "$(wc -w <<< "$flags")" -gt 20 ] || return 1
    for flag in $flags; do
        sed -n '/^| decides the bits/,/^$/p' README.md | cut -d'|' -f2 | grep -qE -- "\`$flag[\` ]" && continue
        echo "$flag is not in the table of README.md"
        return 1
    done
}
check "README.md names all flags that decide the bits" readme_names_what_decides

short=$(short_timeout 3 job 2 "${good[@]}" -o "$work/healthy")
at_once "a rank is killed" lose 2 KILL 1 "rank 1"
at_once "rank 0 is killed" lose 3 KILL 0 "rank 0" -z 2
at_once "a rank is stopped" lose 2 STOP 1 "^error: .*rank 1 has not come" --timeout $short
at_once "rank 0 is stopped" lose 3 STOP 0 "^error: .*rank 0 has not come" --timeout $short -z 2
stopped="in .*: (the .*another rank died, stopped|rank [01] has not come within $short s)"
at_once "a rank is stopped, NCCL" lose 2 STOP 1 "^error: rank 0, $stopped" --timeout $short --transport nccl
at_once "rank 0 is stopped, NCCL" lose 3 STOP 0 "^error: rank [12], $stopped" --timeout $short --transport nccl -z 3
# The host waits in the middle of a step for a stream that waits for the stopped rank; what then fails on the device
# must not be reported instead.
NCCL_ON_CPU_ABORT_BREAKS=1 CUDA_ON_CPU_STREAMS=1 at_once "a rank is stopped, NCCL, an abort that breaks the device" \
    lose 2 STOP 1 "^error: rank 0, $stopped" --timeout $short --transport nccl -z 1 -d 1280
at_once "Ctrl-C" lose 2 INT mpirun "step"

summary
