#!/usr/bin/env bash
# Tests scripts/gpu_check.sh where there is no GPU: on the day when there is one, every line of it must have been run
# before.
#
# What only machines with GPUs have is played by scripts in PATH: nvidia-smi, which reports two GPUs, and
# compute-sanitizer, which runs the program and fails when it is asked for races. Each line of the report is a case; the
# other cases are about the script as a whole and the bundle.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh

# case_of STATUS NAME: a case, which passes if STATUS is 0
case_of() {
    report "$2" "$([ "$1" = 0 ] || echo "status $1")" "$work/output"
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

# A checkout of llm.c whose trainer reads its files and prints a step
mkdir "$work/llmc"
cat > "$work/llmc/Makefile" << 'END'
train_gpt2cu:
	printf '#!/bin/sh\ncat "$$2" "$$4" > /dev/null && ' > $@
	printf 'echo "step 1/1 | loss 5.0 | 12.50 ms | 40.0%% bf16 MFU | 10240 tok/s"\n' >> $@
	chmod +x $@
END

report=$work/out/report.txt
export OUT=$work/out

LLMC=$work/llmc scripts/gpu_check.sh --dry-run > "$work/output" 2>&1
status=$?
while read -r line; do
    [[ $line == "PASS "* ]]
    case_of $? "dry run: ${line#* }"
done < <(grep -E '^(PASS|FAIL)' "$report" | awk '/^Summary/ { exit } !/racecheck/ { print $1, substr($0, 10, 58) }')
[ $status = 1 ] && [ "$(grep -c '^FAIL .*racecheck.*exit status 1' "$report")" = 2 ] && grep -q ' 1 failed' "$report"
case_of $? "a failing step is in the summary and in the exit status, and later steps are run"
[ "$(find "$OUT" -type f | wc -l)" = 2 ] && grep -q '^==== NCCL: the calls, one rank (exit status 0' "$OUT/logs.txt" &&
    [ "$(grep -c '^==== build' "$OUT/logs.txt")" -ge 2 ]
case_of $? "two files are left, the report and the output of all steps"
! grep -E 'unbound variable|command not found|syntax error' "$work/output"
case_of $? "no line of the script is broken"
for row in "ordered reduction" "all-gather" "attention_forward" "AdamW, bf16, fp32 master" "state hash" "tok/s  MFU" \
    "12.50 ms .* MFU 40.0%" "ncclCommSplit returned" "NCCL version"; do
    grep -q -- "$row" "$report"
    case_of $? "the report has: $row"
done

# As on a machine with GPUs, but without time: every step is reached and not run.
SECONDS_ALL=0 scripts/gpu_check.sh > "$work/output" 2>&1
[ $? = 1 ] && grep -q '^NOT RUN *sharded = unsharded, 2 GPUs' "$report" &&
    grep -q '^NOT RUN *NCCL: transport, 2 GPUs' "$report" && grep -q '^NOT RUN *compute-sanitizer memcheck' "$report" &&
    ! grep -E 'unbound variable|command not found|syntax error' "$work/output"
case_of $? "what there is no time for is reported as not run"

# Runs whose states differ: each is compared with the first, and the rest are still run.
cat > "$work/differs" << 'END'
#!/bin/sh
echo "state hash: $*"
END
chmod +x "$work/differs"
(
    work=$work report=$work/same logs=$work/logs device=cpu no_gpu='' cores=2 visible=0 all=600 SECONDS=0
    . scripts/env.sh
    . scripts/gpu_check/steps.sh
    same "planted" 60 "$work/differs" "" "1 1 -z 0" "1 1 -z 1" "1 1 -z 0" "1 1 -z 3"
) > "$work/output" 2>&1
grep -q '^FAIL *planted' "$work/same" &&
    [ "$(grep -c '^FAIL 1 ranks, 1 GPUs, -z [13]: .*; the first: state hash: -z 0' "$work/logs")" = 2 ]
case_of $? "runs whose states differ are listed"

ONLY="first ranks" scripts/gpu_check.sh --dry-run > "$work/output" 2>&1 && grep -q '^PASS *bandwidth, mpi' "$report" &&
    ! grep -q 'speed' "$report"
case_of $? "ONLY=... runs the sections that it names"
ONLY="bits speeds" scripts/gpu_check.sh --dry-run > "$work/output" 2>&1
[ $? = 2 ] && grep -q 'there is no speeds, only first bits' "$work/output"
case_of $? "an unknown section is refused"

# Without MPI, and without a bundle
mkdir "$work/bare"
for tool in bash sh env dirname nproc git date uname sed awk grep head tail cat tee ls find wc cut seq timeout make \
    gcc printf mkdir rm tr id getconf sort readlink; do
    ln -s "$(command -v $tool)" "$work/bare/$tool"
done
PATH=$work/bare BUNDLE=$work/none SECONDS_ALL=0 scripts/gpu_check.sh > "$work/output" 2>&1
[ $? = 1 ] && grep -q '^FAIL *make, MPI.*no mpirun MPI.*--bundle' "$report"
case_of $? "a machine without MPI is told of the bundle"

# Bundles: env.sh and mpirun of this one are for the test; a real one is made where packages can be had.
bundle=$work/bundle
mkdir -p "$bundle/bin" "$bundle/lib" "$bundle/fallback"
echo "bundle_lib=$bundle/lib" > "$bundle/env.sh"
touch "$bundle/fallback/libnowhere.so.1"
with_bundle() {     # LINE_OF_REPORT
    BUNDLE=$bundle SECONDS_ALL=0 scripts/gpu_check.sh > "$work/output" 2>&1
    grep -q -- "$1" "$report"
}
echo "$(uname -m) 2.0" > "$bundle/made-for"
with_bundle '^PASS *make, MPI' && [ -e "$bundle/lib/libnowhere.so.1" ]
case_of $? "a bundle for an older C library is used, and its fallback libraries where there are no others"
echo "$(uname -m) 99.1" > "$bundle/made-for"
with_bundle 'with glibc 99.1 or newer.*older system'
case_of $? "a bundle for a newer C library is refused"
echo "m68k 2.0" > "$bundle/made-for"
with_bundle 'needs m68k'
case_of $? "a bundle for another processor is refused"
echo "$(uname -m) 2.0" > "$bundle/made-for"
printf '#!/bin/sh\necho "mpirun: no such component"\nexit 1\n' > "$bundle/bin/mpirun"
chmod +x "$bundle/bin/mpirun"
echo "bundle_lib=$bundle/lib PATH=$bundle/bin:\$PATH" > "$bundle/env.sh"
with_bundle '^FAIL *make, MPI.*a program of two ranks does not run: mpirun: no such component'
case_of $? "a bundle whose MPI does not start is found out by running a program"

# A real bundle, with this machine's own MPI hidden
if (cd "$work" && apt-get download -q libxxhash0) > "$work/output" 2>&1; then
    rm -rf "$bundle"
    scripts/gpu_check.sh --bundle "$bundle" > "$work/output" 2>&1 && [ "$(du -sm "$bundle" | cut -f1)" -lt 48 ] &&
        for tool in sleep cp mv chmod expr cmp ln uniq as ld ar g++; do
            ln -sf "$(command -v $tool)" "$work/bare/$tool"
        done
    rm "$work/bare/make"
    PATH=$work/bare BUNDLE=$bundle ONLY=first SECONDS_ALL=200 scripts/gpu_check.sh --dry-run >> "$work/output" 2>&1
    grep -q "^PASS *make, MPI.*$bundle/bin/mpirun" "$report" && grep -q '^PASS *a small model trains' "$report"
    case_of $? "a model trains with make and MPI of a bundle, on a machine that has no other"
else
    echo "no packages can be downloaded here: no bundle is made"
fi

scripts/gpu_check.sh --no-such-flag > "$work/output" 2>&1
[ $? = 2 ] && grep -q "scripts/gpu_check.sh --bundle DIR" "$work/output"
case_of $? "a wrong flag shows how to call it"

summary
