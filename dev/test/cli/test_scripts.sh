#!/usr/bin/env bash
# The scripts that start runs, without the clusters that they are for: do they give each rank a command line that the
# trainer accepts? And where they need no MPI (-pi fs, -pi tcp): does the trainer train, does it end when a rank is
# missing or dies, and does it report why?
#
#     dev/test/cli/test_scripts.sh TRAINER
#
# make, mpirun, srun, scontrol, ssh and scp are stand-ins, first in PATH: those that start processes do so here. What
# they start is a stand-in too: it gives its options to the trainer with --plan, which checks them all and trains
# nothing, and notes them; with REAL=1 it trains. Whether the real srun and mpirun accept their own options is not
# tested.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
trainer=$(readlink -f "$1")
job=$((100000 + $$ % 10000))
is_taken() { (exec 3<> "/dev/tcp/localhost/$1") 2> /dev/null; }
while port=$((20000 + job % 10000)) && is_taken $port; do job=$((job + 1)); done   # as run_multi_node.sbatch makes it

repo=$work/repo
mkdir -p "$repo" "$work/bin"
cp -r scripts "$repo"
stand_in() { cat > "$1" && chmod +x "$1"; }

stand_in "$repo/train_gpt2_zero" << END
#!/bin/bash
echo "rank \${SLURM_PROCID-\$FAKE_RANK} \$*" > "$work/ran.\${SLURM_PROCID-\$FAKE_RANK}"
unset SLURM_PROCID SLURM_NTASKS
[ -z "\${REAL-}" ] || exec $(printf %q "$trainer") "\$@"
exec $(printf %q "$trainer") --plan --ranks "\$N" --precision bf16 "\$@" > "$work/plan.\$\$" 2>&1
END
# starts what comes after its own options, which is bash or the trainer, \$N times
start='while [ "$1" != bash ] && [[ $1 != *train_gpt2_zero ]]; do shift; done
export N; ok=0; pids=()
for ((i = 0; i < N; i++)); do SLURM_PROCID=$i FAKE_RANK=$i "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait $pid || ok=1; done
exit $ok'
printf '#!/bin/bash\nN=$SLURM_NTASKS\necho "srun $*" > "%s/srun"\n%s\n' "$work" "$start" | stand_in "$work/bin/srun"
printf '#!/bin/bash\nwhile [ "$1" != -np ]; do shift; done\nN=$2\n%s\n' "$start" | stand_in "$work/bin/mpirun"
printf '#!/bin/bash\necho localhost\necho node8\n' | stand_in "$work/bin/scontrol"
for program in make ssh scp; do printf '#!/bin/bash\n' | stand_in "$work/bin/$program"; done

# script NAME RANKS WORDS [VARIABLE=VALUE...] SCRIPT ARGUMENTS...: it starts so many ranks, all succeed, and each has
# WORDS (%r: its rank) in its command line
script() {
    local name=$1 ranks=$2 words=$3 wrong='' r
    shift 3
    rm -f "$work"/ran.* "$work"/plan.* "$work/srun"
    (cd "$repo" && env PATH="$work/bin:$PATH" SLURM_SUBMIT_DIR="$repo" SLURM_JOB_ID=$job SLURM_NTASKS=4 \
        SLURM_JOB_NODELIST='node[7-8]' "$@") > "$work/log" 2>&1 < /dev/null || wrong="exit status $?"
    [ "$(find "$work" -name 'ran.*' | wc -l)" = "$ranks" ] || wrong="$wrong, not $ranks ranks were started"
    for ((r = 0; r < ranks; r++)); do
        grep -q -e "${words//%r/$r}" "$work/ran.$r" 2> /dev/null || wrong="$wrong, rank $r has not \"${words//%r/$r}\""
    done
    cat "$work"/ran.* "$work"/plan.* >> "$work/log" 2> /dev/null
    report "$name" "$wrong" "$work/log"
}

sbatch=$repo/scripts/run_multi_node.sbatch
export PAUSE=0 TRIES=1     # a failure is not tried again
for file in scripts/*.sh scripts/*.sbatch scripts/*/*.sh; do
    check "bash can read $file" bash -n "$file"
done
script "run_gpt2_124M.sh" 8 "-e d12 " scripts/run_gpt2_124M.sh
script "run_gpt2_1558M.sh, NP=4, an option more" 4 "-e d48 .* -b 8\$" NP=4 scripts/run_gpt2_1558M.sh -b 8
script "run_multi_node_mpi.sh" 5 "-d 327680 " HOSTS=localhost:2,node2:3 scripts/run_multi_node_mpi.sh
# The other machine's shell reads the name of the program again. (This one plays the other.)
odd="$work/a b'c\"d"
cp -r "$repo" "$odd"
printf '#!/bin/bash\nexec sh -c "$2"\n' | stand_in "$work/bin/ssh"
repo=$odd script "run_multi_node_mpi.sh, in a directory with blanks and quotes" 1 "-o $odd/log_gpt2" HOSTS=node2:1 \
    scripts/run_multi_node_mpi.sh
report "it copies the program to where it is here" "$(cmp "$repo/train_gpt2_zero" "$odd/train_gpt2_zero" 2>&1
    [ "$odd/train_gpt2_zero" -nt "$odd/scripts/env.sh" ] || echo "it was not written")"
printf '#!/bin/bash\n' | stand_in "$work/bin/ssh"
script "run_multi_node.sbatch" 4 "-d 262144 " bash "$sbatch"
check "srun starts ranks by PMIx" grep -q -e --mpi=pmix "$work/srun"
script "run_multi_node.sbatch, INIT=mpirun" 4 "-n 1000\$" INIT=mpirun bash "$sbatch"
script "run_multi_node.sbatch, INIT=fs" 4 "-z 3 -pi fs -pf $repo/log_gpt2_124M_$job/meet -pn 4 -pr %r\$" INIT=fs \
    bash "$sbatch" -z 3
script "run_multi_node.sbatch, INIT=tcp" 4 "-pi tcp -ps localhost:$port -pn 4 -pr %r\$" INIT=tcp bash "$sbatch"

# A script with a flag that the trainer does not know has to be noticed here.
sed 's/ -n 1000 / -n 1000 --no-such-flag 1 /' "$sbatch" > "$sbatch.wrong"
(case_word='' && script "planted" 4 "-e d12" INIT=fs bash "$sbatch.wrong" > "$work/noticed")
report "a wrong flag is noticed" \
    "$(grep -q "^FAIL" "$work/noticed" && grep -q "unknown flag" "$work/noticed" || echo "it is not")" "$work/noticed"

# ----------------------------------------------------------------------------------------------------------------------
# Without MPI. The last of equal flags counts, so a script can be told to train something small.

export OMP_NUM_THREADS=1
cat README.md > "$work/text.txt"
tiny=(-e custom:l2,h4,c32,v256,t32 -i "$work/text.txt" -j "$work/text.txt" -b 2 -t 32 -d 256 -x 5 -l 1e-3 -u 1 -q 1
    -c 0 -v 0 -s 0 -n 0 --hash 1 --timeout 60)
state_hash() { grep -ohE 'state hash: .*' "$@"; }

mkdir "$work/meet"
"$trainer" "${tiny[@]}" -pi fs -pf "$work/meet" -pn 1 -pr 0 > "$work/one" 2>&1
one=$(state_hash "$work/one")
report "one rank, -pi fs" "$([ -n "$one" ] || echo "no hash")" "$work/one"
for init in fs tcp; do
    script "run_multi_node.sbatch trains, INIT=$init" 4 "-pr %r\$" REAL=1 INIT=$init \
        bash "$sbatch" -o "$work/repo" --overwrite 1 "${tiny[@]}"
    report "the same state as on one rank, INIT=$init" \
        "$([ "$(state_hash "$work/log")" = "$one" ] || echo "not \"$one\"")" "$work/log"
done
report "no files are left where ranks met" "$(ls -A "$work/meet" "$repo"/log_*/meet | grep zero)"

# faulty NAME ERRORS WORD KILLED LEFT_OUT RANK ARGUMENTS...: 3 ranks, without LEFT_OUT, and RANK has more arguments;
# KILLED is killed when it trains (-1: none). All others end in time, non-zero, with ERRORS error lines (or any number:
# +), and one has WORD
faulty() {
    local name=$1 errors=$2 word=$3 killed=$4 left_out=$5 rank=$6 r wrong='' pids=()
    selected "$name" || return
    shift 6
    for r in 0 1 2; do
        [ $r != "$left_out" ] || continue
        local more=()
        [ $r != "$rank" ] && [ "$rank" != all ] || more=("$@")
        timeout -k 5 200 "$trainer" "${tiny[@]}" -d 384 -x 1000000 --timeout $short -pi fs -pf "$work/meet" -pn 3 \
            -pr $r "${more[@]}" > "$work/out.$r" 2>&1 < /dev/null &
        pids[r]=$!
    done
    if [ "$killed" != -1 ]; then
        for r in {1..1200}; do grep -q '^step' "$work/out.0" && break; sleep 0.05; done
        pkill -9 -P "${pids[killed]}"       # it is a child of timeout
    fi
    for r in "${!pids[@]}"; do
        wait "${pids[r]}" 2> /dev/null
        case $? in 0 | 124 | 137) [ "$r" = "$killed" ] || wrong="$wrong, rank $r does not fail as it should" ;; esac
    done
    cat "$work"/out.* > "$work/log"
    rm -f "$work"/out.* "$work"/meet/*
    r=$(grep -c '^error: ' "$work/log")
    [ "$errors" = + ] && [ "$r" -gt 0 ] || [ "$r" = "$errors" ] || wrong="$wrong, $r lines of error, not $errors"
    grep -qE -- "^error: .*$word" "$work/log" || wrong="$wrong, no error has \"$word\""
    report "$name" "${wrong#, }" "$work/log"
}

short=$(short_timeout 4 "$trainer" "${tiny[@]}" -pi fs -pf "$work/meet" -pn 1 -pr 0)
faulty "a fault of all ranks is reported once" 1 "no/such/text" -1 -1 all -i no/such/text -j no/such/text
faulty "a rank is missing" + "rank 1 has not come" -1 1 none
faulty "a rank has other settings" + "rank 2 has --seed 7, rank 0 has --seed 42" -1 -1 2 --seed 7
faulty "a rank is killed" + "(asked who is left: .*rank 1 |rank 1 has not come within $short s)" 1 -1 none

# ----------------------------------------------------------------------------------------------------------------------
# A run that is started again. flaky stands for mpirun; what it starts is asked for its plan only.

stand_in "$work/bin/flaky" << END
#!/bin/bash
echo "\$*" >> "$work/tries"
n=\$(wc -l < "$work/tries")
case \$MODE in
advancing) touch "$work/again/model_0000000\$n.bin"; [ \$n = 5 ]; exit ;;
failing) exit 7 ;;
saving)
    trap 'touch "$work/saved"; exit 0' USR1
    trap 'exit 9' TERM INT
    touch "$work/ready"
    while :; do sleep 0.1; done
    ;;
deaf) trap '' USR1; touch "$work/ready"; while :; do sleep 0.1; done ;;
esac
END
again=(scripts/run_resilient.sh "$trainer" -e custom:l1,h2,c16,v256,t32 -b 2 -t 32 -d 384 -n 5 -o "$work/again")
export NP=4 TRIES=3 MPIRUN=$work/bin/flaky

# wait_for COMMAND...: until it succeeds
wait_for() {
    for _ in {1..1200}; do
        "$@" && return
        sleep 0.05
    done
}

# again NAME STATUS TRIES MODE [SIGNALS]
again() {
    selected "$1" || return
    local wrong='' process i
    rm -rf "$work/again" "$work/tries" "$work/ready" "$work/saved"
    mkdir "$work/again"
    PATH="$work/bin:$PATH" MODE=$4 "${again[@]}" > "$work/log" 2>&1 < /dev/null &
    process=$!
    for i in ${5-}; do
        wait_for [ -e "$work/ready" ]
        kill "-$i" $process
        wait_for grep -q "asking the run" "$work/log"      # two that come at once are one
    done
    wait $process
    i=$?
    [ $i = "$2" ] || wrong=", exit status $i, not $2"
    [ "$(wc -l < "$work/tries")" = "$3" ] || wrong="$wrong, $(wc -l < "$work/tries") tries, not $3"
    cat "$work/tries" >> "$work/log"
    report "$1" "${wrong#, }" "$work/log"
}
again "a run that fails and gets on is continued" 0 5 advancing
check "it begins on NP ranks" grep -q '^-np 4 .*/again$' "$work/tries"
check "it goes on, on as many ranks as divide M" [ "$(grep -c '^-np 3 .* -y 1$' "$work/tries")" = 4 ]
again "a run that does not get on is given up" 7 3 failing
check "one that has saved nothing begins again" grep -q '^-np 3 .* --overwrite 1$' "$work/tries"
again "SIGTERM: the run saves and ends" 0 1 saving TERM
check "it was asked by SIGUSR1" [ -e "$work/saved" ]
again "a second SIGTERM ends it at once" 143 1 deaf "TERM TERM"

summary
