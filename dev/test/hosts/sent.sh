#!/usr/bin/env bash
# sent.sh HOST: bytes that a host of up.sh has sent so far, as its interface counts them: with all headers
exec ip netns exec "$1" cat /sys/class/net/eth0/statistics/tx_bytes
