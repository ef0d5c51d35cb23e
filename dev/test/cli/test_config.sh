#!/usr/bin/env bash
# --config in runs: settings of DeepSpeed's and nanotron's documentation give the state, to the bit, that the same
# settings give as flags. What a file means otherwise is in dev/test/unit/test_config.c.
#
#     dev/test/cli/test_config.sh TRAINER_FP32 TRAINER_BF16
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
fp32=$(realpath "$1")
bf16=$(realpath "$2")
NP=2
. scripts/env.sh
export OMP_NUM_THREADS=1
common=(-e custom:l2,h2,c32,v256,t32 -i "$PWD/dev/data/text/default.txt" -t 32 -x 6 -v 0 -s 0 --hash 1 --timeout 60)

# run TRAINER FLAGS...: on 2 ranks; its output is in $mine/log
run() {
    timeout -k 5 200 mpirun -np 2 "$1" "${common[@]}" "${@:2}" > "$mine/log" 2>&1 < /dev/null && return
    cat "$mine/log"
    return 1
}

# equal TRAINER FILE "MORE FLAGS" FLAGS...: the file, with the first flags, gives the state of the others, and another
# one than no file
equal() {
    local one two three more
    read -r -a more <<< "$3"
    run "$1" --config "$2" "${more[@]}" && one=$(grep "^state hash" "$mine/log") || return 1
    run "$1" "${@:4}" && two=$(grep "^state hash" "$mine/log") || return 1
    run "$1" -b 1 && three=$(grep "^state hash" "$mine/log") || return 1
    printf '%s\n' "$one" "$two" "$three"
    [ "$one" = "$two" ] && [ "$one" != "$three" ]
}

cat > "$work/stage2.json" << 'END'
{
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_print": 100,
    "gradient_clipping": 0.5,
    "optimizer": {
        "type": "AdamW",
        "params": { "lr": 2e-3, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 0.01 }
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": { "warmup_min_lr": 1e-4, "warmup_max_lr": 2e-3, "warmup_num_steps": 4 }
    },
    "fp16": { "enabled": false, "loss_scale": 0, "initial_scale_power": 16 },
    "zero_optimization": {
        "stage": 2,
        "contiguous_gradients": true,
        "overlap_comm": true,
        "reduce_scatter": true,
        "reduce_bucket_size": 5e8,
        "allgather_bucket_size": 5e8
    }
}
END
flags2=(-z 2 -b 2 --micro-batches 4 -l 2e-3 --beta1 0.8 --beta2 0.99 --eps 1e-7 -c 0.01 --grad-clip 0.5 -k WarmupLR -u 4
    --warmup-from 1e-4)

# As Hugging Face's integration has it: "auto" is left to the flags.
cat > "$work/stage3.json" << 'END'
{
    "bf16": { "enabled": true },
    "optimizer": {
        "type": "AdamW",
        "params": { "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto" }
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": { "warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 2, "total_num_steps": 5 }
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": { "device": "none", "pin_memory": true },
        "offload_param": { "device": "none" },
        "overlap_comm": true,
        "contiguous_gradients": true,
        "sub_group_size": 1e9,
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": 1e5,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": true
    },
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 3,
    "gradient_clipping": "auto"
}
END
flags3=(-z 3 -b 1 --micro-batches 6 -l 1e-3 -c 0.1 -k WarmupDecayLR -u 2 --warmup-shape log --decay-to 5)
sed 's/"bf16": .*/"bf16": { "enabled": false },/' "$work/stage3.json" > "$work/stage3_fp32.json"

cat > "$work/nanotron.yaml" << 'END'
general: { project: debug, run: tiny, seed: 7, step: null }
model:
  dtype: float32
  model_config:
    hidden_size: 32
    hidden_act: gelu_new
    num_hidden_layers: 2
    num_attention_heads: 2
    max_position_embeddings: 32
    vocab_size: 256
optimizer:
  accumulate_grad_in_fp32: true
  clip_grad: 0.7
  weight_decay: 0.01
  zero_stage: 1
  learning_rate_scheduler:
    learning_rate: 0.002
    lr_decay_steps: 4
    lr_decay_style: cosine
    lr_warmup_steps: 2
    lr_warmup_style: linear
    min_decay_lr: 1.0e-05
  optimizer_factory: { name: adamW, adam_beta1: 0.9, adam_beta2: 0.98, adam_eps: 1.0e-08 }
parallelism: { dp: 2, pp: 1, tp: 1 }
tokens: { micro_batch_size: 2, sequence_length: 32, train_steps: 6, batch_accumulation_per_replica: 2,
          val_check_interval: -1 }
END
flags_nanotron=(--seed 7 -z 1 -b 2 --micro-batches 4 -l 2e-3 -k cosine -u 2 --warmup-shape linear -q 0.005 --decay-to 6
    -c 0.01 --beta2 0.98 --grad-clip 0.7)

at_once "DeepSpeed, stage 2: the same bits as with flags" equal "$fp32" "$work/stage2.json" "" "${flags2[@]}"
at_once "DeepSpeed, stage 3: the same bits as with flags" equal "$fp32" "$work/stage3_fp32.json" "-c 0.1" "${flags3[@]}"
at_once "DeepSpeed, stage 3, bf16: the same bits as with flags" equal "$bf16" "$work/stage3.json" "-c 0.1" \
    "${flags3[@]}"
at_once "nanotron: the same bits as with flags" equal "$fp32" "$work/nanotron.yaml" "" "${flags_nanotron[@]}"

# names: the run says once what it does not use, and which flag wins
names() {
    run "$fp32" --config "$work/stage2.json" -z 3 || return 1
    local log=$mine/log
    cat "$log"
    [ "$(grep -c "stage2.json: not used: steps_per_print, zero_optimization.reduce_bucket_size, z" "$log")" = 1 ] &&
        [ "$(grep -c "^-z 3: wins over .*stage2.json: zero_optimization.stage 2$" "$log")" = 1 ]
}
at_once "what is not used, and what wins, is printed once" names

# prints RANKS WORDS FILE FLAGS...: --print-config prints a line with these words once, and trains nothing
prints() {
    timeout -k 5 200 mpirun -np "$1" "$fp32" "${common[@]}" --print-config --config "${@:3}" > "$mine/log" 2>&1 ||
        return 1
    cat "$mine/log"
    [ "$(grep -cE "$2" "$mine/log")" = 1 ] && ! grep -q "^step" "$mine/log"
}
at_once "--print-config on one rank" prints 1 "^lr +0.002 +.*stage2.json: scheduler.params.warmup_max_lr" \
    "$work/stage2.json" --ranks 2
at_once "--print-config on two ranks" prints 2 "^micro-batches +4 +.*stage2.json: train_batch_size" \
    "$work/stage2.json"
at_once "--print-config has the ranks of the file" prints 1 "^micro-batches +4 +.*nanotron.yaml:[0-9]+: tokens.b" \
    "$work/nanotron.yaml"

# The rate of each step, beside DeepSpeed's: constant without a scheduler, 0 after total_num_steps.
rates() { grep -oE "lr [0-9.e+-]+" "$mine/log" | cut -c 4- | xargs; }
printf '{"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}\n' > "$work/constant.json"
printf '{"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": 3}}}\n' > \
    "$work/short.json"
constant() {
    timeout -k 5 200 "$fp32" -x 3 -v 0 -s 0 --config "$work/constant.json" > "$mine/log" 2>&1 < /dev/null
    cat "$mine/log"
    [ "$(rates)" = "1.00e-03 1.00e-03 1.00e-03" ] && ! grep -q -- "-q 0.05" "$mine/log"
}
at_once "no scheduler: a constant rate, with the built-in model, too" constant
ends() {
    run "$fp32" --config "$work/short.json" || return 1
    cat "$mine/log"
    [ "$(rates)" = "0.00e+00 0.00e+00 1.00e-03 1.00e-03 0.00e+00 0.00e+00" ] &&
        [ "$(grep -c "the run has 6 steps: from step 5 on the learning rate is 0$" "$mine/log")" = 1 ]
}
at_once "a run longer than total_num_steps is told so" ends

# The state of a run that was interrupted, with its settings in a file all along.
resumes() {
    local whole
    run "$fp32" --config "$work/stage2.json" && whole=$(grep "^state hash" "$mine/log") || return 1
    run "$fp32" --config "$work/stage2.json" -x 3 -n 3 -o "$mine/out" || return 1
    run "$fp32" --config "$work/stage2.json" -o "$mine/out" -y 1 || return 1
    cat "$mine/log"
    grep -qxF "$whole" "$mine/log"
}
at_once "a run is resumed with its file" resumes

refused() {
    run "${@:2}" && return 1
    [ "$(grep -c '^error:' "$mine/log")" = 1 ] && grep '^error:' "$mine/log" | grep -qF -- "$1"
}
sed 's/dp: 2/dp: 4/' "$work/nanotron.yaml" > "$work/dp.yaml"
at_once "another number of ranks" refused "parallelism.dp 4: there are 2 ranks: start 4" "$fp32" --config \
    "$work/dp.yaml"
sed 's/accumulation_steps": 2/accumulation_steps": 3/' "$work/stage2.json" > "$work/wrong.json"
at_once "a batch that does not multiply" refused "train_batch_size 8: is not train_micro_batch_size_per_gpu 2 x" \
    "$fp32" --config "$work/wrong.json"
summary
