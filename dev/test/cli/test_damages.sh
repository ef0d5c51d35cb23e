#!/usr/bin/env bash
# Random damage of checkpoints: bytes that are flipped, zeros up to the end, files that were cut, prolonged, removed or
# replaced by those of another step or run. What is damaged is refused by name, and the run continues from the
# checkpoint before to the right state; if that is damaged too, the run ends with an error. Nothing is accepted
# silently, nothing crashes.
#
#     dev/test/cli/test_damages.sh TRAINER COUNT [--case WORD]     SEED=1: which ones
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$(realpath "$1")
count=$2
export OMP_NUM_THREADS=1
text=$work/text
head -c 3000 dev/data/text/default.txt > "$text"
flags=(-e custom:l1,h1,c16,v256,t16 -i "$text" -b 1 -t 16 --micro-batches 2 -v 0 -s 0 -x 4 --hash 1)

# job DIRECTORY FLAGS...: a run of one rank, without mpirun
job() {
    mkdir "$1.meet"
    timeout -k 1 200 "$trainer" "${flags[@]}" -o "$1" "${@:2}" -pi fs -pf "$1.meet" -pn 1 -pr 0 > "$1.log" 2>&1 \
        < /dev/null
}

# damage FILE OTHER KIND RANDOM: prints what was done. OTHER: the same file of another step
damage() {
    local size at byte
    size=$(stat -c %s "$1")
    at=$((size > 0 ? $4 % size : 0))
    case $3 in
    0 | 1 | 2)
        byte=$(od -An -tu1 -j $at -N 1 "$1")
        printf '%b' "\\x$(printf %02x $((byte ^ 1 << $4 % 8)))" | dd of="$1" bs=1 seek=$at conv=notrunc status=none
        echo "byte $at flipped" ;;
    3) truncate -s $at "$1" && echo "cut to $at bytes" ;;
    4) truncate -s $((size - 1)) "$1" && echo "cut by a byte" ;;
    5) printf '\0' >> "$1" && echo "longer by a byte" ;;
    6) rm "$1" && echo "removed" ;;
    7) mv "$1" "$1.x" && cp "$2" "$1" && rm "$1.x" && echo "that of another step" ;;
    8) cp "$work/stranger/${1##*/}" "$1" && echo "that of another run" ;;
    9)
        at=$((at / 512 * 512))
        truncate -s $at "$1" && truncate -s "$size" "$1" && echo "zeros from $at on" ;;
    esac
}

# attempt NUMBER FILE KIND RANDOM BOTH: writes NUMBER.name, NUMBER.wrong
attempt() {
    local dir=$work/$1 wrong='' what status file=$2 name
    cp -r "$work/whole" "$dir"
    what=$(damage "$dir/$file" "$work/whole/${file/04./02.}" "$3" "$4")
    name="$file: $what"
    # Zeros that were zeros, or a byte of a file that is the same in another run, are no damage.
    cmp -s "$dir/$file" "$work/whole/$file" && name="$name (nothing changed)"
    if [ "$5" = 1 ]; then
        damage "$dir/${file/04./02.}" "$work/whole/$file" $(($3 % 7)) $(($4 / 3)) > "$dir.second"
        name="$name; step 2: $(cat "$dir.second")"
    fi
    job "$dir" -y 1
    status=$?
    case $name in
    *"(nothing changed)"*)
        [ $status = 0 ] && grep -qF "$hash" "$dir.log" || wrong="refused" ;;
    *"; step 2"*)
        [ $status = 1 ] && grep -q "^error: .*none of its checkpoints is complete" "$dir.log" &&
            grep -qF "skipped the checkpoint of step 2: $dir/${file/04./02.}" "$dir.log" || wrong="no such error" ;;
    *)
        [ $status = 0 ] || wrong="exit status $status"
        grep -qF "$hash" "$dir.log" || wrong="$wrong, another state"
        grep -q "^resumed from step 2 " "$dir.log" || wrong="$wrong, step 2 is not resumed" ;;
    esac
    # The manifest of another run is whole: the files are not as it says.
    [ "${name#checkpoint*: that of another run}" = "$name" ] || file=
    [[ $name == *"(nothing changed)"* ]] || grep -qF "skipped the checkpoint of step 4: $dir/$file" "$dir.log" ||
        wrong="$wrong, the file is not named"
    echo "$name" > "$dir.name"
    echo "${wrong#, }" > "$dir.wrong"
    rm -rf "$dir" "$dir.meet"
    [ -n "$wrong" ] || rm "$dir.log"
}

job "$work/stranger" -n 2 --seed 7
job "$work/whole" -n 2
hash=$(grep 'state hash' "$work/whole.log")
sed -i '/^s:[23]/d' "$work/whole/main.log"
RANDOM=${SEED-1}
files=(model_00000004.bin optimizer_00000004.bin checkpoint_00000004.txt)
for ((i = 0; i < count; i++)); do
    while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n; done
    attempt $i "${files[RANDOM % 3]}" $((i % 10)) $((RANDOM * 32768 + RANDOM)) $((RANDOM % 8 == 0)) &
done
wait
for ((i = 0; i < count; i++)); do
    report "$i: $(cat "$work/$i.name")" "$(cat "$work/$i.wrong")" "$work/$i.log"
done
without_done() {
    cp -r "$work/whole" "$work/done"
    rm "$work"/done/DONE_*
    job "$work/done" -y 1 && grep -q "^resumed from step 4 " "$work/done.log" && grep -qF "$hash" "$work/done.log"
}
check "without llm.c's DONE: complete" without_done
renamed() {     # all files of a step, as another one
    local file
    cp -r "$work/whole" "$work/renamed"
    for file in "$work"/renamed/*_00000004*; do mv "$file" "${file/_00000004/_00000009}"; done
    job "$work/renamed" -y 1 && grep -qF "$hash" "$work/renamed.log" && grep -q "^resumed from step 2 " \
        "$work/renamed.log" && grep -q "skipped the checkpoint of step 9: .*is of step 4" "$work/renamed.log"
}
check "a checkpoint under the name of another step is refused" renamed
summary
