#!/bin/busybox sh
# Loads and unloads the stand-in driver in the guest, with the device nodes that the real driver's tools make.
set -e

make_nodes() {
	number() {
		sed -n "s/^ *\([0-9]*\) $1\$/\1/p" /proc/devices
	}
	for minor in 0 1 2 3 4 5 6 7; do
		[ -e /dev/nvidia$minor ] || mknod -m 666 /dev/nvidia$minor c 195 $minor
	done
	[ -e /dev/nvidiactl ] || mknod -m 666 /dev/nvidiactl c 195 255
	[ -e /dev/nvidia-modeset ] || mknod -m 666 /dev/nvidia-modeset c 195 254
	# The other numbers may differ each time.
	rm -rf /dev/nvidia-uvm /dev/nvidia-uvm-tools /dev/nvidia-caps
	mkdir /dev/nvidia-caps
	mknod -m 666 /dev/nvidia-uvm c "$(number nvidia-uvm)" 0
	mknod -m 666 /dev/nvidia-uvm-tools c "$(number nvidia-uvm)" 1
	mknod -m 400 /dev/nvidia-caps/nvidia-cap1 c "$(number nvidia-caps)" 1
	mknod -m 444 /dev/nvidia-caps/nvidia-cap2 c "$(number nvidia-caps)" 2
}

case $1 in
load)
	insmod /vm/driver/nvidia.ko
	insmod /vm/driver/nvidia_uvm.ko
	make_nodes
	;;
unload)
	[ ! -e /sys/module/nvidia_uvm ] || rmmod nvidia_uvm
	rmmod nvidia
	rm -rf /dev/nvidia*
	;;
nodes)
	make_nodes
	;;
*)
	echo "usage: standin-driver load|unload|nodes" >&2
	exit 2
	;;
esac
