#!/usr/bin/env bash
# Ranks on two hosts, which are network namespaces of this machine (dev/test/hosts/up.sh), over TCP: the same bits as on
# one host; bytes between hosts are what the wire table implies; a host that is lost ends the run, launcher included; a
# host may come late; hosts with different files are refused.
#
#     dev/test/cli/test_hosts.sh TRAINER BF16_TRAINER
set -u
cd "$(dirname "$0")/../../.." || exit 1
[ -n "${NODES-}" ] || exec dev/test/hosts/up.sh 2 unlimited "$0" "$@"
. dev/test/harness/report.sh
trainer=$(realpath "$1")
other=$(realpath "$2")
hosts=dev/test/hosts
tiny=(-e "custom:l2,h4,c64,v256,t32" -i "$PWD/dev/data/text/default.txt" -b 2 -t 32 -d 512 -v 0 -s 0 -n 0 --hash 1)

# run LOG FLAGS...: two ranks on each host. Prints what node1 sent meanwhile; the exit status is the run's.
run() {
    local log=$1 before status
    shift
    before=$($hosts/sent.sh node1)
    $hosts/mpirun.sh 2 "$trainer" "${tiny[@]}" "$@" > "$log" 2>&1 < /dev/null
    status=$?
    echo $(($($hosts/sent.sh node1) - before))
    return $status
}
state_hash() { grep -o 'state hash: .*' "$1"; }

# ----------------------------------------------------------------------------------------------------------------------
# What a step sends: the difference between runs of 2 and 12 steps, beside the table of bytes between hosts. The losses
# are the trainer's own, and the interface counts headers and acknowledgements too.

"$trainer" "${tiny[@]}" -x 12 > "$work/one" 2>&1
one=$(state_hash "$work/one")
for stage in 1 3; do
    few=$(run "$work/few" -z $stage -x 2)
    many=$(run "$work/many" -z $stage -x 12)
    report "stage $stage, 2 x 2 ranks: the state of one rank" "$(
        [ -n "$one" ] && [ "$(state_hash "$work/many")" = "$one" ] || echo "not \"$one\"")" "$work/many"
    expected=$(awk '/^sent by each host/ { table = 1 } /^$/ { table = 0 } table { sum += $NF } END { print sum + 0 }' \
        "$work/many")
    sent=$(((many - few) / 10))
    echo "      a step sent $sent bytes, expected $expected and headers"
    report "stage $stage, 2 x 2 ranks: bytes between hosts are those of the formula" "$(
        [ $expected -gt 100000 ] && [ $sent -ge $expected ] && [ $sent -le $((expected * 102 / 100)) ] ||
            echo "a step sent $sent bytes, expected $expected and at most 2 % more")" "$work/many"
done

# ----------------------------------------------------------------------------------------------------------------------
# Late, and other files.

# tcp RANK: one that meets the others by TCP, on the host of its number
tcp() {
    ssh node$(($1 + 1)) "OMP_NUM_THREADS=1 $trainer ${tiny[*]} -x 12 -pi tcp -ps 10.77.0.1 -pn 2 -pr $1 --timeout 60" \
        > "$work/tcp.$1" 2>&1 < /dev/null
}
short=$(short_timeout 3 run "$work/healthy" -z 3 -x 12)
late=$((short + 2))
echo $late > /run/hosts/node2.late
SECONDS=0
tcp 0 &
tcp 1 &
run "$work/late" -z 3 -x 12 --timeout $short > /dev/null
report "a host that comes late takes part" "$(
    [ $SECONDS -ge $late ] || echo "it was not late"
    [ "$(state_hash "$work/late")" = "$one" ] || echo "not \"$one\"")" "$work/late"
wait
report "a host that comes late takes part, -pi tcp" "$(
    [ "$(state_hash "$work/tcp.0")" = "$one" ] || echo "not \"$one\"")" "$work/tcp.0"
rm /run/hosts/node2.late

tac dev/data/text/default.txt > "$work/other.txt"
cp dev/data/text/default.txt "$work/text.txt"
ssh node2 "mount --bind $work/other.txt $work/text.txt"
run "$work/other" -z 1 -x 2 -i "$work/text.txt" > /dev/null
status=$?
report "a host with other data is refused" "$(
    [ $status != 0 ] || echo "exit status 0"
    grep -q "^error: -i $work/text.txt: rank 2 has another content of it than rank 0: copy the same files to all" \
        "$work/other" || echo "not told")" "$work/other"

cp "$trainer" "$work/trainer"
ssh node2 "mount --bind $other $work/trainer"
$hosts/mpirun.sh 1 "$work/trainer" "${tiny[@]}" -x 2 > "$work/build" 2>&1 < /dev/null
status=$?
report "a host with another build is refused" "$(
    [ $status != 0 ] || echo "exit status 0"
    grep -q "^error: rank 1 has --precision bf16, rank 0 has --precision fp32: give all ranks the same flags" \
        "$work/build" || echo "not told")" "$work/build"

# ----------------------------------------------------------------------------------------------------------------------
# A cable is cut in training. The script is the user's; it would build the trainer.

mkdir "$work/repo" "$work/bin"
cp -r scripts "$work/repo"
cp "$trainer" "$work/repo/train_gpt2_zero"
ln -s "$(command -v true)" "$work/bin/make"
ssh node1 "cd $work/repo; NP=4; . scripts/env.sh
    PATH=$work/bin:\$PATH HOSTS=node1:2,node2:2 NETWORK=eth0 DATA=/ OUT=$work/out exec scripts/run_multi_node_mpi.sh \
    ${tiny[*]} -j $PWD/dev/data/text/default.txt -x 1000000 -q 1 -u 0 --timeout $short" > "$work/lost" 2>&1 \
    < /dev/null &
job=$!
for _ in {1..2000}; do grep -q '^step *20/' "$work/lost" && break; sleep 0.1; done
$hosts/cut.sh node2
SECONDS=0
limit=$((60 + 3 * short))
while pgrep train_gpt2 > /dev/null && [ $SECONDS -lt $limit ]; do sleep 0.2; done
ended=$SECONDS
while kill -0 $job 2> /dev/null && [ $SECONDS -lt $limit ]; do sleep 0.2; done
report "run_multi_node_mpi.sh, a host is lost: all ranks end in time" "$(
    grep -q '^step *20/' "$work/lost" || echo "it did not train"
    [ $ended -le $((2 * short + 5)) ] || echo "after $ended s")" "$work/lost"
# From one of the two ranks the chunks may have come before the cut.
report "... a missing rank and its host are named" "$(
    grep -q "^error: rank [01],.* rank [23] has not come .*rank [23] is process [0-9]* on node2" "$work/lost" ||
        echo "they are not")" "$work/lost"
report "... and the launcher ends" "$(
    [ $SECONDS -lt $limit ] || { kill -KILL $job; echo "it did not"; }
    wait $job && echo "exit status 0"
    pgrep -x mpirun > /dev/null && echo "mpirun is left")" "$work/lost"
echo "      after $ended s and $SECONDS s"
ip link set node2 up

# ----------------------------------------------------------------------------------------------------------------------
# Hosts inside of these hosts: they have the same names, and disturb nothing.

for signal in TERM KILL; do
    $hosts/up.sh 2 1gbit bash -c "touch $work/up; ssh node2 sleep 7777" > "$work/inner" 2>&1 < /dev/null &
    inner=$!
    for _ in {1..600}; do [ -e "$work/up" ] && pgrep -f 'sleep 7777' > /dev/null && break; sleep 0.1; done
    kill -$signal $inner
    wait $inner 2> /dev/null
    for _ in {1..300}; do pgrep -f 'sleep 7777' > /dev/null || break; sleep 0.1; done
    report "hosts beside these, ended by SIG$signal: nothing is left" "$(
        [ -e "$work/up" ] || echo "they did not start"
        pgrep -fa 'sleep (7777|infinity)' | sed 1,2d)" "$work/inner"
    rm -f "$work/up"
done

summary
