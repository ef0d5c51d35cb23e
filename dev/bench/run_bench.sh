#!/usr/bin/env bash
# All benchmarks, as tables of ratios: candidates run side by side or in turns, since machines are shared and drift.
#
#     make bench              LLMC=DIR make bench     also against llm.c's CPU trainer, a built train_gpt2 in DIR
#
# 1. matrix products against OpenBLAS
# 2. AdamW against STREAM's triad, as a kernel and on the host
# 3. the reduction against a copy and against MPI; its kernel against STREAM's copy
# 4. a step in each stage on 8 ranks
# 5. a step on 1 to 8 ranks, those that are no power of two beside the mean of the nearest powers of two
# 6. a checkpoint against dd; optimizer states on the disk against fio
# 7. a step on two hosts of four ranks with links of 1 Gbit/s, in one level and in two (needs namespaces)
# 8. GPT-2 124M on one rank with 2 threads, in tokens/s
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build/cpu-fp32}
text=dev/data/text/default.txt
threads=${THREADS:-2}
rounds=${ROUNDS:-3}
ranks=${NP:-8}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

launch() {      # RANKS THREADS PROGRAM...
    (
        export NP=$1 OMP_NUM_THREADS=$2
        . scripts/env.sh
        shift 2
        exec "${MPIRUN:-mpirun}" -np "$NP" "$@"
    )
}

# step RANKS THREADS LABEL ARGUMENTS...: milliseconds a step, into LABEL's file
step() {
    launch "$1" "$2" "$build/train_gpt2_zero" -i $text -v 0 -s 0 "${@:4}" |
        awk '/^total average iteration time/ { print $5 }' >> "$work/$3"
}

median() {      # of the numbers of a file
    sort -g "$1" | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
}

ratio() {       # median of the ratios, line by line, of two files
    paste "$1" "$2" | awk '{ print $1 / $2 }' > "$work/ratio"
    median "$work/ratio"
}

echo "== matrix products, $threads threads"
OMP_NUM_THREADS=$threads "$build/bench_matmul"

echo; echo "== AdamW and norm, $threads threads"
OMP_NUM_THREADS=$threads "$build/bench_adamw"

echo; echo "== AdamW on the host, for state that is offloaded, $threads threads"
OMP_NUM_THREADS=$threads OMP_PROC_BIND=true "$build/bench_host_update"

echo; echo "== reduction, $ranks ranks"
launch "$ranks" 1 "$build/bench_reduce"

echo; echo "== the kernel of the ordered sum, one thread"
OMP_NUM_THREADS=1 "$build/bench_push" $((1 << 22)) "$((2 * rounds + 1))"

echo; echo "== a step by stage, $ranks ranks, model of 11M parameters, one micro-batch a rank"
ways=("0" "1" "2" "3 --prefetch 0" "3 --prefetch 1" "3 --prefetch 2")
for ((i = 0; i < rounds; i++)); do
    for w in "${ways[@]}"; do
        # shellcheck disable=SC2086
        step "$ranks" 1 "stage $w" -e custom:l6,h6,c384,v256,t128 -b 1 -t 64 -x 12 -z $w
    done
done
printf '%-16s %10s %12s\n' stage ms "x stage 0"
for w in "${ways[@]}"; do
    printf '%-16s %10.1f %12.2f\n' "$w" "$(median "$work/stage $w")" "$(ratio "$work/stage $w" "$work/stage 0")"
done

echo; echo "== a step by number of ranks, model of 3M parameters, three micro-batches a rank"
ROUNDS=$rounds dev/bench/bench_step.sh "$build/train_gpt2_zero"

echo; echo "== a checkpoint of GPT-2 124M, FP32"
ROUNDS=$rounds NP=$ranks bash dev/bench/bench_checkpoint.sh "$build/train_gpt2_zero" "$build"

echo; echo "== optimizer states on the disk"
ROUNDS=$rounds bash dev/bench/bench_offload.sh "$build" "$build"

echo; echo "== a step on two hosts of four ranks, links of 1 Gbit/s, model of 11M parameters, stage 2"
if dev/test/hosts/up.sh 2 unlimited true > /dev/null 2>&1; then
    ROUNDS=$rounds dev/bench/bench_hosts.sh "$build/train_gpt2_zero"
else
    echo "not run: no namespaces (dev/test/hosts/up.sh 2 unlimited true)"
fi

echo; echo "== GPT-2 124M, FP32, B 4, T 64, one rank, $threads threads"
tokens=256
for ((i = 0; i < rounds; i++)); do
    step 1 "$threads" ours -e d12 --tokenizer bytes -b 4 -t 64 -x 6 -z 1
    if [ -n "${LLMC:-}" ]; then
        # its trainer reads fixed files from the working directory, and has no limit on steps but its own
        mkdir -p "$work/llmc/dev/data/tinyshakespeare"
        [ -e "$work/llmc/gpt2_124M.bin" ] || {
            launch 1 "$threads" "$build/train_gpt2_zero" -e d12 --tokenizer bytes -i $text -b 1 -t 64 -x 0 \
                -v 0 -s 0 -n 1 -o "$work" > /dev/null
            mv "$work/model_00000000.bin" "$work/llmc/gpt2_124M.bin"
            "$build/tokenize_text" bytes "$work/llmc/dev/data/tinyshakespeare/tiny_shakespeare_"{train,val}.bin $text \
                > /dev/null
        }
        # the first validation takes 10 batches; then steps are printed with their times
        (cd "$work/llmc" && OMP_NUM_THREADS=$threads timeout 90 stdbuf -oL "$LLMC/train_gpt2" 2> /dev/null || true) |
            awk '/^step [0-9]+: train loss/ { gsub(/.*took /, ""); x[n++] = $1 }
                 n == 5 { exit }
                 END { for (i = 1; i < n; i++) s += x[i]; if (n > 1) print s / (n - 1) }' >> "$work/llmc_ms"
    fi
done
ms=$(median "$work/ours")
awk -v ms="$ms" -v t=$tokens 'BEGIN { printf "train_gpt2_zero   %8.0f ms a step, %6.1f tokens/s\n", ms, 1000 * t / ms }'
if [ -n "${LLMC:-}" ]; then
    awk -v ms="$(median "$work/llmc_ms")" -v t=$tokens -v r="$(ratio "$work/llmc_ms" "$work/ours")" 'BEGIN {
        printf "llm.c train_gpt2  %8.0f ms a step, %6.1f tokens/s: ours is %.2f times as fast\n", ms, 1000 * t / ms, r
    }'
fi
