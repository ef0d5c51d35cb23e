# test_list.sh: the tests of `make test`: calls of run, must_fail, same and agree (dev/test/harness/runner.sh).

build cpu FP32 all
[ -n "$suffix" ] || build cpu FP32 $fp32/faulty_trainer
build cpu FP32 build/fuzz-gcc/fuzz_files build/ckpt$suffix/ckpt
build cpu BF16 $bf16/{train_gpt2_zero,test_model,test_gpt2_zero,bench_adamw}
build emulated FP32 $asan/{planted_faults,train_gpt2_zero} \
    $asan/test_{emulator,kernels,model,gpt2_zero,comm,comm_failures,nccl,nccl_stand_in}
build emulated BF16 build/emulated-bf16/{train_gpt2_zero,test_mma,test_attention}
build emulated-tsan FP32 $tsan/{planted_faults,train_gpt2_zero}
build emulated-tsan BF16 build/emulated-tsan-bf16/test_attention


run 0 120 "harness" $fp32/test_harness
run 0 60 "layout" $fp32/test_layout
run 0 60 "pools of unit buffers" $fp32/test_pool
run 0 60 "records on a disk" $fp32/test_swap
run 0 60 "random numbers" $fp32/test_random
run 0 60 "data" $fp32/test_data
run 0 60 "files" $fp32/test_files
run 0 60 "options" $fp32/test_options
run 0 60 "configuration files" $fp32/test_config
run 0 60 "log, learning rate, model files" $fp32/test_output
run 0 60 "content of files" $fp32/test_content_hash
run 0 60 "byte-pair encoding" $fp32/test_bpe
run 0 60 "checkpoints of llm.c" $fp32/test_llmc_state
run 0 60 "cores and memory of the host" $fp32/test_host
run 0 60 "plan" $fp32/test_plan
run 0 60 "simulator of a step" $fp32/test_step_simulator
run 0 60 "what fits" $fp32/test_fit
run 0 60 "NCCL's calls on one rank" $fp32/test_nccl_calls
run 0 60 "profile" $fp32/test_profile
run 0 120 "matmul" $fp32/test_matmul
run 0 60 "device header" $fp32/test_emulator
run 0 60 "master weights, all words" $fp32/test_master
run 0 120 "kernels" $fp32/test_kernels
run 0 180 "model fp32" $fp32/test_model
run 0 180 "model bf16" $bf16/test_model
run 0 120 "ranks meet, by TCP" $fp32/test_bootstrap tcp
run 0 120 "ranks meet, by a directory" $fp32/test_bootstrap fs
run 3 60 "ranks meet, by MPI" $fp32/test_bootstrap mpi
for ranks in 1 2 3 4; do
    run $ranks 120 "transports, $ranks ranks" $fp32/test_comm
done
run 2 180 "transports, failures, 2 ranks" $fp32/test_comm_failures     # 3 and 4 ranks: test_list_long.sh
run 2 120 "a rank is stopped at any moment, 2 ranks" $fp32/test_stops
for ranks in 2 3; do            # another seed, longer, and 1 to 9 ranks: test_list_long.sh
    TEST_TIMEOUT=50 run $ranks 120 "fuzz: calls of the engine, $ranks ranks" $fp32/fuzz_engine --seconds 4 --seed 1
done
run 8 120 "transports, NCCL, 8 ranks" $fp32/test_comm --case NCCL
run 2 60 "overlap" $fp32/test_overlap
run 3 60 "the stand-in does what NCCL does" $fp32/test_nccl_stand_in
for seed in 0 1 2 3; do     # 0: only what the host waits for is run; else a random order of what may run
    CUDA_ON_CPU_STREAMS=$seed CUDA_ON_CPU_PROTECT=1 \
        run $((2 + seed % 2)) 120 "transports, NCCL, streams in order $seed" $fp32/test_comm --case NCCL
    CUDA_ON_CPU_STREAMS=$seed CUDA_ON_CPU_PROTECT=1 \
        run $((2 + seed % 3)) 120 "waits of NCCL, streams in order $seed" $fp32/test_nccl
done
run 3 300 "engine, 3 ranks" $fp32/test_engine                             # 1, 2, 4 and 8 ranks: test_list_long.sh
# 1, 2, 4 and 6 ranks, all transports: test_list_long.sh
run 3 60 "engine, order of micro-batches, 3 ranks" $fp32/test_engine_order --case "shared memory"
run 2 240 "engine's contract, 2 ranks" $fp32/test_engine_contract         # 1, 3 and 4 ranks: test_list_long.sh
for ranks in 1 2 3 4; do
    run $ranks 120 "engine, steps, $ranks ranks" $fp32/test_engine_step
    run $ranks 60 "units of other sizes share buffers, $ranks ranks" $fp32/test_engine_pools
    run $ranks 120 "frozen units, $ranks ranks" $fp32/test_engine_frozen
    run $ranks 120 "moving average of the weights, $ranks ranks" $fp32/test_engine_ema
done
if python3 -c 'import torch' 2> /dev/null; then
    run 0 120 "optimizers are PyTorch's" dev/test/cli/test_pytorch.py $fp32/optimizer_steps
else
    echo "skipped optimizers are PyTorch's: no PyTorch (python3 -c 'import torch')"
fi
run 2 120 "offloaded optimizer state, 2 ranks" $fp32/test_engine_offload --case "bf16, AdamW: shared"
run 2 120 "a disk fails, 2 ranks" $fp32/test_engine_offload --case "a failing disk"      # the rest: test_list_long.sh
run 0 60 "a run with offloaded optimizer state" dev/test/cli/test_offload.sh $fp32/train_gpt2_zero some
run 2 240 "failures, 2 ranks" $fp32/test_engine_failure                   # 1, 3 and 4 ranks: test_list_long.sh
run 4 120 "failures, shard groups, 4 ranks" $fp32/test_engine_failure --case group
run 6 240 "engine's contract, shard groups, 6 ranks" $fp32/test_engine_contract --case "groups of"
for ranks in 1 2 3 4 8; do
    run $ranks 180 "sharded = unsharded fp32, $ranks ranks" $fp32/test_gpt2_zero
done
for ranks in 3 8; do    # 2 ranks: below, with device memory out of reach; 1, 2 and 4: test_list_long.sh
    run $ranks 180 "sharded = unsharded bf16, $ranks ranks" $bf16/test_gpt2_zero
done
run 6 180 "sharded = unsharded fp32, 6 ranks" $fp32/test_gpt2_zero
for ranks in 5 7; do
    run $ranks 180 "sharded = unsharded fp32, $ranks ranks" $fp32/test_gpt2_zero --case ": M = "
done
run 9 180 "sharded = unsharded fp32, 9 ranks" $fp32/test_gpt2_zero --case "M = 9"
for ranks in 5 6; do
    run $ranks 180 "sharded = unsharded bf16, $ranks ranks" $bf16/test_gpt2_zero --case ": M = "
done
run 9 120 "bytes of 9 ranks" $fp32/test_engine_bytes --case "bytes equal"
run 4 120 "bytes between 2 hosts of 2 ranks" $fp32/test_engine_bytes --case "hosts of 2"     # more: test_list_long.sh
for breakage in order bit replica; do
    must_fail 2 180 "sharded = unsharded notices: $breakage" FAIL $fp32/test_gpt2_zero --break $breakage
done
hashes="parameters [0-9a-f]+, optimizer [0-9a-f]+"
same 60 "example: the same state on any ranks" "$hashes" $fp32/regression "1 0" "2 1" "4 2" "8 3" "1 3"
run 0 120 "example: killed, continued on other ranks" dev/test/cli/test_examples.sh $fp32/{finetune,regression}

# The trainer itself: 8 micro-batches a step, on 1 to 8 ranks.
tiny="-e custom:l2,h4,c64,v256,t64 -i $text -b 2 -t 64 -d 1024 -x 5 -v 0 -s 0 --hash 1"
for precision in fp32 bf16; do
    same 60 "trainer $precision: the same state on any ranks" "state hash: .*" \
        build/cpu-$precision$suffix/train_gpt2_zero \
        "1 -z 0 $tiny" "2 -z 1 $tiny" "4 -z 2 $tiny" "8 -z 3 $tiny" "8 -z 0 $tiny" "2 -z 3 --prefetch 0 $tiny" \
        "8 -z 3 --shard-group 2 $tiny" "8 -z 1 --shard-group 4 $tiny" "2 -z 2 -r 0 -ge 2 $tiny"
done
for optimizer in sgd lion; do
    average="--optimizer $optimizer -l 0.001 --ema-decay 0.9 ${tiny/-v 0/-v 2}"
    same 60 "trainer, $optimizer, moving average: the same state on any ranks" "state hash: .*|val loss .*" \
        $bf16/train_gpt2_zero "1 -z 0 $average" "2 -z 3 -w 2 $average" "4 -z 1 $average" \
        "8 -z 3 --shard-group 2 $average"
done
tiny3=${tiny/-d 1024/-d 768}
# --inject-delays 2: staged through the host, as on a GPU.
same 60 "staging that cannot be pinned: the same state" "state hash: .*" $fp32/train_gpt2_zero "2 -z 1 $tiny" \
    "2 CUDA_ON_CPU_NO_PINNING=1 --inject-delays 2 -z 1 $tiny" "2 CUDA_ON_CPU_NO_PINNING=1 --inject-delays 2 -z 3 $tiny"
same 60 "staging that cannot be pinned is named" "staged through the host .slower: its memory cannot be pinned here." \
    $fp32/train_gpt2_zero "2 CUDA_ON_CPU_NO_PINNING=1 --inject-delays 2 -z 1 $tiny"
for seed in 1 2 3; do
    CUDA_ON_CPU_STREAMS=$seed same 60 "trainer, NCCL, streams in order $seed: the state of MPI" "state hash: .*" \
        $fp32/train_gpt2_zero \
        "1 -z 0 $tiny" "2 -z $seed --transport nccl $tiny" \
        "4 -z $(((seed + 1) % 4)) --transport nccl --nccl-register 1 $tiny" \
        "8 -z $(((seed + 2) % 4)) --transport nccl $tiny" "4 -z $seed --shard-group 2 --transport nccl $tiny"
done
same 90 "trainer, NCCL, shard groups: the state of MPI" "state hash: .*" $fp32/train_gpt2_zero \
    "4 -z 1 --shard-group 2 $tiny" "4 -z 1 --shard-group 2 --transport nccl $tiny" \
    "4 -z 2 --shard-group 2 --transport nccl $tiny" "4 -z 3 --shard-group 2 --transport nccl $tiny" \
    "4 -z 3 --shard-group 2 --transport nccl --nccl-register 1 $tiny"
same 60 "trainer, NCCL, 3 ranks: the state of one rank" "state hash: .*" $fp32/train_gpt2_zero \
    "1 -z 0 $tiny3" "3 -z 2 $tiny3" "3 -z 0 --transport nccl $tiny3" "3 -z 1 --transport nccl $tiny3" \
    "3 -z 3 --transport nccl $tiny3"
same 60 "trainer bf16, split master weights: the state of -w 1" "state hash: .*" $bf16/train_gpt2_zero \
    "1 -w 1 $tiny" "1 -w 2 $tiny" "2 -w 2 -z 1 $tiny" "4 -w 2 -z 2 $tiny" "8 -w 2 -z 3 $tiny" "8 -w 2 -z 0 $tiny" \
    "8 -w 2 -z 3 --shard-group 2 $tiny"
same 60 "trainer bf16, no master weights: the same state on any ranks" "state hash: .*" $bf16/train_gpt2_zero \
    "1 -w 0 -z 0 $tiny" "2 -w 0 -z 1 $tiny" "4 -w 0 -z 2 $tiny" "8 -w 0 -z 3 $tiny" "8 -w 0 -z 0 $tiny" \
    "8 -w 0 -z 3 --shard-group 2 $tiny"

# Any number of ranks that divides M micro-batches; pairs of number, stage, recomputation, transport and delays.
steps_of() { echo "-e custom:l1,h2,c32,v256,t16 -i $text -b 1 -t 16 -d $((16 * $1)) -x 2 -v 0 -s 0 --hash 1"; }
same 60 "trainer fp32, M = 24: the same state on 1 to 12 ranks" "state hash: .*" $fp32/train_gpt2_zero \
    "1 -z 0 -r 1 $(steps_of 24)" "2 -z 3 -r 2 --transport nccl $(steps_of 24)" \
    "3 -z 1 -r 0 --inject-delays 1 --shard-group 1 $(steps_of 24)" "6 -z 0 -r 2 $(steps_of 24)" \
    "6 -z 2 -r 1 --inject-delays 4 --shard-group 2 $(steps_of 24)" \
    "8 -z 1 -r 1 --transport nccl $(steps_of 24)" "12 -z 3 -r 0 --inject-delays 3 --shard-group 6 $(steps_of 24)" \
    "2 -z 1 --micro-batch-order rank --inject-delays 2 $(steps_of 24)" \
    "4 -z 0 --micro-batch-order rank --transport nccl $(steps_of 24)" \
    "2 -z 3 --micro-batch-order layer --inject-delays 3 $(steps_of 24)"
same 60 "trainer bf16, M = 24: the same state on 1 to 12 ranks" "state hash: .*" $bf16/train_gpt2_zero \
    "1 -w 1 -z 0 -r 0 $(steps_of 24)" "3 -w 2 -z 2 -r 2 --transport nccl $(steps_of 24)" \
    "4 -w 2 -z 3 -r 0 --inject-delays 2 $(steps_of 24)" \
    "6 -w 1 -z 3 -r 1 --prefetch 2 --transport nccl --shard-group 3 $(steps_of 24)" \
    "12 -w 2 -z 1 -r 2 --shard-group 3 $(steps_of 24)" \
    "6 -w 2 -z 1 --micro-batch-order rank --shard-group 3 $(steps_of 24)"
same 60 "trainer fp32, M = 35: the same state on 1, 5 and 7 ranks" "state hash: .*" $fp32/train_gpt2_zero \
    "1 -z 2 $(steps_of 35)" "5 -z 1 $(steps_of 35)" "7 -z 3 --transport nccl $(steps_of 35)"
same 60 "trainer bf16, M = 9: the same state on 1, 3 and 9 ranks" "state hash: .*" $bf16/train_gpt2_zero \
    "1 -z 0 -w 2 $(steps_of 9)" "3 -z 3 -w 1 $(steps_of 9)" "9 -z 2 -w 2 --transport nccl --shard-group 3 $(steps_of 9)"

run 0 300 "fuzz: 20 s of configurations, one seed" $fp32/fuzz $fp32/train_gpt2_zero $bf16/train_gpt2_zero \
    --seconds 20 --seed 1
run 0 120 "fuzz: parsers of files, 6 s" build/fuzz-gcc/fuzz_files --seconds 6 --seed 1
must_fail 0 60 "fuzz notices a parser that believes a header" "FAIL  planted" build/fuzz-gcc/fuzz_files --case planted
run 0 120 "scripts that start runs, dry" dev/test/cli/test_scripts.sh $fp32/train_gpt2_zero
run 0 300 "command line of the trainer" dev/test/cli/test_cli.sh $fp32/train_gpt2_zero
if [ -n "${LLMC-}" ]; then      # a checkout of llm.c
    run 0 900 "llm.c's own scripts" dev/test/cli/test_llmc_scripts.sh $fp32/train_gpt2_zero
elif [ -z "$TEST" ]; then
    echo "not run: llm.c's own scripts, and a whole build in its tree: make test LLMC=DIR"
fi
run 0 200 "text, prompts and samples" dev/test/cli/test_text.sh $fp32/train_gpt2_zero $fp32/tokenize_text
run 0 200 "llm.c's flags, log lines and files" dev/test/cli/test_llmc_flags.sh $fp32/train_gpt2_zero
run 0 120 "numbers of each step, report, progress" dev/test/cli/test_metrics.sh $fp32/train_gpt2_zero
run 0 120 "files and numbers as they are" dev/test/cli/test_files.sh $fp32/train_gpt2_zero
# bf16, and each number of ranks in each stage: test_list_long.sh
run 0 500 "checkpoints fp32" dev/test/cli/test_checkpoint.sh $fp32/train_gpt2_zero $bf16/train_gpt2_zero few
run 0 300 "damaged checkpoints" dev/test/cli/test_damages.sh $fp32/train_gpt2_zero 40
for precision in fp32 bf16; do
    run 0 200 "llm.c's checkpoints are continued, $precision" dev/test/cli/test_llmc_state.sh \
        build/cpu-$precision$suffix/train_gpt2_zero $fp32/test_llmc_state build/ckpt$suffix/ckpt
done
run 0 400 "tool for checkpoints" dev/test/cli/test_ckpt.sh {$fp32,$bf16}/train_gpt2_zero build/ckpt$suffix/ckpt
run 0 60 "Hugging Face, there and back" dev/test/cli/test_huggingface.sh $fp32/train_gpt2_zero build/ckpt$suffix/ckpt
run 0 300 "launchers, flags and files that contradict each other" dev/test/cli/test_launch.sh $fp32/train_gpt2_zero
run 0 300 "runs that are asked to end save" dev/test/cli/test_signals.sh $fp32/train_gpt2_zero
run 0 300 "a file system that fails: some calls" dev/test/cli/test_file_faults.sh $fp32/faulty_trainer few
run 0 300 "a rank dies or stops: a few phases" dev/test/cli/test_failures.sh $fp32/faulty_trainer few
run 0 400 "124M: memory accounting is what the process takes" dev/test/cli/test_memory.sh $fp32/train_gpt2_zero \
    $bf16/train_gpt2_zero some
run 0 300 "a run measures what its plan predicts" dev/test/cli/test_plan.sh $fp32/train_gpt2_zero $bf16/train_gpt2_zero
run 0 120 "what fits is what a run measures" dev/test/cli/test_fit.sh $fp32/train_gpt2_zero some
run 0 120 "each kind of work has a formula" dev/test/cli/test_profile.sh \
    {$fp32,$bf16,build/emulated-bf16}/train_gpt2_zero
run 0 300 "same losses as llm.c" dev/test/cli/test_llmc_parity.sh $fp32/train_gpt2_zero
run 0 120 "NVIDIA's libraries are found" dev/test/cli/test_find_nvidia.sh
run 0 300 "promises of the Makefile" dev/test/cli/test_build.sh
run 0 900 "into a checkout of llm.c" dev/test/cli/test_install_into.sh
run 0 120 "setup on a fresh machine" dev/test/cli/test_setup.sh
run 0 60 "words that must not appear" dev/test/cli/test_glossary.sh
run 0 60 "documents that quote programs" dev/test/cli/test_docs.sh $fp32/train_gpt2_zero
run 0 60 "links of the documentation" dev/test/cli/test_links.sh

# The host never touches device memory, which a GPU would not allow (dev/device/cpu/protect.cpp; a number above 1 looks
# less often, for speed).
CUDA_ON_CPU_PROTECT=1 run 0 120 "device memory is out of reach: kernels" $fp32/test_kernels
CUDA_ON_CPU_PROTECT=1 run 2 120 "device memory is out of reach: transport" $fp32/test_comm
CUDA_ON_CPU_PROTECT=5 run 0 120 "device memory is out of reach: engine" $fp32/test_engine
CUDA_ON_CPU_PROTECT=20 run 2 180 "device memory is out of reach: sharded = unsharded" $bf16/test_gpt2_zero
CUDA_ON_CPU_PROTECT=1 same 60 "device memory is out of reach: example" "$hashes" $fp32/regression "1 0" "2 3"
CUDA_ON_CPU_PROTECT=5 same 60 "device memory is out of reach: trainer" "state hash: .*" $fp32/train_gpt2_zero \
    "1 -z 0 $tiny" "2 -z 2 $tiny" "2 -z 3 $tiny -v 2 -s 3 -g 20"

# The kernels as a GPU runs them: warps, barriers, shared memory, under sanitizers.
run 0 300 "faults planted for the emulated GPU are found" dev/test/emulator/test_planted_faults.sh \
    $asan/planted_faults $tsan/planted_faults
run 0 120 "device header, emulated GPU" $asan/test_emulator
run 0 120 "matrix instructions, emulated GPU" build/emulated-bf16/test_mma
run 0 300 "attention on tensor cores, emulated GPU" build/emulated-bf16/test_attention
same 300 "attention on tensor cores, emulated GPU: the same bits in any order" "hash of all results: .*" \
    build/emulated-bf16/test_attention "1 --case kernel" "1 CUDA_ON_CPU_SCHEDULE=1 --case kernel" \
    "1 CUDA_ON_CPU_SCHEDULE=2 --case kernel"
CUDA_ON_CPU_SCHEDULE=2 run 0 300 "attention on tensor cores, emulated GPU, ThreadSanitizer" \
    build/emulated-tsan-bf16/test_attention --case kernel
run 0 300 "kernels, emulated GPU" $asan/test_kernels
run 0 300 "model fp32, emulated GPU" $asan/test_model
run 2 300 "sharded = unsharded fp32, emulated GPU, 2 ranks" $asan/test_gpt2_zero
CUDA_ON_CPU_STREAMS=1 run 2 300 "sharded = unsharded fp32, emulated GPU, streams in order 1" $asan/test_gpt2_zero
ASAN_OPTIONS=$leaks CUDA_ON_CPU_STREAMS=1 \
    run 2 120 "transports, NCCL, emulated GPU, streams in order 1" $asan/test_comm --case NCCL
ASAN_OPTIONS=$leaks CUDA_ON_CPU_STREAMS=1 \
    run 2 120 "transports, failures, NCCL, emulated GPU" $asan/test_comm_failures --case NCCL
CUDA_ON_CPU_STREAMS=1 run 2 120 "waits of NCCL, emulated GPU, streams in order 1" $asan/test_nccl
run 2 120 "the stand-in does what NCCL does, emulated GPU" $asan/test_nccl_stand_in

in_any_order fp32       # bf16, and the waits that are left out one by one: test_list_long.sh
# Its losses differ from the fast build's only by the order of sums inside a row.
agree 120 "trainer fp32, emulated GPU: losses of the fast build" 1e-5 $asan/train_gpt2_zero $fp32/train_gpt2_zero \
    -e custom:l2,h1,c80,v256,t40 -i $text -b 1 -t 40 -d 80 -x 20 -l 0.001 -v 0 -s 0
# In bf16 also by roundings, and attention rounds probabilities on tensor cores.
agree 120 "trainer bf16, emulated GPU: losses of the fast build" 3e-3 build/emulated-bf16/train_gpt2_zero \
    $bf16/train_gpt2_zero -e custom:l2,h1,c80,v256,t40 -i $text -b 1 -t 40 -d 80 -x 20 -l 0.001 -v 0 -s 0
# One thread of OpenMP: ThreadSanitizer does not see the barriers of its library. It is slow, as each CUDA thread is a
# thread for it.
tiniest="OMP_NUM_THREADS=1 -e custom:l2,h2,c16,v256,t16 -i $text -b 1 -t 8 -d 16 -x 1 -v 0 -s 0 --hash 1"
same 120 "trainer fp32, emulated GPU, ThreadSanitizer: the same state" "state hash: .*" $tsan/train_gpt2_zero \
    "1 -z 0 -r 1 $tiniest" "2 $(any_order 2) -z 2 -r 0 $tiniest" "2 $(any_order 3) -z 3 -r 2 --transport nccl $tiniest"

