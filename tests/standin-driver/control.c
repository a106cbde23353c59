// SPDX-License-Identifier: GPL-2.0
/*
 * /proc/driver/standin-nvidia/: `control` takes one command a line and shows the knobs that are not at
 * rest, `files` is the true number of files in each state, `memory` is what the stand-in NVML answers from.
 */
#include <linux/ctype.h>
#include <linux/errno.h>
#include <linux/init.h>
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "driver.h"

#define MAX_COMMANDS 4096
#define MAX_WORDS 4
#define MAX_ERRNO_KNOB 4095

static struct proc_dir_entry *directory;

static const char *const point_names[POINTS] = { "open", "release", "ioctl" };
static const char *const mode_names[MODES] = { "off", "block", "spin", "block-locked", "spin-locked" };

static void target_name(unsigned int target, char *name, size_t size)
{
	static const char *const shared[TARGETS - NV_GPUS] = { "ctl", "modeset", "uvm" };

	if (target < NV_GPUS)
		snprintf(name, size, "%u", target);
	else
		strscpy(name, shared[target - NV_GPUS], size);
}

/* ---- commands ---- */

static int set_point(unsigned int target, enum standin_point point, const char *value)
{
	int mode = match_string(mode_names, MODES, value);

	if (mode < 0)
		return -EINVAL;
	standin_set_mode(target, point, mode);
	return 0;
}

/* A number, or `off` for what turns the knob off. */
static int number_or_off(const char *value, int off, int most, int *number)
{
	if (!strcmp(value, "off")) {
		*number = off;
		return 0;
	}
	return kstrtoint(value, 10, number) || *number < 0 || *number > most ? -EINVAL : 0;
}

static int set_device_knob(const char *knob, unsigned int target, const char *value)
{
	int point = match_string(point_names, POINTS, knob);
	int number;

	if (point >= 0)
		return set_point(target, point, value);
	if (!strcmp(knob, "fail-open")) {
		if (number_or_off(value, 0, MAX_ERRNO_KNOB, &number))
			return -EINVAL;
		WRITE_ONCE(standin_devices[target].fail_open, -number);
		return 0;
	}
	if (!strcmp(knob, "defer-close")) {
		/* The real driver finishes a close of nvidiactl in the task that closes. */
		if (target == TARGET_CTL || number_or_off(value, -1, 3600 * 1000, &number))
			return -EINVAL;
		WRITE_ONCE(standin_devices[target].defer_ms, number);
		return 0;
	}
	return -EINVAL;
}

static int set_device_knobs(const char *knob, const char *where, const char *value)
{
	bool all = !strcmp(where, "all");
	unsigned int target;

	for (target = 0; target < (all ? NV_GPUS : TARGETS); target++) {
		char name[8];
		int error;

		target_name(target, name, sizeof(name));
		if (!all && strcmp(name, where))
			continue;
		error = set_device_knob(knob, target, value);
		if (error || !all)
			return error;
	}
	return all ? 0 : -ENODEV;
}

static int set_gpu_memory(const char *knob, const char *minor_word, const char *mib_word)
{
	u32 minor, mib;

	if (kstrtou32(minor_word, 10, &minor) || kstrtou32(mib_word, 10, &mib))
		return -EINVAL;
	return !strcmp(knob, "leak") ? rm_set_leak(minor, mib) : rm_set_baseline(minor, mib);
}

/* A reference to this module that is no open file's. */
static atomic_t kernel_client = ATOMIC_INIT(0);

static void set_kernel_client(bool on)
{
	if (atomic_xchg(&kernel_client, on) == on)
		return;
	if (on)
		__module_get(THIS_MODULE);
	else
		module_put(THIS_MODULE);
}

static int run_words(char **words, unsigned int count)
{
	u32 minor;

	if (count == 1 && !strcmp(words[0], "wake")) {
		standin_wake_hung();
		return 0;
	}
	if (count == 1 && !strcmp(words[0], "clear")) {
		WRITE_ONCE(standin_memory_waits, false);
		set_kernel_client(false);
		standin_clear_points();
		return 0;
	}
	if (count == 2 && !strcmp(words[0], "reset"))
		return kstrtou32(words[1], 10, &minor) ? -EINVAL : rm_reset(minor);
	if (count == 2 && !strcmp(words[0], "memory-waits")) {
		if (strcmp(words[1], "on") && strcmp(words[1], "off"))
			return -EINVAL;
		WRITE_ONCE(standin_memory_waits, !strcmp(words[1], "on"));
		return 0;
	}
	if (count == 2 && !strcmp(words[0], "kernel-client")) {
		if (strcmp(words[1], "on") && strcmp(words[1], "off"))
			return -EINVAL;
		set_kernel_client(!strcmp(words[1], "on"));
		return 0;
	}
	if (count == 3 && (!strcmp(words[0], "leak") || !strcmp(words[0], "baseline")))
		return set_gpu_memory(words[0], words[1], words[2]);
	if (count == 3)
		return set_device_knobs(words[0], words[1], words[2]);
	return -EINVAL;
}

static int run_line(char *line)
{
	char *words[MAX_WORDS];
	unsigned int count = 0;
	char *word;

	while ((word = strsep(&line, " \t")) != NULL) {
		if (!*word)
			continue;
		if (count == MAX_WORDS)
			return -EINVAL;
		words[count++] = word;
	}
	return count ? run_words(words, count) : 0;
}

static ssize_t control_write(struct file *file, const char __user *from, size_t size, loff_t *offset)
{
	char *commands, *rest, *line;
	int error = 0;

	if (size > MAX_COMMANDS)
		return -E2BIG;
	commands = memdup_user_nul(from, size);
	if (IS_ERR(commands))
		return PTR_ERR(commands);
	rest = commands;
	while (!error && (line = strsep(&rest, "\n")) != NULL)
		error = run_line(line);
	kfree(commands);
	return error ? error : size;
}

/* ---- what is shown ---- */

static int control_show(struct seq_file *out, void *unused)
{
	unsigned int target, point;
	char name[8];

	for (target = 0; target < TARGETS; target++) {
		const struct standin_device *device = &standin_devices[target];

		target_name(target, name, sizeof(name));
		for (point = 0; point < POINTS; point++)
			if (READ_ONCE(device->mode[point]) != MODE_OFF)
				seq_printf(out, "%s %s %s\n", point_names[point], name,
					   mode_names[READ_ONCE(device->mode[point])]);
		if (READ_ONCE(device->fail_open))
			seq_printf(out, "fail-open %s %d\n", name, -READ_ONCE(device->fail_open));
		if (READ_ONCE(device->defer_ms) >= 0)
			seq_printf(out, "defer-close %s %d\n", name, READ_ONCE(device->defer_ms));
	}
	if (READ_ONCE(standin_memory_waits))
		seq_puts(out, "memory-waits on\n");
	if (atomic_read(&kernel_client))
		seq_puts(out, "kernel-client on\n");
	return 0;
}

static int files_show(struct seq_file *out, void *unused)
{
	unsigned int target;
	char name[8];

	for (target = 0; target < TARGETS; target++) {
		struct standin_device *device = &standin_devices[target];

		target_name(target, name, sizeof(name));
		seq_printf(out, "%s opening %d open %d releasing %d deferred %d maps %d\n", name,
			   atomic_read(&device->opening), atomic_read(&device->open),
			   atomic_read(&device->releasing), atomic_read(&device->deferred),
			   atomic_read(&device->maps));
	}
	return 0;
}

static int memory_show(struct seq_file *out, void *unused)
{
	rm_show_table(out);
	return 0;
}

static int control_open(struct inode *inode, struct file *file)
{
	return single_open(file, control_show, NULL);
}

static const struct proc_ops control_ops = {
	.proc_open = control_open,
	.proc_read = seq_read,
	.proc_write = control_write,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
};

int standin_control_init(void)
{
	directory = proc_mkdir("driver/standin-nvidia", NULL);
	if (!directory)
		return -ENOMEM;
	if (proc_create("control", 0600, directory, &control_ops) &&
	    proc_create_single("files", 0444, directory, files_show) &&
	    proc_create_single("memory", 0444, directory, memory_show))
		return 0;
	proc_remove(directory);
	return -ENOMEM;
}

void standin_control_exit(void)
{
	proc_remove(directory);
}
