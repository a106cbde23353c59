// SPDX-License-Identifier: GPL-2.0
/* /dev/nvidia-modeset, which the real driver has in a module of its own. */
#include <linux/init.h>

#include "driver.h"

static struct cdev nvkms_device_cdev;

static noinline int nvkms_open(struct inode *inode, struct file *file)
{
	struct standin_device *device = &standin_devices[TARGET_MODESET];
	int error;

	atomic_inc(&device->opening);
	standin_point(TARGET_MODESET, POINT_OPEN, false);
	error = READ_ONCE(device->fail_open);
	if (!error)
		atomic_inc(&device->open);
	atomic_dec(&device->opening);
	return error;
}

static noinline int nvkms_close(struct inode *inode, struct file *file)
{
	struct standin_device *device = &standin_devices[TARGET_MODESET];

	atomic_dec(&device->open);
	atomic_inc(&device->releasing);
	standin_point(TARGET_MODESET, POINT_RELEASE, false);
	atomic_dec(&device->releasing);
	return 0;
}

static int nvkms_mmap(struct file *file, struct vm_area_struct *vma)
{
	return -EPERM;
}

static const struct file_operations nvkms_fops = {
	.owner = THIS_MODULE,
	.open = nvkms_open,
	.release = nvkms_close,
	.mmap = nvkms_mmap,
	.llseek = noop_llseek,
};

int nvkms_register_chrdev(void)
{
	return nv_register_chrdev(NV_MODESET_MINOR, 1, &nvkms_device_cdev, "nvidia-modeset", &nvkms_fops);
}

void nvkms_unregister_chrdev(void)
{
	nv_unregister_chrdev(NV_MODESET_MINOR, 1, &nvkms_device_cdev);
}
