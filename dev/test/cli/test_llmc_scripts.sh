#!/usr/bin/env bash
# llm.c's own scripts, taken from its checkout: with another program's name and small sizes they run to their end, go on
# after a kill -9 of everything, and leave the files and log lines that its users expect. Without a checkout nothing is
# run, and this is said.
#
#     LLMC=DIR dev/test/cli/test_llmc_scripts.sh TRAINER [--case WORD]
#
# The scripts of multi_node/ for Slurm are started with stand-ins of srun, scontrol and scp, on this machine.
# pyrun_gpt2_124M.sh is PyTorch's.
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
. dev/test/harness/llmc_files.sh
trainer=$(realpath "$1")
llmc=$(realpath "${LLMC:?is not given: nothing was run}")
tree=$PWD
unset LLMC MAKEFLAGS MAKELEVEL
export OMP_NUM_THREADS=1
NP=4
. scripts/env.sh
log=$work/log

# A directory as llm.c's users have it: scripts/, dev/data/, the program, a Makefile (ours).
root=$work/root
mkdir -p "$root"/dev/data/{fineweb10B,fineweb100B,edu_fineweb100B,hellaswag} "$work/bin"
cp -r "$llmc/scripts" "$root/scripts"
ln -s "$trainer" "$root/train_gpt2_zero"
printf '.PHONY: train_gpt2_zero\ntrain_gpt2_zero:\n\t@$(MAKE) -C %s -n SETUP=true DEVICE=cpu PRECISION=FP32 $@\n' \
    "$tree" > "$root/Makefile"
cd "$root" || exit 1
text=$tree/dev/data/text/default.txt
head -c 300300 "$text" | tokens > "$work/train_1"
tail -c 310456 "$text" | tokens > "$work/train_2"
tail -c 9000 "$text" | tokens > "$work/val"
for data in fineweb10B/fineweb fineweb100B/fineweb edu_fineweb100B/edu_fineweb; do
    ln -s "$work/train_1" dev/data/${data}_train_000001.bin
    ln -s "$work/train_2" dev/data/${data}_train_000002.bin
    ln -s "$work/val" dev/data/${data}_val_000000.bin
done
steps=$(((300300 + 310456) / 512))      # of an epoch, by llm.c's rule

cat > "$work/bin/srun" << 'END'
#!/usr/bin/env bash
while [[ $1 == -* ]]; do shift; done
for ((i = 0; i < SLURM_NTASKS; i++)); do SLURM_PROCID=$i "$@" & done
status=0
for ((i = 0; i < SLURM_NTASKS; i++)); do wait -n || status=$?; done
exit $status
END
printf '#!/bin/sh\nhostname\n' > "$work/bin/scontrol"
printf '#!/bin/sh\nexit 0\n' > "$work/bin/scp"
chmod +x "$work"/bin/*
export PATH=$work/bin:$PATH

# shrunk SCRIPT: the script with the program's name changed, and sizes, paths and addresses
shrunk() {
    sed -E -e 's/train_gpt2cu/train_gpt2_zero/g' -e 's/-np [0-9]+/-np 4/' -e 's/(\$host[12]):8/\1:2/g' \
        -e 's/-b [0-9]+ -t [0-9]+/-b 2 -t 32/' -e 's/-d [0-9]+/-d 512/' \
        -e 's/-v 250 -s [0-9]+ -g [0-9]+/-v 100 -s 150 -g 5/' -e 's/-u 700/-u 20/' -e 's/-n [0-9]+ /-n 100 /' \
        -e "s/-x [0-9]+/-x $steps/" -e "s/DONE_[0-9]+/DONE_$(printf %08d $steps)/" \
        -e 's/-nk 5/-nk 2/' -e 's/-nm [0-9]+/-nm 300/' -e 's/-e "?(d|gpt3:c)[0-9]+"?/-e custom:l1,h2,c16,v256,t32/' \
        -e "s|/home/ubuntu/llm.c|$root|" -e "s|/ephemeral/data/fineweb/bin_10B|$root/dev/data/fineweb10B|" \
        -e "s|/ephemeral/data/fineweb/|$root/|" -e 's/ens17/lo/' -e 's/^host([12])="[^"]*"/host\1="localhost"/' \
        -e 's/10\.0\.1\.220/127.0.0.1/' "scripts/$1"
}

# start: runs the script in a session of its own, so that all its processes can be found
start() {
    timeout -k 5 300 setsid --wait bash "$work/script.sh" >> "$log" 2>&1 < /dev/null &
    script=$!
}
kill_all() {
    local session
    session=$(pgrep -P $script setsid || pgrep -P $script bash)
    session=$(ps -o sid= -p "$session" | tr -d ' ')
    [ -n "$session" ] && [ "$session" != "$(ps -o sid= -p $$ | tr -d ' ')" ] || return 1
    ps -o pid= -s "$session" | xargs kill -9
    wait $script || true
}
wait_for() {    # FILE
    local i
    for ((i = 0; i < 3000; i++)); do
        [ ! -e "$1" ] || return 0
        kill -0 $script 2> /dev/null || return 1
        sleep 0.02
    done
    return 1
}
has() { [ "$(grep -cE -- "$2" "${3:-$log}")" = "$1" ] || { echo "not $1 lines of $2"; return 1; }; }

# whole DIRECTORY: a finished run's files, and each step once in main.log
whole() {
    local last
    last=$(printf %08d $steps)
    [ -e "$1/DONE_$last" ] && [ -e "$1/model_$last.bin" ] &&
        has $steps '^s:[0-9]+ trl:[0-9.]+ lr:[0-9.]+ norm:[0-9.]+$' "$1/main.log" &&
        [ "$(grep -o '^s:[0-9]* trl' "$1/main.log" | sort -u | wc -l)" = $steps ] &&
        has $((steps / 100 + 2)) '^s:[0-9]+ tel:[0-9.]+$' "$1/main.log" && ! ls "$1" | grep -E 'tmp|run.lock'
}

# survives SCRIPT DIRECTORY: killed after a checkpoint, started again, ended
survives() {
    rm -rf "$2"
    [[ $1 != *_fs* ]] || mkdir "$2"     # llm.c wants it to be there, too
    shrunk "$1" > "$work/script.sh"
    diff "scripts/$1" "$work/script.sh" > "$work/diff"
    : > "$log"
    start
    wait_for "$2/DONE_00000100" && kill_all || { cat "$log"; return 1; }
    [ ! -e "$2/DONE_$(printf %08d $steps)" ] || { echo "it was not killed in time"; return 1; }
    start
    wait $script || { echo "exit status $?"; tail -n 20 "$log"; return 1; }
    grep -E "^USE_CUDNN|^HellaSwag|^resumed" "$log"
    grep -qE '^resumed from step [1-9]' "$log" && grep -q '^HellaSwag' "$log" && whole "$2" &&
        has 2 "^USE_CUDNN=1 does not apply"
}
for name in gpt2_124M gpt2_350M gpt2_774M gpt2_1558M; do
    check "run_$name.sh" survives run_$name.sh log_$name
done
swag 1 30 > dev/data/hellaswag/hellaswag_val.bin
evaluates() {
    survives "$@" && has $((steps / 100 + 1)) '^s:[0-9]+ eval:[0-9.]+$' "$2/main.log" &&
        [ "$(cd "$2" && echo DONE_*)" = "$(printf "DONE_%08d " 300 600 900 1100)DONE_$(printf %08d $steps)" ]
}
check "run_gpt3_125M.sh, with HellaSwag, -nk and -nm" evaluates run_gpt3_125M.sh log_gpt3_125M

export SLURM_JOB_ID=7 SLURM_JOB_NODELIST=here SLURM_NTASKS=4 SLURM_NTASKS_PER_NODE=2
for kind in tcp fs; do
    check "run_gpt2_124M_$kind.sbatch" survives multi_node/run_gpt2_124M_$kind.sbatch "$root/log_gpt2_124M_multi"
done
unset SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_NTASKS SLURM_NTASKS_PER_NODE
once() {    # -y 0; what is there is not overwritten
    rm -rf log_gpt2_124M_multi
    shrunk multi_node/run_gpt2_124M_mpi.sh > "$work/script.sh"
    : > "$log"
    start
    wait $script && whole log_gpt2_124M_multi || { cat "$log"; return 1; }
    start
    ! wait $script && has 1 '^error: .*holds the .* of another run' && whole log_gpt2_124M_multi
}
check "run_gpt2_124M_mpi.sh" once
untried=$(cd scripts && ls ./*.sh multi_node/* | grep -vE 'gpt2_(124M|350M|774M|1558M)|gpt3_125M|124M_(tcp|fs|mpi)')
report "no other script is there" "$untried"
summary
