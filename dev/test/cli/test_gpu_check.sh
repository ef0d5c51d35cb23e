#!/usr/bin/env bash
# scripts/gpu_check.sh, where there is no GPU: a script that is only run on the day when there is one must not have a line that was never run.
#
# What only GPUs' machines have is played by scripts in PATH: nvidia-smi, which knows two GPUs, and compute-sanitizer, which runs the program,
# and finds something when it is asked for races. Each case is one line of the report, or one of what the script as a whole must do.
set -u
cd "$(dirname "$0")/../../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

case_of() {     # STATUS NAME: 0 has passed
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
        echo "ok   $2"
    else
        failed=$((failed + 1))
        echo "FAIL $2"
        sed 's/^/    | /' "$work/output"
    fi
}

mkdir "$work/bin"
cat > "$work/bin/nvidia-smi" << 'END'
#!/bin/sh
case "$*" in
-L) echo "GPU 0: pretended"; echo "GPU 1: pretended" ;;
*compute_cap*) echo "index, name, compute_cap"; echo "0, pretended, 9.0"; echo "1, pretended, 9.0" ;;
*) echo "GPU0 GPU1" ;;
esac
END
cat > "$work/bin/compute-sanitizer" << 'END'
#!/bin/sh
tool=$2
shift 4
"$@" && [ "$tool" != racecheck ]
END
chmod +x "$work"/bin/*
export PATH="$work/bin:$PATH"

# A checkout of llm.c whose trainer looks at its files and prints a step.
mkdir "$work/llmc"
cat > "$work/llmc/Makefile" << 'END'
train_gpt2cu:
	printf '#!/bin/sh\ncat "$$2" "$$4" > /dev/null && echo "step 1/1 | loss 5.0 | 12.50 ms | 40.0%% bf16 MFU | 10240 tok/s"\n' > $@
	chmod +x $@
END

LLMC=$work/llmc REPORT=$work/report scripts/gpu_check.sh --dry-run > "$work/output" 2>&1
status=$?
while read -r line; do
    [[ $line == "PASS "* ]]
    case_of $? "dry run: ${line#* }"
done < <(grep -E '^(PASS|FAIL)' "$work/report" | awk '/^Summary/ { exit } !/racecheck/ { print $1, substr($0, 10, 58) }')
[ $status = 1 ] && [ "$(grep -c '^FAIL .*racecheck.*exit status 1' "$work/report")" = 2 ] && grep -q ' 1 failed' "$work/report"
case_of $? "a failing step is in the summary and in the exit status, and later steps are run"
! grep -E 'unbound variable|command not found|syntax error' "$work/output"
case_of $? "no line of the script is broken"
for row in "ordered reduction" "all-gather" "attention_forward" "AdamW, bf16, fp32 master" "state hash" "tok/s  MFU" "12.50 ms .* MFU 40.0%"; do
    grep -q -- "$row" "$work/report"
    case_of $? "the report has: $row"
done

# As on a GPU's machine, but no time for anything: every step comes by and is not run.
SECONDS_ALL=0 REPORT=$work/report scripts/gpu_check.sh > "$work/output" 2>&1
[ $? = 1 ] && grep -q '^NOT RUN *sharded = unsharded, 2 GPUs' "$work/report" && grep -q '^NOT RUN *compute-sanitizer memcheck' "$work/report" &&
    ! grep -E 'unbound variable|command not found|syntax error' "$work/output"
case_of $? "what there is no time for is reported as not run"

# Without MPI, and without a bundle.
mkdir "$work/bare"
for tool in bash sh env dirname nproc git date uname sed awk grep head tail cat tee ls find wc cut seq timeout make gcc printf mkdir rm tr id; do
    ln -s "$(command -v $tool)" "$work/bare/$tool"
done
PATH=$work/bare BUNDLE=$work/none SECONDS_ALL=0 REPORT=$work/report scripts/gpu_check.sh > "$work/output" 2>&1
[ $? = 1 ] && grep -q '^FAIL *MPI.*no mpirun MPI.*--bundle' "$work/report"
case_of $? "a machine without MPI is told of the bundle"

scripts/gpu_check.sh --no-such-flag > "$work/output" 2>&1
[ $? = 2 ] && grep -q "scripts/gpu_check.sh --bundle DIR" "$work/output"
case_of $? "a wrong flag shows how to call it"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
