#!/usr/bin/env bash
# The file system fails, fills up, or the power does, at each call of a run that resumes from a checkpoint and writes
# the next one (file_faults.c plants that): the run ends with an error that names the file, the rank and its host, or
# with the right state; and the next -y 1 continues from the old or the new checkpoint to the state of a run without
# faults. A slow one delays the run, even beyond the time-out of its transport. Without memory for a whole snapshot the
# files are the same.
#
#     dev/test/cli/test_file_faults.sh FAULTY_TRAINER few|all [--case WORD]     few: every 29th call
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$(realpath "$1")
every=$([ "$2" = all ] && echo 1 || echo 29)
export OMP_NUM_THREADS=1
host=$(hostname)
text=$work/text
head -c 3000 dev/data/text/default.txt > "$text"
flags=(-e custom:l1,h1,c16,v256,t16 -i "$text" -b 1 -t 16 --micro-batches 2 -v 0 -s 0 -x 4 -n 2 -nk 1 -y 1
    --hash 1)

# rank DIRECTORY RANKS RANK FLAGS...: one of the run's processes. If it is killed, so are all.
rank() {
    FAULT_SELF=$3 FILE_DIR=$1 timeout -k 1 200 "$trainer" "${flags[@]}" -o "${OUT-$1}" -pi fs -pf "$1.meet" -pn "$2" \
        -pr "$3" --timeout "${timeout:-60}" "${@:4}"
    local status=$?
    [ $status != 137 ] || kill -9 $(pgrep -f -- "-o ${OUT-$1} -pi") 2> /dev/null
    return $status
}

# job DIRECTORY RANKS LOG FLAGS...: a run, without mpirun; the highest status of its ranks. It writes into OUT, or
# into DIRECTORY, on whose files faults are planted.
job() {
    local r pids=() status=0
    rm -rf "$1.meet" && mkdir "$1.meet"
    for ((r = 0; r < $2; r++)); do
        rank "$1" "$2" $r "${@:4}" > "$3.$r" 2>&1 < /dev/null &
        pids+=($!)
    done
    for r in "${pids[@]}"; do
        wait "$r"
        r=$?
        [ $r -le $status ] || status=$r
    done
    cat "$3".[0-9] > "$3"
    return $status
}

# keep_synced DIRECTORY: all that is in it is on the disk
keep_synced() {
    local file inode
    mkdir "$1.synced"
    for file in "$1"/*; do
        inode=$(stat -c %i "$file")
        cp "$file" "$1.synced/data.$inode"
        echo "$inode ${file##*/}" >> "$1.synced/names"
    done
}

# lose_power DIRECTORY SEED: files have the content of their last fsync, or as many zeros. Of what was changed in the
# directory since its fsync, SEED 0 undoes all, 1 nothing, another number a part.
lose_power() {
    local file inode name i=0 synced=$1.synced
    declare -A names=()
    while read -r inode name; do names[$name]=$inode; done < "$synced/names"
    for file in "$1"/* "${!names[@]}"; do
        name=${file##*/}
        inode=$(stat -c %i "$1/$name" 2> /dev/null)
        [ "$inode" != "${names[$name]-}" ] || continue
        case $2 in 0) continue ;; 1) ;; *) [ $((($2 >> i++ % 8) & 1)) = 1 ] || continue ;; esac
        if [ -n "$inode" ]; then names[$name]=$inode; else unset "names[$name]"; fi
    done
    mkdir "$1.after"
    for name in "${!names[@]}"; do
        inode=${names[$name]}
        if [ -e "$synced/data.$inode" ]; then
            cp "$synced/data.$inode" "$1.after/$name"
        else
            truncate -s "$(stat -c %s "$1/$name" 2> /dev/null || echo 0)" "$1.after/$name"
        fi
    done
    rm -rf "$1" "$synced"
    mv "$1.after" "$1"
}

# attempt DIRECTORY BASE RANKS VICTIM KIND K: prints what is wrong
attempt() {
    local dir=$1 wrong='' status kind=${5%% *} log=$1.log
    cp -r "$2" "$dir"
    [ "$kind" != power ] || keep_synced "$dir"
    [ "$kind" != power ] || export FILE_SYNCED=$dir.synced
    [ "$kind" != slow ] || local timeout=$short
    FILE_SLOW=$((short + 1)) FILE_FAULT="$4 ${kind/power/kill} $6" job "$dir" "$3" "$log"
    status=$?
    timeout=60
    case $kind:$status in
    *:0) grep -qF "$hash" "$log" || wrong="ended with another state" ;;
    kill:137 | power:137) ;;
    eio:1 | full:1)
        grep -q "^error: .*$dir/.*rank [0-9]* on $host\|^error: .*$dir/run.lock\|^error: -o $dir" "$log" ||
            wrong="no error names file, rank and host"
        ;;
    *) wrong="exit status $status" ;;
    esac
    [ "$kind" != power ] || lose_power "$dir" $((${5#power } == 2 ? $6 : ${5#power }))
    unset FILE_SYNCED
    job "$dir" 1 "$log.next" || wrong="$wrong, the next run fails"
    grep -qF "$hash" "$log.next" || wrong="$wrong, the next run has another state"
    grep -q "^resumed from step [24] " "$log.next" || wrong="$wrong, nothing is left to resume from"
    [ -z "$(find "$dir" -name '*.tmp' -o -name run.lock)" ] || wrong="$wrong, left: $(ls "$dir" | xargs)"
    [ -n "$wrong" ] && { echo "call $6 ($(sed -n "$6p" "$work/trace.$3.$((${4/-1/0}))")): ${wrong#, }"
        sed 's/^/        /' "$log" "$log.next" | grep -i 'error\|resumed\|skipped'; } > "$dir.wrong"
    rm -rf "$dir" "$dir".meet "$log"*
}

# each_call BASE RANKS VICTIM KIND CALLS: a case; CALLS: only these calls
each_call() {
    local name="$2 rank$([ "$2" = 1 ] || echo s), $4 of $([ "$3" = -1 ] && echo all || echo "rank $3"), ${1##*/}" k n=0
    local number=$((++cases)) trace=$work/trace.$2.$((${3/-1/0}))
    selected "$name" || return
    while IFS=: read -r k _; do
        [ "$4" != slow ] || [[ $(sed -n "${k}p" "$trace") == *[24].* ]] || continue
        n=$((n + 1))
        [ $((n % every)) = $((number % every)) ] || continue
        while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n; done
        attempt "$work/c$number.$k" "$1" "$2" "$3" "$4" "$k" &
    done < <(grep -nE "^($5) " "$trace")
    wait
    cat "$work"/c$number.*.wrong > "$work/c$number.log" 2> /dev/null
    report "$name: $n calls" "$([ -s "$work/c$number.log" ] && echo "some are wrong")" "$work/c$number.log"
}

# reading: a case: one of two ranks gets EIO from a call on the model, the text or the validation text (all: from each
# fifth call)
reading() {
    local name="2 ranks, eio of rank 1, reading model and texts" in=$work/in k n=0
    local files=(-e "$in/model_00000000.bin" -i "$in/text" -j "$in/val" -v 1 -m 1 -y 0 --timeout "$short")
    selected "$name" || return
    mkdir "$in"
    cp "$text" "$in/text" && cp "$text" "$in/val" && echo more >> "$in/val"
    OUT=$in job "$in" 1 "$work/in.log" -x 0 -n 1 -y 0 || cat "$work/in.log"
    FILE_TRACE=$work/trace.in OUT=$work/out job "$in" 2 "$work/in.log" "${files[@]}" || cat "$work/in.log"
    while IFS=: read -r k _; do
        n=$((n + 1))
        [ $((n % (every > 1 ? every : 5))) = 0 ] || continue
        FILE_FAULT="1 eio $k" OUT=$work/out job "$in" 2 "$work/in.$k" "${files[@]}" --overwrite 1 &&
            echo "call $k: exit status 0"
        grep "^error: .*rank 1 on $host" "$work/in.$k" | grep -qF "$in/" ||
            echo "call $k: $(grep '^error' "$work/in.$k" || echo "no error")"
    done < <(grep -nE '^(open|pread) ' "$work/trace.in.1") > "$work/reading"
    report "$name: $n calls" "$([ $n -lt 9 ] && echo "too few"; cat "$work/reading")"
}

cases=0
mkdir "$work/healthy"
short=$(short_timeout 4 job "$work/healthy" 2 "$work/healthy.log")
reading
old=$work/old
mkdir "$old"
job "$old" 1 "$work/whole" || { cat "$work/whole"; exit 1; }
hash=$(grep 'state hash' "$work/whole")
# With -nk 1 only the last checkpoint is left; one that ends with step 2 has the same bits until then.
rm -rf "$old" && mkdir "$old"
flags=("${flags[@]/-nk/-nm}")
job "$old" 1 "$work/whole"
flags=("${flags[@]/-nm/-nk}")
cp -r "$old" "$work/whole_run"
cp -r "$old" "$work/damaged"                      # the checkpoint of step 4 is there, but damaged
truncate -s 5000 "$work"/damaged/optimizer_00000004.bin
rm "$old"/*_00000004*
sed -i '/^s:[23]/d' "$old/main.log"
for ranks in 1 2; do
    cp -r "$old" "$work/trace"
    FILE_TRACE="$work/trace.$ranks" job "$work/trace" $ranks "$work/trace.log"
    rm -rf "$work/trace" "$work/trace.log"*
done

any='[a-z]*'
changes='open|close|pwrite|fsync|rename|unlink|link|fallocate'
for kind in eio kill; do
    each_call "$old" 1 0 $kind "$any"
    each_call "$work/damaged" 1 0 $kind "$changes"
done
each_call "$old" 1 0 full "$changes"
each_call "$old" 1 0 short "pread|pwrite"
for victim in 1 -1; do each_call "$old" 2 $victim eio "open|pread"; done
each_call "$old" 2 1 slow "pwrite|fsync"
each_call "$old" 2 0 slow "rename|unlink|fallocate"
for seed in 0 1 2; do each_call "$old" 1 0 "power $seed" "$changes"; done
for kind in eio kill full "power 2"; do
    each_call "$old" 2 0 "$kind" "$changes"
    each_call "$old" 2 1 "$kind" "$changes"
    [ "$kind" = "power 2" ] || each_call "$old" 2 -1 "$kind" "$changes"
done
hashes() { (cd "$1" && sha256sum -- * | grep -v 'metrics.jsonl$'); }     # that has times
no_memory() {
    local dir=$work/no_memory
    mkdir "$dir"
    flags=("${flags[@]/-nk/-nm}")
    FAULT_MEMORY=1 job "$dir" 2 "$dir.log"
    grep -q "^no memory for a snapshot" "$dir.log" && grep -qF "$hash" "$dir.log" &&
        diff <(hashes "$work/whole_run") <(hashes "$dir")
}
check "without memory for a whole snapshot: the same files" no_memory
summary
