#!/bin/busybox sh
# The first process of the guest: makes an ordinary system of the unpacked files, does what /vm/plan says, reports,
# and powers off. `cargo xtask vm` writes the plan and reads the report.
#
# Two serial lines: the first is the kernel's console, the second carries what tests and commands print, and between
# it the report: lines that begin with @vm-NONCE, where the nonce is in the plan and so not guessable by what is tested.

export PATH=/opt/gpu-tracer/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb LC_ALL=C
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /root /var /mnt
/bin/busybox --install -s /bin 2>/dev/null

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
ln -sf /run /var/run
ln -sf /tmp /var/tmp
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
ip link set lo up
hostname guest

. /vm/plan
. /vm/environment
stty -F /dev/ttyS1 raw -echo cols 160 rows 50
exec 3>/dev/ttyS1

report() {
	echo "@vm-$NONCE $*" >&3
}

milliseconds() {
	read -r up _ </proc/uptime
	hundredths=${up#*.}
	echo $((${up%.*} * 1000 + ${hundredths#0} * 10))
}

while read -r module; do
	insmod "/vm/modules/$module" || echo "cannot load $module" >&3
done </vm/modules/order

# Says on the console what every stuck task waits for when a test has not ended in time although it was killed.
watch_tests() {
	told=
	while sleep 5; do
		read -r test began </run/test 2>/dev/null || continue
		if [ "$test" != "$told" ] && [ $(($(milliseconds) - began)) -gt $((TEST_SECONDS * 1000 + 10000)) ]; then
			told=$test
			report hung "$test"
			echo w >/proc/sysrq-trigger
			ps -o pid,stat,comm,args >/dev/console
		fi
	done
}

passed=0
failed=0
ignored=0

# run_test NAME COMMAND...: prints what the command printed only if it failed.
run_test() {
	name=$1
	shift
	case $name in *"$FILTER"*) ;; *) return ;; esac
	began=$(milliseconds)
	echo "$name $began" >/run/test
	timeout -s KILL "$TEST_SECONDS" "$@" </dev/null >/tmp/output 2>&1
	status=$?
	took=$(($(milliseconds) - began))
	rm -f /run/test
	if [ $status != 0 ]; then
		failed=$((failed + 1))
		cat /tmp/output >&3
		echo "status $status" >&3
		report test failed $took "$name"
	elif grep -q '^test result: ok. 0 passed; 0 failed; 1 ignored' /tmp/output; then
		ignored=$((ignored + 1))
		report test ignored $took "$name"
	else
		passed=$((passed + 1))
		report test ok $took "$name"
	fi
}

# run_binary FILE: each test of a Rust test program, in a process of its own.
run_binary() {
	for test in $("$1" --list --format terse 2>/dev/null | sed -n 's/: test$//p'); do
		run_test "${1##*/}::$test" "$1" --exact "$test" --nocapture
	done
}

# What the kernel complains of while the tests run is a failure as well. Stalls are not: the machine may be slow.
kernel_did_not_complain() {
	dmesg | grep -E 'WARNING: .*\.[ch]:[0-9]+|refcount_t: |BUG: (sleeping|scheduling|Bad|using)|lockdep|list_(add|del) corruption' && return 1
	return 0
}

run_suite() {
	watch_tests &
	for binary in /opt/gpu-tracer/tests/*; do
		case $binary in */vm_*|*'*') ;; *) run_binary "$binary" ;; esac
	done
	run_test standin-driver::selftest standin-selftest
	if ! standin-driver load >&3 2>&1; then
		failed=$((failed + 1))
		report test failed 0 standin-driver::load
	fi
	for binary in /opt/gpu-tracer/tests/vm_*; do
		[ -e "$binary" ] && run_binary "$binary"
	done
	kernel_did_not_complain >/tmp/complaints || run_test kernel::did_not_complain sh -c 'cat /tmp/complaints; exit 1'
	status=0
	[ $failed = 0 ] || status=1
}

case $MODE in
suite)
	report up "$(uname -r)"
	run_suite
	;;
command)
	[ "$DRIVER" = no ] || standin-driver load >&3 2>&1
	report up "$(uname -r)"
	sh /vm/command </dev/null >&3 2>&1
	status=$?
	;;
shell)
	[ "$DRIVER" = no ] || standin-driver load
	report up "$(uname -r)"
	setsid sh -c 'exec sh -l </dev/ttyS0 >/dev/ttyS0 2>&1'
	status=0
	;;
esac
report verdict "{\"status\":$status,\"passed\":$passed,\"failed\":$failed,\"ignored\":$ignored}"
# Let the serial line drain.
sleep 0.2
poweroff -f
