#!/usr/bin/env bash
# Several hosts on one machine: namespaces called node1, node2, ..., on one bridge. Each has an address, a host
# name and an interface with byte counters; a stand-in for ssh starts commands there, so Open MPI takes them for hosts.
#
#     dev/test/hosts/up.sh HOSTS [RATE [COMMAND...]]
#     dev/test/hosts/up.sh 2 1gbit                      # a shell with two hosts; what each sends is limited to RATE
#     dev/test/hosts/up.sh 2 unlimited COMMAND...       # runs COMMAND instead of a shell, and returns its status
#
# In COMMAND or the shell, which sits at the bridge, outside all hosts:
#
#     ssh node2 COMMAND                     dev/test/hosts/mpirun.sh RANKS_PER_HOST PROGRAM...
#     dev/test/hosts/sent.sh node2          dev/test/hosts/cut.sh node2
#
# Everything is in namespaces of this process: when COMMAND or the shell ends, or this script is killed, in any way, the
# kernel ends all processes in them and removes the hosts. Runs beside each other do not see each other. Hosts share
# all files; `ssh node2 mount --bind OTHER FILE` gives one a file of its own. Needs root, or a kernel that lets users
# make user namespaces; fails, with a message, where neither is so.
set -eu

if [ "${1-}" != inside ]; then
    [[ ${1-} =~ ^[1-9][0-9]?$ ]] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
    # Process 1 of the namespaces dies with its unshare (--kill-child), that one with this script (pdeathsig), and
    # everything in them with process 1.
    enter=(setpriv --pdeathsig KILL
        unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc "$0" inside)
    [ "$(id -u)" = 0 ] || enter=(unshare --user --map-root-user "${enter[@]}")
    [ $# -gt 2 ] || exec "${enter[@]}" "$@"         # a shell needs the terminal
    trap 'kill -KILL $!; exit 143' TERM INT HUP     # unshare blocks SIGTERM
    "${enter[@]}" "$@" < /dev/stdin &
    wait $!
    exit
fi
shift

hosts=$1 rate=${2-unlimited}
shift $(($# < 2 ? $# : 2))
here=$(cd "$(dirname "$0")" && pwd)
NODES=
mount -t tmpfs hosts /run
mkdir /run/netns /run/hosts
for ((i = 1; i <= hosts; i++)); do NODES="$NODES node$i"; done
{ echo 127.0.0.1 localhost; paste <(seq -f 10.77.0.%g "$hosts") <(xargs -n 1 <<< "$NODES"); } > /run/hosts/names
mount --bind /run/hosts/names /etc/hosts
ip link set lo up
ip link add hub type bridge
ip link set hub up

# Programs know by the kernel's boot_id whether they are on one machine.
for host in $NODES; do
    cat /proc/sys/kernel/random/uuid > /run/hosts/$host.boot_id
    # shellcheck disable=SC2016
    unshare --mount --net --uts --ipc bash -c 'hostname $1
        mount --bind /run/hosts/$1.boot_id /proc/sys/kernel/random/boot_id
        mount -t tmpfs hosts /dev/shm
        touch /run/hosts/$1.up; exec sleep infinity' - $host &
    echo $! > /run/hosts/$host.pid
    while [ ! -e /run/hosts/$host.up ]; do kill -0 $!; sleep 0.02; done
    ip netns attach $host $!
    ip link add $host type veth peer name eth0 netns $host
    ip link set $host master hub up
    ip -n $host addr add 10.77.0.${host#node}/24 dev eth0
    ip -n $host link set eth0 up
    ip -n $host link set lo up
    [ "$rate" = unlimited ] || tc -n $host qdisc add dev eth0 root tbf rate "$rate" burst 256k latency 50ms
done
export NODES PATH="$here:$PATH"         # here: ssh
[ $# != 0 ] || exec bash
"$@"
