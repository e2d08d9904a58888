#!/bin/sh
# stile-uplink BRIDGE FUNCTION [MAC ADDRESS]...: makes a bridge, whose first port is the network card at a PCI function. The network's DHCP
# server keeps each ADDRESS for the client with this MAC, so that forwarded ports lead to it.
bridge=$1
card=$(ls "/sys/bus/pci/devices/$2"/virtio*/net) || exit
shift 2
# Clients are hostile: this system has no address among them.
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
own=$(cat "/sys/class/net/$card/address")
ip link set "$card" up
while [ $# -ge 2 ]; do
    ip link set "$card" address "$1"
    udhcpc -i "$card" -r "$2" -s /bin/true -f -n -q -S > /dev/null 2>&1 || echo "stile-uplink: $2 is not kept for $1" >&2
    shift 2
done
ip link set "$card" address "$own"
brctl addbr "$bridge" && brctl addif "$bridge" "$card" && ip link set "$bridge" up
