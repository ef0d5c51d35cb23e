#!/usr/bin/env bash
# The scripts that start runs, without the clusters that they are for: do they give each rank a command line that the trainer takes?
#
#     dev/test/test_scripts.sh TRAINER
#
# make, mpirun, srun, scontrol, ssh and scp are stand-ins, first in PATH: those that start processes do so here. What they start is a stand-in too: it
# gives its options to the trainer with --plan, which checks them all and trains nothing, and notes them. That the real srun and mpirun
# understand their own options is not seen here.
set -u
cd "$(dirname "$0")/../.." || exit 1
trainer=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

repo=$work/repo
mkdir -p "$repo" "$work/bin"
cp -r scripts "$repo"
stand_in() { cat > "$1" && chmod +x "$1"; }

stand_in "$repo/train_gpt2_zero" << END
#!/bin/bash
echo "rank \${SLURM_PROCID-\$FAKE_RANK} \$*" > "$work/ran.\${SLURM_PROCID-\$FAKE_RANK}"
unset SLURM_PROCID SLURM_NTASKS
exec "$trainer" --plan --ranks "\$N" --precision bf16 "\$@" > "$work/plan.\$\$" 2>&1
END
# starts what comes after its own options, which is bash or the trainer, \$N times
start='while [ "$1" != bash ] && [[ $1 != *train_gpt2_zero ]]; do shift; done
export N; ok=0; pids=()
for ((i = 0; i < N; i++)); do SLURM_PROCID=$i FAKE_RANK=$i "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait $pid || ok=1; done
exit $ok'
printf '#!/bin/bash\nN=$SLURM_NTASKS\necho "srun $*" > "%s/srun"\n%s\n' "$work" "$start" | stand_in "$work/bin/srun"
printf '#!/bin/bash\nwhile [ "$1" != -np ]; do shift; done\nN=$2\n%s\n' "$start" | stand_in "$work/bin/mpirun"
printf '#!/bin/bash\necho node7\necho node8\n' | stand_in "$work/bin/scontrol"
for program in make ssh scp; do printf '#!/bin/bash\n' | stand_in "$work/bin/$program"; done

# script NAME RANKS WORDS [VARIABLE=VALUE...] SCRIPT ARGUMENTS...: it starts so many ranks, all end well, and each has WORDS (%r: its rank) in its command line
script() {
    local name=$1 ranks=$2 words=$3 wrong='' r
    shift 3
    rm -f "$work"/ran.* "$work"/plan.* "$work/srun"
    (cd "$repo" && env PATH="$work/bin:$PATH" SLURM_SUBMIT_DIR="$repo" SLURM_JOB_ID=123456 SLURM_NTASKS=4 SLURM_JOB_NODELIST='node[7-8]' "$@") > "$work/log" 2>&1 < /dev/null ||
        wrong="exit status $?"
    [ "$(find "$work" -name 'ran.*' | wc -l)" = "$ranks" ] || wrong="$wrong, not $ranks ranks were started"
    for ((r = 0; r < ranks; r++)); do
        grep -q -e "${words//%r/$r}" "$work/ran.$r" 2> /dev/null || wrong="$wrong, rank $r has not \"${words//%r/$r}\""
    done
    if [ -z "$wrong" ]; then
        passed=$((passed + 1))
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name: $wrong"
        cat "$work/log" "$work"/ran.* "$work"/plan.* 2> /dev/null | head -n 20 | sed 's/^/    | /'
    fi
}

sbatch=$repo/scripts/run_multi_node.sbatch
for file in scripts/*; do
    if bash -n "$file"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL  bash -n $file"; fi
done
script "run_gpt2_124M.sh" 8 "-e d12 " scripts/run_gpt2_124M.sh
script "run_gpt2_1558M.sh, NP=4, an option more" 4 "-e d48 .* -b 8\$" NP=4 scripts/run_gpt2_1558M.sh -b 8
script "run_multi_node_mpi.sh" 5 "-d 327680 " HOSTS=localhost:2,node2:3 scripts/run_multi_node_mpi.sh
script "run_multi_node.sbatch" 4 "-d 262144 " bash "$sbatch"
grep -q -e --mpi=pmix "$work/srun" || { failed=$((failed + 1)); echo "FAIL  run_multi_node.sbatch: no --mpi=pmix"; }
script "run_multi_node.sbatch, INIT=mpirun" 4 "-n 1000\$" INIT=mpirun bash "$sbatch"
script "run_multi_node.sbatch, INIT=fs" 4 "-pi fs -pf $repo/log_gpt2_124M_123456/meet -z 3 -pn 4 -pr %r\$" INIT=fs bash "$sbatch" -z 3
script "run_multi_node.sbatch, INIT=tcp" 4 "-pi tcp -ps node7:23456 -pn 4 -pr %r\$" INIT=tcp bash "$sbatch"

# A script with a flag that the trainer does not know has to be noticed here.
sed -i 's/ -n 1000 / -n 1000 --no-such-flag 1 /' "$sbatch"
before=$failed
script "a wrong flag (has to fail)" 4 "-e d12" INIT=fs bash "$sbatch" > "$work/noticed"
if [ $failed = $((before + 1)) ] && grep -q "unknown flag" "$work/noticed"; then
    failed=$before
    passed=$((passed + 1))
    echo "ok    a wrong flag is noticed"
else
    failed=$((before + 1))
    echo "FAIL  a wrong flag is not noticed"
fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
