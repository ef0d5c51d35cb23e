# Sourced by scripts/gpu_check.sh: runs steps within their time limits, prints a line for each, keeps their output.

results=()
declare -A builder

note() { printf '%s\n' "$*" | tee -a "$report"; }
indent() { sed 's/^/         /' | tee -a "$report"; }

# verdict PASS|FAIL|NOT_RUN NAME DETAIL
verdict() {
    local line
    line=$(printf '%-8s %-58s %s' "${1/_/ }" "$2" "$3")
    note "$line"
    results+=("$line")
}

log_of() { echo "$work/${1//[^A-Za-z0-9]/_}.log"; }

# timed NAME LIMIT COMMAND...: writes its output to NAME's log; returns its exit status, 99 if there is no time left, 98
# if its program was not built, 97 if there is no GPU
timed() {
    local log word limit=$2 left=$((all - SECONDS))
    log=$(log_of "$1")
    : > "$log"
    [ $left -ge 5 ] || return 99
    [ "$3" = make ] || [ -z "$no_gpu" ] || return 97
    for word in "${@:3}"; do
        [[ $3 == make || $word != build/$device-* || -x $word ]] || return 98
    done
    timeout -k 5 $((limit < left ? limit : left)) "${@:3}" > "$log" 2>&1 < /dev/null
}

# conclude STATUS NAME: the verdict, with the numbers of a test's own summary, or with the end of the output
conclude() {
    local log summary
    log=$(log_of "$2")
    if [ -s "$log" ]; then
        printf '\n==== %s (exit status %s, %s s after the start)\n' "$2" "$1" "$SECONDS" >> "$logs"
        tail -c 200000 "$log" >> "$logs"
    fi
    summary=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    case $1 in
    0) verdict PASS "$2" "$summary" ;;
    97) verdict NOT_RUN "$2" "there is no GPU" ;;
    98) verdict NOT_RUN "$2" "its program was not built" ;;
    99) verdict NOT_RUN "$2" "the $all s are over" ;;
    *)
        case $1 in
        124 | 137) verdict FAIL "$2" "stopped after its time limit $summary" ;;
        *) verdict FAIL "$2" "exit status $1 $summary" ;;
        esac
        { grep -E 'FAIL|[Ee]rror' "$log" | head -n 10; tail -n 15 "$log"; } | cut -c -300 | sed 's/^/         | /' |
            tee -a "$report"
        ;;
    esac
}

step() {        # NAME LIMIT COMMAND...
    timed "$@"
    conclude $? "$1"
}

# build NAME MAKE_ARGUMENTS...: starts a build in the background; `built NAME` waits for it
build() {
    timed "$1" 300 make --no-print-directory -j"$cores" -k SETUP=true DEVICE=$device "${@:2}" &
    builder[${1//[^A-Za-z0-9]/_}]=$!
}
built() {
    wait "${builder[${1//[^A-Za-z0-9]/_}]}"
    conclude $? "$1"
}

# on RANKS [GPUS]: sets the array `mpi` to the command that starts that many ranks, on all GPUs or the first few
on() {
    mpi=(env OMP_NUM_THREADS=$((cores / $1 > 0 ? cores / $1 : 1)))
    [ -z "${2:-}" ] || mpi+=(CUDA_VISIBLE_DEVICES="$(echo "$visible" | cut -d, -f1-"$2")")
    mpi+=(mpirun -np "$1")
}

# same NAME LIMIT PROGRAM ARGUMENTS "RANKS GPUS ARGUMENTS"...: training runs that must all end in the same state. All
# are run, and those that differ are listed.
same() {
    local name=$1 limit=$2 program=$3 arguments=$4 way ranks gpus rest hash first='' status=0 wrong=0 seen=0 whole
    whole=$(log_of "$1 whole")
    : > "$whole"
    shift 4
    for way in "$@"; do
        read -r ranks gpus rest <<< "$way"
        on "$ranks" "$gpus"
        # shellcheck disable=SC2086
        timed "$name" "$limit" "${mpi[@]}" "$program" $arguments $rest
        status=$?
        cat "$(log_of "$name")" >> "$whole"
        [ $status -lt 97 ] || [ $status -gt 99 ] || break
        hash=$(grep -o 'state hash: .*' "$(log_of "$name")")
        seen=$((seen + 1))
        [ $status = 0 ] && [ -n "$hash" ] && [ "$hash" = "${first:=$hash}" ] && continue
        wrong=$((wrong + 1))
        echo "FAIL $ranks ranks, $gpus GPUs, $rest: ${hash:-exit status $status}; the first: ${first:-none}" >> "$whole"
    done
    mv "$whole" "$(log_of "$name")"
    [ $seen = $# ] && [ $wrong = 0 ] && echo "$seen passed, 0 failed: $first" >> "$(log_of "$name")"
    [ $wrong = 0 ] || status=1
    conclude $status "$name"
}

# speed NAME RANKS BUILD ARGUMENTS...: a row of the table of speeds
speed() {
    on "$2"
    row "$1" "$2" "${mpi[@]}" "$3/train_gpt2_zero" "${model[@]}" -b "$batch" "${@:4}"
}

# row NAME RANKS COMMAND...: of a trainer that prints llm.c's step lines
row() {
    local name="speed: $1" ranks=$2 status
    timed "$name" 60 "${@:3}"
    status=$?
    if [ $status != 0 ]; then
        conclude $status "$name"
        return
    fi
    # The median of the second half of the steps; bytes of a rank, at their peak.
    verdict PASS "$name" "$(awk -v tokens=$((batch * length * ranks)) '
        /^step/ {
            for (i = 1; i < NF; i++) if ($(i + 1) == "ms") ms[++n] = $i
            for (i = 1; i <= NF; i++) if ($i == "MFU") mfu = ($(i - 1) == "bf16" ? $(i - 2) : $(i - 1))
        }
        /^process, bytes/ { for (i = 1; i < NF; i++) if ($i == "mean") bytes = $(i + 1) + 0 }
        END {
            for (i = int(n / 2) + 1; i <= n; i++) x[++k] = ms[i]
            for (i = 2; i <= k; i++)
                for (j = i; j > 1 && x[j] < x[j - 1]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
            m = k % 2 ? x[(k + 1) / 2] : (x[k / 2] + x[k / 2 + 1]) / 2
            printf "%9.2f ms  %9.0f tok/s  MFU %s (last step)", m, tokens / m * 1000, mfu
            if (bytes) printf "  %6.2f GB per rank", bytes / 1e9
        }' "$(log_of "$name")")"
    grep -E '^step' "$(log_of "$name")" | tail -n 3 >> "$logs"
}
