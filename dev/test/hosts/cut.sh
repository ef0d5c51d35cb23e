#!/usr/bin/env bash
# cut.sh HOST: pulls the cable of a host of up.sh out of the bridge. `ip link set HOST up` puts it back.
exec ip link set "$1" down
