# tests_long.sh: the tests of `make test-long`, which take too long for `make test` (dev/test/harness/runner.sh).

build cpu FP32 $fp32/{fuzz,train_gpt2_zero}
build cpu BF16 $bf16/train_gpt2_zero

run 0 600 "fuzz: 300 s of configurations, one seed" $fp32/fuzz --build build/cpu --seconds 300 --seed 2
