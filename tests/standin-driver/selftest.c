// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Shows in a guest, as root, that the stand-in driver does what the tests rely on. Loads it, and leaves it unloaded.
 * Prints one line per fact; exits with 0 when all of them hold.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

#define CONTROL "/proc/driver/standin-nvidia/control"
#define FILES "/proc/driver/standin-nvidia/files"
#define MEMORY "/proc/driver/standin-nvidia/memory"
#define EVENTS "/sys/kernel/tracing/kprobe_events"

/* README.md and programs in other languages have the numbers. */
_Static_assert(STANDIN_REGISTER_FD == 0xc00446c9, "STANDIN_REGISTER_FD");
_Static_assert(STANDIN_ATTACH_GPUS == 0x400446d4, "STANDIN_ATTACH_GPUS");
_Static_assert(STANDIN_ALLOCATE == 0x400846e0, "STANDIN_ALLOCATE");
_Static_assert(STANDIN_FREE == 0x400846e1, "STANDIN_FREE");
_Static_assert(STANDIN_EXPORT == 0x400446e2, "STANDIN_EXPORT");
_Static_assert(STANDIN_IMPORT == 0x400446e3, "STANDIN_IMPORT");
_Static_assert(STANDIN_HANG == 0x400446e4, "STANDIN_HANG");
_Static_assert(STANDIN_UVM_INITIALIZE == 0x5501, "STANDIN_UVM_INITIALIZE");
_Static_assert(STANDIN_UVM_ALLOCATE == 0x40085502, "STANDIN_UVM_ALLOCATE");
_Static_assert(STANDIN_UVM_MAP_EXTERNAL == 0x40045503, "STANDIN_UVM_MAP_EXTERNAL");
_Static_assert(STANDIN_UVM_MM_INITIALIZE == 0x40045504, "STANDIN_UVM_MM_INITIALIZE");
_Static_assert(STANDIN_UVM_REGISTER_GPU == 0x40085505, "STANDIN_UVM_REGISTER_GPU");

static int failures;

static void fact(bool holds, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	printf("%s: ", holds ? "ok" : "FAILED");
	vprintf(format, arguments);
	printf("\n");
	va_end(arguments);
	failures += !holds;
}

/* ---- reading and writing small files ---- */

static char *text_of(const char *path)
{
	static char text[65536];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t size = 0, got;

	if (fd < 0)
		return strcpy(text, "");
	while ((got = read(fd, text + size, sizeof(text) - 1 - size)) > 0)
		size += got;
	close(fd);
	text[size] = 0;
	return text;
}

static bool write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return written;
}

/* The number behind `key` in the line of `path` that begins with `line`, or -1. */
static long number_in(const char *path, const char *line, const char *key)
{
	char *text = text_of(path), *rest = text, *at;

	while ((at = strsep(&rest, "\n")) != NULL) {
		char *found;

		if (strncmp(at, line, strlen(line)))
			continue;
		found = strstr(at, key);
		return found ? strtol(found + strlen(key), NULL, 10) : -1;
	}
	return -1;
}

static long used(int index)
{
	char line[32];

	snprintf(line, sizeof(line), "gpu %d ", index);
	return number_in(MEMORY, line, "used ");
}

static long client(int index, pid_t pid)
{
	char line[48];

	snprintf(line, sizeof(line), "client %d %d ", index, pid);
	return number_in(MEMORY, line, line);
}

static long files(const char *device, const char *state)
{
	return number_in(FILES, device, state);
}

/* Polls until `number` of the files of `device` are in `state`, for 10 s. */
static bool becomes(const char *device, const char *state, long number)
{
	for (int tries = 0; tries < 1000; tries++) {
		if (files(device, state) == number)
			return true;
		usleep(10000);
	}
	return false;
}

static bool used_becomes(int index, long mib)
{
	for (int tries = 0; tries < 1000; tries++) {
		if (used(index) == mib)
			return true;
		usleep(10000);
	}
	return false;
}

static char state_of(pid_t pid)
{
	char path[48], *end;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	end = strrchr(text_of(path), ')');
	return end && end[1] ? end[2] : 0;
}

/* Whether the task comes to this state, and is seen there in five looks in a row, within 10 s. */
static bool comes_to_state(pid_t pid, char state)
{
	int seen = 0;

	for (int tries = 0; tries < 1000 && seen < 5; tries++) {
		seen = state_of(pid) == state ? seen + 1 : 0;
		usleep(10000);
	}
	return seen == 5;
}

static bool is_in_stack(pid_t pid, const char *function)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/%d/stack", pid);
	return strstr(text_of(path), function) != NULL;
}

/* ---- modules and devices ---- */

static bool load(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool loaded = fd >= 0 && syscall(SYS_finit_module, fd, "", 0) == 0;

	if (fd >= 0)
		close(fd);
	return loaded;
}

static int unload(const char *name)
{
	return syscall(SYS_delete_module, name, O_NONBLOCK) ? errno : 0;
}

static int major_of(const char *name)
{
	char *rest = text_of("/proc/devices"), *line;

	while ((line = strsep(&rest, "\n")) != NULL) {
		int number;
		char found[64];

		if (sscanf(line, " %d %63s", &number, found) == 2 && !strcmp(found, name))
			return number;
	}
	return -1;
}

static int open_device(int major, int minor)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/tmp/device-%d-%d", major, minor);
	mknod(path, S_IFCHR | 0600, makedev(major, minor));
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	unlink(path);
	return fd;
}

static int open_gpu(int minor)
{
	return open_device(195, minor);
}

static int open_ctl(void)
{
	return open_device(195, 255);
}

static int allocate(int fd, unsigned int minor, unsigned int mib)
{
	struct standin_memory memory = { minor, mib };

	return ioctl(fd, STANDIN_ALLOCATE, &memory) ? errno : 0;
}

static int with_fd(int fd, unsigned long request, int other)
{
	struct standin_fd argument = { other };

	return ioctl(fd, request, &argument) ? errno : 0;
}

static void kill_and_reap(pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

/* ---- what is tested ---- */

static void devices_and_proc_files(void)
{
	int minors[8] = { 0 };
	const char *buses[] = { "0000:1a:00.0", "0000:3d:00.0", "0000:52:00.0", "0000:61:00.0",
				"0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0", "0001:0a:00.0" };
	bool differ = true;

	fact(major_of("nvidia") == 195 && major_of("nvidiactl") == 195, "major 195 belongs to nvidia");
	fact(major_of("nvidia-uvm") > 0 && major_of("nvidia-caps") > 0, "nvidia-uvm and nvidia-caps have numbers");
	for (int index = 0; index < 8; index++) {
		char path[96];

		snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%s/information", buses[index]);
		minors[index] = number_in(path, "Device Minor", ":");
		differ &= minors[index] != index && minors[index] >= 0;
	}
	fact(differ && minors[minors[0]] != 0, "minors are neither bus order nor its inverse");
	fact(strstr(text_of("/proc/driver/nvidia/version"), "580.159.04") != NULL, "the driver has a version");
	fact(number_in("/proc/driver/nvidia/capabilities/mig/monitor", "DeviceFileMinor", ":") == 2,
	     "capabilities have minors");
}

static void modules_count_their_users(void)
{
	int uvm_major = major_of("nvidia-uvm"), gpu = open_gpu(0), uvm;

	fact(unload("nvidia") != 0, "nvidia does not go while nvidia_uvm needs it");
	fact(number_in("/sys/module/nvidia/refcnt", "", "") == 2, "nvidia has two users: a file and nvidia_uvm");
	uvm = open_device(uvm_major, 0);
	fact(unload("nvidia_uvm") != 0, "nvidia_uvm does not go while a file of it is open");
	fact(number_in("/sys/module/nvidia_uvm/refcnt", "", "") == 2, "a file of nvidia_uvm counts twice");
	close(uvm);
	fact(unload("nvidia_uvm") == 0, "nvidia_uvm goes when the file is closed");
	fact(unload("nvidia") != 0, "nvidia does not go while a file of it is open");
	close(gpu);
	fact(unload("nvidia") == 0, "nvidia goes when the file is closed");
	fact(access("/proc/driver/nvidia", F_OK) && access(CONTROL, F_OK), "its proc files go with it");
	fact(load("/vm/driver/nvidia.ko") && load("/vm/driver/nvidia_uvm.ko"), "both load again");
}

static void memory_belongs_to_the_ctl_file(void)
{
	int ctl, gpu, twin;
	pid_t child;

	/* GPU 3 by minor is index 0 in bus order. */
	child = fork();
	if (!child) {
		ctl = open_ctl();
		gpu = open_gpu(3);
		if (allocate(ctl, 3, 1000) || with_fd(gpu, STANDIN_REGISTER_FD, ctl))
			_exit(1);
		/* Passes on to a grandchild what it has, closes nvidiactl there, and waits to be killed. */
		if (!fork()) {
			close(ctl);
			for (;;)
				pause();
		}
		pause();
	}
	fact(used_becomes(0, 1000), "memory is used on the GPU whose minor was given");
	fact(client(0, child) == 1000, "it is attributed to the process that allocated it");
	fact(becomes("3", "open ", 1) && files("ctl", "open ") == 1, "one file each is open");
	kill_and_reap(child);
	fact(files("3", "open ") == 1 && files("ctl", "open ") == 1,
	     "the GPU file that a grandchild still has pins the nvidiactl file that nobody has");
	fact(used(0) == 1000 && client(0, child) == 1000, "the memory stays, in the name of the dead process");
	/* The grandchild is the only process left in this group beside this one. */
	signal(SIGTERM, SIG_IGN);
	kill(0, SIGTERM);
	fact(used_becomes(0, 0) && becomes("ctl", "open ", 0), "both go with the last file");

	ctl = open_ctl();
	twin = dup(ctl);
	fact(allocate(ctl, 3, 5) == 0 && allocate(ctl, 8, 5) == ENODEV, "only existing GPUs have memory");
	fact(allocate(ctl, 3, 200000) == ENOSPC, "a GPU has as much memory as it has");
	close(ctl);
	fact(used(0) == 5, "a duplicate keeps the memory");
	close(twin);
	fact(used(0) == 0, "the last reference gives it back");
}

static void exported_memory_belongs_to_nobody(void)
{
	int ctl = open_ctl(), exported = open_ctl(), importer;

	allocate(ctl, 4, 300);
	fact(with_fd(ctl, STANDIN_EXPORT, exported) == 0, "memory is exported into a new nvidiactl file");
	fact(mmap(NULL, 4096, PROT_READ, MAP_SHARED, exported, 0) == MAP_FAILED, "such a file cannot be mapped");
	close(ctl);
	fact(used(1) == 300 && client(1, getpid()) == -1, "it stays when the exporter is gone, in nobody's name");
	importer = open_ctl();
	fact(with_fd(importer, STANDIN_IMPORT, exported) == 0 && client(1, getpid()) == 300,
	     "an importer is named for it");
	close(exported);
	fact(used(1) == 300, "it stays with the importer");
	close(importer);
	fact(used(1) == 0, "and goes with it");
}

static void uvm_holds_memory_too(void)
{
	int major = major_of("nvidia-uvm"), uvm = open_device(major, 0), mm = open_device(major, 0), ctl = open_ctl();
	struct standin_memory managed = { 3, 70 };
	void *map;

	fact(ioctl(uvm, STANDIN_UVM_ALLOCATE, &managed) < 0 && errno == EBADFD, "uvm wants to be initialised");
	fact(ioctl(uvm, STANDIN_UVM_INITIALIZE) == 0, "a uvm file becomes a VA space");
	fact(ioctl(uvm, STANDIN_UVM_ALLOCATE, &managed) == 0 && used(0) == 70 && client(0, getpid()) == -1,
	     "managed memory is in nobody's name");
	allocate(ctl, 3, 400);
	fact(with_fd(uvm, STANDIN_UVM_MAP_EXTERNAL, ctl) == 0, "a VA space maps a client's memory");
	close(ctl);
	fact(used(0) == 470, "and keeps it when the client is gone");
	fact(with_fd(mm, STANDIN_UVM_MM_INITIALIZE, uvm) == 0, "an MM file pins the VA space");
	close(uvm);
	fact(used(0) == 470 && files("uvm", "open ") == 2, "so it stays although its fd is closed");
	close(mm);
	fact(used_becomes(0, 0) && becomes("uvm", "open ", 0), "until the MM file goes");

	uvm = open_device(major, 0);
	map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, uvm, 0);
	fact(map != MAP_FAILED && (*(volatile char *)map = 1) == 1, "uvm can be mapped and touched");
	close(uvm);
	fact(files("uvm", "open ") == 1 && files("uvm", "maps ") == 1, "a mapping keeps the file");
	munmap(map, 8192);
	fact(files("uvm", "open ") == 0 && files("uvm", "maps ") == 0, "and is counted");
}

static void devices_can_be_mapped(void)
{
	int fds[2] = { open_gpu(0), open_ctl() };

	for (int i = 0; i < 2; i++) {
		char *shared = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
		char *private = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fds[i], 0);

		fact(shared != MAP_FAILED && private != MAP_FAILED, "%s can be mapped", i ? "nvidiactl" : "a GPU");
		if (shared == MAP_FAILED || private == MAP_FAILED)
			return;
		shared[0] = 7;
		private[0] = 1;
		fact(shared[8192] == 7, "%s has one page, everywhere", i ? "nvidiactl" : "a GPU");
		close(fds[i]);
		fact(files(i ? "ctl" : "0", "open ") == 1, "the mappings keep the file");
		munmap(shared, 3 * 4096);
		munmap(private, 4096);
		fact(files(i ? "ctl" : "0", "open ") == 0, "the last unmapping releases it");
	}
	fact(open_device(195, 254) >= 0, "nvidia-modeset can be opened");
	fact(open_gpu(8) == -ENODEV, "a GPU that is not there cannot");
}

/* A child that holds GPU `minor` and is killed; its release is what the knobs are about. */
static pid_t killed_holder(int minor)
{
	char name[2] = { '0' + minor, 0 };
	pid_t child = fork();

	if (!child) {
		open_gpu(minor);
		for (;;)
			pause();
	}
	becomes(name, "open ", 1);
	kill(child, SIGKILL);
	return child;
}

static void a_release_can_hang(void)
{
	pid_t child, victim;
	int ctl;

	write_text(CONTROL, "release 0 block\n");
	child = killed_holder(0);
	fact(comes_to_state(child, 'D'), "a blocked release leaves a killed task in D");
	fact(is_in_stack(child, "nvidia_close") && is_in_stack(child, "os_acquire_semaphore"),
	     "its stack shows where");
	fact(files("0", "releasing ") == 1 && files("0", "open ") == 0, "its file is being released");
	write_text(CONTROL, "release 0 off\n");
	waitpid(child, NULL, 0);
	fact(files("0", "releasing ") == 0, "it ends when the knob is turned back");

	write_text(CONTROL, "release 0 spin\n");
	child = killed_holder(0);
	fact(comes_to_state(child, 'R'), "a spinning release leaves it in R");
	write_text(CONTROL, "clear\n");
	waitpid(child, NULL, 0);

	write_text(CONTROL, "release 0 block-locked\n");
	child = killed_holder(0);
	comes_to_state(child, 'D');
	victim = fork();
	if (!victim)
		_exit(open_gpu(0) < 0);
	fact(comes_to_state(victim, 'D') && is_in_stack(victim, "nvidia_open"),
	     "who opens the GPU meanwhile waits for its lock");
	write_text(CONTROL, "clear\n");
	waitpid(victim, NULL, 0);
	waitpid(child, NULL, 0);

	write_text(CONTROL, "release ctl spin-locked\nmemory-waits on\n");
	child = fork();
	if (!child) {
		ctl = open_ctl();
		allocate(ctl, 3, 10);
		_exit(0);
	}
	fact(comes_to_state(child, 'R') && files("ctl", "releasing ") == 1, "a client's release hangs with the API lock");
	victim = fork();
	if (!victim)
		_exit(used(0) < 0);
	fact(comes_to_state(victim, 'D'), "the memory table can be made to wait for it, as NVML does");
	write_text(CONTROL, "clear\n");
	waitpid(victim, NULL, 0);
	waitpid(child, NULL, 0);
}

static void a_close_can_be_deferred(void)
{
	pid_t child;

	write_text(CONTROL, "defer-close 5 400\n");
	child = killed_holder(5);
	waitpid(child, NULL, 0);
	fact(files("5", "deferred ") == 1 && files("5", "open ") == 0, "a deferred close outlives the process");
	fact(becomes("5", "deferred ", 0), "and ends by itself");
	write_text(CONTROL, "release 5 block\n");
	child = killed_holder(5);
	waitpid(child, NULL, 0);
	usleep(600000);
	fact(files("5", "deferred ") == 1, "it can hang in the kernel thread");
	write_text(CONTROL, "clear\n");
	fact(becomes("5", "deferred ", 0), "until it is let go");
}

static void an_open_and_an_ioctl_can_hang_or_fail(void)
{
	pid_t child;
	int gpu;

	write_text(CONTROL, "open 2 block\n");
	child = fork();
	if (!child)
		_exit(open_gpu(2) < 0);
	fact(comes_to_state(child, 'D') && files("2", "opening ") == 1, "an open can be made to wait");
	write_text(CONTROL, "open 2 off\n");
	waitpid(child, NULL, 0);
	write_text(CONTROL, "fail-open 2 5\n");
	fact(open_gpu(2) == -EIO, "or fail");
	fact(strstr(text_of(CONTROL), "fail-open 2 5") != NULL, "the control file shows what is not at rest");
	write_text(CONTROL, "clear\n");
	gpu = open_gpu(2);
	fact(text_of(CONTROL)[0] == 0 && gpu >= 0, "clear puts all at rest");
	child = fork();
	if (!child) {
		__u32 mode = STANDIN_HANG_UNINTERRUPTIBLE;

		_exit(ioctl(gpu, STANDIN_HANG, &mode) != 0);
	}
	fact(comes_to_state(child, 'D'), "an ioctl can hang");
	write_text(CONTROL, "wake\n");
	waitpid(child, NULL, 0);
	close(gpu);
	fact(!write_text(CONTROL, "open 9 block\n") && !write_text(CONTROL, "open 2 maybe\n") &&
		     !write_text(CONTROL, "reset\n"),
	     "nonsense is refused");
}

static void memory_can_leak(void)
{
	int ctl = open_ctl(), gpu;

	allocate(ctl, 3, 500);
	write_text(CONTROL, "leak 3 93\nbaseline 3 1\n");
	close(ctl);
	fact(used(0) == 94, "a leak stays although no file does");
	gpu = open_gpu(3);
	fact(!write_text(CONTROL, "reset 3\n") && used(0) == 94, "a GPU in use cannot be reset");
	close(gpu);
	fact(write_text(CONTROL, "reset 3\n") && used(0) == 1, "an idle one can");
	write_text(CONTROL, "baseline 3 0\n");
}

static void entry_points_can_be_probed(void)
{
	const char *functions[] = { "nvidia:nvidia_open", "nvidia:nvidia_close", "nvidia:nvidia_mmap",
				    "nvidia:nvidia_unlocked_ioctl", "nvidia:nvidia_close_deferred",
				    "nvidia:nvidia_vma_open", "nvidia:nvidia_vma_release",
				    "nvidia:rm_cleanup_file_private", "nvidia:nvkms_open", "nvidia:nvkms_close",
				    "nvidia:nv_cap_drv_open", "nvidia_uvm:uvm_open_entry",
				    "nvidia_uvm:uvm_release_entry", "nvidia_uvm:uvm_mmap_entry",
				    "nvidia_uvm:uvm_release_deferred", "nvidia_uvm:uvm_va_space_destroy" };
	bool placed = true;
	int gpu;

	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		char event[128];

		snprintf(event, sizeof(event), "p:standin/p%zu %s\n", i, functions[i]);
		if (write_text(EVENTS, event))
			continue;
		placed = false;
		fact(false, "a kprobe at %s: %s", functions[i], strerror(errno));
	}
	fact(placed, "kprobes find the entry points by name");
	write_text("/sys/kernel/tracing/events/standin/enable", "1");
	gpu = open_gpu(0);
	close(gpu);
	write_text("/sys/kernel/tracing/events/standin/enable", "0");
	fact(strstr(text_of("/sys/kernel/tracing/trace"), "nvidia_open") != NULL &&
		     strstr(text_of("/sys/kernel/tracing/trace"), "nvidia_close") != NULL,
	     "and are hit");
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		char event[64];

		snprintf(event, sizeof(event), "-:standin/p%zu\n", i);
		write_text(EVENTS, event);
	}
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	setpgid(0, 0);
	if (!load("/vm/driver/nvidia.ko") || !load("/vm/driver/nvidia_uvm.ko")) {
		perror("cannot load the driver");
		return 2;
	}
	devices_and_proc_files();
	modules_count_their_users();
	memory_belongs_to_the_ctl_file();
	exported_memory_belongs_to_nobody();
	uvm_holds_memory_too();
	devices_can_be_mapped();
	a_release_can_hang();
	a_close_can_be_deferred();
	an_open_and_an_ioctl_can_hang_or_fail();
	memory_can_leak();
	entry_points_can_be_probed();
	/* nvidia-modeset was left open above. */
	closefrom(3);
	fact(unload("nvidia_uvm") == 0 && unload("nvidia") == 0, "the driver unloads in the end");
	printf("%d facts do not hold\n", failures);
	return failures != 0;
}
