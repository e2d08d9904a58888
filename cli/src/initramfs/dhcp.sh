#!/bin/sh
# Run by busybox's DHCP client (`udhcpc -i eth0`): configures the card with the lease's address, gateway and name servers.
case $1 in
deconfig)
    ifconfig "$interface" 0.0.0.0 up
    ;;
bound | renew)
    # Idempotent: a renewed lease keeps connections.
    ifconfig "$interface" "$ip" netmask "${subnet:-255.255.255.0}"
    # The first of several.
    [ -z "$router" ] || ip route replace default via "${router%% *}" dev "$interface"
    for server in $dns; do echo "nameserver $server"; done >/etc/resolv.conf
    ;;
esac
