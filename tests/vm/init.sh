#!/bin/busybox sh
# The first process of the guest: makes an ordinary system of the unpacked files, does what /vm/plan says, reports,
# and powers off. `cargo xtask vm` writes the plan and reads the report.
#
# Two serial lines: the first is the kernel's console, the second carries what tests and commands print, and between
# it the report: lines that begin with @vm-NONCE, where the nonce is in the plan and so not guessable by what is tested.

export PATH=/opt/gpu-tracer/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb LC_ALL=C
# systemd may be the first process instead, and has made the system then; this is run by a unit.
if [ $$ = 1 ]; then under_systemd=no; else under_systemd=yes; fi
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /root /var /mnt
/bin/busybox --install -s /bin 2>/dev/null

make_system() {
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
}

[ $under_systemd = yes ] || make_system
. /vm/plan
. /vm/environment
# Which boot with the same disk this is, and which tests it is for.
stage=1
for word in $(cat /proc/cmdline); do
	case $word in
	gpu_tracer.stage=*) stage=${word#*=} ;;
	gpu_tracer.part=*) part=${word#*=} ;;
	esac
done
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

# Loads the stand-in driver; from here on NVML is the one that answers from it.
use_standin_driver() {
	export GPU_TRACER_NVML_LIBRARY=/opt/gpu-tracer/lib/libnvidia-ml.so.1 STANDIN_NVML=/opt/gpu-tracer/lib/nvml.json
	standin-driver load
}

[ $under_systemd = yes ] || while read -r module; do
	insmod "/vm/modules/$module" || echo "cannot load $module" >&3
done </vm/modules/order

# Says on the console what every stuck task waits for when a test has not ended in time although it was killed.
watch_tests() {
	told=
	while sleep 5; do
		for running in /run/tests/*; do
			read -r began test 2>/dev/null <"$running" || continue
			if [ "$test" != "$told" ] && [ $(($(milliseconds) - began)) -gt $((TEST_SECONDS * 1000 + 10000)) ]; then
				told=$test
				report hung "$test"
				echo w >/proc/sysrq-trigger
				ps -o pid,stat,comm,args >/dev/console
			fi
		done
	done
}

# why_not NAME: why this kernel cannot pass the test, if it cannot.
why_not() {
	while read -r kernel tests reason; do
		case $kernel/$(uname -r) in
		"#"*) ;;
		"$kernel/$kernel."*) case $1 in $tests) echo "$reason" ;; esac ;;
		esac
	done </vm/cannot
}

# run_test WORKER NAME COMMAND...: prints what the command printed only if it failed. How it ended goes to /run/endings, unless it
# failed and may be run again, which is told: it fails itself then.
run_test() {
	worker=$1
	name=$2
	shift 2
	began=$(milliseconds)
	echo "$began $name" >/run/tests/$worker
	attempt $worker "$@"
	took=$(($(milliseconds) - began))
	rm -f /run/tests/$worker
	if [ $status != 0 ] && [ "$may_fail" = yes ]; then
		(
			flock 9
			cat /run/output.$worker >&3
			echo "$name: failed with status $status, and is run again when the others are done" >&3
		) 9>/run/printing
		return 1
	fi
	ending=ok
	if [ $status != 0 ]; then
		ending=failed
	elif grep -q '^test result: ok. 0 passed; 0 failed; 1 ignored' /run/output.$worker; then
		ending=ignored
	elif reason=$(grep -i '^skipped: ' /run/output.$worker); then
		# It says itself that something that it needs is not there.
		ending=ignored
		echo "$reason" >/run/reason.$worker
	fi
	tell $worker $ending $took "$name"
}

# attempt WORKER COMMAND...: runs it; sets $status.
attempt() {
	output=/run/output.$1
	shift
	timeout -s KILL "$TEST_SECONDS" "$@" </dev/null >$output 2>&1
	status=$?
}

# tell WORKER ENDING MILLISECONDS NAME: reports how a test ended, with what it printed or why it was not run.
tell() {
	worker=$1
	ending=$2
	name=$4
	echo $ending >>/run/endings
	(
		flock 9
		if [ $ending = failed ]; then
			cat /run/output.$worker >&3
			echo "status $status" >&3
		fi
		[ $ending != ignored ] || sed "s|^|$name: |" /run/reason.$worker 2>/dev/null >&3
		report test $ending $3 "$name"
	) 9>/run/printing
	rm -f /run/reason.$worker
}

# is_wanted NAME: does the filter allow the test? It is a list of parts of names, with commas between them. What a boot before this
# one has done is in a file.
is_wanted() {
	[ ! -e /vm/done ] || ! grep -qxF "$1" /vm/done || return 1
	[ -n "$FILTER" ] || return 0
	for part in $(echo "$FILTER" | tr , ' '); do
		case $1 in *"$part"*) return 0 ;; esac
	done
	return 1
}

# list_tests PROGRAM...: "name program test" of each test that the filter allows.
list_tests() {
	for program in "$@"; do
		"$program" --list --format terse 2>/dev/null | sed -n 's/: test$//p' | while read -r test; do
			name=${program##*/}::$test
			! is_wanted "$name" || echo "$name $program $test"
		done
	done
}

# run_listed FILE WORKERS: runs the listed tests, each in a process of its own, so many at a time. What fails is run once more, alone:
# an emulated machine is so slow that what others do in between can spoil a test.
run_listed() {
	rm -rf /run/claimed /run/failed
	mkdir /run/claimed
	worker=0
	may_fail=yes
	while [ $worker -lt "$2" ]; do
		worker=$((worker + 1))
		while read -r name program test; do
			mkdir "/run/claimed/$name" 2>/dev/null || continue
			why_not "$name" >/run/reason.$worker
			if [ -s /run/reason.$worker ]; then
				tell $worker ignored 0 "$name"
				continue
			fi
			run_test $worker "$name" "$program" --exact "$test" --nocapture ||
				echo "$name $program $test" >>/run/failed
		done <"$1" &
		workers="$workers $!"
	done
	wait $workers
	workers=
	may_fail=no
	[ -e /run/failed ] || return 0
	while read -r name program test; do
		run_test 1 "$name" "$program" --exact "$test" --nocapture
	done </run/failed
}

# run_named NAME COMMAND...: a test that is no Rust program.
run_named() {
	! is_wanted "$1" || run_test 0 "$@"
}

# What the kernel complains of while the tests run is a failure as well, told with who did it and the stack. Stalls are not: the
# machine may be slow.
complaints() {
	dmesg | grep -A 45 -E 'WARNING: .*\.[ch]:[0-9]+|refcount_t: |BUG: (sleeping|scheduling|Bad|using)|list_(add|del) corruption'
}

count() {
	grep -c "^$1$" /run/endings
}

# What outlives a boot: the tests of vm_reboot whose names begin with the number of this boot, then, while the power is
# cut, the one that begins with cut_ and this number. Each boot asks for the next as long as there are tests for it.
run_boot() {
	tests=/opt/gpu-tracer/tests/vm_reboot
	disk=/dev/nvme0n1
	list_tests $tests | grep "::boot_${stage}_" >/run/list
	[ -s /run/list ] && [ -b $disk ] || return 0
	[ $stage != 1 ] || mkfs.ext4 -q -F $disk
	mkdir -p /disk
	mount -t ext4 $disk /disk || run_test 0 vm_reboot::the_disk_can_be_mounted false
	export GPU_TRACER_DISK=/disk
	run_listed /run/list 1
	! list_tests $tests | grep -q "::boot_$((stage + 1))_" || report again $((stage + 1))
	list_tests $tests | grep "::cut_${stage}_" >/run/list
	while read -r name program test; do
		# It says when; in a minute at the latest.
		"$program" --exact "$test" --nocapture </dev/null >/run/output.0 2>&1 &
		timeout 60 sh -c 'until [ -e /run/cut ]; do sleep 0.1; done'
		status=$?
		ending=ok
		[ $status = 0 ] || ending=failed
		tell 0 $ending 0 "$name"
		cut=yes
	done </run/list
}

run_suite() {
	mkdir /run/tests
	: >/run/endings
	watch_tests &
	if [ $under_systemd = yes ]; then
		use_standin_driver >/run/loading 2>&1 || run_test 0 standin-driver::loads sh -c 'cat /run/loading; exit 1'
		list_tests /opt/gpu-tracer/tests/vm_systemd >/run/list
		run_listed /run/list 1
	elif [ "$part" = general ]; then
		run_general
		hear_kernel
	else
		if [ $stage = 1 ]; then
			run_with_driver
			hear_kernel
		fi
		run_boot
	fi
	status=0
	[ "$(count failed)" = 0 ] || status=1
}

run_general() {
	list_tests $(ls /opt/gpu-tracer/tests/* 2>/dev/null | grep -v -e '/vm_[^/]*$' -e '\.so$') >/run/list
	run_listed /run/list 2
}

run_with_driver() {
	run_named standin-driver::selftest standin-selftest
	# The driver's knobs are everybody's, so these tests come one after another.
	list_tests $(ls /opt/gpu-tracer/tests/vm_* 2>/dev/null | grep -v -e '/vm_reboot$' -e '/vm_systemd$') >/run/list
	list_tests /opt/gpu-tracer/tests/vm_reboot | grep ::boot_1_ >/run/reboot
	if [ -s /run/list ] || [ -s /run/reboot ]; then
		use_standin_driver >/run/loading 2>&1 || run_test 0 standin-driver::loads sh -c 'cat /run/loading; exit 1'
		run_listed /run/list 1
	fi
}

hear_kernel() {
	complaints >/run/complaints && run_test 0 kernel::does_not_complain sh -c 'cat /run/complaints; exit 1'
}

case $MODE in
suite)
	report up "$(uname -r)"
	run_suite
	;;
command)
	[ "$DRIVER" = no ] || use_standin_driver >&3 2>&1
	report up "$(uname -r)"
	sh /vm/command </dev/null >&3 2>&1
	status=$?
	;;
shell)
	[ "$DRIVER" = no ] || use_standin_driver
	report up "$(uname -r)"
	setsid sh -c 'exec sh -l </dev/ttyS0 >/dev/ttyS0 2>&1'
	status=0
	;;
esac
[ -e /run/endings ] || : >/run/endings
report verdict "{\"status\":$status,\"passed\":$(count ok),\"failed\":$(count failed),\"ignored\":$(count ignored)}"
if [ -n "$cut" ]; then
	report cut
	sleep 60
fi
# Let the serial line drain.
sleep 0.2
# Nothing of it is for the disk but what was written there on purpose.
umount /disk 2>/dev/null
poweroff -f
