# test_list_long.sh: the tests of `make test-long`, which take too long for `make test` (dev/test/harness/runner.sh).

if [ -z "$suffix" ]; then
    build cpu FP32 $fp32/{fuzz,fuzz_engine,test_engine,test_engine_bytes,test_engine_failure,test_engine_contract} \
        $fp32/{test_comm_failures,test_stops,test_engine_order,test_engine_offload} \
        $fp32/{train_gpt2_zero,faulty_trainer,tokenize_text} build/fuzz-gcc/fuzz_files
    SANITIZE=address build cpu FP32 build/ckpt-address/ckpt
    if python3 -c 'import torch, transformers' 2> /dev/null; then
        build cpu FP32 build/ckpt/ckpt $fp32/{gpt2_logits,tokenize_text}
        run 0 600 "same logits as transformers" dev/test/cli/test_huggingface.py build/ckpt/ckpt \
            $fp32/{gpt2_logits,tokenize_text}
    else
        echo "not run: same logits as transformers: no transformers (python3 -c 'import torch, transformers')"
    fi
    build cpu BF16 $bf16/{train_gpt2_zero,test_gpt2_zero}
    if dev/test/hosts/up.sh 2 unlimited true > /dev/null 2>&1; then
        run 0 180 "two hosts: TCP, bytes between them, a cable that is cut" dev/test/cli/test_hosts.sh \
            {$fp32,$bf16}/train_gpt2_zero
        run 0 600 "bytes that leave a host" dev/test/cli/test_host_bytes.sh $fp32/train_gpt2_zero
    else
        echo "not run: two hosts: no namespaces (dev/test/hosts/up.sh 2 unlimited true)"
    fi
    build emulated FP32 $asan/{test_comm,test_engine,test_engine_ema,test_engine_offload,train_gpt2_zero}
    build emulated BF16 build/emulated-bf16/train_gpt2_zero
    run 0 600 "fuzz: 150 s of configurations, one seed" $fp32/fuzz $fp32/train_gpt2_zero $bf16/train_gpt2_zero \
        --seconds 150 --seed 2
    must_fail 0 300 "fuzz notices another seed" "other numbers" $fp32/fuzz $fp32/train_gpt2_zero \
        $bf16/train_gpt2_zero --break 1 --seed 1
    run 0 600 "fuzz, emulated GPU: 150 s of configurations, one seed" $fp32/fuzz $asan/train_gpt2_zero \
        build/emulated-bf16/train_gpt2_zero --seconds 150 --seed 3
    run 0 300 "fuzz: parsers of files, 60 s" build/fuzz-gcc/fuzz_files --seconds 60 --seed 2
    run 0 600 "tool for checkpoints, 500 damages, SANITIZE=address" dev/test/cli/test_ckpt.sh \
        {$fp32,$bf16}/train_gpt2_zero build/ckpt-address/ckpt 500
    run 0 60 "Hugging Face, there and back, SANITIZE=address" dev/test/cli/test_huggingface.sh \
        $fp32/train_gpt2_zero build/ckpt-address/ckpt
    run 0 300 "what fits is what a run measures" dev/test/cli/test_fit.sh {$fp32,$bf16}/train_gpt2_zero
    run 0 600 "a rank dies or stops: all phases" dev/test/cli/test_failures.sh $fp32/faulty_trainer some
    for precision in fp32 bf16; do
        [ $precision = fp32 ] && other=bf16 || other=fp32
        run 0 1800 "checkpoints $precision: each number of ranks in each stage" dev/test/cli/test_checkpoint.sh \
            build/cpu-{$precision,$other}/train_gpt2_zero all
    done
    run 0 300 "configuration files in runs" dev/test/cli/test_config.sh {$fp32,$bf16}/train_gpt2_zero
    run 0 600 "damaged checkpoints, 500" dev/test/cli/test_damages.sh $fp32/train_gpt2_zero 500
    run 0 900 "a file system that fails: all calls" dev/test/cli/test_file_faults.sh $fp32/faulty_trainer all
    for ranks in 1 2 3 4 5 6 7 8 9; do
        TEST_TIMEOUT=50 run $ranks 180 "fuzz: calls of the engine, 30 s, $ranks ranks" $fp32/fuzz_engine \
            --seconds 30 --seed 2
    done
    for ranks in 1 3 4; do      # most cases wait for a time-out; make test has 2 ranks
        run $ranks 600 "failures, $ranks ranks" $fp32/test_engine_failure
        run $ranks 600 "engine's contract, $ranks ranks" $fp32/test_engine_contract
        [ $ranks = 1 ] || run $ranks 600 "a rank is stopped at any moment, $ranks ranks" $fp32/test_stops 40
        [ $ranks = 1 ] || run $ranks 600 "transports, failures, $ranks ranks" $fp32/test_comm_failures
    done
    run 2 900 "transports, emulated GPU" $asan/test_comm
    run 2 900 "engine, emulated GPU" $asan/test_engine
    run 2 900 "moving average of the weights, emulated GPU" $asan/test_engine_ema --case "put back: shared"
    for ranks in 1 2 4 8; do
        run $ranks 900 "engine, $ranks ranks" $fp32/test_engine
    done
    for ranks in 1 2 4; do
        run $ranks 600 "offloaded optimizer state, $ranks ranks" $fp32/test_engine_offload
    done
    CUDA_ON_CPU_STREAMS=2 CUDA_ON_CPU_PROTECT=1 run 2 600 "offloaded optimizer state, streams in order 2" \
        $fp32/test_engine_offload --case "AdamW: NCCL"
    for order in 1 3; do
        CUDA_ON_CPU_STREAMS=$order CUDA_ON_CPU_PROTECT=1 run 2 600 "offloaded parameters, streams in order $order" \
            $fp32/test_engine_offload --case "bf16, AdamW: NCCL"
    done
    run 2 900 "offloaded optimizer state, emulated GPU" $asan/test_engine_offload --case "AdamW: shared"
    run 0 300 "offloaded optimizer state in runs" dev/test/cli/test_offload.sh {$fp32,$bf16}/train_gpt2_zero
    for ranks in 1 2 4 6; do
        run $ranks 300 "engine, order of micro-batches, $ranks ranks" $fp32/test_engine_order
    done
    # Which micro-batches a rank takes: pairs of number, stage, groups, transport, delays and master weights.
    steps_of() { echo "-e custom:l1,h2,c32,v256,t16 -i $text -b 1 -t 16 -d $((16 * $1)) -x 3 -v 0 -s 0 --hash 1"; }
    rank="--micro-batch-order rank $(steps_of 24)"
    same 60 "trainer fp32, rank by rank: the state of one rank" "state hash: .*" $fp32/train_gpt2_zero \
        "1 -z 0 $(steps_of 24)" "2 -z 0 $rank" "2 -z 1 --shard-group 1 --transport nccl $rank" \
        "3 -z 0 --inject-delays 1 $rank" "3 -z 1 --shard-group 1 $rank" \
        "4 -z 1 --shard-group 2 --inject-delays 2 $rank" "4 -z 1 --transport nccl $rank" \
        "6 -z 0 --transport nccl $rank" "6 -z 1 --shard-group 2 --inject-delays 3 $rank" \
        "12 -z 1 --shard-group 4 $rank" "12 -z 0 --inject-delays 4 $rank"
    layer="--micro-batch-order layer $(steps_of 24)"
    same 60 "trainer fp32, layer by layer: the state of one rank" "state hash: .*" $fp32/train_gpt2_zero \
        "1 -z 0 $(steps_of 24)" "2 -z 0 -r 2 $layer" "2 -z 3 --transport nccl -r 0 $layer" \
        "3 -z 2 --inject-delays 1 $layer" "3 -z 3 --shard-group 1 --prefetch 2 $layer" \
        "4 -z 3 --shard-group 2 --inject-delays 2 $layer" "4 -z 1 --transport nccl $layer" \
        "6 -z 3 --transport nccl --inject-delays 3 $layer" "6 -z 2 --shard-group 2 --inject-delays 3 $layer" \
        "12 -z 3 --shard-group 4 --prefetch 0 $layer" "12 -z 1 --inject-delays 4 $layer"
    for w in 0 1 2; do
        same 60 "trainer bf16, -w $w, rank by rank, layer by layer: the state of one rank" "state hash: .*" \
            $bf16/train_gpt2_zero "1 -w $w -z 0 $(steps_of 24)" "2 -w $w -z $((w % 2)) $rank" \
            "3 -w $w -z 1 --transport nccl $rank" "3 -w $w -z 0 --inject-delays $((w + 1)) $rank" \
            "6 -w $w -z 1 --shard-group $((w + 1)) $rank" "2 -w $w -z 3 --transport nccl $layer" \
            "3 -w $w -z $((w + 1)) --inject-delays $((w + 1)) $layer" "6 -w $w -z 3 --shard-group $((w + 1)) $layer"
    done
    # Ranks that meet as they do without MPI: NCCL's watchdog asks there who is left.
    for ranks in 2 3 4; do
        for program in comm_failures engine_failure; do
            mkdir -p "$logs/meet.$ranks.$program"
            TEST_MEET=$logs/meet.$ranks.$program/ run $ranks 600 "$program, ranks meet by a directory, $ranks ranks" \
                $fp32/test_$program --case NCCL
            TEST_MEET=127.0.0.1:$((20300 + ($$ * 64 + 10 * ranks + ${#program}) % 12000)) run $ranks 600 \
                "$program, ranks meet by TCP, $ranks ranks" $fp32/test_$program --case NCCL
        done
    done
    run 0 400 "124M: all memory accounting is what the process takes" dev/test/cli/test_memory.sh \
        $fp32/train_gpt2_zero $bf16/train_gpt2_zero
    build emulated BF16 build/emulated-bf16/test_attention
    run 0 1200 "faults planted in attention on tensor cores are found" dev/test/emulator/test_planted_attention.sh \
        build/emulated-bf16/test_attention
    for stage in 1 3; do
        run 0 300 "trainer, emulated GPU, stage $stage: a missing event is noticed" \
            dev/test/emulator/test_missing_waits.sh $asan/train_gpt2_zero $stage
    done
    run 0 400 "trainer, emulated GPU, the host's update: a missing event is noticed" \
        dev/test/emulator/test_missing_waits.sh $asan/train_gpt2_zero optimizer
    run 0 600 "copies of activations, emulated GPU: a missing event is noticed" \
        dev/test/emulator/test_missing_waits.sh $asan/train_gpt2_zero activations
    run 0 600 "activations in host memory, emulated GPU" dev/test/cli/test_activation_offload.sh $fp32/train_gpt2_zero \
        $asan/train_gpt2_zero build/emulated-bf16/train_gpt2_zero
    in_any_order bf16
    for ranks in 1 2 4; do
        run $ranks 180 "sharded = unsharded bf16, $ranks ranks" $bf16/test_gpt2_zero
    done
    run 0 600 "check of a GPU: every line of the script" dev/test/cli/test_gpu_check.sh
    run 0 300 "the commands of the tutorial" dev/test/cli/test_tutorial.sh
    for ranks in 1 2 3 4 5 6 7 8 9; do
        run $ranks 300 "bytes of $ranks ranks" $fp32/test_engine_bytes --case "bytes equal"
    done
    run 6 300 "bytes between hosts of 2 and 3 ranks" $fp32/test_engine_bytes --case "between hosts"
    run 8 300 "bytes between 2 hosts of 4 ranks" $fp32/test_engine_bytes --case "between hosts of 4"
    build cpu FP32 install PREFIX="$PWD/build/prefix"       # not by two tests at a time
    run 0 300 "the module, installed" dev/test/cli/test_install.sh
    if [ -n "${LLMC-}" ]; then      # a checkout of llm.c
        run 0 900 "zero/README.md, followed in llm.c" dev/test/cli/test_guide.sh $fp32/train_gpt2_zero
    elif [ -z "$TEST" ]; then
        echo "not run: zero/README.md, followed in llm.c: make test-long LLMC=DIR"
    fi
fi

# The CPU's build under sanitizers: programs that start ranks, and those that read files and flags.
for SANITIZE in address undefined; do
    export SANITIZE
    suffix=-$SANITIZE
    dir=build/cpu-fp32$suffix
    build cpu FP32 $dir/{train_gpt2_zero,test_gpt2_zero,fuzz_engine}
    build cpu FP32 $dir/test_{engine_contract,engine_failure,engine_step,engine_ema,engine_frozen,stops}
    build cpu FP32 $dir/test_{layout,options,config,output,content_hash,data,llmc_state,bootstrap,comm,nccl,engine}
    for program in layout options config output content_hash data llmc_state; do
        run 0 300 "$program, SANITIZE=$SANITIZE" $dir/test_$program
    done
    run 0 600 "ranks meet, by TCP, SANITIZE=$SANITIZE" $dir/test_bootstrap tcp
    run 0 600 "ranks meet, by a directory, SANITIZE=$SANITIZE" $dir/test_bootstrap fs
    ASAN_OPTIONS=$leaks run 3 600 "transports, SANITIZE=$SANITIZE" $dir/test_comm
    run 3 600 "waits of NCCL, SANITIZE=$SANITIZE" $dir/test_nccl
    ASAN_OPTIONS=$leaks run 3 900 "engine's contract, SANITIZE=$SANITIZE" $dir/test_engine_contract
    ASAN_OPTIONS=$leaks run 3 900 "failures, SANITIZE=$SANITIZE" $dir/test_engine_failure
    ASAN_OPTIONS=$leaks run 3 600 "a rank is stopped at any moment, SANITIZE=$SANITIZE" $dir/test_stops 16
    ASAN_OPTIONS=$leaks run 3 900 "engine, SANITIZE=$SANITIZE" $dir/test_engine
    for ranks in 1 2 4 6; do
        ASAN_OPTIONS=$leaks TEST_TIMEOUT=50 run $ranks 180 "fuzz: calls, $ranks ranks, SANITIZE=$SANITIZE" \
            $dir/fuzz_engine --seconds 30 --seed 3
    done
    ASAN_OPTIONS=$leaks run 3 300 "engine, steps, SANITIZE=$SANITIZE" $dir/test_engine_step
    [ $SANITIZE != address ] || ASAN_OPTIONS=$leaks must_fail 3 120 "a leak of the engine is noticed" \
        "in zero_create" $dir/test_engine_step --leak
    ASAN_OPTIONS=$leaks run 3 900 "moving average of the weights, SANITIZE=$SANITIZE" $dir/test_engine_ema
    ASAN_OPTIONS=$leaks run 3 900 "frozen units, SANITIZE=$SANITIZE" $dir/test_engine_frozen
    SEED=2 run 0 900 "damaged checkpoints, SANITIZE=$SANITIZE" dev/test/cli/test_damages.sh $dir/train_gpt2_zero 100
    run 3 900 "sharded = unsharded, SANITIZE=$SANITIZE" $dir/test_gpt2_zero
done
