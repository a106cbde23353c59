// SPDX-License-Identifier: GPL-2.0
/* The files under /proc/driver/nvidia that say what GPUs there are. */
#include <linux/errno.h>
#include <linux/init.h>
#include <linux/proc_fs.h>

#include "driver.h"

static struct proc_dir_entry *directory;

static int version_show(struct seq_file *out, void *unused)
{
	seq_puts(out, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " STANDIN_VERSION
		      "  Release Build  (stand-in)\n");
	seq_puts(out, "GCC version:  stand-in\n");
	return 0;
}

static int information_show(struct seq_file *out, void *unused)
{
	unsigned int minor = (unsigned long)out->private;
	const struct standin_gpu *gpu = &standin_gpus[minor];

	seq_puts(out, "Model: \t\t NVIDIA H200\n");
	seq_printf(out, "IRQ:   \t\t %u\n", 64 + minor);
	seq_printf(out, "GPU UUID: \t %s\n", gpu->uuid);
	seq_puts(out, "Video BIOS: \t 96.00.00.00.00\n");
	seq_puts(out, "Bus Type: \t PCIe\n");
	seq_puts(out, "DMA Size: \t 52 bits\n");
	seq_puts(out, "DMA Mask: \t 0xfffffffffffff\n");
	seq_printf(out, "Bus Location: \t %s\n", gpu->bus_id);
	seq_printf(out, "Device Minor: \t %u\n", minor);
	seq_puts(out, "GPU Firmware: \t " STANDIN_VERSION "\n");
	seq_puts(out, "GPU Excluded:\t No\n");
	return 0;
}

static int capability_show(struct seq_file *out, void *unused)
{
	unsigned int minor = (unsigned long)out->private;

	seq_printf(out, "DeviceFileMinor: %u\n", minor);
	seq_puts(out, "DeviceFileMode: 256\nDeviceFileModify: 1\n");
	return 0;
}

static bool make_gpu(struct proc_dir_entry *gpus, unsigned long minor)
{
	struct proc_dir_entry *gpu = proc_mkdir(standin_gpus[minor].bus_id, gpus);

	return gpu && proc_create_single_data("information", 0444, gpu, information_show, (void *)minor);
}

static bool make_capabilities(void)
{
	struct proc_dir_entry *capabilities = proc_mkdir("capabilities", directory);
	struct proc_dir_entry *mig = capabilities ? proc_mkdir("mig", capabilities) : NULL;

	return mig && proc_create_single_data("config", 0400, mig, capability_show, (void *)1UL) &&
	       proc_create_single_data("monitor", 0444, mig, capability_show, (void *)2UL);
}

int nv_procfs_init(void)
{
	struct proc_dir_entry *gpus;
	unsigned long minor;

	directory = proc_mkdir("driver/nvidia", NULL);
	if (!directory)
		return -ENOMEM;
	gpus = proc_mkdir("gpus", directory);
	if (!gpus || !proc_create_single("version", 0444, directory, version_show) || !make_capabilities())
		goto failed;
	for (minor = 0; minor < NV_GPUS; minor++)
		if (!make_gpu(gpus, minor))
			goto failed;
	return 0;
failed:
	proc_remove(directory);
	return -ENOMEM;
}

void nv_procfs_exit(void)
{
	proc_remove(directory);
}
